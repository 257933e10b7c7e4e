"""A ledger that was left at any moment goes on in its new home, and comes to the same end."""

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pytest

from rung.checkpoint_gc.processor import CheckpointGC
from rung.cli.operations.components import CONSUMERS, RELAYS, audit_all
from rung.cli.operations.ledger.handover import hand_over
from rung.events import decode, topic
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost
from rung.events.checkpoint import CheckpointDeleted
from rung.events.experiment import ExperimentSubmitted
from rung.ledger import Draft, MemoryLedger, Record
from rung.ledger.export.export import Undone, export, import_
from rung.scheduler.processor import Scheduler
from rung.searcher.processor import Searcher
from rung.sim.agent import Agent
from rung.sim.scenario import EXPERIMENT, Outcome, _deleter, _outcome, run
from rung.sim.services import Carrier, Decider
from rung.sim.workload import calm
from rung.sim.world import Faults, World

pytestmark = pytest.mark.sim

SEARCHED: Final = (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
PLACED: Final = (topic.POOLS, topic.PLACEMENTS)


class Home:
    """A simulated installation on the history that it begins with."""

    def __init__(self, name: str, checkpoints: dict[str, int]) -> None:
        self.world = World(7, Faults())
        self.checkpoints = checkpoints
        self._name = name

    def start(self, positions: dict[tuple[str, str], int] | None = None) -> None:
        """Start deciders, forwarders and agents, each where it was left."""
        positions = positions or {}
        deciders = [
            Decider(self.world, process) for process in (Searcher(), Scheduler(), CheckpointGC())
        ]
        forwarders = [
            Carrier(
                self.world,
                it,
                ledger_id=self._name,
                start=positions.get((it.name, it.topic), 0),
            )
            for it in (*RELAYS, _deleter(self.world))
        ]
        for number in range(2):
            Agent(self.world, f"{self._name}-{number}", 2, self.checkpoints)
        for decider in deciders:
            decider._restart()
        for forwarder in forwarders:
            self.world.after(20, forwarder.wake)

    def run(self, happenings: int) -> None:
        """Let so many things happen, or all."""
        with suppress(AssertionError):
            self.world.run(happenings_max=happenings)

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """Return how many records topics hold now."""
        return {name: len(self.world.topics[name]) for name in names}


async def moved(home: Home, counts: dict[str, int]) -> tuple[MemoryLedger, Undone]:
    """Return a new ledger, into which the beginnings of a home's topics were imported."""
    old, new = MemoryLedger(partitions=1), MemoryLedger(partitions=1)
    for name, count in counts.items():
        records = home.world.topics[name][:count]
        await old.append([Draft(name, record.key, record.value) for record in records])
    out = io.BytesIO()
    await export(old, out)
    await import_(new, out.getvalue().splitlines(), consumers=CONSUMERS)
    return new, await hand_over(new)


async def settled(old: Home, ledger: MemoryLedger) -> Home:
    """Return a new home on a moved ledger, in which everything came to its end."""
    home = Home("new", dict(old.checkpoints))
    for name in (*SEARCHED, *PLACED):
        home.world.topics[name] = list(await ledger.read(name, 0, 0, 1_000_000))
    home.world.deleted = set(deleted(home.world.topics[topic.EXPERIMENTS]))
    positions = {item: await ledger.position(*item, 0) for item in CONSUMERS}
    for lost in overdue(home.world.topics[topic.POOLS]):
        home.world.write(lost, "scheduler/new")
    home.start(positions)
    home.world.run(happenings_max=1_000_000)
    return home


def deleted(facts: Sequence[Record]) -> list[str]:
    """Return the checkpoints whose deletion is on record."""
    found = (decode(record.value).data for record in facts)
    return [data.checkpoint_id for data in found if isinstance(data, CheckpointDeleted)]


def overdue(facts: Sequence[Record]) -> list[AgentLost]:
    """Return what the watch finds out about agents that stay silent."""
    there: dict[str, AgentJoined] = {}
    for record in facts:
        match decode(record.value).data:
            case AgentJoined() as joined:
                there[joined.agent_id] = joined
            case AgentLeft() | AgentLost() as gone:
                there.pop(gone.agent_id, None)
            case _:
                pass
    return [
        AgentLost(pool=it.pool, agent_id=it.agent_id, incarnation=it.incarnation, silent_ms=30_000)
        for it in there.values()
    ]


def begun(method: str) -> Home:
    """Return a home in which a search was submitted."""
    home = Home("old", {})
    home.start()
    submitted = ExperimentSubmitted(
        experiment_id=EXPERIMENT, config=calm(method).config, source="", code_digest=None
    )
    home.world.write(submitted, "gateway/old")
    return home


def found(outcome: Outcome) -> tuple[str, object]:
    """Return what must not depend on where a search went on."""
    return outcome.state, outcome.trials


@pytest.mark.parametrize("method", ["grid", "random", "hyperband"])
async def test_a_search_left_at_any_moment_comes_to_the_same_end(method: str) -> None:
    """Exported from one home at some moment and imported into another, it ends as if it stayed."""
    expected = found(run(calm(method), 0))
    for happenings in range(0, 1_500, 61):
        old = begun(method)
        old.run(happenings)
        ledger, _ = await moved(old, old.counts((*SEARCHED, *PLACED)))
        again = await hand_over(ledger)
        home = await settled(old, ledger)
        assert found(_outcome(home.world, home.checkpoints)) == expected, happenings
        assert (again.forwarded, again.lost) == (0, 0)


@pytest.mark.parametrize("first", [SEARCHED, PLACED])
async def test_partitions_of_slightly_different_moments(first: tuple[str, ...]) -> None:
    """Of an archive's partitions some are older; what was restored ends all the same."""
    second = PLACED if first == SEARCHED else SEARCHED
    handed: list[Undone] = []
    for happenings in range(20, 1_200, 53):
        for later in (1, 7, 40, 150):
            old = begun("grid")
            old.run(happenings)
            counts = old.counts(first)
            old.run(later)
            ledger, left = await moved(old, counts | old.counts(second))
            home = await settled(old, ledger)
            state, _ = found(_outcome(home.world, home.checkpoints))
            assert state == "completed", (happenings, later)
            handed.append(left)
    assert any(left.forwarded for left in handed) == (first == PLACED)
    assert any(left.lost for left in handed) == (first == SEARCHED)


async def test_it_audits_afterwards() -> None:
    """What was moved in the middle of a search is decided the same again, before and after it."""
    old = begun("asha")
    old.run(400)
    ledger, _ = await moved(old, old.counts((*SEARCHED, *PLACED)))
    home = await settled(old, ledger)
    after = MemoryLedger(partitions=1)
    for name in (*SEARCHED, *PLACED):
        records = home.world.topics[name]
        await after.append([Draft(name, record.key, record.value) for record in records])
    verdict = await audit_all(after)
    assert verdict.same
    assert verdict.decisions > 50
