"""The projections on a ledger: caught up at the start, live, and unshaken by trouble."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.conftest import World, until
from rung.events import LedgerUnavailable, partition_of, topic
from rung.events.errors import LedgerDamaged
from rung.events.experiment import CancelRequested
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection, Selection
from rung.gateway.projections.read_models import Ambiguous, ReadModels
from rung.ledger import Ledger, MemoryLedger, Record, SqliteLedger
from rung.runtime.projection.merge import starts_of
from support.gateway.scenario import EXPERIMENT, play, submitted


@contextlib.asynccontextmanager
async def started(ledger: Ledger, folder: Path | None = None) -> AsyncIterator[ReadModels]:
    """Run the projections on a ledger."""
    models = ReadModels(ledger, folder)
    await models.start(wait_s=20)
    yield models
    await models.close()


@pytest.mark.parametrize("seed", range(4))
async def test_live_and_recovered_are_the_same(world: World, tmp_path: Path, seed: int) -> None:
    """Those that saw it happen, that came later, and that went on from their files agree."""
    history = play(seed)
    async with started(world.ledger, tmp_path) as live:
        await world.play(history)
        async with started(world.ledger) as late:
            expected = await late.experiment(EXPERIMENT)
        assert expected is not None

        async def state() -> Experiment | None:
            return await live.experiment(EXPERIMENT)

        await until(state, expected.__eq__)
    async with started(world.ledger, tmp_path) as again:
        assert await again.experiment(EXPERIMENT) == expected


async def test_on_sqlite(tmp_path: Path) -> None:
    """On the real ledger, written to by another that has it open."""
    ledger = await SqliteLedger.open(tmp_path)
    other = await SqliteLedger.open(tmp_path)
    try:
        async with started(ledger) as models:
            world = World(other, None)  # type: ignore[arg-type]
            await world.play(play(1))

            async def ended() -> bool:
                found = await models.experiment(EXPERIMENT)
                return found is not None and found.ended is not None

            await until(ended, bool)
    finally:
        await ledger.close()
        await other.close()


async def test_ledger_that_fails_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views whose ledger did not answer go on where they were when it answers again."""
    async with started(world.ledger) as models:
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
        reached = await models.reached({("experiments", partition): position}, wait_s=10)

    assert reached
    assert failures == 3


async def test_ledger_that_fails_for_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that does not pass by itself is passed on."""
    async with started(world.ledger) as models:

        async def fail(*arguments: object) -> Sequence[Record]:
            raise LedgerDamaged("the file is truncated")

        monkeypatch.setattr(MemoryLedger, "read", fail)
        await world.write(submitted())
        async with asyncio.timeout(10):
            with pytest.raises(LedgerDamaged):
                await models.failed()
        monkeypatch.undo()


async def test_reached_gives_up(world: World) -> None:
    """Waiting for what never comes ends, and says so."""
    async with started(world.ledger) as models:
        assert not await models.reached({("experiments", 0): 5}, wait_s=0.01)


async def test_experiment_without_submission_is_none(world: World) -> None:
    """Facts about an experiment that nobody submitted show nothing."""
    await world.write(CancelRequested(experiment_id=EXPERIMENT))
    async with started(world.ledger) as models:
        assert await models.experiment(EXPERIMENT) is None
        assert await models.find_id(EXPERIMENT) is None
        assert await models.experiments(Selection()) == []
        assert models.count_experiments() == {}


async def test_beginnings_of_ids(world: World) -> None:
    """A whole id wins over those that it is the beginning of; nothing is the beginning of none."""
    for name in ("abc", "abcd", "xyz"):
        await world.write(submitted(name))
    async with started(world.ledger) as models:
        exact, short = await models.find_id("abc"), await models.find_id("x")
        assert (exact, short) == ("abc", "xyz")
        assert await models.find_id("") is None
        with pytest.raises(Ambiguous, match="abc, abcd"):
            await models.find_id("ab")


async def test_starts_lie_before_an_experiment(world: World) -> None:
    """A stream that begins at the start positions misses nothing of the experiment."""
    for number in range(20):
        await world.write(submitted(f"{number:08}"))
    await world.write(submitted())
    async with started(world.ledger) as models:
        starts = await models.read(ExperimentProjection, starts_of, EXPERIMENT)
    partition = partition_of(EXPERIMENT, world.ledger.partitions(topic.EXPERIMENTS))
    records = await world.ledger.read(topic.EXPERIMENTS, partition, 0, 1000)
    first = next(record.position for record in records if record.key == EXPERIMENT)

    assert starts[topic.EXPERIMENTS] == first
    assert starts[topic.SEARCHES] == 0
