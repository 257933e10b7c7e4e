"""Completes a ledger after an import, so that its experiments go on.

The exported ledger may have stopped at any moment, and one restored from an archive consists of
partitions that were archived at slightly different moments. Three things may be missing:

* a decision is on record, and the event that a relay makes of it is not. Relayed facts name the
  decision as their cause; the missing ones are appended as the relay would append them;
* an allocation ended, and its run has no end on record. The run is ended as lost, so that the
  searcher requests another one;
* a checkpoint or an experiment is retired and not deleted, or the directory was not told that a
  checkpoint is held for a version of a model. The deleter's position is set to the first of these.

Of an experiment that was exported alone only the last may be: the models of its checkpoints stayed
behind, and their holds are answered here, so that the directory releases them.

Nothing else needs completing: agents of the exporting installation are declared lost when their
heartbeats stay out, and with them their allocations; queued requests are still queued.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from typing import Final

from rung.checkpoint_gc.deletion import Handles
from rung.checkpoint_gc.service import DELETER
from rung.cli.operations.components import RELAYS
from rung.cli.operations.ledger.source import records_of
from rung.events import Event, UndecodableEvent, decode, fact, topic
from rung.events.allocation import (
    AllocationDropped,
    AllocationLost,
    AllocationReleased,
)
from rung.events.checkpoint import CheckpointRetired
from rung.events.trial import RunRequested, TrialExited, allocation_id_of
from rung.ledger import Draft, Ledger, Record
from rung.ledger.export.export import Undone
from rung.runtime import now
from rung.runtime.processor.processor import types_of
from rung.runtime.relay import relayed
from rung.searcher.service import SOURCE as SEARCHER

_REASON: Final = "how it ended was not on record when its ledger was moved"

_TABLES: Final = """
CREATE TABLE answered (cause TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE over (allocation TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE ended (allocation TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE runs (
    allocation TEXT PRIMARY KEY, pool TEXT, experiment TEXT, trial TEXT, run INTEGER
) WITHOUT ROWID;
"""


async def hand_over(ledger: Ledger) -> Undone:
    """Append what is missing in a ledger that was just imported whole.

    A second call changes nothing. Nothing else may use the ledger meanwhile.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    names = topic.EXPERIMENTS, topic.POOLS, topic.PLACEMENTS, topic.SEARCHES, topic.REQUESTS
    async with _notes(ledger, names) as notes:
        relayed_count = await _relay(ledger, notes)
        lost = await _end_runs(ledger, notes)
        return Undone(relayed_count, lost, await _rewind_deleter(ledger, notes))


async def hand_over_alone(ledger: Ledger) -> Undone:
    """Have what is undone of an experiment's checkpoints be done, after its import alone.

    A second call changes nothing. Nothing else may use the ledger meanwhile.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    async with _notes(ledger, (topic.EXPERIMENTS, topic.REQUESTS)) as notes:
        return Undone(undeleted=await _rewind_deleter(ledger, notes))


@contextlib.asynccontextmanager
async def _notes(ledger: Ledger, names: Sequence[str]) -> AsyncIterator[sqlite3.Connection]:
    """Yield what topics say of answers and runs, in a temporary database."""
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as notes:
        notes.execute("PRAGMA journal_mode = OFF")
        notes.executescript(_TABLES)
        notes.execute("BEGIN")
        for name in names:
            async for _, event in _events(ledger, name):
                _note(notes, event)
        yield notes


def _note(notes: sqlite3.Connection, event: Event) -> None:
    """Note what an event answers, ends or requests."""
    if event.cause is not None and event.causeposition is None:
        notes.execute("INSERT OR IGNORE INTO answered VALUES (?)", (event.cause,))
    match event.data:
        case TrialExited() as end:
            _insert(notes, "ended", allocation_id_of(end.trial_id, end.run))
        case AllocationLost() | AllocationDropped() as end:
            is_relayed = event.topic == topic.EXPERIMENTS
            _insert(notes, "ended" if is_relayed else "over", end.allocation_id)
        case AllocationReleased() as end:
            _insert(notes, "over", end.allocation_id)
        case RunRequested(spec=spec) as asked:
            notes.execute(
                "INSERT OR IGNORE INTO runs VALUES (?, ?, ?, ?, ?)",
                (asked.allocation_id, asked.pool, spec.experiment_id, spec.trial_id, spec.run),
            )
        case _:
            pass


def _insert(notes: sqlite3.Connection, table: str, allocation_id: str) -> None:
    notes.execute(f"INSERT OR IGNORE INTO {table} VALUES (?)", (allocation_id,))  # noqa: S608 - ours


async def _relay(ledger: Ledger, notes: sqlite3.Connection) -> int:
    """Append the events that relays have not made of decisions yet; return their number."""
    count = 0
    for it in RELAYS:
        drafts: list[Draft] = []
        types = types_of(it.handles)
        async for record, event in _events(ledger, it.topic):
            if event.type not in types or _answered(notes, event):
                continue
            for made in relayed(it, ledger.id, record, event):
                if isinstance(made.data, AllocationLost | AllocationDropped):
                    _insert(notes, "ended", made.data.allocation_id)
                drafts.append(Draft.of(made))
        if drafts:
            await ledger.append(drafts)
        count += len(drafts)
    return count


async def _end_runs(ledger: Ledger, notes: sqlite3.Connection) -> int:
    """End the runs whose allocations ended; return their number."""
    found: list[tuple[str, str, str, str, int]] = notes.execute(
        "SELECT allocation, pool, experiment, trial, run FROM runs JOIN over USING (allocation)"
        " WHERE allocation NOT IN (SELECT allocation FROM ended) ORDER BY allocation"
    ).fetchall()
    facts = [
        fact(
            AllocationLost(
                pool=pool,
                allocation_id=allocation_id,
                experiment_id=experiment_id,
                trial_id=trial_id,
                run=run,
                reason=_REASON,
            ),
            source=SEARCHER,
            origin=f"import/{ledger.id}/{allocation_id}",
            sequence=1,
            time=now(),
        )
        for allocation_id, pool, experiment_id, trial_id, run in found
    ]
    if facts:
        await ledger.append([Draft.of(item) for item in facts])
    return len(facts)


async def _rewind_deleter(ledger: Ledger, notes: sqlite3.Connection) -> int:
    """Set the deleter's position to the first decision for it that it has not carried out.

    Returns:
        The number of checkpoints that are retired and not deleted.
    """
    firsts: dict[int, int] = {}
    count, types = 0, types_of(Handles)
    async for record, event in _events(ledger, topic.RETIREMENTS):
        if event.type in types and not _answered(notes, event):
            firsts.setdefault(record.partition, record.position)
            count += isinstance(event.data, CheckpointRetired)
    for partition, position in firsts.items():
        await ledger.commit(DELETER, topic.RETIREMENTS, partition, position)
    return count


def _answered(notes: sqlite3.Connection, event: Event) -> bool:
    found = notes.execute("SELECT 1 FROM answered WHERE cause = ?", (event.id,)).fetchone()
    return found is not None


async def _events(ledger: Ledger, name: str) -> AsyncIterator[tuple[Record, Event]]:
    """Yield the decodable events of a topic, partition by partition."""
    async for record in records_of(ledger, name):
        with contextlib.suppress(UndecodableEvent):  # the component that folds it rejects it
            yield record, decode(record.value)
