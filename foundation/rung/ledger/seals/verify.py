"""Verification of a ledger, an export or an archive against its seals.

Each seal is checked (signature, chain), then the records of its range; then the signed heads, and
those of an anchor, by which truncation is found. Memory does not grow with the ledger.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from rung.api.seal import Kind, SealProblem, SealReport, Unsealed
from rung.events import LedgerDamaged, LedgerError, LedgerTrimmed, UndecodableEvent, decode, topic
from rung.events.seal import PartitionSealed
from rung.ledger.port import Readable, Record, root_of
from rung.ledger.seals.chain import (
    HEADS,
    SEALED,
    TRIMMED,
    Accepted,
    Chains,
    Heads,
    Rejected,
    decode_heads,
)
from rung.ledger.seals.digest import RangeHasher, group_name, unpack_checksums

_READ: Final = 2000
_INLINE: Final = 100
"""Up to so many records are digested without a thread, which would cost more."""
_SEALS: Final = 1000
"""Seals that are checked at a time, those of one partition together."""
NAMED: Final = 20
"""Altered records of a range that are reported one by one."""

Place = tuple[str, int]


class Known(NamedTuple):
    """What is known about a ledger from elsewhere."""

    keys: frozenset[str] = frozenset()
    """The trusted public keys; by default those that signed the heads."""
    anchors: Sequence[Heads] = ()
    """Heads that were kept elsewhere."""
    topics: Collection[str] = SEALED
    """The topics that it holds."""
    expiring: Collection[str] = ()
    """Topics whose oldest records the brokers remove."""
    archived: Mapping[Place, int] | None = None
    """Of an archive, the end of each partition; records sealed behind it are not archived yet."""
    holes: Collection[tuple[str, int, int, int]] = ()
    """Of an archive, topic, partition, first and last position that were never archived."""


async def verify(ledger: Readable, known: Known = Known()) -> SealReport:  # noqa: B008 - frozen
    """Verify a ledger, an archive, or an export of a whole ledger, which may be in use.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    return await _Verifier(ledger, known).verify()


