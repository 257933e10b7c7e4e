"""What must hold of a simulated ledger: at any moment, and once all has come to rest."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, Generic

from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.state import State as CollectionState
from rung.cli.operations.components import PROCESSORS
from rung.events import Event, UndecodableEvent, encode, partition_of, topic
from rung.events.checkpoint import (
    CheckpointDeleted,
    CheckpointDeletionRequested,
    CheckpointRetired,
    CheckpointStored,
)
from rung.events.codec import decode_head
from rung.events.directory import DIRECTORY, ChangeRefused, DirectoryChanged
from rung.events.experiment import (
    ExperimentDeleted,
    ExperimentEnded,
    ExperimentRetired,
    ExperimentSubmitted,
    LimitReached,
)
from rung.events.topic import DECISIONS
from rung.events.trial import RunRequested, TrialClosed, TrialValidated
from rung.gateway.directory.directory import Directory
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import administrators
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiments import ExperimentProjection, read_experiment
from rung.gateway.projections.pools import Pool, PoolProjection, read_pools
from rung.gateway.projections.read_models import PROJECTIONS
from rung.gateway.projections.usage import HOUR_MS, UsageProjection
from rung.ledger import Record
from rung.runtime import PartitionFold, Processor, audit
from rung.runtime.processor.processor import S
from rung.runtime.processor.replay import recover, refold, scan_decisions
from rung.runtime.projection import Merge, Projection
from rung.runtime.projection.merge import positions_of, rejected_of
from rung.runtime.projection.store import prepare
from rung.scheduler.processor import Scheduler
from rung.scheduler.state import State as PoolState
from rung.searcher.processor import Searcher
from rung.searcher.state import State as SearchState
from rung.sim.poison import is_junk
from rung.sim.world import EVERYTHING, Counted, World
from rung.storage import checkpoint_prefix

_QUERIES: Final = {
    # Their numbers depend on what was flushed together; their order in an experiment does not.
    "checkpoints": "SELECT experiments.id, checkpoints.id, checkpoints.body FROM checkpoints"
    " JOIN experiments ON experiments.number = experiment"
    " ORDER BY experiments.id, checkpoints.number",
    # A state that all trials left says no more than one that none ever was in.
    "trial_counts": "SELECT * FROM trial_counts WHERE trials > 0 ORDER BY state",
}
"""How tables are read of which not all is fixed by the ledger."""
_NUMBERED: Final = {"experiments", "moves"}
"""Tables whose numbers are those of a replica: it gives them in the order of its partitions."""
_Tables = dict[str, list[tuple[Any, ...]]]


async def check_at_rest(world: World, folder: Path) -> None:
    """Hold what must hold once everything has come to its end.

    Args:
        world: of which nothing runs any more.
        folder: with the files of the gateway's projections.

    Raises:
        AssertionError: something does not.
    """
    await _check_dead_letters(world, folder)
    for processor in PROCESSORS:
        verdict = await audit(world.ledger, processor)
        assert verdict.same, f"{processor.name} decides otherwise: {verdict}"
        assert not verdict.pending, f"{processor.name} left undecided: {verdict.pending}"
        await _check_snapshot(world, processor)
    await _check_checkpoints(world)
    await _check_results(world)
    await _check_limits(world, folder)
    for make in PROJECTIONS:
        await _check_tables(world, make(), folder)


async def _check_dead_letters(world: World, folder: Path) -> None:
    """Only what no release can decode is a dead letter, of the gateway; all of it is one."""
    dead = Counted()(await world.records(topic.DEADLETTER))
    assert not dead, f"dead letters: {dead}"
    found: set[tuple[str, int, int]] = set()
    for make in PROJECTIONS:
        with closing(sqlite3.connect(folder / f"{make().name}.db")) as db:
            found |= {(it.topic, it.partition, it.position) for it in rejected_of(db)}
    junk = [each for name in DECISIONS for each in await world.records(name) if is_junk(each)]
    places = {(record.topic, record.partition, record.position): record for record in junk}
    assert found <= places.keys(), f"dead letters: {sorted(found - places.keys())}"
    missing = [place for place in places.keys() - found if _is_of_no_type(places[place])]
    assert not missing, f"no dead letters: {sorted(missing)}"


def _is_of_no_type(record: Record) -> bool:
    try:
        decode_head(record.value)
    except UndecodableEvent:
        return True
    return False


async def _check_snapshot(world: World, processor: Processor[Any]) -> None:
    """A recovery has the state of a fold from the beginning; all keys go on."""
    for partition in world.partitions(processor.facts):
        newest, whole = [
            await _recovered(world, processor, partition, from_snapshot=each)
            for each in (True, False)
        ]
        facts = await world.records_of(processor.facts, partition)
        for key in dict.fromkeys(record.key for record in facts):
            known = whole.known(key)
            assert known is None or known.stuck is None, f"{processor.name}: {key} stands still"
            assert key not in whole.parked, f"{processor.name}: {key} is left alone"
            same = newest.known(key) == known
            assert same, f"{processor.name}: {key} differs from a fold from the beginning"


async def _recovered(
    world: World, processor: Processor[Any], partition: int, *, from_snapshot: bool
) -> PartitionFold[Any]:
    fold = await recover(world.ledger, processor, partition, from_snapshot=from_snapshot)
    await scan_decisions(world.ledger, processor, fold, partition)
    if fold.contradicted:
        return await _recovered(world, processor, partition, from_snapshot=False)
    async for _ in refold(world.ledger, processor, fold, partition, until=EVERYTHING):
        pass
    return fold


async def _check_checkpoints(world: World) -> None:
    """Every checkpoint that was retired is deleted, in effect once; no other one is.

    All are of an experiment that was deleted. Of a request about an experiment that has ended, a
    repetition is decided again.
    """
    facts = Counted()(await world.records(topic.EXPERIMENTS))
    decisions = Counted()(await world.records(topic.RETIREMENTS))
    owner = {
        data.checkpoint_id: data.experiment_id
        for event in facts
        if isinstance(data := event.data, CheckpointStored)
    }
    areas = {
        data.experiment_id: data.area
        for event in facts
        if isinstance(data := event.data, ExperimentSubmitted)
    }
    retired = Counter(_checkpoints(decisions, CheckpointRetired))
    deleted = Counter(_checkpoints(facts, CheckpointDeleted))
    asked = {
        data.checkpoint_id
        for event in facts
        if isinstance(data := event.data, CheckpointDeletionRequested)
    }
    twice = [name for name, times in retired.items() if times > 1 and name not in asked]
    assert not twice, f"retired twice: {twice[:3]}"
    assert deleted == retired, f"retired: {retired - deleted}, deleted: {deleted - retired}"
    there = {
        name
        for name, experiment_id in owner.items()
        if world.objects.area(areas[experiment_id]).list(checkpoint_prefix(experiment_id, name))
    }
    whole = Counter(_experiments(decisions, ExperimentRetired))
    assert whole == Counter(_experiments(facts, ExperimentDeleted)), f"to be deleted: {whole}"
    kept = {name for name, each in owner.items() if name not in retired and each not in whole}
    assert there == kept, f"files of other checkpoints than are retained: {there ^ kept}"


async def _check_results(world: World) -> None:
    """A completed trial has a result, a completed experiment a trial with one."""
    facts = Counted()(await world.records(topic.EXPERIMENTS))
    with_result = {
        data.trial_id
        for event in facts
        if isinstance(data := event.data, TrialValidated)
        and not isinstance(data.metrics["loss"], str)
    }
    with_any = {trial_id.rpartition(".")[0] for trial_id in with_result}
    closed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for event in Counted()(await world.records(topic.SEARCHES)):
        if isinstance(event.data, TrialClosed):
            state, trial_id = event.data.state, event.data.trial_id
            closed[event.data.experiment_id][state] += 1
            good = state != "completed" or trial_id in with_result
            assert good, f"{trial_id} is completed without a result"
        elif isinstance(event.data, ExperimentEnded):
            states = closed[event.data.experiment_id]
            stopped = states["stopped"] > 0 and not states["errored"]
            good = states["completed"] > 0 or (stopped and event.data.experiment_id in with_any)
            assert good == (event.data.state == "completed"), f"{event.data}: {states}"


async def _check_limits(world: World, folder: Path) -> None:
    """At its limit an experiment ends: by no more than it used, and with no run after that."""
    with closing(sqlite3.connect(folder / f"{UsageProjection.name}.db")) as db:
        query = "SELECT experiment, sum(slot_ms) FROM used GROUP BY experiment"
        used = dict[str, int](db.execute(query).fetchall())
    reached = set[str]()
    for event in Counted()(await world.records(topic.SEARCHES)):
        match event.data:
            case LimitReached() as data:
                assert data.experiment_id not in reached, f"{data} again"
                reached.add(data.experiment_id)
                assert data.slot_ms >= data.max_slot_hours * HOUR_MS, data
                assert data.slot_ms <= used[data.experiment_id], f"{data}, of {used} used"
            case RunRequested() as data:
                assert data.experiment_id not in reached, f"{data} behind the limit"
            case _:
                pass


def _checkpoints(
    events: Sequence[Event], kind: type[CheckpointRetired | CheckpointDeleted]
) -> list[str]:
    return [event.data.checkpoint_id for event in events if isinstance(event.data, kind)]


def _experiments(
    events: Sequence[Event], kind: type[ExperimentRetired | ExperimentDeleted]
) -> list[str]:
    return [event.data.experiment_id for event in events if isinstance(event.data, kind)]


async def _check_tables(world: World, projection: Projection, folder: Path) -> None:
    """The tables of a projection that was killed and started again are those of a fresh fold."""
    with (
        closing(sqlite3.connect(folder / f"{projection.name}.db")) as found,
        closing(await _folded(world, projection)) as fresh,
    ):
        for partition in world.partitions(projection.facts):
            for name, (position, _) in positions_of(found, partition).items():
                end = await world.ledger.end(name, partition)
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
    for partition in world.partitions(projection.facts):
        merge = Merge(projection, db, partition)
        for name in projection.decisions:
            merge.hold(await world.records_of(name, partition))
            merge.hold([it for it in more if (it.topic, it.partition) == (name, partition)])
        facts = await world.records_of(projection.facts, partition)
        rejected = merge.fold(facts) + merge.fold_orphans()
        for name in projection.streams:
            rejected += merge.fold_stream(await world.records_of(name, partition))
        assert all(is_junk(it.record) for it in rejected), rejected
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
        else sorted(db.execute(_query(db, name)), key=repr)
        for name in names
    }


def _query(db: sqlite3.Connection, table: str) -> str:
    """Return what reads a table, with the ids of experiments in place of their numbers."""
    columns = [
        "(SELECT id FROM experiments AS it WHERE it.number = experiment)"
        if (column, kind) == ("experiment", "INTEGER")
        else column
        for _, column, kind, *_ in db.execute(f"PRAGMA table_info({table})")
        if column != "number" or table not in _NUMBERED
    ]
    return f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - from the schema


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
            search, collection = searcher.of(name), collector.of(name)
            if name in search.stuck or name in collection.stuck:
                continue
            _check_experiment(found, search.state(name), collection.state(name))
    await _check_directory(world)
    with closing(await _folded(world, PoolProjection(), placed)) as db:
        for pool in read_pools(db):
            fold = scheduler.of(pool.name)
            if pool.name in fold.stuck:
                continue
            _check_pool(pool, fold.state(pool.name))


async def _check_directory(world: World) -> None:
    """A gateway, which folds decisions alone, has the directory of the processor."""
    found, decided = await _fold(world, DirectoryProcessor())
    fold = found.of(DIRECTORY)
    if fold.stuck:
        return
    directory = Directory()
    for event in Counted()([*await world.records(topic.DIRECTORY), *decided]):
        assert isinstance(event.data, DirectoryChanged | ChangeRefused)
        directory.fold(event.data)
    expected = fold.state(DIRECTORY) or directory.state
    directory.state.level = expected.level  # no decision says it, and a gateway decides nothing
    assert directory.state == expected, "the gateway's directory is another"
    assert administrators(expected), "no administrator is left"


class _Folds(Generic[S]):
    """The folds of a processor's partitions."""

    def __init__(self, processor: Processor[S], partitions: int) -> None:
        self.all = [PartitionFold(processor) for _ in range(partitions)]

    def of(self, key: str) -> PartitionFold[S]:
        """Return the one that a key is in."""
        return self.all[partition_of(key, len(self.all))]


