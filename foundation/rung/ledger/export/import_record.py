"""Records of imports, on the topic `imports`: begun, with which keys and digests, completed.

Events are keyed by the id of the ledger that is imported into, so a ledger's own imports lie in
one partition, in order. Those with other keys came with an export: of imports into former ledgers.
"""

import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from rung.events import Event, Payload, UndecodableEvent, decode, fact, partition_of, topic
from rung.events.deadletter import FactRejected
from rung.events.errors import LedgerError
from rung.events.ledger_import import (
    ImportCompleted,
    ImportedKey,
    ImportKeysListed,
    ImportStarted,
)
from rung.events.topic import FACTS_OF
from rung.ledger.effective import Cause, is_new_decision
from rung.ledger.port import Draft, Ledger, Record, read_all

_SOURCE: Final = "/rung/import"
_KEYS_MAX: Final = 1_000
"""Of one event: some 200 KB."""
_OF_IMPORTS: Final = (ImportStarted, ImportKeysListed, ImportCompleted)


class Import(Struct, kw_only=True):
    """One import, as recorded."""

    started: ImportStarted
    time: str
    """Of its start, RFC 3339 in UTC."""
    parts: dict[int, list[ImportedKey]] = field(default_factory=dict[int, list[ImportedKey]])
    completed: ImportCompleted | None = None

    @property
    def keys(self) -> Iterator[ImportedKey]:
        """The keys that it appends, with their digests."""
        return (key for part in sorted(self.parts) for key in self.parts[part])


async def imports_of(ledger: Ledger, *, into: str | None = None) -> list[Import]:
    """Return the recorded imports in order, or only those `into` the ledger of this id."""
    found: dict[tuple[str, str], Import] = {}
    async for event in _events(ledger, into):
        match event.data:
            case ImportStarted() as started:
                at = (started.ledger_id, started.import_id)
                found.setdefault(at, Import(started=started, time=event.time))
            case ImportKeysListed(ledger_id=ledger_id, import_id=import_id) as listed:
                if (known := found.get((ledger_id, import_id))) is not None:
                    known.parts[listed.part] = listed.keys
            case ImportCompleted(ledger_id=ledger_id, import_id=import_id) as completed:
                if (known := found.get((ledger_id, import_id))) is not None:
                    known.completed = completed
            case _:
                pass
    return list(found.values())


async def check_imported(ledger: Ledger) -> None:
    """Check that no import into a ledger is incomplete: nothing may decide there.

    Raises:
        LedgerError: one is; the message says what to do.
    """
    for item in await imports_of(ledger, into=ledger.id):
        if item.completed is None:
            raise LedgerError(f"{unfinished(item)} Until then nothing may run on this ledger")


def unfinished(item: Import) -> str:
    """Return the message about an import that did not end."""
    started = item.started
    return (
        f"an import into this ledger is not complete: {started.records:,} records of the ledger"
        f" {started.exported_from}, begun {item.time}. Run the same `rung ledger import` again: it"
        " resumes where it stopped. If the export is gone, export that ledger again. An import"
        " cannot be undone: to give it up, go on under another prefix (`rung cluster init --ledger"
        " kafka://HOST/OTHER`), into which the archive of this ledger can be imported."
    )