class _Verifier:
    """One verification."""

    def __init__(self, ledger: Readable, known: Known) -> None:
        self._ledger = ledger
        self._known = known
        self._report = SealReport(ledger=ledger.id, compared=bool(known.keys))
        self._starts: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._sealed: dict[Place, int] = {}
        """The position behind the last sealed record of each partition."""
        self._absent: dict[Place, int] = {}
        """The position up to which records are missing at a partition's start."""
        self._ignored = 0
        self._without_heads = False

    async def verify(self) -> SealReport:
        report = self._report
        count = self._ledger.partitions(topic.SEALS)
        heads = [await self._heads(partition) for partition in range(count)]
        keys = (
            self._known.keys
            or {found.key for found in heads if found}
            or await self._key_on_record()
        )
        report.keys = sorted(keys)
        seals_ends = [await self._end((topic.SEALS, partition)) for partition in range(count)]
        trimmed: dict[str, int] = {}
        for partition in range(count):
            found = heads[partition]
            chains = Chains(self._ledger.id, partition, frozenset(keys))
            await self._follow(chains, seals_ends[partition], self._expected(found, partition))
            trimmed |= chains.trimmed
            self._check_heads(chains, found)
        report.sealed = bool(report.seals) or any(heads)
        self._check_heads_exist(heads, seals_ends)
        anchored = {item.ledger for item in self._known.anchors}
        if anchored and self._ledger.id not in anchored:
            text = f"the anchor has heads of {', '.join(sorted(anchored))}, none of this ledger"
            self._add("heads", (topic.SEALS, 0), text)
        await self._check_sealed()
        self._check_beginnings(trimmed)
        await self._check_ends(trimmed)
        if self._ignored:
            report.notes.append(
                f"{self._ignored:,} seals were ignored: repetitions, or of foreign keys"
            )
        return report

    async def _heads(self, partition: int) -> Heads | None:
        """Return the signed heads, if they are authentic."""
        try:
            data = await self._ledger.snapshot(HEADS, partition)
            found = None if data is None else decode_heads(data)
        except ValueError as error:
            self._add("heads", (topic.SEALS, partition), str(error))
            return None
        except LedgerError as error:
            if error.retriable:
                raise
            self._without_heads = True
            self._report.notes.append(f"the signed heads were not compared: {error}")
            return None
        if found is None:
            return None
        return found if self._authentic(found, partition, "the signed heads") else None

    def _authentic(self, found: Heads, partition: int, what: str) -> bool:
        place = (topic.SEALS, partition)
        if (found.ledger, found.partition) != (self._ledger.id, partition):
            text = f"{what} are of {found.ledger}, partition {found.partition}"
        elif not found.authentic:
            text = f"{what} were altered: their signature is wrong"
        elif self._known.keys and found.key not in self._known.keys:
            text = f"{what} were signed by a foreign key, {found.key}"
        else:
            return True
        self._add("heads", place, text)
        return False

    async def _key_on_record(self) -> set[str]:
        """Return the key of the first readable seal, where nothing else names one."""
        for partition in range(self._ledger.partitions(topic.SEALS)):
            place = (topic.SEALS, partition)
            async for record in self._records(place, await self._end(place)):
                try:
                    data = decode(record.value).data
                except UndecodableEvent:
                    continue
                if isinstance(data, PartitionSealed):
                    return {data.key}
        return set()

    def _expected(self, found: Heads | None, partition: int) -> list[tuple[Heads, str]]:
        """Return the heads that the seals must agree with, by position."""
        met = [(found, "the signed heads")] if found else []
        met += [
            (item, "the anchor")
            for item in self._known.anchors
            if item.ledger == self._ledger.id
            and item.partition == partition
            and self._authentic(item, partition, "the heads of the anchor")
        ]
        return sorted(met, key=lambda it: it[0].position)

    async def _follow(self, chains: Chains, end: int, expected: list[tuple[Heads, str]]) -> None:
        """Fold a partition of `seals`, and check the ranges of its seals."""
        batch: list[Accepted] = []
        waiting = list(expected)
        number = chains.partition
        async for record in self._records((topic.SEALS, number), end):
            self._compare_heads(chains, waiting)
            found = chains.take(record, resume=True)
            if isinstance(found, Accepted):
                if found.gap:
                    self._add(
                        "seal",
                        (topic.SEALS, number),
                        f"the seal {found.seal.number} of {record.key} does not follow the one "
                        "before: that one is missing or was altered",
                        record.position,
                    )
                batch.append(found)
                if self._report.since is None or len(batch) == 1:
                    self._note_time(record)
            elif isinstance(found, Rejected):
                self._reject(record, found)
            if len(batch) >= _SEALS:
                await self._check_ranges(batch)
                batch.clear()
        await self._check_ranges(batch)
        self._compare_heads(chains, waiting)
        for missed, what in waiting:
            self._add(
                "heads",
                (topic.SEALS, number),
                f"{topic.SEALS}/{number} ends at {chains.position}, but {what} are at "
                f"{missed.position}: its end was cut off",
                chains.position,
                missed.position - 1,
            )

    def _compare_heads(self, chains: Chains, waiting: list[tuple[Heads, str]]) -> None:
        while waiting and waiting[0][0].position <= chains.position:
            met, what = waiting.pop(0)
            if met.position == chains.position and met.digest != chains.digest:
                self._add(
                    "heads",
                    (topic.SEALS, chains.partition),
                    f"the seals in {topic.SEALS}/{chains.partition} before position "
                    f"{met.position} are not those that {what} have the digest of",
                    0,
                    met.position - 1,
                )

    def _note_time(self, record: Record) -> None:
        time = decode(record.value).time
        if self._report.since is None or time < self._report.since:
            self._report.since = time

    def _reject(self, record: Record, found: Rejected) -> None:
        if found.harmless:
            self._ignored += 1
            return
        self._add(
            "seal",
            (record.topic, record.partition),
            f"the seal at {record.topic}/{record.partition} {record.position} ({record.key}): "
            f"{found.reason}",
            record.position,
        )

    async def _check_ranges(self, batch: list[Accepted]) -> None:
        """Check the ranges of some seals, those of one partition together."""
        for found in sorted(batch, key=lambda it: (it.seal.topic, it.seal.partition, it.position)):
            seal = found.seal
            place = (seal.topic, seal.partition)
            self._report.seals += 1
            before = self._sealed.get(place, 0)
            if seal.first > before and not found.gap and seal.topic in self._known.topics:
                self._note_hole(place, before, seal.first - 1)
            self._sealed[place] = seal.last + 1
            if seal.topic in self._known.topics and seal.partition < self._ledger.partitions(
                seal.topic
            ):
                await self._check_range(place, seal)

    def _note_hole(self, place: Place, first: int, last: int) -> None:
        """Report records that were removed before they were sealed."""
        if place[0] in TRIMMED:
            self._report.notes.append(
                f"positions {first} to {last} of {_name(place)} were removed by retention before "
                "they were sealed or archived"
            )
        else:
            self._add(
                "missing",
                place,
                f"positions {first} to {last} of {_name(place)} were never sealed: they were gone "
                "before the next seal was made",
                first,
                last,
            )

    async def _check_range(self, place: Place, seal: PartitionSealed) -> None:
        start = await self._start(place)
        if seal.first < start:  # whether by retention is checked at the end
            self._absent[place] = max(min(seal.last + 1, start), self._absent.get(place, 0))
            return
        if seal.last >= await self._end(place):
            return  # a missing end is reported once
        records = await _read_range(self._ledger, place, seal.first, seal.last)
        if records is None:
            self._starts[place] = await self._ledger.start(*place)
            if self._starts[place] > seal.first:  # retention removed it meanwhile
                await self._check_range(place, seal)
            else:
                await self._explain(place, seal)
            return
        hasher = RangeHasher(*place)
        if len(records) > _INLINE:
            await asyncio.to_thread(hasher.add, records)
        else:
            hasher.add(records)
        if hasher.finish().digest == seal.digest:
            self._report.records += hasher.count
        else:
            self._explain_difference(place, seal, records)

    async def _explain(self, place: Place, seal: PartitionSealed) -> None:
        """Report the missing records of a range, and differences of the others."""
        records, missing = await _read_what_is_there(self._ledger, place, seal.first, seal.last)
        for first, last in missing:
            if any(
                place == (name, number) and a <= first and last <= b
                for name, number, a, b in self._known.holes
            ):
                self._note_hole(place, first, last)
                continue
            many = f"positions {first} to {last}" if last > first else f"position {first}"
            self._add("missing", place, f"{many} of {_name(place)}: sealed, and gone", first, last)
        if records:
            self._explain_difference(place, seal, records, complete=False)

    def _explain_difference(
        self, place: Place, seal: PartitionSealed, records: list[Record], *, complete: bool = True
    ) -> None:
        """Report the records of a range that differ."""
        different = differing(seal, records)
        groups = _differing_groups(place, seal, records) if complete else set[str]()
        add_altered(self._report, place, different)
        if len(different) > NAMED or (complete and not different):
            about = f", of {', '.join(sorted(groups))}" if groups else ""
            self._add(
                "altered",
                place,
                f"records at positions {seal.first} to {seal.last} of {_name(place)} are not "
                f"those that were sealed{about}",
                seal.first,
                seal.last,
            )

    def _check_heads(self, chains: Chains, found: Heads | None) -> None:
        """Check that the newest seals are at least as new as the signed heads."""
        for name, head in (found.heads if found else {}).items():
            have = chains.heads.get(name)
            if have is None or have.number < head.number:
                self._add(
                    "seal",
                    (topic.SEALS, chains.partition),
                    f"{name} was sealed up to {head.last} (seal {head.number}); "
                    + (
                        f"its last seal on record is {have.number}" if have else "no seal is there"
                    ),
                )
                topic_name, _, partition = name.partition("/")
                place = (topic_name, int(partition))
                self._sealed[place] = max(self._sealed.get(place, 0), head.last + 1)

    def _check_heads_exist(self, heads: Sequence[Heads | None], ends: Sequence[int]) -> None:
        """Report missing heads, unless they were reported as damaged."""
        for partition, found in enumerate(heads):
            reported = self._without_heads or any(
                problem.kind == "heads" and problem.partition == partition
                for problem in self._report.problems
            )
            if found is None and (self._report.sealed or ends[partition]) and not reported:
                place = (topic.SEALS, partition)
                text = f"the signed heads of {_name(place)} are missing"
                self._add("heads", place, text)

    async def _check_sealed(self) -> None:
        """Report a ledger without seals if there is a key or an anchor."""
        expected = self._known.keys or self._known.anchors
        if self._report.sealed or self._report.problems or not expected:
            return
        places = (
            (name, partition)
            for name in self._known.topics
            for partition in range(self._ledger.partitions(name))
        )
        if any([await self._end(place) for place in places]):
            self._add(
                "seal",
                (topic.SEALS, 0),
                "there are no seals, though a key says that there should be: they were removed, "
                "or Rung was not started yet with a version that seals",
            )

    def _check_beginnings(self, trimmed: Mapping[str, int]) -> None:
        """Report records missing at the start of a partition that retention did not remove."""
        for place, absent in sorted(self._absent.items()):
            allowed = trimmed.get(_name(place), 0)
            if absent <= allowed:
                self._report.notes.append(
                    f"{_name(place)} begins at {absent}: retention removed what lies before it"
                )
            elif (*place, allowed, absent - 1) in self._known.holes:
                self._note_hole(place, allowed, absent - 1)
            elif place[0] in self._known.expiring:
                self._report.notes.append(
                    f"{_name(place)} begins at {absent}: the brokers' retention removed what lies "
                    "before it, or another user did; that is not on record"
                )
            else:
                self._add(
                    "missing",
                    place,
                    f"positions {allowed} to {absent - 1} of {_name(place)}: sealed, and gone; it "
                    f"begins at {absent}",
                    allowed,
                    absent - 1,
                )

    async def _check_ends(self, trimmed: Mapping[str, int]) -> None:
        """Report truncated records, and those that are not sealed yet."""
        for name in self._known.topics:
            for partition in range(self._ledger.partitions(name)):
                place = (name, partition)
                sealed = self._sealed.get(place, 0)
                end = max(await self._end(place), trimmed.get(_name(place), 0))
                wanted = sealed
                if self._known.archived is not None and place in self._known.archived:
                    wanted = min(sealed, self._known.archived[place])
                    if wanted < sealed and end < sealed:
                        self._report.notes.append(
                            f"{_name(place)} was archived up to {wanted - 1}, and sealed up to "
                            f"{sealed - 1}"
                        )
                if end < wanted:
                    self._add(
                        "missing",
                        place,
                        f"positions {end} to {wanted - 1} of {_name(place)}: sealed, and gone; "
                        "its end was cut off",
                        end,
                        wanted - 1,
                    )
                await self._count_unsealed(place, sealed, end)

    async def _count_unsealed(self, place: Place, sealed: int, end: int) -> None:
        """Report the records behind the newest seal of a partition, and those missing there."""
        position = first = max(sealed, await self._ledger.start(*place))
        count = end - first
        if self._report.sealed:  # else they are all records
            count, limit = 0, _READ
            while position < end:
                try:
                    records = await self._ledger.read(*place, position, min(limit, end - position))
                except LedgerTrimmed:
                    position = max(position, await self._ledger.start(*place))
                    continue
                except LedgerDamaged:
                    if limit > 1:
                        limit //= 2
                        continue
                    records = []
                after = (
                    records[0].position
                    if records
                    else await self._behind_gap(place, position, end)
                )
                if after > position:
                    self._report_gap(place, position, after - 1)
                position = after
                for record in records:
                    if record.position > position:
                        self._report_gap(place, position, record.position - 1)
                    position, count = record.position + 1, count + 1
                limit = _READ
        if count:
            signed = end <= (self._known.archived or {}).get(place, 0)
            self._report.unsealed.append(
                Unsealed(
                    topic=place[0], partition=place[1], first=first, count=count, signed=signed
                )
            )

    async def _behind_gap(self, place: Place, missing: int, end: int) -> int:
        """Return a position behind a missing record where there is one, and none right before."""
        there = end
        while there - missing > 1:
            middle = (missing + there) // 2
            try:
                found = await self._ledger.read(*place, middle, 1)
            except (LedgerDamaged, LedgerTrimmed):
                found = []
            if found and found[0].position == middle:
                there = middle
            else:
                missing = middle
        return there

    def _report_gap(self, place: Place, first: int, last: int) -> None:
        """Report records that are missing behind the newest seal."""
        if (*place, first, last) in self._known.holes:
            self._note_hole(place, first, last)
            return
        text = f"positions {first} to {last} of {_name(place)} are missing, behind the newest seal"
        self._add("missing", place, text, first, last)

    async def _records(self, place: Place, end: int) -> AsyncIterator[Record]:
        """Yield the readable records of a partition of `seals`."""
        position = await self._ledger.start(*place)
        if position:
            self._add(
                "seal",
                place,
                f"{_name(place)} begins at {position}: seals are gone",
                0,
                position - 1,
            )
        while position < end:
            limit = min(_READ, end - position)
            try:
                records = await self._ledger.read(*place, position, limit)
                after = records[-1].position + 1 if records else end
                if not _dense(records, position):
                    raise LedgerDamaged(f"records of {_name(place)} are missing")  # noqa: TRY301
            except LedgerDamaged:
                records, missing = await _read_what_is_there(
                    self._ledger, place, position, position + limit - 1
                )
                for first, last in missing:
                    self._add(
                        "seal",
                        place,
                        f"seals are gone: {_name(place)} {first} to {last}",
                        first,
                        last,
                    )
                after = position + limit
            for record in records:
                yield record
            position = after

    async def _start(self, place: Place) -> int:
        if place not in self._starts:
            self._starts[place] = await self._ledger.start(*place)
        return self._starts[place]

    async def _end(self, place: Place) -> int:
        if place not in self._ends:
            self._ends[place] = await self._ledger.end(*place)
        return self._ends[place]

    def _add(
        self,
        kind: Kind,
        place: Place,
        text: str,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        add_problem(self._report, kind, place, text, first, last)


def require_cover(report: SealReport) -> None:
    """Take records that neither a seal nor a signature covers for a problem.

    In a ledger that is in use they are the newest ones, which are sealed in a moment; in a copy
    anybody may have added them.
    """
    for item in report.unsealed if report.sealed else ():
        if not item.signed:
            many = "1 record" if item.count == 1 else f"{item.count:,} records"
            text = (
                f"{item.topic}/{item.partition}: {many} from position {item.first} on, behind the "
                "newest seal: neither a seal nor a signature covers them"
            )
            add_problem(report, "unsealed", (item.topic, item.partition), text, item.first)


def add_problem(  # noqa: PLR0913, PLR0917 - the parts of a problem
    report: SealReport,
    kind: Kind,
    place: Place,
    text: str,
    first: int | None = None,
    last: int | None = None,
) -> None:
    """Add a problem to a report, unless it is there; about one position if `last` is None."""
    last = first if last is None else last
    problem = SealProblem(
        kind=kind, topic=place[0], partition=place[1], first=first, last=last, text=text
    )
    if problem not in report.problems[-NAMED:]:
        report.problems.append(problem)


def add_altered(report: SealReport, place: Place, records: Sequence[Record]) -> None:
    """Add the first of some altered records to a report, one by one."""
    for record in records[:NAMED]:
        text = (
            f"{_name(place)} {record.position} (key {record.key!r}) is not the record that was "
            "sealed: it was altered"
        )
        add_problem(report, "altered", place, text, record.position)


async def _read_what_is_there(
    ledger: Readable, place: Place, first: int, last: int
) -> tuple[list[Record], list[tuple[int, int]]]:
    """Return the readable records of a range, and the ranges of positions that are missing."""
    complete = await _read_range(ledger, place, first, last)
    if complete is not None:
        return complete, []
    if first == last:
        return [], [(first, last)]
    middle = (first + last) // 2
    found, missing = await _read_what_is_there(ledger, place, first, middle)
    more, others = await _read_what_is_there(ledger, place, middle + 1, last)
    if missing and others and missing[-1][1] + 1 == others[0][0]:
        others[0] = (missing.pop()[0], others[0][1])
    return found + more, missing + others


async def _read_range(
    ledger: Readable, place: Place, first: int, last: int
) -> list[Record] | None:
    """Return the records of a range, None if one is missing."""
    found: list[Record] = []
    position = first
    while position <= last:
        try:
            records = await ledger.read(*place, position, min(_READ, last + 1 - position))
        except (LedgerDamaged, LedgerTrimmed):
            return None
        if not _dense(records, position) or records[-1].position > last:
            return None
        found += records
        position = records[-1].position + 1
    return found


def _dense(records: Sequence[Record], position: int) -> bool:
    """Return whether records are consecutive from a position on."""
    return bool(records) and (
        records[0].position == position and records[-1].position == position + len(records) - 1
    )


def differing(seal: PartitionSealed, records: Sequence[Record]) -> list[Record]:
    """Return the records of a range whose checksums differ from the sealed ones."""
    if seal.count != seal.last - seal.first + 1:
        return []
    try:
        checksums = unpack_checksums(seal.checksums)
    except ValueError:
        return []
    if len(checksums) != seal.count:
        return []
    return [
        record
        for record in records
        if checksums[record.position - seal.first]
        != crc32(record.value, crc32(record.key.encode()))
    ]


def _differing_groups(place: Place, seal: PartitionSealed, records: Sequence[Record]) -> set[str]:
    """Return the experiments whose records differ."""
    hasher = RangeHasher(*place)
    hasher.add(records)
    sealed = {group.name: group for group in seal.groups}
    here = {group.name: group for group in hasher.finish().groups}
    names = {group_name(root_of(record.key)): root_of(record.key) for record in records}
    return {
        names.get(name, "an experiment that is gone")
        for name in sealed.keys() | here.keys()
        if sealed.get(name) != here.get(name)
    }


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
