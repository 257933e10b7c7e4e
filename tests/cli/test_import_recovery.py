"""A ledger that was left at any moment goes on in its new home, and comes to the same end."""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from rung.api import Audit
from rung.cli.operations.components import CONSUMERS, RELAYS, audit_all
from rung.cli.operations.ledger.import_recovery import hand_over
from rung.events import decode, topic
from rung.events.checkpoint import CheckpointDeleted, CheckpointStored
from rung.events.experiment import ExperimentSubmitted
from rung.ledger import Draft, MemoryLedger, Record
from rung.ledger.export.export import Undone, export, import_
from rung.runtime.processor.processor import types_of
from rung.sim.agent import Agent
from rung.sim.clock import in_virtual_time
from rung.sim.scenario import EXPERIMENT, Outcome, ended, memory_folder, outcome, run, running
from rung.sim.workload import calm
from rung.sim.world import Faults, World
from rung.storage import checkpoint_prefix
from rung.storage.checkpoint.manifest import MANIFEST

pytestmark = pytest.mark.sim

SEARCHED: Final = (topic.EXPERIMENTS, topic.SEARCHES, topic.RETIREMENTS)
PLACED: Final = (topic.POOLS, topic.PLACEMENTS)
MOMENTS_MS: Final = (170, 190)
"""Between two moments at which a search is left, in the two tests."""


class Home:
    """A simulated installation, on the history that it begins with."""

    def __init__(self, name: str, earlier: "Home | None" = None) -> None:
        """Take what it is called, and the home whose checkpoints it knows.

        Args:
            name: of it.
            earlier: from which its ledger was moved.
        """
        self.world = World(7, Faults(), ledger=MemoryLedger(partitions=1))
        self.checkpoints: dict[str, int] = dict(earlier.checkpoints) if earlier else {}
        self._name = name

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run its services and two agents while the context lasts."""
        agents = [
            Agent(self.world, f"{self._name}-{number}", 2, self.checkpoints) for number in range(2)
        ]
        with memory_folder() as folder:
            async with running(self.world, agents, folder):
                yield

    async def records(self, names: Sequence[str]) -> dict[str, list[Record]]:
        """Return what topics hold now."""
        return {name: await self.world.records(name) for name in names}


async def left(method: str, *moments_ms: int) -> tuple[Home, list[dict[str, list[Record]]]]:
    """Return a home in which a search was begun, and what its topics held at some moments."""
    home, held = Home("old"), []
    submitted = ExperimentSubmitted(
        experiment_id=EXPERIMENT,
        config=calm(method).config,
        source="",
        code_digest=None,
    )
    async with home.running():
        home.world.write(submitted, "gateway/old")
        for moment_ms in moments_ms:
            await asyncio.sleep(moment_ms / 1_000)
            held.append(await home.records((*SEARCHED, *PLACED)))
    return home, held


async def moved(old: Home, records: Mapping[str, Sequence[Record]]) -> tuple[Home, Undone]:
    """Return a new home, into which the beginnings of a home's topics were imported.

    Its object store has the checkpoints of which the deletion is not on record.
    """
    before, home = MemoryLedger(partitions=1), Home("new", old)
    for data in (decode(record.value).data for record in records[topic.EXPERIMENTS]):
        if isinstance(data, CheckpointStored | CheckpointDeleted):
            prefix = checkpoint_prefix(data.experiment_id, data.checkpoint_id)
            if isinstance(data, CheckpointStored):
                home.world.objects.put_bytes(prefix + MANIFEST, b"")
            else:
                home.world.objects.delete(prefix)
    for name, each in records.items():
        await before.append([Draft(name, record.key, record.value) for record in each])
    out = io.BytesIO()
    await export(before, out)
    await import_(home.world.ledger, out.getvalue().splitlines(), consumers=CONSUMERS)
    return home, await hand_over(home.world.ledger)


def unrelayed(records: Mapping[str, Sequence[Record]]) -> int:
    """Return of how many decisions on record that are to be relayed nothing was."""
    missing = 0
    for it in (relay for relay in RELAYS if relay.topic in records):
        (there,) = ([decode(record.value).data for record in records[name]] for name in it.appends)
        decided = (decode(record.value).data for record in records.get(it.topic, ()))
        types = types_of(it.handles)
        missing += sum(data.TYPE in types and data not in there for data in decided)
    return missing


async def settled(home: Home) -> Outcome:
    """Return what came of a search that goes on in a new home."""
    async with home.running():
        ended_ms = await ended(home.world, 1)
    return await outcome(home.world, ended_ms)


def found(outcome: Outcome) -> tuple[str, object]:
    """Return what must not depend on where a search went on."""
    return outcome.state, outcome.trials


@pytest.mark.parametrize("method", ["grid", "random", "hyperband"])
def test_a_search_left_at_any_moment_comes_to_the_same_end(method: str) -> None:
    """Exported from one home at some moment and imported into another, it ends as if it stayed."""
    undisturbed = run(calm(method), 0)

    async def ends() -> None:
        for moment_ms in range(0, 5 * undisturbed.milliseconds // 4, MOMENTS_MS[0]):
            old, (records,) = await left(method, moment_ms)
            home, _ = await moved(old, records)
            again = await hand_over(home.world.ledger)
            assert found(await settled(home)) == found(undisturbed), moment_ms
            assert (again.forwarded, again.lost) == (0, 0)

    in_virtual_time(ends())


@pytest.mark.parametrize("first", [SEARCHED, PLACED])
def test_partitions_of_slightly_different_moments(first: tuple[str, ...]) -> None:
    """Of an archive's partitions some are older; what was restored ends all the same."""
    second = PLACED if first == SEARCHED else SEARCHED
    handed: dict[tuple[int, int], Undone] = {}

    async def ends() -> None:
        for moment_ms in range(60, 3_500, MOMENTS_MS[1]):
            for later_ms in (5, 20, 110, 400):
                old, (before, after) = await left("grid", moment_ms, later_ms)
                records = {name: before[name] for name in first}
                records |= {name: after[name] for name in second}
                home, undone = await moved(old, records)
                assert undone.forwarded == unrelayed(records), (moment_ms, later_ms)
                state, _ = found(await settled(home))
                assert state == "completed", (moment_ms, later_ms)
                handed[moment_ms, later_ms] = undone

    in_virtual_time(ends())
    assert any(undone.forwarded for undone in handed.values()) or first == SEARCHED
    assert any(undone.lost for undone in handed.values()) == (first == SEARCHED)


def test_it_audits_afterwards() -> None:
    """What was moved in the middle of a search is decided the same again, before and after it."""

    async def audited() -> Audit:
        old, (records,) = await left("asha", 1_200)
        home, _ = await moved(old, records)
        await settled(home)
        return await audit_all(home.world.ledger)

    verdict = in_virtual_time(audited())
    assert verdict.same
    assert verdict.decisions > 50
