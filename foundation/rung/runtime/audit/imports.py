"""Audits imports: whether imported decisions are those on record, and were carried out once.

Deciding again cannot show which installation decided. If the facts of a history were imported and
its decisions were not, the new installation decides them all again, and trials are trained a
second time. Two checks find it:

* the record of an import has count and digest of the imported decisions, key by key;
* a relayed decision names that decision and the ledger in which it was relayed: for one decision
  one ledger, the former or the new one. This needs no record of an import.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from rung.events import UndecodableEvent, decode, topic
from rung.events.envelope import experiment_of
from rung.events.ledger_import import ImportedKey
from rung.ledger import Ledger, Record
from rung.ledger.export.import_record import DECIDED, Import, KeyDigests, imports_of, unfinished

_READ: Final = 2_000
_RELAYED: Final = frozenset({topic.SEARCHES, topic.PLACEMENTS})
"""Decisions that are carried out by relaying them; a retired checkpoint may be deleted twice."""
_FACTS: Final = (topic.EXPERIMENTS, topic.POOLS)
_ORIGIN_PARTS: Final = 4


class _Expected(NamedTuple):
    key: ImportedKey
    item: Import


async def audit_imports(ledger: Ledger, experiment_id: str | None = None) -> list[str]:
    """Return what contradicts the imports on record, by default of all experiments, in lines."""
    found = await imports_of(ledger)
    lines = [unfinished(item) for item in found if item.completed is None]
    lines += await _altered(ledger, [item for item in found if item.completed], experiment_id)
    lines += await _carried_out_twice(ledger, experiment_id)
    return lines


async def _altered(ledger: Ledger, items: list[Import], experiment_id: str | None) -> list[str]:
    """Return the keys whose imported decisions are not the first ones on record."""
    expected: dict[tuple[str, str], list[_Expected]] = {}
    for item in items:
        for key in item.keys:
            if experiment_id in {None, key.key}:
                expected.setdefault((key.topic, key.key), []).append(_Expected(key, item))
    lines = []
    digests = KeyDigests()
    for name in DECIDED if expected else ():
        async for record in _records(ledger, name):
            waiting = expected.get((name, record.key))
            if waiting:
                before = digests.count(name, record.key)
                digests.add(name, record.key, record.value)
                count = digests.count(name, record.key)
                lines += [
                    _differs(it)
                    for it in waiting
                    if before < count == it.key.records
                    and it.key.digest != digests.digest(name, record.key)
                ]
    return lines + [
        _lacks(it, count)
        for (name, key), waiting in expected.items()
        for count in [digests.count(name, key)]
        for it in waiting
        if count < it.key.records
    ]


def _differs(expected: _Expected) -> str:
    key, item = expected
    return (
        f"{key.topic} of {key.key}: the first {key.records:,} decisions are not those that were"
        f" imported from the ledger {item.started.exported_from} at {item.time}: they were decided"
        " again by this installation, or altered"
    )


def _lacks(expected: _Expected, count: int) -> str:
    key, item = expected
    return (
        f"{key.topic} of {key.key}: {count:,} decisions are on record, and {key.records:,} were"
        f" imported from the ledger {item.started.exported_from} at {item.time}"
    )


async def _carried_out_twice(ledger: Ledger, experiment_id: str | None) -> list[str]:
    """Return the experiments whose decisions were relayed in two ledgers."""
    counts: dict[tuple[str, str, str], int] = {}
    for name in _FACTS:
        first: dict[str, str] = {}
        async for record in _records(ledger, name):
            relayed = _relayed(record, ledger.id, first)
            if relayed is None:
                continue
            key, cause, by = relayed
            before = first.setdefault(cause, by) if by != ledger.id else first.get(cause, by)
            if before != by and experiment_id in {None, key}:
                counts[key, before, by] = counts.get((key, before, by), 0) + 1
    return [
        f"{key}: {count:,} of its decisions were carried out in the ledger {before} and again in"
        f" the ledger {by}: its history was imported without them, so that they were made, and its"
        " trials trained, a second time"
        for (key, before, by), count in sorted(counts.items())
    ]


def _relayed(record: Record, own: str, first: dict[str, str]) -> tuple[str, str, str] | None:
    """Return experiment, decision and ledger of a relayed decision.

    None for others; and for those relayed in this ledger, as long as there are none of former
    ones.
    """
    if not first and own.encode() in record.value:
        return None  # as nearly all of a ledger into which nothing was imported
    try:
        event = decode(record.value)
    except UndecodableEvent:
        return None
    parts = (event.origin or "").split("/", _ORIGIN_PARTS)
    if event.cause is None or len(parts) < _ORIGIN_PARTS or parts[1] not in _RELAYED:
        return None
    return experiment_of(event.data) or record.key, event.cause, parts[0]


async def _records(ledger: Ledger, name: str) -> AsyncIterator[Record]:
    for partition in range(ledger.partitions(name)):
        position = await ledger.start(name, partition)
        while records := await ledger.read(name, partition, position, _READ):
            for record in records:
                yield record
            position = records[-1].position + 1
