"""What must hold of a simulated ledger: at any moment, and once all has come to rest."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.state import State as CollectionState
from rung.cli.operations.components import PROCESSORS
from rung.events import Event, encode, topic
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired, CheckpointStored
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection, read_experiment
from rung.gateway.projections.pools import Pool, PoolProjection, read_pools
from rung.gateway.projections.read_models import PROJECTIONS
from rung.ledger import Record
from rung.runtime import PartitionFold, Processor, audit
from rung.runtime.processor.processor import S
from rung.runtime.projection import Merge, Projection
from rung.runtime.projection.merge import positions_of
from rung.runtime.projection.store import prepare
from rung.scheduler.processor import Scheduler
from rung.scheduler.state import State as PoolState
from rung.searcher.processor import Searcher
from rung.searcher.state import State as SearchState
from rung.sim.world import Effective, World
from rung.storage import checkpoint_prefix

_QUERIES: Final = {
    # Their numbers depend on what was flushed together; their order in an experiment does not.
    "checkpoints": "SELECT experiment, id, body FROM checkpoints ORDER BY experiment, number",
    # A state that all trials left says no more than one that none ever was in.
    "trial_counts": "SELECT * FROM trial_counts WHERE trials > 0 ORDER BY state",
}
"""How tables are read of which not all is fixed by the ledger."""
_Tables = dict[str, list[tuple[Any, ...]]]


async def check_at_rest(world: World, folder: Path) -> None:
    """Hold what must hold once everything has come to its end.

    Args:
        world: of which nothing runs any more.
        folder: with the files of the gateway's projections.

    Raises:
        AssertionError: something does not.
    """
    dead = await world.records(topic.DEADLETTER)
    assert not dead, f"dead letters: {[record.value for record in dead]}"
    for processor in PROCESSORS:
        verdict = await audit(world.ledger, processor)
        assert verdict.same, f"{processor.name} decides otherwise: {verdict}"
        assert not verdict.pending, f"{processor.name} left undecided: {verdict.pending}"
    await _check_checkpoints(world)
    for make in PROJECTIONS:
        await _check_tables(world, make(), folder)


async def _check_checkpoints(world: World) -> None:
    """Every checkpoint that was retired is deleted, in effect once; no other one is."""
    facts = Effective()(await world.records(topic.EXPERIMENTS))
    decisions = Effective()(await world.records(topic.RETIREMENTS))
    owner = {
        data.checkpoint_id: data.experiment_id
        for event in facts
        if isinstance(data := event.data, CheckpointStored)
    }
    retired = Counter(_checkpoints(decisions, CheckpointRetired))
    deleted = Counter(_checkpoints(facts, CheckpointDeleted))
    assert set(retired.values()) <= {1}, f"retired twice: {retired.most_common(3)}"
    assert deleted == retired, f"retired: {retired - deleted}, deleted: {deleted - retired}"
    there = {
        name
        for name, experiment_id in owner.items()
        if world.objects.list(checkpoint_prefix(experiment_id, name))
    }
    assert there == owner.keys() - retired.keys(), "files of other checkpoints than are retained"


def _checkpoints(
    events: Sequence[Event], kind: type[CheckpointRetired | CheckpointDeleted]
) -> list[str]:
    return [event.data.checkpoint_id for event in events if isinstance(event.data, kind)]


async def _check_tables(world: World, projection: Projection, folder: Path) -> None:
    """The tables of a projection that was killed and started again are those of a fresh fold."""
    with (
        closing(sqlite3.connect(folder / f"{projection.name}.db")) as found,
        closing(await _folded(world, projection)) as fresh,
    ):
        for name, (position, _) in positions_of(found, 0).items():
            end = await world.ledger.end(name, 0)
            assert position == end, f"{projection.name} folded {position} of {end} on {name}"
        expected, actual = _tables(fresh), _tables(found)
        assert actual.keys() == expected.keys()
        for name, rows in expected.items():
            assert actual[name] == rows, f"{projection.name}: {name} differs from a fresh fold"


async def _folded(
    world: World, projection: Projection, more: Sequence[Record] = ()
) -> sqlite3.Connection:
    """Return tables of the ledger folded at once, and of decisions that are to come."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    prepare(db, projection, world.ledger.id)
    merge = Merge(projection, db, 0)
    for name in projection.decisions:
        merge.hold(await world.records(name))
        merge.hold([record for record in more if record.topic == name])
    rejected = merge.fold(await world.records(projection.facts)) + merge.fold_orphans()
    assert not rejected, rejected
    return db


