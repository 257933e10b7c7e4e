"""After a whole ledger was imported: what its former home left undone is done in the new one.

A ledger is left at some moment, in good order or not, and one restored from an archive is put
together of partitions that were archived at slightly different ones. Three things may be missing:

* a decision is on record, and what a relay makes of it is not. A relayed fact names the decision
  as its cause, so it shows; it is appended as the new home's relay would do it;
* an allocation is over, and its run's end was never told. The run is ended as lost, so that the
  searcher asks for another one;
* a checkpoint is retired and not deleted. Its deleter begins at the first of these.

All else happens by itself: agents of the former home are lost when they stay silent, and with
them their allocations; what waited in a queue waits again.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Final

from rung.checkpoint_gc.service import DELETER
from rung.cli.operations.deciders import RELAYS
from rung.events import Event, UndecodableEvent, decode, encode, fact, topic
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

_READ: Final = 2000
_REASON: Final = "how it ended was not on record when its ledger was moved"

_NOTES: Final = """
CREATE TABLE answered (cause TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE over (allocation TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE ended (allocation TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE runs (
    allocation TEXT PRIMARY KEY, pool TEXT, experiment TEXT, trial TEXT, run INTEGER
) WITHOUT ROWID;
"""


async def hand_over(ledger: Ledger) -> Undone:
    """Bring a ledger that was just imported whole to where its new home can go on.

    Doing it again changes nothing. Nothing else may use the ledger meanwhile.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as notes:
        notes.execute("PRAGMA journal_mode = OFF")
        notes.executescript(_NOTES)
        notes.execute("BEGIN")
        for name in (topic.EXPERIMENTS, topic.POOLS, topic.PLACEMENTS, topic.SEARCHES):
            async for _, event in _events(ledger, name):
                _note(notes, event)
        forwarded = await _relay(ledger, notes)
        lost = await _end_runs(ledger, notes)
        return Undone(forwarded, lost, await _rewind_deleter(ledger, notes))


def _note(notes: sqlite3.Connection, event: Event) -> None:
    """Write down what matters of an event."""
    if event.cause is not None and event.causeposition is None:
        notes.execute("INSERT OR IGNORE INTO answered VALUES (?)", (event.cause,))
    match event.data:
        case TrialExited() as end:
            _insert(notes, "ended", allocation_id_of(end.trial_id, end.run))
        case AllocationLost() | AllocationDropped() as end:
            told = event.topic == topic.EXPERIMENTS
            _insert(notes, "ended" if told else "over", end.allocation_id)
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
    """Append what relays should have made of decisions; return how much it was."""
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
                drafts.append(Draft(made.topic, made.key, encode(made)))
        if drafts:
            await ledger.append(drafts)
        count += len(drafts)
    return count


async def _end_runs(ledger: Ledger, notes: sqlite3.Connection) -> int:
    """End the runs whose allocations are over; return how many there were."""
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
        await ledger.append([Draft(item.topic, item.key, encode(item)) for item in facts])
    return len(facts)


async def _rewind_deleter(ledger: Ledger, notes: sqlite3.Connection) -> int:
    """Have the deleter begin at the first checkpoint that is retired and not deleted."""
    firsts: dict[int, int] = {}
    count = 0
    async for record, event in _events(ledger, topic.RETIREMENTS):
        if isinstance(event.data, CheckpointRetired) and not _answered(notes, event):
            firsts.setdefault(record.partition, record.position)
            count += 1
    for partition, position in firsts.items():
        await ledger.commit(DELETER, topic.RETIREMENTS, partition, position)
    return count


def _answered(notes: sqlite3.Connection, event: Event) -> bool:
    found = notes.execute("SELECT 1 FROM answered WHERE cause = ?", (event.id,)).fetchone()
    return found is not None


async def _events(ledger: Ledger, name: str) -> AsyncIterator[tuple[Record, Event]]:
    """Yield what can be read of a topic, partition by partition."""
    for partition in range(ledger.partitions(name)):
        position = await ledger.start(name, partition)
        while records := await ledger.read(name, partition, position, _READ):
            for record in records:
                try:
                    event = decode(record.value)
                except UndecodableEvent:
                    continue  # whoever folds it makes a dead letter of it
                yield record, event
            position = records[-1].position + 1
