"""Chains of seals in the ledger, and their signed heads.

The seals of a partition form a chain: each holds the digest of the seal before. Of two that follow
the same one, the first in the ledger is valid and the other is ignored, as are repetitions; so two
sealers of one partition do no harm. Seals without the signature of a trusted key are ignored too.

The *heads* are kept apart from the records: for each partition of the topic `seals`, the position
up to which it was read, the digest of all records before it, and the newest seal of each partition
that is sealed there. They are signed. Without them a truncation would not show: neither of the
seals nor, together with them, of the records.
"""

from typing import Final, NamedTuple

import msgspec
from blake3 import blake3
from msgspec import Struct

from rung.events import (
    Event,
    LedgerDamaged,
    UndecodableEvent,
    decode,
    fact,
    partition_of,
    topic,
)
from rung.events.seal import PartitionSealed, PartitionTrimmed
from rung.events.topic import TOPICS
from rung.ledger.port import Draft, Ledger, Record, read_all
from rung.ledger.seals.digest import RangeDigest, digest_of
from rung.ledger.seals.key import SealKey, signed_by

SEALED: Final = tuple(name for name in TOPICS if name not in {topic.HEARTBEATS, topic.SEALS})
"""The sealed topics: all but heartbeats, of which only the newest are kept."""
TRIMMED: Final = frozenset({topic.METRICS, topic.LOGS})
"""Topics whose oldest records retention may remove: those on which no decisions rest."""
SOURCE: Final = "/rung/sealer"
HEADS: Final = "seals"
"""Name of the snapshots of the signed heads."""
_encoder: Final = msgspec.json.Encoder()


class Head(Struct, frozen=True, kw_only=True):
    """The newest seal of a partition."""

    number: int
    last: int
    """The position up to which the partition is sealed."""
    digest: str
    """BLAKE3 of the seal's event."""


class Heads(Struct, frozen=True, kw_only=True):
    """The position up to which a partition of `seals` was read, and the newest seals, signed."""

    ledger: str
    partition: int
    """Of the topic `seals`."""
    position: int
    """The position behind the last record that was read."""
    digest: str
    """BLAKE3 of all records before it."""
    heads: dict[str, Head]
    """By `<topic>/<partition>`."""
    key: str
    signature: str = ""

    @property
    def authentic(self) -> bool:
        """Whether the signature is valid."""
        return signed_by(self.key, self.signature, _heads_message(self))


class Rejected(NamedTuple):
    """A seal that is not part of its partition's chain."""

    reason: str
    harmless: bool
    """Whether it is a repetition, one of two, or of a foreign key: nothing was altered."""


class Accepted(NamedTuple):
    """A seal that is part of its partition's chain."""

    seal: PartitionSealed
    position: int
    gap: bool
    """Whether the one before is missing or was altered."""


_START: Final = blake3(b"rung seals").hexdigest()
_heads_decoder: Final = msgspec.json.Decoder(Heads)


