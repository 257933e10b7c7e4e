"""What users delete is gone and nothing else is, also where `rung up` is killed amid it."""

import asyncio
import json
import random
import secrets
import shutil
import sqlite3
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rung.ledger import SqliteLedger
from rung.metrics.store import SeriesStore
from support.installation import Installation, files_below
from support.user import config, wait_for

SEARCH = {"name": "grid", "max_length": {"batches": 6}}
FAST = {"limit": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 4}, "pause_s": 0.0}


def _ask(installation: Installation, path: str) -> None:
    url, token = installation.server
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": secrets.token_hex(8)}
    request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
        f"{url}/api/v1{path}", headers=headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - as above
        assert answer.status == 202


def _kind(installation: Installation, experiment: str) -> str:
    """Return the kind of the problem that an experiment is answered with; empty: it is shown."""
    try:
        installation.get(f"/experiments/{experiment}")
    except urllib.error.HTTPError as error:
        return str(json.load(error).get("type", "")).rpartition(":")[2]
    except (OSError, ValueError):
        return "unreachable"
    return ""


def _objects(installation: Installation, experiment: str) -> list[str]:
    folder = installation.folder / "objects" / "checkpoints" / experiment
    return [str(path) for path in files_below(folder)]


def _names(installation: Installation, experiment: str) -> list[tuple[str, str]]:
    """Return the metrics of an experiment, of an installation that does not run."""

    async def read() -> list[tuple[str, str]]:
        ledger = await SqliteLedger.open(installation.folder / "ledger")
        store = SeriesStore(installation.folder / "series", ledger_id=ledger.id)
        try:
            return await store.names(experiment)
        finally:
            await store.close()
            await ledger.close()

    return asyncio.run(read())


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_killed_amid_deletions(installation: Installation, tmp_path: Path) -> None:
    """Whatever was answered is done after the next start; what was not asked for is untouched.

    An export of the ledger then brings a record without what is deleted.
    """
    chance = random.Random(7)  # noqa: S311 - repeatable, not secret
    ids = [
        installation.submit(config(f"n{number}", SEARCH, hyperparameters=FAST))
        for number in range(2)
    ]
    _end(installation, *ids)
    kept, gone = ids[0], ids[1:]
    before = {name: _objects(installation, name) for name in ids}
    assert all(before.values())
    for name in gone:
        _ask(installation, f"/experiments/{name}/delete?now=true")
        time.sleep(chance.uniform(0, 0.05))  # a random moment of its deletion
        installation.kill_server()
        installation.up()
        wait_for(lambda: _kind(installation, name) == "deleted", f"{name} is deleted")  # noqa: B023 - called here
        assert _objects(installation, name) == []
    assert _objects(installation, kept) == before[kept]
    listed = installation.get("/experiments")["items"]
    assert [item["id"] for item in listed] == [kept]
    installation.rung("audit")
    installation.rung("verify")
    best = installation.get(f"/experiments/{kept}/best")["checkpoint"]["id"]
    installation.rung("download", best, "--output", str(tmp_path / "best"))
    wait_for(lambda: not installation.get("/deadletters")["items"], "no dead letters")

    file = str(tmp_path / "ledger.jsonl")
    installation.down()
    assert [_names(installation, name) for name in gone] == [[]] * len(gone)
    assert _names(installation, kept)
    installation.rung("ledger", "export", "--output", file)
    new = Installation(tmp_path / "new")
    new.rung("ledger", "import", file)
    shutil.copytree(installation.folder / "objects", new.folder / "objects", dirs_exist_ok=True)
    new.up()
    try:
        assert {_kind(new, name) for name in gone} == {"deleted"}
        assert [item["id"] for item in new.get("/experiments")["items"]] == [kept]
        new.rung("audit")
        new.rung("download", best, "--output", str(tmp_path / "again"))
        wait_for(
            lambda: new.get(f"/experiments/{kept}/metrics?kind=validation&name=loss")["curves"],
            "the curves of the other one are there",
        )
    finally:
        new.down()
    with sqlite3.connect(new.folder / "projections" / "experiments.db") as db:
        assert db.execute("SELECT count(*) FROM trials").fetchone() == (4,)


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_killed_amid_restorations(installation: Installation) -> None:
    """A deletion that is hidden, taken back, or due is so after the next start, at any moment."""
    chance = random.Random(11)  # noqa: S311 - repeatable, not secret
    name = installation.submit(config("back", SEARCH, hyperparameters=FAST))
    _end(installation, name)
    before = _shown(installation, name)
    files = _objects(installation, name)
    assert files
    _ask(installation, f"/experiments/{name}/delete")
    time.sleep(chance.uniform(0, 0.05))
    installation.kill_server()
    installation.up()
    wait_for(lambda: _kind(installation, name) == "restorable", f"{name} is hidden")
    assert _objects(installation, name) == files
    assert installation.get("/experiments")["items"] == []
    _ask(installation, f"/experiments/{name}/restore")
    time.sleep(chance.uniform(0, 0.05))
    installation.kill_server()
    installation.up()
    wait_for(lambda: not _kind(installation, name), f"{name} is back")
    assert _shown(installation, name) == before
    assert _objects(installation, name) == files
    installation.down()
    days = f"{2 / 86_400:.9f}"
    installation.rung("up", "--detach", "--port", "0", "--deletion-delay-days", days)
    asked_at = time.time()
    _ask(installation, f"/experiments/{name}/delete")
    installation.kill_server()
    assert _objects(installation, name) == files
    installation.up()
    wait_for(lambda: _kind(installation, name) == "deleted", f"{name} is deleted")
    assert time.time() - asked_at > 2
    assert _objects(installation, name) == []
    installation.rung("audit")
    assert installation.get("/experiments?deleted=true")["items"] == []


def _end(installation: Installation, *experiments: str) -> None:
    """Wait until experiments have ended and the checkpoints made superfluous by it are gone."""
    for experiment in experiments:
        installation.ended(experiment)
    installation.down()
    installation.up()  # it has decided then which checkpoints are superfluous
    for experiment in experiments:
        wait_for(lambda: _is_settled(installation, experiment), "superfluous checkpoints are gone")  # noqa: B023 - called here


def _is_settled(installation: Installation, experiment: str) -> bool:
    found = installation.get(f"/experiments/{experiment}/checkpoints")["items"]
    return all(each["state"] in {"stored", "deleted"} for each in found)


def _shown(installation: Installation, experiment: str) -> object:
    """Return what is shown of an experiment and its checkpoints."""
    paths = (f"/experiments/{experiment}", f"/experiments/{experiment}/checkpoints")
    return [installation.get(path) for path in paths]
