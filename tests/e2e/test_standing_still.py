"""An experiment that stands still on a running server: releases, requests, restarts."""

import collections
import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.installation import Installation
from support.user import config, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
LONG = {"name": "random", "max_trials": 1, "max_length": {"batches": 1_000_000}}
RELEASE = Path(__file__).parent / "release" / "release.py"


@contextlib.contextmanager
def broken_for(experiment: str, installation: Installation) -> Iterator[None]:
    """Run a release on an installation that rejects a pause of an experiment."""
    environment = {
        "RUNG_DATA": str(installation.folder),
        "RUNG_UNATTENDED": "0",
        "RUNG_AGENT_COLD": "1",
        "BROKEN": experiment,
    }
    command = [sys.executable, str(RELEASE), "up", "--port", "0", "--slots", "1"]
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL) as it:
        try:
            wait_for((installation.folder / "server.json").exists, "the release runs")
            wait_for(lambda: installation.get_or_none("/status"), "the release answers")
            yield
            installation.down()
            assert it.wait(60) == 0
        finally:
            it.kill()


def letters(installation: Installation) -> list[dict[str, Any]]:
    """Return the dead letters of the searcher."""
    items = json.loads(installation.rung("deadletter", "list", "--all", "--json").stdout)["items"]
    return [each for each in items if each["reader"] == "searcher"]


def state(installation: Installation, experiment: str) -> str:
    """Return the state that is shown."""
    return str(installation.get(f"/experiments/{experiment}")["state"])


def decided(installation: Installation, experiment: str) -> collections.Counter[tuple[int, int]]:
    """Return how often there is a decision of each cause on record."""
    shown = installation.rung("ledger", "show", experiment, "--topic", "searches", "--json").stdout
    events = map(json.loads, shown.splitlines())
    return collections.Counter((it["causeposition"], it["causeindex"]) for it in events)


def test_it_goes_on_by_a_retry_alone_whatever_release_runs(installation: Installation) -> None:
    """A rejection stays one under a release without the fault, and after a rollback.

    Once the fact is taken, neither a late drop nor a restart, with snapshots or without, changes
    what is on record or what follows from it.
    """
    experiment = installation.submit(config("long", LONG))
    wait_for(lambda: state(installation, experiment) == "active", "it runs")
    installation.down()
    with broken_for(experiment, installation):
        installation.rung("pause", experiment)
        [rejected] = wait_for(lambda: letters(installation), "the pause was rejected")
        assert "a fault of this release" in rejected["reason"]
    installation.up()
    assert [each["state"] for each in letters(installation)] == ["open"]
    installation.down()
    with broken_for(experiment, installation):
        assert [each["state"] for each in letters(installation)] == ["open"]
        installation.rung("deadletter", "retry", rejected["id"])
        [again] = wait_for(
            lambda: [it for it in letters(installation) if it["at"] != rejected["at"]],
            "it was tried in vain",
        )
        assert again["state"] == "open"
    installation.up()
    installation.rung("deadletter", "retry", rejected["id"])
    wait_for(lambda: state(installation, experiment) == "paused", "it was taken")
    assert [each["state"] for each in letters(installation)] == ["taken"]
    late = installation.rung("deadletter", "drop", rejected["id"], "--yes", check=False)
    assert late.returncode == 6
    assert "taken after all" in late.stderr
    on_record = decided(installation, experiment)
    for with_snapshots in (True, False):
        installation.down()
        if not with_snapshots:
            with (
                contextlib.closing(
                    sqlite3.connect(installation.folder / "ledger/ledger.db")
                ) as db,
                db,
            ):
                db.execute("DELETE FROM snapshots")
        installation.up()
        installation.rung("audit", experiment)
        assert decided(installation, experiment) == on_record
        assert set(on_record.values()) == {1}
        assert state(installation, experiment) == "paused"
    installation.rung("resume", experiment)
    wait_for(lambda: state(installation, experiment) == "active", "it goes on")
    installation.rung("kill", experiment)
    assert installation.ended(experiment)["state"] == "canceled"
    installation.rung("audit", experiment)
