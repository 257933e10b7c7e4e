"""Import of an export into a ledger, all or nothing.

Theory of operation. The whole export is checked, in a temporary database, before anything is
written. A ledger with transactions then takes all of it in one: records, the positions of relays,
what the caller appends, and the record of the import on the topic `imports`.

Kafka has no such transactions, so there an import can be resumed. `ImportStarted` is appended
first, with the positions from which the import's records follow; `ImportCompleted` is appended
last. The same import, run again, reads back what was appended: in each partition the first of its
records, some perhaps twice. It continues behind them. Facts come before what refers to their
positions: decisions, and dead letters that drop a fact. Services refuse a ledger with a start and
no end.

Records of other keys may lie between those of the import. A record that is not of the import but
has one of its keys is refused, as it would change decisions.
"""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rung.events import partition_of, topic
from rung.events.errors import LedgerError, LedgerUnavailable
from rung.events.ledger_import import ImportStarted
from rung.events.topic import DECISIONS, FACTS_OF
from rung.ledger.export.format import POINTING, STREAMS
from rung.ledger.export.import_record import Import, ImportRecord, imports_of, unfinished
from rung.ledger.export.staging import Place, Row, Staging
from rung.ledger.port import Draft, Ledger, Record, Transactional, read_all

_NEW_KEYS: Final = (topic.EXPERIMENTS, topic.POOLS)
"""Topics whose keys must not be in the ledger yet."""
_READ: Final = 1_000
_RECENT: Final = 50_000
"""Most records between a record and its repetition."""


class Undone(NamedTuple):
    """What the exported ledger had not done yet."""

    forwarded: int = 0
    """Facts that relays make of recorded decisions."""
    lost: int = 0
    """Runs that were ended as lost."""
    undeleted: int = 0
    """Retired checkpoints that are still to be deleted."""


class Imported(NamedTuple):
    """The result of an import."""

    records: int
    experiments: list[str]
    resumed: bool = False
    """Whether an earlier run of the same import was completed."""
    undone: Undone = Undone()


async def import_(  # noqa: PLR0913 - options of one operation
    ledger: Ledger,
    lines: Iterable[bytes | str],
    *,
    consumers: Sequence[tuple[str, str]] = (),
    at: str | None = None,
    check_idle: Callable[[], Awaitable[None]] | None = None,
    finish: Callable[[Ledger], Awaitable[Undone]] | None = None,
) -> Imported:
    """Append an export to a ledger that nothing else uses meanwhile.

    Everything is checked before anything is written; until then the lines lie in a temporary
    file, so that memory does not grow with them. Decisions refer to the new positions of their
    facts. Blocks the event loop while it reads the lines.

    Args:
        ledger: appended to.
        lines: of the export, with or without their line ends.
        consumers: relays, as pairs of name and topic, that must not act on the imported records:
            their committed positions are moved behind them.
        at: now, RFC 3339 in UTC; without it the import is not recorded, and cannot be resumed.
        check_idle: raises if something else uses the ledger. It is called before anything is
            written, and again once the import is recorded, which later starts find.
        finish: completes the ledger once all is appended. It may be called again after a failure.

    Raises:
        LedgerError: the export is damaged, cut short, or of another version; a decision's fact
            is missing; it, an experiment or a pool is in the ledger already; another import is
            not complete; a consumer has not read all that the ledger holds. Nothing was written.
            Or, on a ledger without transactions: something else wrote under a key of the import.
        LedgerUnavailable: the disk became full on the way, or the ledger went away. A ledger with
            transactions is as before; with another, the same import can be run again.
    """
    with _staging(ledger.partitions(topic.EXPERIMENTS)) as staging:
        staging.fill(lines)
        async with contextlib.AsyncExitStack() as stack:
            if isinstance(ledger, Transactional):
                ledger = await stack.enter_async_context(ledger.transaction())
            known = await _check_record(ledger, staging) if at is not None else None
            if check_idle is not None:
                await check_idle()
            if known is None:
                await _check_new(ledger, staging)
                await _check_read(ledger, consumers)
            about = known.started if known else await _about(ledger, staging)
            record = ImportRecord(ledger, about, at) if at is not None else None
            if record is not None:
                await record.start(staging.decided(), known)
            if check_idle is not None:
                await check_idle()
            await _append(ledger, staging, about, record, resumes=known is not None)
            await _move(ledger, consumers)
            undone = await finish(ledger) if finish is not None else Undone()
            if record is not None:
                await record.complete(**undone._asdict())
        return Imported(
            staging.records, staging.keys(topic.EXPERIMENTS), known is not None, undone
        )


