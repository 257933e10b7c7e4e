"""Verifies what a ledger, an export or an archive holds against its seals.

Every seal is checked (signature, chain), then the records of its range; then the signed heads, and
those of an anchor, by which a cut end is found. Memory does not grow with the ledger.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from rung.api.seal import Kind, SealProblem, SealReport, Unsealed
from rung.events import LedgerDamaged, LedgerError, LedgerTrimmed, UndecodableEvent, decode, topic
from rung.events.seal import PartitionSealed
from rung.ledger.port import Record
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
from rung.ledger.seals.digest import RangeHasher, group_name, group_of, unpack_checksums

_READ: Final = 2000
_INLINE: Final = 100
"""So few records are digested where they are; a thread costs more."""
_SEALS: Final = 1000
"""So many seals are checked at a time, those of one partition together."""
NAMED: Final = 20
"""So many records of a range are named one by one."""

Place = tuple[str, int]


class Readable(Protocol):
    """What verifying needs of a ledger."""

    @property
    def id(self) -> str:
        """The ledger's own name."""
        ...

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        ...

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end."""
        ...

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists."""
        ...

    async def end(self, topic: str, partition: int) -> int:
        """Return the position behind the last one."""
        ...

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name."""
        ...


class Known(NamedTuple):
    """What is known about a ledger from elsewhere."""

    keys: frozenset[str] = frozenset()
    """The public keys whose seals count; none: those that signed the heads."""
    anchors: Sequence[Heads] = ()
    """Heads that were kept elsewhere."""
    topics: Collection[str] = SEALED
    """Those that are held there."""
    expiring: Collection[str] = ()
    """Topics whose oldest records the brokers remove."""
    archived: Mapping[Place, int] | None = None
    """Of an archive, where each partition should end; what is sealed behind that was not archived
    yet."""
    holes: Collection[tuple[str, int, int, int]] = ()
    """Of an archive, topic, partition, first and last position that were never archived."""


async def verify(ledger: Readable, known: Known = Known()) -> SealReport:  # noqa: B008 - frozen
    """Hold a ledger against its seals; nothing is written, and it may be in use.

    Args:
        ledger: a ledger, an archive, or an export of a whole ledger.
        known: what is known about it from elsewhere.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    return await _Verifier(ledger, known).verify()


