"""Deciding on what is staged: whatever fails or is killed, what is on record follows from it."""

import asyncio
import os
import random
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rung.events import LedgerUnavailable, decode
from rung.events.allocation import AllocationLost
from rung.events.experiment import ExperimentPaused, PauseRequested
from rung.ledger import Draft, SqliteLedger, staged
from rung.ledger.sqlite.writer import Changes, Writer
from rung.runtime import PartitionFold, audit
from rung.runtime.processor.loop import _Hosted
from rung.runtime.relay import _Relaying
from runtime.staged_process import LOSSES
from runtime.tally import Tally, pause
from support.ledger.conformance import read_all, take

pytestmark = pytest.mark.ledger

PROCESS = Path(__file__).with_name("staged_process.py")
SNAPSHOT_EVERY = 3


async def check(ledger: SqliteLedger) -> set[tuple[str, int]]:
    """Hold that what is on record follows from the facts, each counted once; return these."""
    facts = await read_all(ledger, "experiments", 0)
    recorded = await read_all(ledger, "searches", 0)
    fold = PartitionFold(Tally())
    assert fold.record(recorded) == []
    for record in facts:
        fold.fold(record)
    decided = [decode(record.value) for record in recorded]
    assert len({event.id for event in decided}) == len(decided), "decided once"
    known = {decode(record.value).id for record in facts}
    assert {event.cause for event in decided} <= known, "nothing follows from what never was"
    verdict = await audit(ledger, Tally())
    assert verdict.same, verdict
    events = [decode(record.value) for record in facts]
    relayed = [(it.origin, it.sequence) for it in events if isinstance(it.data, AllocationLost)]
    pauses = sum(isinstance(event.data, ExperimentPaused) for event in decided)
    assert len(set(relayed)) <= pauses
    return {
        (it.key, it.sequence)
        for it in events
        if isinstance(it.data, PauseRequested) and it.sequence is not None
    }


async def again(run: Callable[[], Awaitable[None]]) -> None:
    """Run a loop for ever, again after each failure of the ledger."""
    while True:
        try:
            await run()
        except LedgerUnavailable:
            await asyncio.sleep(0)


async def write(ledger: SqliteLedger, key: str) -> None:
    """Append facts of a key, each again until it is there."""
    for number in range(40):
        event = pause(number, key)
        while True:
            try:
                await ledger.append([Draft.of(event)])
            except LedgerUnavailable:
                continue
            break


@pytest.mark.parametrize("fails", [2, 3, 4, 5, 7])
async def test_commits_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    """A disk that is full now and then loses nothing, and lets nothing be decided of nothing."""
    commit, calm = Writer._commit, threading.Event()
    commits = 0

    def commit_or_not(self: Writer, changes: Changes) -> None:
        nonlocal commits
        commits += 1
        if commits % fails == 0 and not calm.is_set():
            raise OSError(28, "no space")
        commit(self, changes)

    ledger = await SqliteLedger.open(tmp_path, partitions=1)
    monkeypatch.setattr(Writer, "_commit", commit_or_not)

    async def decide() -> None:
        await _Hosted(staged(ledger), Tally(), 0, SNAPSHOT_EVERY).run()

    async def bring() -> None:
        await _Relaying(staged(ledger), LOSSES, 0).run()

    loops = [asyncio.create_task(again(run)) for run in (decide, bring)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(write(ledger, key) for key in "abc"))
        calm.set()
        await take(ledger.follow("searches", 0, 0), 240)
        await take(ledger.follow("experiments", 0, 0), 240)
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    assert await check(ledger) == {(key, number) for key in "abc" for number in range(40)}
    assert await ledger.end("searches", 0) == 240
    await ledger.close()


async def test_kills(tmp_path: Path) -> None:
    """After each kill what was acknowledged is there, and what is there follows from the facts."""
    chance = random.Random(7)  # noqa: S311 - chooses the moments of the kills
    acknowledged: set[tuple[str, int]] = set()
    roots = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    for _ in range(6):
        first = str(1 + max((number for _, number in acknowledged), default=0))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROCESS),
            str(tmp_path),
            first,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        )
        assert process.stdout is not None
        lines = [await process.stdout.readline() for _ in range(chance.randrange(1, 150))]
        process.send_signal(signal.SIGKILL)
        lines += (await process.stdout.read()).splitlines(keepends=True)
        await process.wait()
        for line in lines:
            if line.startswith(b"acknowledged ") and line.endswith(b"\n"):
                _, key, number = line.split()
                acknowledged.add((key.decode(), int(number)))
        ledger = await SqliteLedger.open(tmp_path, create=False)
        assert await check(ledger) >= acknowledged
        await ledger.close()