@contextlib.contextmanager
def _staging(partitions: int) -> Iterator[Staging]:
    """Open the temporary database for the lines of an export.

    Raises:
        LedgerUnavailable: the temporary database cannot be written.
    """
    try:
        with contextlib.closing(Staging(partitions)) as staging:
            yield staging
    except sqlite3.Error as error:
        raise LedgerUnavailable(
            f"the temporary database of the import could not be written ({error}). It takes as"
            " much space as the export, in the folder that SQLITE_TMPDIR or TMPDIR names, or in"
            " /var/tmp"
        ) from error


async def _check_record(ledger: Ledger, staging: Staging) -> Import | None:
    """Return the incomplete import of this export, None if there is none.

    Raises:
        LedgerError: it is complete; or another one is incomplete.
    """
    for item in await imports_of(ledger, into=ledger.id):
        same = item.started.import_id == staging.digest
        if same and item.completed is not None:
            raise LedgerError(
                f"this export is in this ledger already, complete: {staging.records:,} records"
                f" were imported at {item.time}; nothing was imported"
            )
        if item.completed is None:
            if same:
                return item
            raise LedgerError(f"{unfinished(item)} Nothing was imported")
    return None


async def _about(ledger: Ledger, staging: Staging) -> ImportStarted:
    return ImportStarted(
        ledger_id=ledger.id,
        import_id=staging.digest,
        exported_from=staging.header.ledger,
        exported_by=staging.header.rung,
        experiment=staging.header.experiment,
        records=staging.records,
        experiments=len(staging.keys(topic.EXPERIMENTS)),
        starts={
            name: [await ledger.end(name, part) for part in range(ledger.partitions(name))]
            for name in (*DECISIONS, *FACTS_OF, *STREAMS)
        },
    )


async def _append(
    ledger: Ledger,
    staging: Staging,
    about: ImportStarted,
    record: ImportRecord | None,
    *,
    resumes: bool,
) -> None:
    """Append what is missing: facts and streams, then what refers to positions of facts."""
    into = _Destination(ledger, staging, about.starts)
    for pointing in (False, True):
        skip: dict[Place, int] = {}
        if resumes:
            for place in into.places(pointing=pointing):
                skip[place] = await into.find_all(place)
        for batch in staging.batches(pointing=pointing, skip=skip):
            if record is not None:
                await record.check_owner()
            positions = await into.append(batch)
            _place(staging, zip(batch, positions, strict=True))


def _place(staging: Staging, found: Iterable[tuple[Row, int]]) -> None:
    """Note the positions of facts, for the decisions on them."""
    staging.place((row.number, position) for row, position in found if row.topic in DECISIONS)