class ImportRecord:
    """Records one import while it runs."""

    def __init__(self, ledger: Ledger, started: ImportStarted, time: str) -> None:
        """Prepare the record of an import; `time` is now, RFC 3339 in UTC."""
        self._ledger = ledger
        self._started = started
        self._time = time
        self._origin = f"import/{secrets.token_hex(8)}"
        self._sequence = 0
        self._partition = partition_of(started.ledger_id, ledger.partitions(topic.IMPORTS))
        self._position = 0

    async def start(self, keys: Sequence[ImportedKey], known: Import | None) -> None:
        """Record that it starts, or resumes, and its keys.

        Raises:
            LedgerError: another import began at the same time.
        """
        before = await self._ledger.end(topic.IMPORTS, self._partition)
        (position,) = await self._append([self._started])
        self._position = before
        await self.check_owner()
        self._position = position + 1
        parts = [keys[first : first + _KEYS_MAX] for first in range(0, len(keys), _KEYS_MAX)]
        for part, some in enumerate(parts):
            if known is None or part not in known.parts:
                await self._append(
                    [
                        ImportKeysListed(
                            ledger_id=self._started.ledger_id,
                            import_id=self._started.import_id,
                            part=part,
                            keys=list(some),
                        )
                    ]
                )

    async def check_owner(self) -> None:
        """Check that no other process began to import meanwhile; that one would go on.

        Raises:
            LedgerError: one did.
        """
        async for record in read_all(self._ledger, topic.IMPORTS, self._partition, self._position):
            event = _event(record)
            if event is not None and record.key == self._started.ledger_id:
                self._check_own(event)
            self._position = record.position + 1

    async def complete(self, *, forwarded: int, lost: int, undeleted: int) -> None:
        """Record that it is complete."""
        await self.check_owner()
        completed = ImportCompleted(
            ledger_id=self._started.ledger_id,
            import_id=self._started.import_id,
            records=self._started.records,
            forwarded=forwarded,
            lost=lost,
            undeleted=undeleted,
        )
        await self._append([completed])

    def _check_own(self, event: Event) -> None:
        if isinstance(event.data, _OF_IMPORTS) and event.origin != self._origin:
            raise LedgerError(
                "another `rung ledger import` into this ledger began at the same time; let one of"
                " them end, and then run the other again"
            )

    async def _append(self, payloads: Sequence[Payload]) -> list[int]:
        drafts = []
        for data in payloads:
            self._sequence += 1
            event = fact(
                data,
                source=_SOURCE,
                origin=self._origin,
                sequence=self._sequence,
                time=self._time,
            )
            drafts.append(Draft.of(event))
        return await self._ledger.append(drafts)


class KeyDigests:
    """Counts the decisions of each key, and chains their digests.

    A repeated decision, as on Kafka, counts once. The digest does not depend on the position of
    the fact, so it is the same in each ledger.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._causes: dict[tuple[str, str], Cause] = {}

    def add(self, name: str, key: str, value: bytes) -> None:
        """Add the next decision of a key."""
        place = name, key
        lasting, cause = _invariant(value)
        if cause is not None and not is_new_decision(cause, self._causes, place):
            return
        count, digest = self._known.get(place, (0, b""))
        self._known[place] = (count + 1, hashlib.sha256(digest + lasting).digest())

    def count(self, name: str, key: str) -> int:
        """Return the number of decisions of a key."""
        return self._known.get((name, key), (0,))[0]

    def digest(self, name: str, key: str) -> str:
        """Return the digest of the decisions of a key."""
        return self._known[name, key][1].hex()

    def keys(self) -> list[ImportedKey]:
        """Return all keys with their counts and digests, in order."""
        return [
            ImportedKey(topic=name, key=key, records=count, digest=digest.hex())
            for (name, key), (count, digest) in sorted(self._known.items())
        ]


DECIDED: Final = tuple(FACTS_OF)
"""Topics of which `KeyDigests` are made."""


def _invariant(value: bytes) -> tuple[bytes, Cause | None]:
    """Return the fields of a decision that are equal in all ledgers, and its cause and index."""
    try:
        event = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        position = msgspec.json.decode(event.pop("causeposition"), type=int)
        index = msgspec.json.decode(event["causeindex"], type=int)
        if msgspec.json.decode(event["type"]) == FactRejected.TYPE:
            data = msgspec.json.decode(event["data"], type=dict[str, msgspec.Raw])
            lasting = {name: data[name] for name in data if name not in {"partition", "position"}}
            event["data"] = msgspec.Raw(msgspec.json.encode(lasting))
    except (msgspec.DecodeError, KeyError):
        return value, None
    return msgspec.json.encode(event), (position, index)


async def _events(ledger: Ledger, into: str | None) -> AsyncIterator[Event]:
    count = ledger.partitions(topic.IMPORTS)
    for partition in range(count) if into is None else [partition_of(into, count)]:
        start = await ledger.start(topic.IMPORTS, partition)
        async for record in read_all(ledger, topic.IMPORTS, partition, start):
            event = _event(record)
            if event is not None and into in {None, record.key}:
                yield event


def _event(record: Record) -> Event | None:
    try:
        return decode(record.value)
    except UndecodableEvent:
        return None
