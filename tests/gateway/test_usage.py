"""Usage: the sums of slots against an independent count, and who sees which numbers."""

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.conftest import World, until
from rung.events import Event, Payload, encode, fact, partition_of, topic
from rung.events.allocation import (
    AgentJoined,
    AgentLost,
    AllocationGranted,
    AllocationLost,
    AllocationReleased,
    Slot,
)
from rung.events.directory import ADMIN
from rung.events.experiment import DEFAULT, ExperimentMoved
from rung.events.trial import RunRequested, RunSpec
from rung.gateway import context
from rung.gateway.directory.directory import Directory
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.projections.usage import HOUR_MS, Slots, UsageProjection, hours_of, read_slots
from rung.ledger import Draft, Record
from rung.runtime import PartitionFold
from rung.scheduler.processor import Scheduler
from support.gateway.checkpoint import FILES, store_files
from support.gateway.scenario import EXPERIMENT, play, submitted
from support.gateway.teams import ELSEWHERE, HOME, NOBODY, Member, enter, members

POOL = "gpus"
NAMES = ["aaaa1111", "bbbb2222", "cccc3333"]
START_MS = 1_767_225_600_000
"""The first moment of 2026."""


@given(st.integers(0, 10 * HOUR_MS), st.integers(-HOUR_MS, 40 * HOUR_MS))
def test_a_time_is_divided_into_hours(start_ms: int, lasts_ms: int) -> None:
    """The parts follow each other, each in its hour, and their sum is the whole."""
    found = hours_of(start_ms, start_ms + lasts_ms)
    assert sum(ms for _, ms in found) == max(0, lasts_ms)
    assert all(0 < ms <= HOUR_MS for _, ms in found)
    assert [hour for hour, _ in found] == [
        start_ms // HOUR_MS + place for place in range(len(found))
    ]


def text_of(ms: int) -> str:
    """Return a time of the first days of 2026."""
    seconds, ms = divmod(ms - START_MS, 1000)
    days, seconds = divmod(seconds, 86_400)
    return (
        f"2026-01-{1 + days:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        f".{ms:03}Z"
    )


class Held(NamedTuple):
    """Slots that an experiment held for a while; until None: it still does."""

    experiment: str
    slots: int
    since_ms: int
    until_ms: int | None


