"""Verification of an export against the seals in it.

An export of a whole ledger is verified as the ledger. In one of an experiment, each record must
lie in a sealed range, and of each range the export must hold exactly the records that the seal
lists for the experiment. That no range is missing follows from the signature of the last line, and
so does that dead letters are unchanged: their seals list them with those of other experiments.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

import msgspec
from blake3 import blake3
from msgspec import structs

from rung.api.seal import Kind, SealReport, Unsealed
from rung.events import LedgerError, UndecodableEvent, decode, topic
from rung.events.seal import PartitionSealed
from rung.ledger.export.format import (
    TOPICS,
    VERSION_UNSEALED,
    VERSION_WITHOUT_LETTERS,
    End,
    Header,
    is_end,
    parse_end,
    parse_header,
    parse_line,
)
from rung.ledger.port import Record, read_all
from rung.ledger.seals.chain import Accepted, Chains, Heads, Rejected
from rung.ledger.seals.digest import RangeHasher, group_name
from rung.ledger.seals.verify import (
    Known,
    Place,
    add_altered,
    add_problem,
    differing,
    verify,
)

_SCHEMA: Final = """
CREATE TABLE records (
    topic TEXT, partition INTEGER, position INTEGER, line INTEGER, key TEXT, value BLOB,
    PRIMARY KEY (topic, partition, position)
) WITHOUT ROWID
"""


class Export:
    """The records of an export, in a temporary file; a `Readable`."""

    @classmethod
    def read_lines(cls, lines: Iterable[bytes]) -> Self:
        """Read an export; blocks.

        Raises:
            LedgerError: it is not an export, or one of a newer version.
        """
        export = cls()
        try:
            export._fill(lines)
        except BaseException:
            export.close()
            raise
        return export

    def __init__(self) -> None:
        self.header: Header = _NO_HEADER
        self.end_line: End | None = None
        self.digest = ""
        """Of all lines before the last one."""
        self.lines = 0
        """The number of those lines."""
        self.repeated: list[tuple[int, Place, int]] = []
        """Lines with a repeated position: line, place, position."""
        self.damaged: list[str] = []
        """Messages about damaged lines."""
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(_SCHEMA)

    def close(self) -> None:
        """Delete the temporary file."""
        self._database.close()

    @property
    def id(self) -> str:
        """The name of the ledger that was exported."""
        return self.header.ledger

    def partitions(self, topic: str) -> int:  # noqa: ARG002 - the port's
        """Return how many partitions a topic has."""
        return self.header.partitions

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on."""
        found = self._database.execute(
            "SELECT position, key, value FROM records WHERE topic = ? AND partition = ?"
            " AND position >= ? ORDER BY position LIMIT ?",
            (topic, partition, position, limit),
        )
        return [Record(topic, partition, at, key, value) for at, key, value in found]

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position."""
        return self._one("min(position)", topic, partition) or 0

    async def end(self, topic: str, partition: int) -> int:
        """Return the position behind the last one."""
        last = self._one("max(position)", topic, partition)
        return 0 if last is None else last + 1

    async def snapshot(self, name: str, partition: int) -> bytes | None:  # noqa: ARG002 - the port's
        """Return the signed heads in it."""
        for heads in self.end_line.heads if self.end_line else ():
            if heads.partition == partition:
                return msgspec.json.encode(heads)
        return None

    def places(self) -> list[Place]:
        """Return the partitions with records, without those of the seals."""
        query = "SELECT DISTINCT topic, partition FROM records ORDER BY 1, 2"
        return [
            (name, partition)
            for name, partition in self._database.execute(query)
            if name != topic.SEALS
        ]

    def count(self) -> int:
        """Return the number of records, without seals."""
        query = "SELECT count(*) FROM records WHERE topic != ?"
        count: int = self._database.execute(query, (topic.SEALS,)).fetchone()[0]
        return count

    def _one(self, what: str, name: str, partition: int) -> int | None:
        found: tuple[int | None] = self._database.execute(
            f"SELECT {what} FROM records WHERE topic = ? AND partition = ?",  # noqa: S608 - ours
            (name, partition),
        ).fetchone()
        return found[0]

    def _fill(self, lines: Iterable[bytes]) -> None:
        hasher = blake3()
        self._database.execute("BEGIN")
        for number, line in enumerate(lines, 1):
            if number == 1:
                self.header = parse_header(line)
            elif self.end_line is not None:
                self.damaged.append(f"line {number} comes after the last one")
            elif is_end(line):
                self._finish(number, line)
                continue
            else:
                self._take(number, line)
            hasher.update(line)
            self.lines = number
        self._database.execute("COMMIT")
        self.digest = hasher.hexdigest()
        if not self.lines:
            parse_header(b"")

    def _finish(self, number: int, line: bytes) -> None:
        try:
            self.end_line = parse_end(line, number)
        except LedgerError as error:
            self.damaged.append(str(error))

    def _take(self, number: int, line: bytes) -> None:
        try:
            parsed = parse_line(line, number)
        except LedgerError as error:
            self.damaged.append(str(error))
            return
        place = (parsed.topic, parsed.partition)
        try:
            self._database.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
                (*place, parsed.position, number, parsed.key, parsed.value),
            )
        except sqlite3.IntegrityError:
            self.repeated.append((number, place, parsed.position))


_NO_HEADER: Final = Header(version=0, ledger="", rung="", experiment=None, records=0)


async def verify_export(
    lines: Iterable[bytes], keys: frozenset[str] = frozenset(), anchors: Sequence[Heads] = ()
) -> SealReport:
    """Verify an export against the seals in it.

    Args:
        lines: of the export, as bytes with their line ends.
        keys: the trusted public keys; by default those that the export names.
        anchors: heads that were kept elsewhere.

    Raises:
        LedgerError: it is not an export, or one of a newer version.
    """
    with contextlib.closing(Export.read_lines(lines)) as export:
        if export.header.version == VERSION_UNSEALED:
            return _unsealed(export, keys)
        if export.header.experiment is None:
            report = await verify(
                export, Known(keys=keys, anchors=anchors, topics=_topics(export))
            )
        else:
            report = await _Alone(export, keys).verify()
        _check_end(export, keys, report)
        return report


def _topics(export: Export) -> list[str]:
    """Return the topics that an export holds whole."""
    without = (topic.DEADLETTER,) if export.header.version <= VERSION_WITHOUT_LETTERS else ()
    return [name for name in TOPICS if name not in without]


def _unsealed(export: Export, keys: frozenset[str]) -> SealReport:
    report = SealReport(ledger=export.id, compared=bool(keys))
    text = "this export carries no seals: it is of format version 1, written by an earlier Rung"
    if keys:
        add_problem(report, "export", ("", 0), f"{text}; a key was given to verify it by")
    else:
        report.notes.append(text)
    return report


def _check_end(export: Export, keys: frozenset[str], report: SealReport) -> None:
    """Check that the lines are those that were written."""
    end, whole = export.end_line, ("", 0)
    for text in export.damaged:
        add_problem(report, "export", whole, text)
    for number, place, position in export.repeated:
        text = f"line {number} repeats {place[0]}/{place[1]} {position}"
        add_problem(report, "export", place, text, position)
    if end is None:
        add_problem(report, "export", whole, "its last line is missing: the export was cut off")
        return
    if (count := export.count()) != export.header.records:
        text = f"it should hold {export.header.records:,} records, and holds {count:,}"
        add_problem(report, "export", whole, text)
    if (end.lines, end.digest) != (export.lines, export.digest):
        text = "its lines are not those that were written"
        if end.lines != export.lines:
            text = f"it has {export.lines:,} lines instead of the {end.lines:,} that were written"
        text += ": the export was altered, or damaged on its way"
        add_problem(report, "export", whole, text)
    _check_signature(export, end, keys, report)


def _check_signature(export: Export, end: End, keys: frozenset[str], report: SealReport) -> None:
    """Check who signed the lines; those that are not sealed yet are covered by that."""
    whole: Place = ("", 0)
    if end.key is None:
        alone = export.header.experiment is not None
        text = "the export is not signed: nothing vouches for records that were not sealed yet" + (
            ", nor proves that no range of records was left out" if alone else ""
        )
        if keys:
            add_problem(report, "export", whole, f"{text}; a key was given to verify it by")
        else:
            report.notes.append(text)
    elif not end.authentic:
        add_problem(report, "export", whole, "the signature of its last line is wrong")
    elif end.key not in (keys or {*export.header.keys, end.key}):
        add_problem(report, "export", whole, f"it was signed by a foreign key, {end.key}")
    elif (end.lines, end.digest) == (export.lines, export.digest):
        report.unsealed = [structs.replace(item, signed=True) for item in report.unsealed]


class _Range(NamedTuple):
    """A range with records of the experiment."""

    seal: PartitionSealed
    position: int


class _Alone:
    """The export of one experiment."""

    def __init__(self, export: Export, keys: frozenset[str]) -> None:
        self._export = export
        self._name = group_name(export.header.experiment or "")
        self._report = SealReport(ledger=export.id, compared=bool(keys))
        heads = export.end_line.heads if export.end_line else []
        self._heads = [item for item in heads if item.authentic and item.ledger == export.id]
        self._keys = keys or frozenset(item.key for item in self._heads)
        self._ranges: dict[Place, list[_Range]] = {}

    async def verify(self) -> SealReport:
        report = self._report
        report.keys = sorted(self._keys)
        for item in self._export.end_line.heads if self._export.end_line else ():
            if not item.authentic or item.key not in self._keys:
                place = (topic.SEALS, item.partition)
                add_problem(report, "heads", place, "the signed heads were altered")
        for partition in range(self._export.partitions(topic.SEALS)):
            await self._read_seals(partition)
        report.sealed = bool(self._heads) or bool(report.seals)
        for place in self._export.places():
            if place[0] == topic.DEADLETTER:
                report.notes.append(
                    f"{place[0]}/{place[1]}: what was dropped is covered by the signature of the"
                    " export alone"
                )
            else:
                await self._check_place(place)
        for place in sorted(self._ranges.keys() - set(self._export.places())):
            for sealed in self._ranges[place]:
                await self._check_range(place, sealed)
        return report

    async def _read_seals(self, partition: int) -> None:
        chains = Chains(self._export.id, partition, self._keys)
        async for record in read_all(self._export, topic.SEALS, partition):
            found = chains.take(record, resume=True)
            if isinstance(found, Accepted):
                place = (found.seal.topic, found.seal.partition)
                self._ranges.setdefault(place, []).append(_Range(found.seal, record.position))
                self._report.seals += 1
                self._note_time(record)
            elif isinstance(found, Rejected) and not found.harmless:
                text = f"the seal at seals/{partition} {record.position}: {found.reason}"
                place = (topic.SEALS, partition)
                add_problem(self._report, "seal", place, text, record.position)

    def _note_time(self, record: Record) -> None:
        with contextlib.suppress(UndecodableEvent):
            time = decode(record.value).time
            self._report.since = min(self._report.since or time, time)

    async def _check_place(self, place: Place) -> None:
        """Check the ranges of a partition, and records in none."""
        covered: list[tuple[int, int]] = []
        for item in self._ranges.get(place, ()):
            await self._check_range(place, item)
            covered.append((item.seal.first, item.seal.last))
        newest = max((last for _, last in covered), default=-1)
        for kept in self._heads:
            if (head := kept.heads.get(f"{place[0]}/{place[1]}")) is not None:
                newest = max(newest, head.last)
        covered.sort()
        index = behind = first_behind = 0
        async for record in read_all(self._export, *place):
            while index < len(covered) and covered[index][1] < record.position:
                index += 1
            if index < len(covered) and covered[index][0] <= record.position:
                continue
            if record.position > newest:
                first_behind = first_behind if behind else record.position
                behind += 1
            else:
                text = (
                    f"{place[0]}/{place[1]} {record.position}: the seal of its range is missing, "
                    "or does not list it"
                )
                add_problem(self._report, "seal", place, text, record.position)
        if behind:
            self._report.unsealed.append(
                Unsealed(topic=place[0], partition=place[1], first=first_behind, count=behind)
            )

    async def _check_range(self, place: Place, item: _Range) -> None:
        seal = item.seal
        sealed = next((group for group in seal.groups if group.name == self._name), None)
        found = read_all(self._export, *place, seal.first, seal.last + 1)
        records = [record async for record in found if record.position <= seal.last]
        hasher = RangeHasher(*place)
        hasher.add(records)
        groups = hasher.finish().groups if records else []
        if groups == ([sealed] if sealed else []):
            self._report.records += len(records)
            return
        different = differing(seal, records)
        add_altered(self._report, place, different)
        count = sealed.count if sealed else 0
        if len(records) != count or not different:
            text = (
                f"positions {seal.first} to {seal.last} of {place[0]}/{place[1]}: the experiment "
                f"had {count:,} records there when they were sealed, and has {len(records):,}"
            )
            kind: Kind = "missing" if len(records) < count else "altered"
            add_problem(self._report, kind, place, text, seal.first, seal.last)
