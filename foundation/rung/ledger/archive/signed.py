"""Signed objects of an archive: the end of each partition, and the heads of the seals.

    archive/<ledger>/ends/<topic>/<partition>.json
    archive/<ledger>/heads/<partition>.json

That the last segments of a partition are missing shows by its signed end, and by the seals, which
are archived like any other topic.
"""

from typing import Final

import msgspec
from msgspec import Struct

from rung.events.errors import ObjectMissing
from rung.ledger.archive.segment import ROOT, Segment
from rung.ledger.seals import Heads, SealKey, decode_heads, signed_by
from rung.storage import ObjectStore

_END: Final = "rung.ledger.archive.end.v1"


class SignedEnd(Struct, frozen=True, kw_only=True):
    """The end of a partition in an archive at some time."""

    ledger: str
    topic: str
    partition: int
    end: int
    """The position behind the last one."""
    segment: str
    """Digest of the last segment."""
    key: str
    signature: str = ""

    @property
    def authentic(self) -> bool:
        """Whether the key signed it."""
        return signed_by(self.key, self.signature, _message(self))


def sign_end(tip: Segment, key: SealKey) -> SignedEnd:
    """Return the signed end of a partition with this last segment."""
    place = tip.place
    end = SignedEnd(
        ledger=place.ledger,
        topic=place.topic,
        partition=place.partition,
        end=tip.last + 1,
        segment=tip.digest,
        key=key.public,
    )
    return msgspec.structs.replace(end, signature=key.sign(_message(end)))


def put_end(store: ObjectStore, end: SignedEnd) -> None:
    """Store the end of a partition, unless the stored one is later."""
    name = _end_name(end.ledger, end.topic, end.partition)
    try:
        found = msgspec.json.decode(store.read(name), type=SignedEnd)
    except (ObjectMissing, msgspec.DecodeError):
        found = None
    if found is None or not found.authentic or found.end < end.end or found.key != end.key:
        store.put_bytes(name, msgspec.json.encode(end))


def read_end(store: ObjectStore, ledger_id: str, topic: str, partition: int) -> SignedEnd | None:
    """Return the stored end of a partition, signed by any key, or None.

    Raises:
        ValueError: it is damaged.
        ObjectError: the store cannot be read.
    """
    try:
        data = store.read(_end_name(ledger_id, topic, partition))
    except ObjectMissing:
        return None
    try:
        return msgspec.json.decode(data, type=SignedEnd)
    except msgspec.DecodeError as error:
        raise ValueError(f"the signed end of {topic}/{partition} is damaged: {error}") from error


def put_heads(store: ObjectStore, heads: Heads) -> None:
    """Store the heads of the seals, unless the stored ones are newer."""
    name = _heads_name(heads.ledger, heads.partition)
    try:
        found = decode_heads(store.read(name))
    except (ObjectMissing, ValueError):
        found = None
    if found is None or not found.authentic or found.position < heads.position:
        store.put_bytes(name, msgspec.json.encode(heads))


def read_heads(store: ObjectStore, ledger_id: str, partition: int) -> bytes | None:
    """Return the stored heads of the seals, or None.

    Raises:
        ObjectError: the store cannot be read.
    """
    try:
        return store.read(_heads_name(ledger_id, partition))
    except ObjectMissing:
        return None


def _end_name(ledger_id: str, topic: str, partition: int) -> str:
    return f"{ROOT}{ledger_id}/ends/{topic}/{partition:04}.json"


def _heads_name(ledger_id: str, partition: int) -> str:
    return f"{ROOT}{ledger_id}/heads/{partition:04}.json"


def _message(end: SignedEnd) -> bytes:
    return msgspec.json.encode(
        (_END, end.ledger, end.topic, end.partition, end.end, end.segment, end.key)
    )