def _tables(db: sqlite3.Connection) -> _Tables:
    """Return the rows of all tables of a projection, but for what the runtime keeps there."""
    names = [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'folded%'"
            " AND name NOT LIKE 'texts!_%' ESCAPE '!'"
        )
    ]
    return {
        name: list(db.execute(_QUERIES[name]))
        if name in _QUERIES
        else sorted(db.execute(f"SELECT * FROM {name}"), key=repr)  # noqa: S608 - from the schema
        for name in names
    }


async def check_states(world: World) -> None:
    """Hold, at any moment, that read models say what the processors know.

    Raises:
        AssertionError: they do not.
    """
    searcher, planned = await _fold(world, Searcher())
    collector, retired = await _fold(world, CheckpointGC())
    scheduler, placed = await _fold(world, Scheduler())
    with closing(await _folded(world, ExperimentProjection(), [*planned, *retired])) as db:
        for (name,) in db.execute("SELECT id FROM experiments").fetchall():
            found = read_experiment(db, name, validations=None)
            assert found is not None, name
            _check_experiment(found, searcher.state(name), collector.state(name))
    with closing(await _folded(world, PoolProjection(), placed)) as db:
        for pool in read_pools(db):
            _check_pool(pool, scheduler.state(pool.name))


async def _fold(world: World, processor: Processor[S]) -> tuple[PartitionFold[S], list[Record]]:
    """Fold a processor's topics; return also the decisions that are still to be appended."""
    fold = PartitionFold(processor)
    recorded = await world.records(processor.decisions)
    rejected = fold.record(recorded)
    new: list[Event] = []
    for record in await world.records(processor.facts):
        folded = fold.fold(record)
        rejected += filter(None, [folded.rejected])
        new += folded.new
    assert not rejected, rejected
    return fold, [
        Record(processor.decisions, 0, position, event.key, encode(event))
        for position, event in enumerate(new, len(recorded))
    ]


def _check_experiment(
    found: Experiment, search: SearchState | None, collection: CollectionState | None
) -> None:
    assert (search is None) == (found.ended is not None), f"{found.id} ended for one of them"
    if search is not None and search.experiment is not None:
        trials = [(it.index, it.run, it.restarts) for it in search.experiment.trials]
        assert [(it.index, it.run, it.restarts) for it in found.trials] == trials
    if collection is not None:
        retained = {name for name, it in found.checkpoints.items() if it.retired is None}
        assert retained == collection.trial_of.keys(), f"{found.id}: checkpoints"
        leaving = {
            name for name, it in found.checkpoints.items() if it.retired and not it.deleted_at
        }
        assert leaving == collection.retired.keys(), f"{found.id}: retired checkpoints"


def _check_pool(found: Pool, state: PoolState | None) -> None:
    assert state is not None, found
    waiting = state.queue.line_of.keys() | state.zero_slot_queue.line_of.keys()
    assert found.waiting.keys() == waiting, f"{found.name}: what waits"
    running = {name for name, it in state.allocations.items() if not it.lost}
    assert found.running.keys() == running, f"{found.name}: what runs"
    incarnations = {it.id: it.incarnation for it in found.agents.values()}
    assert incarnations == state.incarnations, f"{found.name}: agents"