async def _fold(world: World, processor: Processor[S]) -> tuple[_Folds[S], list[Record]]:
    """Fold a processor's topics; return also the decisions that are still to be appended."""
    folds = _Folds(processor, len(world.partitions(processor.facts)))
    decided: list[Record] = []
    for partition, fold in enumerate(folds.all):
        recorded = await world.records_of(processor.decisions, partition)
        rejected = fold.record(recorded)
        new: list[Event] = []
        for record in await world.records_of(processor.facts, partition):
            folded = fold.fold(record)
            rejected += filter(None, [folded.rejected])
            new += folded.new
        assert all(is_junk(it.record) for it in rejected), rejected
        decided += [
            Record(processor.decisions, partition, position, event.key, encode(event))
            for position, event in enumerate(new, len(recorded))
        ]
    return folds, decided


def _check_experiment(
    found: Experiment, search: SearchState | None, collection: CollectionState | None
) -> None:
    assert (search is None) == (found.ended is not None), f"{found.id} ended for one of them"
    if search is not None and search.experiment is not None:
        trials = search.experiment.trials
        assert [(it.index, it.run) for it in found.trials] == [(it.index, it.run) for it in trials]
        for shown, it in zip(found.trials, trials, strict=True):
            # A failure is counted here at once, and shown as a restart once there is one.
            due = it.restarts - shown.restarts
            assert due in {0, int(shown.failed)}, f"{found.id}.{it.index}: restarts"
        assert found.failures == search.experiment.failures, f"{found.id}: failures"
    if collection is not None and not collection.closed:
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