class Pool:
    """A pool with the real scheduler, whose agents come, go, and give slots back at random."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self.drafts: list[Draft] = []
        self.held: list[Held] = []
        self.now_ms = START_MS
        self.waiting: dict[str, tuple[str, int]] = {}
        self.running: dict[tuple[str, str], Held] = {}
        self._fold = PartitionFold(Scheduler())
        self._incarnations = {"n1": 0, "n2": 0}
        self._numbers = [0, 0]
        self._runs = 0

    def play(self, steps: int) -> None:
        """Have something happen so often."""
        for agent in self._incarnations:
            self._join(agent)
        for _ in range(steps):
            self.now_ms += self.chance.randrange(5 * HOUR_MS // 2)
            what = self.chance.random()
            if what < 0.5:
                self._request()
            elif what < 0.9 and self.running:
                self._release(*self.chance.choice(list(self.running)))
            elif what > 0.95:
                agent = self.chance.choice(list(self._incarnations))
                self._write(
                    AgentLost(
                        pool=POOL,
                        agent_id=agent,
                        incarnation=self._incarnations[agent],
                        silent_ms=1,
                    )
                )
                self._join(agent)
        for _ in range(4):
            self._request()

    def _join(self, agent: str) -> None:
        self._incarnations[agent] += 1
        slots = [Slot(id=number, kind="cpu", name="CPU") for number in range(4)]
        self._write(
            AgentJoined(
                pool=POOL,
                agent_id=agent,
                incarnation=self._incarnations[agent],
                hostname=agent,
                slots=slots,
            )
        )

    def _request(self) -> None:
        self._runs += 1
        experiment, slots = self.chance.choice(NAMES), self.chance.choice([1, 2, 4, 8])
        spec = RunSpec(
            experiment_id=experiment,
            trial_id=f"{experiment}.{self._runs}",
            trial_index=self._runs,
            run=1,
            hparams={},
            seed=1,
            length=9,
            time_metric="epochs",
            restore=[],
            code_digest=None,
        )
        wanted = RunRequested(
            pool=POOL,
            reason="",
            experiment_id=experiment,
            slots=slots,
            priority=42,
            max_slots=None,
            spec=spec,
        )
        self.waiting[wanted.allocation_id] = experiment, slots
        self._write(wanted)

    def _release(self, allocation: str, agent: str) -> None:
        released = AllocationReleased(
            pool=POOL,
            allocation_id=allocation,
            agent_id=agent,
            incarnation=self._incarnations[agent],
        )
        self._end(allocation, agent)
        self._write(released)

    def _end(self, allocation: str, agent: str) -> None:
        self.held.append(self.running.pop((allocation, agent))._replace(until_ms=self.now_ms))

    def _write(self, data: Payload) -> None:
        self._numbers[0] += 1
        event = fact(
            data, source="/rung/test", origin="agent/a/0", sequence=self._numbers[0],
            time=text_of(self.now_ms),
        )  # fmt: skip
        place = Record(event.topic, 0, self._numbers[0] - 1, event.key, encode(event))
        self.drafts.append(Draft.of(event))
        for decision in self._fold.fold(place).new:
            self.drafts.append(Draft.of(decision))
            self._decided(decision)

    def _decided(self, decision: Event) -> None:
        match decision.data:
            case AllocationGranted() as granted:
                experiment, _ = self.waiting.pop(granted.allocation_id)
                for share in granted.shares:
                    self.running[granted.allocation_id, share.agent_id] = Held(
                        experiment, len(share.slots), self.now_ms, None
                    )
            case AllocationLost() as lost:
                for allocation, agent in list(self.running):
                    if allocation == lost.allocation_id:
                        self._end(allocation, agent)
            case _:
                pass

    def expected(self, since_ms: int, at_ms: int) -> dict[tuple[str, str], Slots]:
        """Count by clipping each time to the period, not by hours."""
        found: dict[tuple[str, str], Slots] = {}
        homes = {NAMES[0]: (DEFAULT, "anna"), NAMES[1]: (ELSEWHERE, "bert")}
        for held in [*self.held, *self.running.values()]:
            until_ms = at_ms if held.until_ms is None else held.until_ms
            ms = held.slots * max(0, until_ms - max(held.since_ms, since_ms))
            it = found.get(homes.get(held.experiment, (ELSEWHERE, ADMIN)), Slots())
            if held.until_ms is None:
                it = it._replace(running_ms=it.running_ms + ms, running=it.running + held.slots)
            else:
                it = it._replace(used_ms=it.used_ms + ms)
            found[homes.get(held.experiment, (ELSEWHERE, ADMIN))] = it
        for experiment, slots in self.waiting.values():
            home = homes.get(experiment, (ELSEWHERE, ADMIN))
            it = found.get(home, Slots())
            found[home] = it._replace(waiting=it.waiting + slots)
        return {home: it for home, it in found.items() if it != Slots()}


def _facts() -> list[Payload]:
    """Three experiments; the last one was moved since."""
    return [
        structs.replace(submitted(NAMES[0]), owner="anna"),
        structs.replace(
            submitted(NAMES[1]), owner="bert", project_id=ELSEWHERE, workspace_id=ELSEWHERE
        ),
        submitted(NAMES[2]),
        ExperimentMoved(experiment_id=NAMES[2], workspace_id=ELSEWHERE, project_id=ELSEWHERE),
    ]


async def _slots(models: ReadModels, since_ms: int, at_ms: int) -> dict[tuple[str, str], Slots]:
    found = await models.read(
        UsageProjection, read_slots, None, since_hour=since_ms // HOUR_MS, now_ms=at_ms
    )
    return {place: it for place, it in found.items() if it != Slots()}


@pytest.mark.parametrize("seed", range(3))
async def test_sums_are_those_of_an_independent_count(
    world: World, tmp_path: Path, seed: int
) -> None:
    """Live, from files, and rebuilt; in all and in a part of the time; cut at projects."""
    pool = Pool(seed)
    pool.play(80)
    at_ms = pool.now_ms + 12_345
    for folder in (tmp_path, tmp_path, tmp_path / "rebuilt"):
        models = ReadModels(world.ledger, folder)
        await models.start(wait_s=60)
        if not await world.all(topic.POOLS):
            await world.write(*_facts()[:2])
            await world.ledger.append(pool.drafts)
            await world.write(*_facts()[2:])
        ends = {
            (name, partition): await world.ledger.end(name, partition) - 1
            for name, key in (
                *((it, POOL) for it in (topic.POOLS, topic.PLACEMENTS)),
                *((topic.EXPERIMENTS, it) for it in NAMES),
            )
            for partition in [partition_of(key, world.ledger.partitions(name))]
        }
        assert await models.reached(ends, wait_s=60)
        for since_ms in (0, START_MS + 20 * HOUR_MS, pool.now_ms // HOUR_MS * HOUR_MS):
            expected = pool.expected(since_ms, at_ms)
            assert await _slots(models, since_ms, at_ms) == expected
        part = await models.read(
            UsageProjection, read_slots, frozenset({ELSEWHERE}), since_hour=0, now_ms=at_ms
        )
        assert {place for place, _ in part} == {ELSEWHERE}
        await models.close()
    assert pool.held
    assert pool.running


@pytest.fixture
async def teams(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world of two workspaces, with a search, a checkpoint and an allocation."""
    directory = Directory(world.ledger)
    enter(directory, [it for it in members() if it.role in {"viewer", None}])
    monkeypatch.setattr(context, "Directory", lambda _ledger: directory)
    await store_files(world, tmp_path, FILES)
    await world.write(*_facts())
    return world