class Chains:
    """The chains in one partition of the topic `seals`, folded from its records."""

    def __init__(
        self, ledger_id: str, partition: int, trusted: frozenset[str], known: Heads | None = None
    ) -> None:
        """Begin at the start of a partition of `seals`, or at `known` heads.

        The seals must be of the ledger, and signed by one of the `trusted` public keys.
        """
        self._ledger = ledger_id
        self.partition: Final = partition
        self._trusted = trusted
        self.position = known.position if known else 0
        self.digest = known.digest if known else _START
        self.heads: dict[str, Head] = dict(known.heads) if known else {}
        self.trimmed: dict[str, int] = {}
        """The first position that retention kept since, by partition."""

    def take(self, record: Record, *, resume: bool = False) -> Accepted | Rejected | None:
        """Fold the next record; return None for one that is not a seal.

        With `resume`, seals behind a missing one are accepted, in place of ignored.
        """
        self.position = record.position + 1
        said = b"%s %d %s\0" % (self.digest.encode(), record.position, record.key.encode())
        self.digest = blake3(said + record.value).hexdigest()
        data = self._read(record)
        if isinstance(data, Rejected):
            return data
        if isinstance(data, PartitionTrimmed):
            self.trimmed[data.place] = max(data.first, self.trimmed.get(data.place, 0))
            return None
        return self._extend(data, record, resume=resume)

    def signed(self, key: SealKey) -> Heads:
        """Return the heads as they are now, signed."""
        made = Heads(
            ledger=self._ledger,
            partition=self.partition,
            position=self.position,
            digest=self.digest,
            heads=dict(sorted(self.heads.items())),
            key=key.public,
        )
        return msgspec.structs.replace(made, signature=key.sign(_heads_message(made)))

    def _read(self, record: Record) -> PartitionSealed | PartitionTrimmed | Rejected:
        """Return the data of a record, if a trusted key signed it."""
        try:
            event = decode(record.value)
        except UndecodableEvent as error:
            return Rejected(f"it cannot be read ({error})", harmless=False)
        data, reason = event.data, None
        if not isinstance(data, PartitionSealed | PartitionTrimmed):
            return Rejected(f"a {data.TYPE} lies there", harmless=False)
        if (data.ledger, data.place) != (self._ledger, record.key):
            reason = f"it is about {data.place} of the ledger {data.ledger}"
        elif event != _event_of(data, event.time):
            reason = "its envelope was altered"
        elif not signed_by(data.key, data.signature, _message(data)):
            reason = "its signature is wrong: it was altered"
        elif data.key not in self._trusted:
            return Rejected(f"it was signed by a foreign key, {data.key}", harmless=True)
        return data if reason is None else Rejected(reason, harmless=False)

    def _extend(
        self, seal: PartitionSealed, record: Record, *, resume: bool
    ) -> Accepted | Rejected:
        if seal.digest != digest_of(seal.topic, seal.partition, seal):
            return Rejected(
                "its digest does not fit what it lists: it was altered", harmless=False
            )
        head = self.heads.get(seal.place)
        expected = (head.number + 1, head.digest) if head else (0, None)
        fits = (seal.number, seal.previous) == expected and (not head or seal.first > head.last)
        if not fits and seal.number < expected[0]:
            return Rejected("an equal or another one came before", harmless=True)
        if not fits and not resume:
            return Rejected("the one before it is missing or was altered", harmless=False)
        self.heads[seal.place] = Head(
            number=seal.number, last=seal.last, digest=blake3(record.value).hexdigest()
        )
        return Accepted(seal, record.position, gap=not fits)


def make_seal(
    ledger_id: str, place: tuple[str, int], made: RangeDigest, head: Head | None, key: SealKey
) -> PartitionSealed:
    """Return the signed seal of a range, behind the partition's newest one."""
    seal = PartitionSealed(
        ledger=ledger_id,
        topic=place[0],
        partition=place[1],
        number=head.number + 1 if head else 0,
        first=made.first,
        last=made.last,
        count=made.count,
        groups=made.groups,
        checksums=made.checksums,
        digest=made.digest,
        previous=head.digest if head else None,
        key=key.public,
        signature="",
    )
    return msgspec.structs.replace(seal, signature=key.sign(_message(seal)))


def draft_of(data: PartitionSealed | PartitionTrimmed, time: str) -> Draft:
    """Return the draft of a seal's event."""
    event = _event_of(data, time)
    return Draft.of(event)


def _event_of(data: PartitionSealed | PartitionTrimmed, time: str) -> Event:
    if isinstance(data, PartitionSealed):
        writer, sequence = "sealer", data.number
    else:
        writer, sequence = "retention", data.first
    return fact(
        data,
        source=SOURCE,
        origin=f"{writer}/{data.ledger}/{data.place}",
        sequence=sequence,
        time=time,
    )


def seals_partition(ledger: Ledger, name: str, partition: int) -> int:
    """Return the partition of the topic `seals` with a partition's seals."""
    return partition_of(f"{name}/{partition}", ledger.partitions(topic.SEALS))


async def read_heads(ledger: Ledger, partition: int) -> Heads | None:
    """Return the heads in a ledger, signed by any key.

    Raises:
        ValueError: they are damaged.
        LedgerError: it cannot be read.
    """
    data = await ledger.snapshot(HEADS, partition)
    return None if data is None else decode_heads(data)


