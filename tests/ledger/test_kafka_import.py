"""`rung ledger import` into a ledger on Kafka, killed by SIGKILL and resumed."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from rung.cli.operations.cluster.replicas import running_on
from rung.cli.operations.components import audit_all
from rung.events import LedgerError
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger import Ledger
from rung.ledger.export.import_record import imports_of
from rung.runtime.assignment.faust_application import open_assignment
from rung.runtime.bootstrap import observed, open_when_ready
from support.ledger.brokers import Ground
from support.ledger.conformance import read_all
from support.ledger.history import exported, simulated

pytestmark = pytest.mark.ledger

KILLER: Final = Path(__file__).parents[1] / "cli" / "import_killer.py"
ROOTS: Final = os.pathsep.join(path for path in sys.path if path)
POINTS: Final = (1, -4, 5, -6, 3, 0)
"""Appends at which it is killed; the last run is left alone."""


def kill_at(file: Path, url: str, points: tuple[int, ...]) -> list[dict[str, Any]]:
    """Import into a ledger again and again, killed at each point; return what became of it."""
    done = subprocess.run(
        [sys.executable, str(KILLER), str(file), url, *map(str, points)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": ROOTS},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


async def ids_of(ledger: Ledger) -> list[tuple[str, str]]:
    """Return topic and id of all events of facts and decisions, sorted."""
    found = [
        (name, json.loads(record.value)["id"])
        for name in (*DECISIONS, *FACTS_OF)
        for partition in range(ledger.partitions(name))
        for record in await read_all(ledger, name, partition)
    ]
    return sorted(found)


async def test_a_killed_import_is_resumed(ground: Ground, tmp_path: Path) -> None:
    """Killed again and again it ends complete and audits; until then no service starts."""
    source = await simulated()
    file = tmp_path / "export.jsonl"
    file.write_bytes(await exported(source))
    ledger = await ground.open()
    for outcome in kill_at(file, ground.url, POINTS[:1]):
        assert outcome["killed"]
    with pytest.raises(LedgerError, match="an import into this ledger is not complete"):
        await observed(open_when_ready(ground.url))
    *killed, left = kill_at(file, ground.url, POINTS[1:])
    assert [outcome["killed"] for outcome in killed] == [True] * len(killed)
    assert (left["killed"], left["code"]) == (False, 0)
    (item,) = await imports_of(ledger)
    assert item.completed is not None
    found = await ids_of(ledger)
    assert [pair for pair in await ids_of(source) if pair not in found] == []
    verdict = await audit_all(ledger)
    assert (verdict.same, verdict.imports) == (True, [])
    assert verdict.decisions == (await audit_all(source)).decisions
    (again,) = kill_at(file, ground.url, (0,))
    assert again["code"] != 0
    opened = await observed(open_when_ready(ground.url))
    await opened.close()
    await ledger.close()


async def test_services_that_run_are_found(ground: Ground, tmp_path: Path) -> None:
    """A replica that shares partitions keeps an import from beginning; nothing is written."""
    ledger = await ground.open()
    assert await running_on(ground.url) == {}
    assignment = open_assignment(
        ground.url, service="searcher", topics=["experiments", "placements"]
    )
    held = asyncio.Event()

    async def work(_: int) -> None:
        held.set()
        await asyncio.Event().wait()

    async with assignment.joined():
        holding = asyncio.create_task(assignment.run("experiments", work))
        await asyncio.wait_for(held.wait(), 60)
        assert list(await running_on(ground.url)) == ["searcher"]
        file = tmp_path / "export.jsonl"
        file.write_bytes(await exported(await simulated()))
        (refused,) = await asyncio.to_thread(kill_at, file, ground.url, (0,))
        assert refused["code"] == 6
        assert await imports_of(ledger) == []
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    await ledger.close()