async def test_who_sees_which_numbers(teams: World) -> None:
    """A member sees its own workspace, and sums of it alone; another one is not there."""
    viewer = Member("viewer-inside", "viewer", "inside").headers
    nobody = Member(NOBODY, None, "outside").headers
    async with teams.gateway() as client:
        everything = await client.get("/usage?by=project")
        own = await client.get(f"/workspaces/{HOME}/usage?by=owner", headers=viewer)
        late = await client.get(f"/workspaces/{HOME}/usage?since=30d", headers=viewer)
        seen = await client.get("/usage", headers=viewer)
        mine = await client.get("/usage?by=owner", headers=viewer)
        for who, name in ((viewer, ELSEWHERE), (nobody, HOME), (viewer, "none")):
            answer = await client.call("GET", f"/workspaces/{name}/usage", headers=who)
            assert (answer.status, answer.kind) == (404, "not-found")
        none = await client.get("/usage", headers=nobody)
        bad = await client.call("GET", "/usage?since=soon")
    assert {it["project"]: sum(it["experiments"].values()) for it in everything["items"]} == {
        HOME: everything["total"]["experiments"]["active"] - 2,
        ELSEWHERE: 2,
    }
    assert [it["workspace"] for it in seen["items"]] == [HOME]
    assert seen["total"] == own["total"]
    assert seen["total"]["checkpoint_bytes"] > 0
    assert ELSEWHERE not in str(own) + str(seen)
    assert "bert" not in str(mine)
    assert (own["since"], late["since"][-10:]) == (None, "00:00.000Z")
    # What was submitted in 2026's first minutes is older; its checkpoint is still stored.
    assert sum(late["total"]["experiments"].values()) == 1
    assert late["total"]["checkpoint_bytes"] == own["total"]["checkpoint_bytes"]
    assert (none["items"], none["total"]["experiments"]) == ([], {})
    assert bad.status == 400


async def test_trials_and_checkpoints_are_those_of_the_experiment(world: World) -> None:
    """By state, as the experiment itself says; and nothing of them once it is deleted."""
    await world.play(play(3))
    async with world.gateway() as client:
        shown = await until(
            lambda: client.get(f"/experiments/{EXPERIMENT}"),
            lambda it: it["state"] not in {"active", "canceling"},
        )
        trials = (await client.get(f"/experiments/{EXPERIMENT}/trials?limit=500"))["items"]
        total = (await client.get("/usage"))["total"]
    states = [each["state"] for each in trials]
    assert total["trials"] == {state: states.count(state) for state in states}
    assert total["experiments"] == {shown["state"]: 1}
    assert total["checkpoint_count"] == shown["checkpoint_count"]
    assert total["checkpoint_bytes"] == shown["checkpoint_bytes"]