async def save_heads(ledger: Ledger, heads: Heads) -> None:
    """Replace the signed heads."""
    await ledger.save_snapshot(HEADS, heads.partition, _encoder.encode(heads))


def decode_heads(data: bytes) -> Heads:
    """Parse heads.

    Raises:
        ValueError: they are damaged.
    """
    try:
        return _heads_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"these are no heads of seals: {error}") from error


async def load_chains(ledger: Ledger, partition: int, trusted: frozenset[str]) -> Chains:
    """Return the chains of a partition of `seals` up to its end, from the signed heads on.

    Raises:
        LedgerDamaged: the heads are behind the end of the seals: seals were truncated.
    """
    try:
        known = await read_heads(ledger, partition)
    except ValueError:
        known = None
    if known is not None and not (
        (known.ledger, known.partition) == (ledger.id, partition)
        and known.key in trusted
        and known.authentic
    ):
        known = None
    end = await ledger.end(topic.SEALS, partition)
    if known is not None and known.position > end:
        raise LedgerDamaged(
            f"{topic.SEALS}/{partition} ends at {end}, but its signed heads are at "
            f"{known.position}: seals were cut off, or the ledger was put back to an earlier copy"
        )
    chains = Chains(ledger.id, partition, trusted, known)
    await catch_up(ledger, chains, partition)
    return chains


async def catch_up(ledger: Ledger, chains: Chains, partition: int) -> None:
    """Fold the records that were appended to a partition of `seals` meanwhile."""
    async for record in read_all(ledger, topic.SEALS, partition, chains.position):
        chains.take(record)


async def record_trim(  # noqa: PLR0913 - a partition is named by its topic and its number
    ledger: Ledger, key: SealKey | None, name: str, partition: int, position: int, *, time: str
) -> int:
    """Record that retention removes the records before `position`; return where to trim.

    The position is rounded down to the start of a sealed range, so that the rest can be verified.
    Call it before `Ledger.trim`: if the process is killed in between, the records are still there.

    Args:
        ledger: of the records.
        key: of the installation; None where it has none.
        name: the topic, one of `TRIMMED`.
        partition: of the topic.
        position: of the first record to keep.
        time: now, as in events.

    Returns:
        The position of the first record to keep, at most `position`; the present start where
        nothing before `position` is sealed, or where the ledger has seals and there is no key.

    Raises:
        LedgerError: no record of that topic may be removed, or the ledger refused.
    """
    assert name in TRIMMED, name
    where = seals_partition(ledger, name, partition)
    place = f"{name}/{partition}"
    start = await ledger.start(name, partition)
    if key is None:
        return start if await ledger.end(topic.SEALS, where) else position
    chains = Chains(ledger.id, where, key.trusted)
    kept = start
    async for record in read_all(ledger, topic.SEALS, where):
        found = chains.take(record)
        if isinstance(found, Accepted) and found.seal.place == place:
            for boundary in (found.seal.first, found.seal.last + 1):
                if kept < boundary <= position:
                    kept = boundary
    if kept > start:
        made = PartitionTrimmed(
            ledger=ledger.id,
            topic=name,
            partition=partition,
            first=kept,
            key=key.public,
            signature="",
        )
        signed = msgspec.structs.replace(made, signature=key.sign(_message(made)))
        await ledger.append([draft_of(signed, time)])
    return kept


def _message(data: PartitionSealed | PartitionTrimmed) -> bytes:
    """Return the message that the signature of a seal signs."""
    about = (data.TYPE, data.ledger, data.topic, data.partition, data.first, data.key)
    if isinstance(data, PartitionTrimmed):
        return _encoder.encode(about)
    more = (data.number, data.last, data.count, data.digest, data.previous)
    return _encoder.encode((*about, *more))


def _heads_message(heads: Heads) -> bytes:
    said = [(place, head.number, head.last, head.digest) for place, head in heads.heads.items()]
    about = (heads.ledger, heads.partition, heads.position, heads.digest, heads.key)
    return _encoder.encode(("rung.seals.heads.v1", *about, said))