class _Destination:
    """The partitions that an import appends to: their ends, and the records appended last."""

    def __init__(self, ledger: Ledger, staging: Staging, starts: dict[str, list[int]]) -> None:
        self._ledger = ledger
        self._staging = staging
        self._ends = {
            (name, part): position
            for name, positions in starts.items()
            for part, position in enumerate(positions)
        }
        self._recent: dict[int, None] = {}

    def places(self, *, pointing: bool) -> list[Place]:
        """Return the partitions of facts and streams, or those of what points at facts."""
        return [place for place in self._ends if (place[0] in POINTING) == pointing]

    async def find_all(self, place: Place) -> int:
        """Find the records that an earlier run appended to a partition; return their number."""
        count = 0
        some: list[tuple[Row, int]] = []
        async for found in self._find(place, self._staging.rows(place)):
            some.append(found)
            count += 1
            if len(some) == _READ:
                _place(self._staging, some)
                some = []
        _place(self._staging, some)
        return count

    async def append(self, batch: Sequence[Row]) -> list[int]:
        """Append rows; return their positions, of repeated ones the first.

        Raises:
            LedgerError: something else was appended under a key of the import.
        """
        drafts = [Draft(row.topic, row.key, row.value) for row in batch]
        positions = await self._ledger.append(drafts)
        by_place: dict[Place, list[int]] = {}
        for index, row in enumerate(batch):
            by_place.setdefault((row.topic, row.target), []).append(index)
        for place, indexes in by_place.items():
            end = self._ends[place]
            if [positions[index] for index in indexes] == list(range(end, end + len(indexes))):
                self._ends[place] = end + len(indexes)
                for index in indexes:
                    self._remember(place, batch[index].key, batch[index].value)
                continue
            found = self._find(place, (batch[index] for index in indexes))
            first = [position async for _, position in found]
            assert len(first) == len(indexes), f"{place}: records that were appended are not there"
            for index, position in zip(indexes, first, strict=True):
                positions[index] = position
        return positions

    async def _find(self, place: Place, rows: Iterator[Row]) -> AsyncIterator[tuple[Row, int]]:
        """Yield the rows that are in the ledger, with their positions."""
        position = self._ends[place]
        row = next(rows, None)
        while row is not None:
            records = await self._ledger.read(*place, position, _READ)
            if not records:
                return
            position = records[-1].position + 1
            for record in records:
                if row is None:
                    return
                if (record.key, record.value) == (row.key, row.value):
                    self._remember(place, record.key, record.value)
                    self._ends[place] = record.position + 1
                    yield row, record.position
                    row = next(rows, None)
                else:
                    self._check_stray(place, record)

    def _remember(self, place: Place, key: str, value: bytes) -> None:
        self._recent[hash((place, key, value))] = None
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]

    def _check_stray(self, place: Place, record: Record) -> None:
        """Check that a record that is not of the import has none of its keys.

        Raises:
            LedgerError: it has.
        """
        name, part = place
        if (
            name in STREAMS
            or hash((place, record.key, record.value)) in self._recent
            or not self._staging.has_key(name, record.key)
        ):
            return
        raise LedgerError(
            f"{name}/{part}: position {record.position} holds something about {record.key!r} that"
            " is not in the export: services or agents use this ledger while it is imported into."
            " What was imported cannot be used. Stop them, and import into a new, empty ledger"
        )


async def _move(ledger: Ledger, consumers: Sequence[tuple[str, str]]) -> None:
    """Commit the positions of consumers behind the imported records."""
    for consumer, name in consumers:
        for partition in range(ledger.partitions(name)):
            end = await ledger.end(name, partition)
            await ledger.commit(consumer, name, partition, end)


async def _check_new(ledger: Ledger, staging: Staging) -> None:
    for name in _NEW_KEYS:
        keys = staging.keys(name)
        count = ledger.partitions(name)
        for partition in range(count):
            new = {key for key in keys if partition_of(key, count) == partition}
            if not new:
                continue
            start = await ledger.start(name, partition)
            async for record in read_all(ledger, name, partition, start):
                if record.key in new:
                    raise LedgerError(_already(name, record.key))


def _already(name: str, key: str) -> str:
    if name == topic.POOLS:
        return (
            f"the resource pool {key!r} has a history in this ledger already; import the whole "
            "export into an empty ledger, or export single experiments"
        )
    return f"the experiment {key} is in this ledger already; nothing was imported"


async def _check_read(ledger: Ledger, consumers: Sequence[tuple[str, str]]) -> None:
    for consumer, name in consumers:
        for partition in range(ledger.partitions(name)):
            position = await ledger.position(consumer, name, partition)
            if position < await ledger.end(name, partition):
                raise LedgerError(
                    f"{consumer} has not read all of {name} yet; start Rung, wait until it is "
                    "idle, stop it, and import then"
                )