class _Verifier:
    """One run."""

    def __init__(self, ledger: Readable, known: Known) -> None:
        self._ledger = ledger
        self._given = known.keys
        self._anchors = known.anchors
        self._topics = known.topics
        self._expiring = known.expiring
        self._archived = known.archived
        self._holes = known.holes
        self._report = SealReport(ledger=ledger.id, compared=bool(known.keys))
        self._starts: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._sealed: dict[Place, int] = {}
        """Up to which position each partition is sealed."""
        self._absent: dict[Place, int] = {}
        """Up to which position records are missing at a partition's beginning."""
        self._ignored = 0
        self._without_heads = False

    async def verify(self) -> SealReport:
        report = self._report
        count = self._ledger.partitions(topic.SEALS)
        heads = [await self._heads(partition) for partition in range(count)]
        keys = (
            self._given or {found.key for found in heads if found} or await self._key_on_record()
        )
        report.keys = sorted(keys)
        seals_ends = [await self._end((topic.SEALS, partition)) for partition in range(count)]
        trimmed: dict[str, int] = {}
        for partition in range(count):
            found = heads[partition]
            chains = Chains(self._ledger.id, partition, frozenset(keys))
            await self._follow(chains, seals_ends[partition], self._to_meet(found, partition))
            trimmed |= chains.trimmed
            self._check_heads(chains, found, seals_ends[partition])
        report.sealed = bool(report.seals) or any(heads)
        await self._check_presence(heads)
        self._check_beginnings(trimmed)
        await self._check_ends(trimmed)
        if self._ignored:
            report.notes.append(
                f"{self._ignored:,} seals were ignored: repetitions, or of foreign keys"
            )
        return report

    async def _heads(self, partition: int) -> Heads | None:
        """Return the heads that are kept, if they are authentic."""
        try:
            data = await self._ledger.snapshot(HEADS, partition)
            found = None if data is None else decode_heads(data)
        except ValueError as error:
            self._blame("heads", (topic.SEALS, partition), None, None, str(error))
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
        elif self._given and found.key not in self._given:
            text = f"{what} were signed by a foreign key, {found.key}"
        else:
            return True
        self._blame("heads", place, None, None, text)
        return False

    async def _key_on_record(self) -> set[str]:
        """Return the key of the first seal that can be read, where nothing else names one."""
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

    def _to_meet(self, found: Heads | None, partition: int) -> list[tuple[Heads, str]]:
        """Return the heads that must be met on the way, by position."""
        met = [(found, "the signed heads")] if found else []
        met += [
            (item, "the anchor")
            for item in self._anchors
            if item.ledger == self._ledger.id
            and item.partition == partition
            and self._authentic(item, partition, "the heads of the anchor")
        ]
        return sorted(met, key=lambda it: it[0].position)

    async def _follow(self, chains: Chains, end: int, to_meet: list[tuple[Heads, str]]) -> None:
        """Fold a partition of `seals`, and check the ranges that its seals are about."""
        batch: list[Accepted] = []
        waiting = list(to_meet)
        number = chains.partition
        async for record in self._records((topic.SEALS, number), end):
            self._meet(chains, waiting)
            found = chains.take(record, resume=True)
            if isinstance(found, Accepted):
                if found.gap:
                    self._blame(
                        "seal",
                        (topic.SEALS, number),
                        record.position,
                        record.position,
                        f"the seal {found.seal.number} of {record.key} does not follow the one "
                        "before: that one is missing or was altered",
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
        self._meet(chains, waiting)
        for missed, what in waiting:
            self._blame(
                "heads",
                (topic.SEALS, number),
                chains.position,
                missed.position - 1,
                f"{topic.SEALS}/{number} ends at {chains.position}, but {what} are at "
                f"{missed.position}: its end was cut off",
            )

    def _meet(self, chains: Chains, waiting: list[tuple[Heads, str]]) -> None:
        while waiting and waiting[0][0].position <= chains.position:
            met, what = waiting.pop(0)
            if met.position == chains.position and met.digest != chains.digest:
                self._blame(
                    "heads",
                    (topic.SEALS, chains.partition),
                    0,
                    met.position - 1,
                    f"the seals in {topic.SEALS}/{chains.partition} before position "
                    f"{met.position} are not those that {what} have the digest of",
                )

    def _note_time(self, record: Record) -> None:
        time = decode(record.value).time
        if self._report.since is None or time < self._report.since:
            self._report.since = time

    def _reject(self, record: Record, found: Rejected) -> None:
        if found.harmless:
            self._ignored += 1
            return
        self._blame(
            "seal",
            (record.topic, record.partition),
            record.position,
            record.position,
            f"the seal at {record.topic}/{record.partition} {record.position} ({record.key}): "
            f"{found.reason}",
        )

    async def _check_ranges(self, batch: list[Accepted]) -> None:
        """Check the ranges of some seals, those of one partition together."""
        for found in sorted(batch, key=lambda it: (it.seal.topic, it.seal.partition, it.position)):
            seal = found.seal
            place = (seal.topic, seal.partition)
            self._report.seals += 1
            before = self._sealed.get(place, 0)
            if seal.first > before and not found.gap and seal.topic in self._topics:
                self._note_hole(place, before, seal.first - 1)
            self._sealed[place] = seal.last + 1
            if seal.topic in self._topics and seal.partition < self._ledger.partitions(seal.topic):
                await self._check_range(place, seal)

    def _note_hole(self, place: Place, first: int, last: int) -> None:
        """Records that were never sealed, for retention was faster than the sealer."""
        if place[0] in TRIMMED:
            self._report.notes.append(
                f"positions {first} to {last} of {_name(place)} were removed by retention before "
                "they were sealed or archived"
            )
        else:
            self._blame(
                "missing",
                place,
                first,
                last,
                f"positions {first} to {last} of {_name(place)} were never sealed: they were gone "
                "before the next seal was made",
            )

    async def _check_range(self, place: Place, seal: PartitionSealed) -> None:
        start = await self._start(place)
        if seal.first < start:  # whether retention removed it is checked at the end
            self._absent[place] = max(min(seal.last + 1, start), self._absent.get(place, 0))
            return
        if seal.last >= await self._end(place):
            return  # what is missing at the end is said once
        hasher = RangeHasher(*place)
        try:
            records = await self._read_range(place, seal, hasher)
        except (LedgerTrimmed, LedgerDamaged):
            records = None
        if records is None:
            self._starts[place] = await self._ledger.start(*place)
            if self._starts[place] > seal.first:  # retention removed it meanwhile
                await self._check_range(place, seal)
            else:
                await self._explain(place, seal)
        elif hasher.finish().digest == seal.digest:
            self._report.records += hasher.count
        else:
            self._explain_difference(place, seal, records)

    async def _read_range(
        self, place: Place, seal: PartitionSealed, hasher: RangeHasher
    ) -> list[Record] | None:
        """Return the records of a range, digested; None if one is missing."""
        kept: list[Record] = []
        position = seal.first
        while position <= seal.last:
            limit = min(_READ, seal.last + 1 - position)
            records = await self._ledger.read(*place, position, limit)
            if not _dense(records, position):
                return None
            if len(records) > _INLINE:
                await asyncio.to_thread(hasher.add, records)
            else:
                hasher.add(records)
            kept += records
            position = records[-1].position + 1
        return kept

    async def _explain(self, place: Place, seal: PartitionSealed) -> None:
        """Say which records of a range are missing; what is left of it, whether it differs."""
        records, missing = await _read_what_is_there(self._ledger, place, seal.first, seal.last)
        for first, last in missing:
            if any(
                place == (name, number) and a <= first and last <= b
                for name, number, a, b in self._holes
            ):
                self._note_hole(place, first, last)
                continue
            many = f"positions {first} to {last}" if last > first else f"position {first}"
            self._blame(
                "missing", place, first, last, f"{many} of {_name(place)}: sealed, and gone"
            )
        if records:
            self._explain_difference(place, seal, records, complete=False)

    def _explain_difference(
        self, place: Place, seal: PartitionSealed, records: list[Record], *, complete: bool = True
    ) -> None:
        """Say which records of a range differ."""
        different = differing(seal, records)
        groups = _differing_groups(place, seal, records) if complete else set[str]()
        for record in different[:NAMED]:
            self._blame(
                "altered",
                place,
                record.position,
                record.position,
                f"{_name(place)} {record.position} (key {record.key!r}) is not the record that "
                "was sealed: it was altered",
            )
        if len(different) > NAMED or (complete and not different):
            about = f", of {', '.join(sorted(groups))}" if groups else ""
            self._blame(
                "altered",
                place,
                seal.first,
                seal.last,
                f"records at positions {seal.first} to {seal.last} of {_name(place)} are not "
                f"those that were sealed{about}",
            )

    def _check_heads(self, chains: Chains, found: Heads | None, end: int) -> None:
        """Whether the newest seals are at least as new as the signed heads say."""
        for name, head in (found.heads if found else {}).items():
            have = chains.heads.get(name)
            if have is None or have.number < head.number:
                self._blame(
                    "seal",
                    (topic.SEALS, chains.partition),
                    None,
                    None,
                    f"{name} was sealed up to {head.last} (seal {head.number}); "
                    + (
                        f"its last seal on record is {have.number}" if have else "no seal is there"
                    ),
                )
                topic_name, _, partition = name.partition("/")
                place = (topic_name, int(partition))
                self._sealed[place] = max(self._sealed.get(place, 0), head.last + 1)
        if found is None and end and not self._said_heads(chains.partition):
            self._blame(
                "heads",
                (topic.SEALS, chains.partition),
                None,
                None,
                f"the signed heads of {topic.SEALS}/{chains.partition} are missing",
            )

    async def _check_presence(self, heads: Sequence[Heads | None]) -> None:
        """Seals that must be there, and are not."""
        report = self._report
        if report.sealed:
            for partition, found in enumerate(heads):
                if found is None and not self._said_heads(partition):
                    place = (topic.SEALS, partition)
                    text = f"the signed heads of {topic.SEALS}/{partition} are missing"
                    self._blame("heads", place, None, None, text)
        elif (self._given or self._anchors) and not report.problems:
            for name in self._topics:
                for partition in range(self._ledger.partitions(name)):
                    if await self._end((name, partition)):
                        self._blame(
                            "seal",
                            (topic.SEALS, 0),
                            None,
                            None,
                            "there are no seals, though a key says that there should be: they "
                            "were removed, or Rung was not started yet with a version that seals",
                        )
                        return

    def _said_heads(self, partition: int) -> bool:
        if any(
            note.startswith("the signed heads were not compared") for note in self._report.notes
        ):
            return True
        return any(
            problem.kind == "heads" and problem.partition == partition
            for problem in self._report.problems
        )

    def _check_beginnings(self, trimmed: Mapping[str, int]) -> None:
        """Records that are missing where a partition begins, and that retention did not remove."""
        for place, absent in sorted(self._absent.items()):
            allowed = trimmed.get(_name(place), 0)
            if absent <= allowed:
                self._report.notes.append(
                    f"{_name(place)} begins at {absent}: retention removed what lies before it"
                )
            elif (*place, allowed, absent - 1) in self._holes:
                self._note_hole(place, allowed, absent - 1)
            elif place[0] in self._expiring:
                self._report.notes.append(
                    f"{_name(place)} begins at {absent}: the brokers' retention removed what lies "
                    "before it, or somebody else did; that is not on record"
                )
            else:
                self._blame(
                    "missing",
                    place,
                    allowed,
                    absent - 1,
                    f"positions {allowed} to {absent - 1} of {_name(place)}: sealed, and gone; it "
                    f"begins at {absent}",
                )

    async def _check_ends(self, trimmed: Mapping[str, int]) -> None:
        """Records that were cut off, and those that are not sealed yet."""
        for name in self._topics:
            for partition in range(self._ledger.partitions(name)):
                place = (name, partition)
                sealed = self._sealed.get(place, 0)
                end = max(await self._end(place), trimmed.get(_name(place), 0))
                wanted = sealed
                if self._archived is not None and place in self._archived:
                    wanted = min(sealed, self._archived[place])
                    if wanted < sealed and end < sealed:
                        self._report.notes.append(
                            f"{_name(place)} was archived up to {wanted - 1}, and sealed up to "
                            f"{sealed - 1}"
                        )
                if end < wanted:
                    self._blame(
                        "missing",
                        place,
                        end,
                        wanted - 1,
                        f"positions {end} to {wanted - 1} of {_name(place)}: sealed, and gone; "
                        "its end was cut off",
                    )
                first = max(sealed, await self._ledger.start(name, partition))
                if end > first:
                    self._report.unsealed.append(
                        Unsealed(topic=name, partition=partition, first=first, count=end - first)
                    )

    async def _records(self, place: Place, end: int) -> AsyncIterator[Record]:
        """Yield what can be read of a partition of `seals`."""
        position = await self._ledger.start(*place)
        if position:
            self._blame(
                "seal",
                place,
                0,
                position - 1,
                f"{_name(place)} begins at {position}: seals are gone",
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
                    self._blame(
                        "seal",
                        place,
                        first,
                        last,
                        f"seals are gone: {_name(place)} {first} to {last}",
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

    def _blame(
        self, kind: Kind, place: Place, first: int | None, last: int | None, text: str
    ) -> None:
        problem = SealProblem(
            kind=kind, topic=place[0], partition=place[1], first=first, last=last, text=text
        )
        if problem not in self._report.problems[-NAMED:]:
            self._report.problems.append(problem)


async def _read_what_is_there(
    ledger: Readable, place: Place, first: int, last: int
) -> tuple[list[Record], list[tuple[int, int]]]:
    """Return the records of a range that can be read, and the positions of those that cannot."""
    whole = await _read_whole(ledger, place, first, last)
    if whole is not None:
        return whole, []
    if first == last:
        return [], [(first, last)]
    middle = (first + last) // 2
    found, missing = await _read_what_is_there(ledger, place, first, middle)
    more, others = await _read_what_is_there(ledger, place, middle + 1, last)
    if missing and others and missing[-1][1] + 1 == others[0][0]:
        others[0] = (missing.pop()[0], others[0][1])
    return found + more, missing + others


async def _read_whole(
    ledger: Readable, place: Place, first: int, last: int
) -> list[Record] | None:
    """Return the records of a range, None if one is missing."""
    found: list[Record] = []
    position = first
    while position <= last:
        try:
            records = await ledger.read(*place, position, last + 1 - position)
        except (LedgerDamaged, LedgerTrimmed):
            return None
        if not _dense(records, position) or records[-1].position > last:
            return None
        found += records
        position = records[-1].position + 1
    return found


def _dense(records: Sequence[Record], position: int) -> bool:
    """Whether records are those from a position on, none of them missing."""
    return bool(records) and (
        records[0].position == position and records[-1].position == position + len(records) - 1
    )


def differing(seal: PartitionSealed, records: Sequence[Record]) -> list[Record]:
    """Return the records of a range whose checksums are not those that were sealed."""
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
    """Return the experiments of which something differs."""
    hasher = RangeHasher(*place)
    hasher.add(records)
    sealed = {group.name: group for group in seal.groups}
    here = {group.name: group for group in hasher.finish().groups}
    names = {group_name(group_of(record.key)): group_of(record.key) for record in records}
    return {
        names.get(name, "an experiment that is gone")
        for name in sealed.keys() | here.keys()
        if sealed.get(name) != here.get(name)
    }


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
