"""Simulated poison: facts that no release, or not every release, can fold, beside every fault."""

import io
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import structlog

from rung.cli.operations.components import PROCESSORS
from rung.events import Event, decode, topic
from rung.events.deadletter import FactDropped, FactRejected, FactRetried, KeyResumed
from rung.events.topic import DECISIONS
from rung.ledger import MemoryLedger, Record
from rung.ledger.export.export import export, import_
from rung.runtime import PartitionFold, audit
from rung.runtime.audit.imports import audit_imports
from rung.sim import run
from rung.sim.clock import in_virtual_time
from rung.sim.poison import is_junk
from rung.sim.scenario import simulate
from rung.sim.workload import METHODS, ORDER_FREE, calm, poisoned
from rung.sim.world import World

pytestmark = pytest.mark.sim
SEEDS = 3


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """Have no logs written of thousands of starts."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def _world(method: str, seed: int, *, changes: bool = False) -> World:
    """Return the world of a search that has ended, in which some facts were poison."""

    async def simulated() -> World:
        scenario = poisoned(method, changes=changes)
        world = World(seed, scenario.faults)
        await simulate(world, scenario)
        return world

    return in_virtual_time(simulated())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_search_with_poison_ends_as_without(method: str) -> None:
    """Whatever is rejected, retried and dropped, by two releases: the invariants hold.

    Where the order of reports decides nothing, trials, hyperparameters, states and metrics equal
    those of the undisturbed search.
    """
    calmly = run(calm(method), 0) if method in ORDER_FREE else None
    for seed in range(SEEDS):
        try:
            outcome = run(poisoned(method), seed)
        except AssertionError as error:
            raise AssertionError(f"--poison --method {method} --seed {seed}: {error}") from error
        assert outcome.state == "completed", seed
        if calmly is not None:
            assert outcome.trials == calmly.trials, seed


@pytest.mark.parametrize("method", ["asha", "hyperband", "random"])
def test_a_search_with_poison_that_users_change_ends(method: str) -> None:
    """Facts of pools and of the directory are poison, too, and checkpoints are deleted."""
    for seed in range(SEEDS):
        try:
            run(poisoned(method, changes=True), seed)
        except AssertionError as error:
            raise AssertionError(
                f"--poison --changes --method {method} --seed {seed}: {error}"
            ) from error


async def _decisions(world: World) -> list[Event]:
    return [
        decode(record.value) for it in PROCESSORS for record in await world.records(it.decisions)
    ]


async def _seen(world: World) -> Counter[str]:
    """Count what became of poison."""
    seen: Counter[str] = Counter()
    for event in await _decisions(world):
        match event.data:
            case FactRejected() as data:
                how = (
                    "junk"
                    if data.reason.startswith(("not an event", "unknown type"))
                    else "raised"
                )
                seen[f"{data.reader} {how}"] += 1
            case KeyResumed() as data:
                seen[f"{data.reader} resumed"] += 1
            case _:
                pass
    for name in DECISIONS:
        for record in await world.records(name):
            request = None if is_junk(record) else decode(record.value).data
            if isinstance(request, FactRetried | FactDropped):
                seen[request.TYPE] += 1
    return seen


def test_every_processor_rejects_facts_and_goes_on() -> None:
    """In some seeds: what is no event, and on what a release raises; by retries and by drops."""
    wanted = {FactRetried.TYPE, FactDropped.TYPE} | {
        f"{it.name} {how}" for it in PROCESSORS for how in ("junk", "raised", "resumed")
    }
    seen: Counter[str] = Counter()
    for seed in range(20):
        world = _world("asha", seed, changes=True)
        seen += in_virtual_time(_seen(world))
        if wanted <= seen.keys():
            return
    raise AssertionError(wanted - seen.keys())


def test_a_seed_is_repeatable() -> None:
    """One seed gives one history, poison and what operators do about it included."""

    async def values(world: World) -> list[bytes]:
        names = (topic.EXPERIMENTS, topic.SEARCHES, topic.PLACEMENTS, topic.RETIREMENTS)
        return [record.value for name in names for record in await world.records(name)]

    first, second = [in_virtual_time(values(_world("asha", 2, changes=True))) for _ in range(2)]
    assert first == second


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_ledger_with_poison_is_exported_and_imported(partitions: int) -> None:
    """Elsewhere the audits find the same, with what was rejected, retried and dropped."""
    world = _world("random", 1)

    async def check() -> None:
        out = io.BytesIO()
        await export(world.ledger, out)
        again = MemoryLedger(partitions=partitions)
        await import_(again, out.getvalue().splitlines(keepends=True))
        for it in PROCESSORS:
            before, verdict = await audit(world.ledger, it), await audit(again, it)
            assert (verdict.same, verdict.pending) == (True, 0), verdict
            assert verdict.decisions == before.decisions
        assert await audit_imports(again) == []
        assert any(isinstance(event.data, FactRejected) for event in await _decisions(world))

    in_virtual_time(check())


def _keep_half_folded(patch: pytest.MonkeyPatch) -> None:
    """Have keys go on from the state that a release left when it raised."""
    reject = PartitionFold._reject

    def kept(self: PartitionFold[Any], *given: Any, is_torn: bool) -> Any:
        return reject(self, *given, is_torn=False)

    patch.setattr(PartitionFold, "_reject", kept)


def _forget_what_waited(patch: pytest.MonkeyPatch) -> None:
    """Have a key go on with the rejected fact alone."""
    fold_waiting = PartitionFold.fold_waiting

    def first(self: PartitionFold[Any], records: Sequence[Record], **given: Any) -> Any:
        assert self._turn is not None
        assert self._turn.stuck is not None
        position = self._turn.stuck.position
        return fold_waiting(self, [it for it in records if it.position == position], **given)

    patch.setattr(PartitionFold, "fold_waiting", first)


@pytest.mark.parametrize("break_it", [_keep_half_folded, _forget_what_waited])
def test_a_fault_in_rejections_is_found(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within some seeds: an audit differs, or the search does not end."""
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=r"decides otherwise|differs|searches ended"):
        _run_seeds(10)


def _run_seeds(seeds: int) -> None:
    for seed in range(seeds):
        run(poisoned("random"), seed)
