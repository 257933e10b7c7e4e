"""The limit of slot-hours: what is counted, when it is written, and what users see of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events import Payload, encode, fact
from rung.events.allocation import AgentJoined, AgentLost, AllocationReleased, Slot
from rung.events.experiment import (
    ExperimentEnded,
    ExperimentSubmitted,
    LimitReached,
    ResourcesRequested,
    SlotTimeCounted,
)
from rung.events.topic import POOLS
from rung.events.trial import RunRequested, RunSpec
from rung.gateway.limit_watch import LimitWatch
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.projections.usage import HOUR_MS
from rung.ledger import Draft, Record
from rung.runtime import FactWriter, PartitionFold
from rung.runtime.fact_writer import CLOCK
from rung.scheduler.processor import Scheduler
from support.gateway.client import Client
from support.gateway.scenario import EXPERIMENT, submitted

POOL = "default"
OTHER = "bbbb2222"


class Hours:
    """A ledger with one experiment, a projection of it, and a clock that stands still."""

    def __init__(self, world: World, models: ReadModels) -> None:
        self.world = world
        self.models = models
        self.hour = 0.0
        self._written = self._of_pool = 0
        self._pool = PartitionFold(Scheduler())
        CLOCK.set(lambda: self.hour * 3_600)
        self.watch = self.another()

    def another(self) -> LimitWatch:
        """Return the watch of a gateway that has just started."""
        writer = FactWriter(self.world.ledger, source="/rung/gateway", origin=f"g/{id(self)}")
        return LimitWatch(self.world.ledger, self.models, writer, after_s=0.0, every_s=0.01)

    async def write(self, *payloads: Payload) -> None:
        """Append facts of this hour, and what the scheduler decides on them."""
        for data in payloads:
            self._written += 1
            minutes = round(self.hour * 60)
            time = f"1970-01-01T{minutes // 60:02}:{minutes % 60:02}:00.000Z"
            event = fact(
                data, source="/rung/test", origin="agent/t/0", sequence=self._written, time=time
            )
            made = [event]
            if event.topic == POOLS:
                place = Record(POOLS, 0, self._of_pool, event.key, encode(event))
                made += self._pool.fold(place).new
                self._of_pool += 1
            await self.world.ledger.append([Draft.of(each) for each in made])

    async def submit(self, limit: float | None, *, name: str = EXPERIMENT) -> None:
        """Submit an experiment with a limit."""
        it: ExperimentSubmitted = submitted(name)
        it.config["resources"] = {"slots_per_trial": 2, "max_slot_hours": limit}
        await self.write(it)

    async def grant(self, trial: int, *, name: str = EXPERIMENT) -> None:
        """Have a trial get its two slots."""
        await self.write(*_granted(name, trial))

    async def release(self, trial: int) -> None:
        """Have a trial give its slots back."""
        await self.write(
            AllocationReleased(
                pool=POOL,
                allocation_id=f"{EXPERIMENT}.{trial}.1",
                agent_id="a",
                incarnation=1,
            )
        )

    async def counted(
        self, watch: LimitWatch | None = None, *, behind: bool = False
    ) -> list[tuple[str, float]]:
        """Return what a look writes, once all is folded that is on record: experiments, hours."""
        if not behind:
            ledger = self.world.ledger
            ends = {
                (name, number): await ledger.end(name, number) - 1
                for name in ("experiments", "pools", "placements")
                for number in range(ledger.partitions(name))
            }
            assert await self.models.reached(ends, wait_s=60)
        before = len(await self._facts())
        await (watch or self.watch).look()
        found = (await self._facts())[before:]
        return [(it.experiment_id, it.slot_ms / HOUR_MS) for it in found]

    async def _facts(self) -> list[SlotTimeCounted]:
        found = await self.world.all("experiments")
        return [it for it in found if isinstance(it, SlotTimeCounted)]


def _joined(incarnation: int) -> AgentJoined:
    slots = [Slot(id=number, kind="cpu", name="CPU") for number in range(4)]
    return AgentJoined(pool=POOL, agent_id="a", incarnation=incarnation, hostname="a", slots=slots)


def _granted(name: str, trial: int) -> tuple[AgentJoined, RunRequested]:
    """Return what makes the scheduler grant two slots."""
    spec = RunSpec(
        experiment_id=name,
        trial_id=f"{name}.{trial}",
        trial_index=trial,
        run=1,
        hparams={},
        seed=1,
        length=9,
        time_metric="epochs",
        restore=[],
        code_digest=None,
    )
    return (
        _joined(1),
        RunRequested(
            pool=POOL,
            reason="",
            experiment_id=name,
            slots=2,
            priority=42,
            max_slots=None,
            spec=spec,
        ),
    )


@pytest.fixture
async def hours(world: World, tmp_path: Path) -> AsyncIterator[Hours]:
    """Return an experiment of which slot time is counted."""
    models = ReadModels(world.ledger, tmp_path)
    await models.start(wait_s=60)
    yield Hours(world, models)
    await models.close()


async def test_slots_times_hours_are_counted_once(hours: Hours) -> None:
    """Of runs that ended and of one that goes on; a gateway that starts anew writes it again."""
    await hours.submit(6)
    await hours.grant(0)
    hours.hour = 2
    await hours.release(0)
    await hours.grant(1)
    hours.hour = 2.9
    assert await hours.counted() == []
    hours.hour = 3
    assert await hours.counted() == [(EXPERIMENT, 6.0)]
    hours.hour = 4
    assert await hours.counted() == []
    assert await hours.counted(hours.another()) == [(EXPERIMENT, 8.0)]


async def test_a_projection_that_is_behind_counts_nothing_that_ended(hours: Hours) -> None:
    """What the ledger holds is folded first: a release that lies there stops the count."""
    await hours.submit(6)
    await hours.grant(0)
    hours.hour = 1
    assert await hours.counted() == []  # folded so far
    await hours.release(0)
    hours.hour = 9
    assert await hours.counted(behind=True) == []


async def test_time_without_slots_does_not_count(hours: Hours) -> None:
    """Neither while it waits or is paused, nor what others use."""
    await hours.submit(6)
    await hours.submit(6, name=OTHER)
    await hours.grant(0, name=OTHER)
    hours.hour = 9
    assert await hours.counted() == [(OTHER, 18.0)]


@pytest.mark.parametrize(("seen", "used"), [(None, 20.0), (1.0, 2.0), (11.0, 20.0), (-1.0, 0.0)])
async def test_a_machine_that_was_off_used_nothing(
    hours: Hours, seen: float | None, used: float
) -> None:
    """From when its agent was last there; what it trains after its return counts as before."""
    await hours.submit(used + 2)
    await hours.grant(0)
    hours.hour = 10
    seen_ms = None if seen is None else round(seen * HOUR_MS)
    await hours.write(structs.replace(_joined(2), seen_ms=seen_ms))
    assert await hours.counted() == []
    await hours.write(*_granted(EXPERIMENT, 1)[1:])
    hours.hour = 10.9
    assert await hours.counted() == []
    await hours.write(AgentLost(pool=POOL, agent_id="a", incarnation=2, silent_ms=1), _joined(3))
    hours.hour = 20
    assert await hours.counted() == []
    await hours.write(*_granted(EXPERIMENT, 2)[1:])
    hours.hour = 20.1
    ((name, found),) = await hours.counted()
    assert (name, round(found, 6)) == (EXPERIMENT, used + 2)


async def test_a_limit_that_changes(hours: Hours) -> None:
    """Each is looked at by itself; a request that lost against another one does not count."""
    await hours.submit(None)
    await hours.grant(0)
    hours.hour = 2
    assert await hours.counted() == []
    await hours.write(ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=8.0))
    assert await hours.counted() == []
    hours.hour = 4
    assert await hours.counted() == [(EXPERIMENT, 8.0)]
    await hours.write(
        ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=1.0, version=0),
        ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=10.0, version=1),
        ResourcesRequested(experiment_id=EXPERIMENT, priority=3),
    )
    assert await hours.counted() == []
    hours.hour = 5
    assert await hours.counted() == [(EXPERIMENT, 10.0)]
    await hours.write(ResourcesRequested(experiment_id=EXPERIMENT, max_slot_hours=0.0))
    assert await hours.counted(hours.another()) == []


async def test_what_has_ended_has_none(hours: Hours) -> None:
    """Nothing is written that the searcher would pass over."""
    await hours.submit(1)
    await hours.grant(0)
    hours.hour = 2
    assert await hours.counted() == [(EXPERIMENT, 4.0)]
    await hours.write(ExperimentEnded(experiment_id=EXPERIMENT, state="completed", reason=""))
    assert await hours.counted(hours.another()) == []


def _file(limit: object) -> str:
    return EXPERIMENT_FILE + f"resources: {{max_slot_hours: {limit}}}\n"


async def test_from_the_file_to_the_end(world: World, client: Client) -> None:
    """A gateway ends it by itself; while its runs leave, state and reason say why."""
    async with world.searcher():
        name = (await client.submit(_file(0.5))).json["id"]
        path = f"/experiments/{name}"
        shown = (await client.call("GET", f"{path}/resources")).json
        assert shown["max_slot_hours"] == 0.5
        changed = await client.call("POST", f"{path}/resources", json={"max_slot_hours": 0.0005})
        assert changed.json["max_slot_hours"] == 0.0005
        async with world.scheduler():
            await world.write(*_granted(name, 0))
            found = await until(lambda: client.get(path), lambda it: it["state"] != "active")
        assert (found["state"], found["reason"]) == (
            "canceling", "its limit of 0.0005 slot-hours is reached",
        )  # fmt: skip
        late = await client.call("POST", f"{path}/resources", json={"max_slot_hours": 5})
        assert (late.status, late.kind) == (409, "ending")
        assert "ends at its limit" in late.json["detail"]
    assert any(isinstance(it, LimitReached) for it in await world.all("searches"))


@pytest.mark.parametrize(
    ("limit", "words"), [(0, "above 0"), (-1, "above 0"), (".inf", "finite"), ("x", "number")]
)
async def test_what_is_no_limit_is_refused(
    world: World, client: Client, limit: object, words: str
) -> None:
    """With the path of the field."""
    answer = await client.submit(_file(limit))
    assert (answer.status, answer.kind) == (422, "invalid-experiment")
    [problem] = answer.json["errors"]
    assert problem["path"] == "resources.max_slot_hours"
    assert words in problem["message"]


@pytest.mark.parametrize("wanted", [-1, "x", 1e12])
async def test_a_change_to_what_is_no_limit_is_refused(
    world: World, client: Client, wanted: Any
) -> None:
    """With the field."""
    name = (await client.submit(EXPERIMENT_FILE)).json["id"]
    path = f"/experiments/{name}/resources"
    answer = await client.call("POST", path, json={"max_slot_hours": wanted})
    assert (answer.status, "max_slot_hours" in answer.json["detail"]) == (422, True)


async def test_a_ledger_that_was_away_is_looked_at_again(hours: Hours) -> None:
    """The loop goes on by itself."""
    await hours.submit(1)
    await hours.grant(0)
    hours.hour = 1
    task = asyncio.create_task(hours.watch.run())
    try:
        await until(
            lambda: hours.world.all("experiments"),
            lambda found: any(isinstance(it, SlotTimeCounted) for it in found),
        )
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
