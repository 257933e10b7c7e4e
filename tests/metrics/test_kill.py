"""The metrics service killed in the middle of writing: no gap, nothing twice."""

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics.report import EXPERIMENT, draft, line, logs, metrics, row
from rung.ledger import Draft
from rung.ledger.sqlite import SqliteLedger
from rung.metrics import SeriesStore, Settings, serve
from rung.metrics.engine import Tables

_KEEPER = Path(__file__).with_name("keeper.py")
_EVENTS = 600
_STEPS = 4
_KILLS = 5


def _drafts() -> list[Draft]:
    drafts: list[Draft] = []
    for number in range(_EVENTS):
        trial, batch = number % 3, number // 3
        steps = range(batch * _STEPS, (batch + 1) * _STEPS)
        rows = [row(step, loss=trial + 1 / (step + 1)) for step in steps]
        printed = [line(f"step {step}", step) for step in steps]
        drafts += [
            draft(metrics(rows, trial=trial), 2 * number),
            draft(logs(printed, trial=trial), 2 * number + 1),
        ]
    return drafts


async def _feed(ledger: SqliteLedger, drafts: Iterator[Draft], enough: asyncio.Event) -> None:
    while not enough.is_set() and (item := next(drafts, None)):
        await ledger.append([item])


async def _kill_a_keeper(
    ledger: SqliteLedger, folder: Path, drafts: Iterator[Draft], after_s: float
) -> None:
    keeper = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_KEEPER),
        str(folder / "ledger"),
        str(folder / "series"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert keeper.stdout
    assert await keeper.stdout.readline() == b"open\n"
    enough = asyncio.Event()
    feeding = asyncio.create_task(_feed(ledger, drafts, enough))
    await asyncio.wait([feeding], timeout=after_s)
    keeper.kill()
    assert await keeper.wait() == -9
    enough.set()
    await feeding


def _stored(engine: Tables) -> int:
    rows = engine.rows("SELECT toInt64(sum(position)) FROM positions FINAL", tuple[int])
    return rows[0][0]


@pytest.mark.e2e
async def test_kills_while_writing_leave_no_gap_and_nothing_twice(tmp_path: Path) -> None:
    """After kills at random moments while agents report, every row is there exactly once."""
    chance = random.Random(7)  # noqa: S311 - a test's own chance
    ledger = await SqliteLedger.open(tmp_path / "ledger", partitions=2)
    drafts = iter(_drafts())
    for _ in range(_KILLS):
        await _kill_a_keeper(ledger, tmp_path, drafts, chance.uniform(0.01, 0.3))
    await ledger.append(list(drafts))

    store = SeriesStore(tmp_path / "series", ledger_id=ledger.id)
    before_rest = await store._run(_stored)
    serving = asyncio.create_task(serve(ledger, store, Settings(flush_seconds=0.01)))
    async with asyncio.timeout(60):
        while await store._run(_stored) < 2 * _EVENTS:  # noqa: ASYNC110 - a thread gets there
            await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.wait([serving])

    assert 0 < before_rest < 2 * _EVENTS, "the kills fell outside of the writing"
    assert await store.overlay(EXPERIMENT, "training", "loss", 10_000) == {
        f"{EXPERIMENT}.{trial}": [
            (step, trial + 1 / (step + 1), 1_000 + step) for step in range(_EVENTS * _STEPS // 3)
        ]
        for trial in range(3)
    }
    lines, _ = await store.logs(
        experiment_id=EXPERIMENT,
        trial_id=None,
        rank=None,
        level=None,
        text=None,
        since_ms=None,
        until_ms=None,
        after=None,
        limit=50_000,
    )
    assert sorted((entry.trial_id, entry.time_ms) for entry in lines) == sorted(
        (f"{EXPERIMENT}.{trial}", step)
        for trial in range(3)
        for step in range(_EVENTS * _STEPS // 3)
    )
    await store.close()
    await ledger.close()
