"""The read models on a ledger: caught up at the start, live, and unshaken by trouble."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.conftest import World, until
from gateway.scenario import EXPERIMENT, play, submitted
from rung.events import LedgerUnavailable, partition_of, topic
from rung.events.errors import LedgerDamaged
from rung.events.experiment import CancelRequested
from rung.gateway.experiment import Experiment
from rung.gateway.views import Ambiguous, Views
from rung.ledger import Ledger, MemoryLedger, Record, SqliteLedger


@contextlib.asynccontextmanager
async def started(ledger: Ledger) -> AsyncIterator[Views]:
    """Run views on a ledger."""
    views = Views(ledger, snapshot_every=5)
    await views.start()
    yield views
    await views.close()


@pytest.mark.parametrize("seed", range(4))
async def test_live_and_recovered_are_the_same(world: World, seed: int) -> None:
    """Views that saw it happen, that came later, and that went on from a snapshot agree."""
    history = play(seed)
    async with started(world.ledger) as live:
        await world.play(history)
        async with started(world.ledger) as late:
            expected = late.experiment(EXPERIMENT)
        assert expected is not None

        async def state() -> Experiment | None:
            return live.experiment(EXPERIMENT)

        await until(state, expected.__eq__)
    async with started(world.ledger) as again:
        assert again.experiment(EXPERIMENT) == expected


async def test_on_sqlite(tmp_path: Path) -> None:
    """On the real ledger, written to by another that has it open."""
    ledger = await SqliteLedger.open(tmp_path)
    other = await SqliteLedger.open(tmp_path)
    try:
        async with started(ledger) as views:
            world = World(other, None)  # type: ignore[arg-type]
            await world.play(play(1))

            async def ended() -> bool:
                found = views.experiment(EXPERIMENT)
                return found is not None and found.ended is not None

            await until(ended, bool)
    finally:
        await ledger.close()
        await other.close()


async def test_ledger_that_fails_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views whose ledger did not answer go on where they were when it answers again."""
    async with started(world.ledger) as views:
        read = MemoryLedger.read
        failures = 0

        async def fail(
            ledger: MemoryLedger, topic: str, partition: int, position: int, limit: int
        ) -> list[Record]:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise LedgerUnavailable("not now")
            return await read(ledger, topic, partition, position, limit)

        monkeypatch.setattr(MemoryLedger, "read", fail)
        await world.write(submitted())
        partition = partition_of(EXPERIMENT, world.ledger.partitions("experiments"))
        position = await world.ledger.end("experiments", partition) - 1
        seen = await views.seen("experiments", EXPERIMENT, position, wait_s=10)

    assert seen
    assert failures == 3


async def test_ledger_that_fails_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that does not pass by itself is passed on."""
    async with started(world.ledger) as views:

        async def fail(*arguments: object) -> Sequence[Record]:
            raise LedgerDamaged("the file is truncated")

        monkeypatch.setattr(MemoryLedger, "read", fail)
        await world.write(submitted())
        async with asyncio.timeout(10):
            with pytest.raises(LedgerDamaged):
                await views.failed()
        monkeypatch.undo()


async def test_seen_gives_up(world: World) -> None:
    """Waiting for what never comes ends, and says so."""
    async with started(world.ledger) as views:
        assert not await views.seen("experiments", EXPERIMENT, 5, wait_s=0.01)


async def test_experiment_without_submission_is_none(world: World) -> None:
    """Facts about an experiment that nobody submitted show nothing."""
    await world.write(CancelRequested(experiment_id=EXPERIMENT))
    async with started(world.ledger) as views:
        assert views.experiment(EXPERIMENT) is None
        assert views.find_experiment(EXPERIMENT) is None
        assert views.newest_first() == []


async def test_beginnings_of_ids(world: World) -> None:
    """A whole id wins over those that it is the beginning of; nothing is the beginning of none."""
    for name in ("abc", "abcd", "xyz"):
        await world.write(submitted(name))
    async with started(world.ledger) as views:
        exact, short = views.find_experiment("abc"), views.find_experiment("x")
        assert exact is not None
        assert short is not None
        assert (exact.id, short.id) == ("abc", "xyz")
        assert views.find_experiment("") is None
        with pytest.raises(Ambiguous, match="abc, abcd"):
            views.find_experiment("ab")


async def test_starts_lie_before_an_experiment(world: World) -> None:
    """A stream that begins at the start positions misses nothing of the experiment."""
    for number in range(20):
        await world.write(submitted(f"{number:08}"))
    await world.write(submitted())
    async with started(world.ledger) as views:
        starts = views.starts(EXPERIMENT)
    partition = partition_of(EXPERIMENT, world.ledger.partitions(topic.EXPERIMENTS))
    records = await world.ledger.read(topic.EXPERIMENTS, partition, 0, 1000)
    first = next(record.position for record in records if record.key == EXPERIMENT)

    assert starts[topic.EXPERIMENTS] == first
    assert starts[topic.SEARCHES] == 0
