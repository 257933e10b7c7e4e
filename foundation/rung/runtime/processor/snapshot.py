"""Snapshots of a processor's partition: the states of its keys, in buckets that are saved apart.

Theory of operation. A key's name determines its bucket. A save writes the buckets in which some
key changed since the last one, each with the fold of that moment, and then the *mark*: the
positions that the fold had when the save began, and which copy of each bucket belongs to it. So
the cost of a save follows from what changed, each write is small, and the fold goes on between
them.

A save may be cut short, and two replicas on one partition may overwrite each other's buckets. So
each bucket holds the positions that it was written at. Where it is the copy that the mark names,
its keys are folded up to the mark, or to its own position if that is later; where it is another
one, up to its own position. Folding begins at the lowest of these, and each key skips the facts
that it has seen.

Each write has a checksum. A snapshot of which a part is damaged is left out as a whole, and
folding begins at the first fact.
"""

import asyncio
import secrets
import zlib
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic

import msgspec
import structlog
from msgspec import Struct

from rung.events import LedgerError
from rung.ledger import Ledger
from rung.runtime.checksum import with_checksum, without_checksum
from rung.runtime.health.checks import STATE
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.image import Image, KeyFold, Parked
from rung.runtime.processor.processor import Processor, S

BUCKETS: Final = 64
_LOADS_WITHIN_S: Final = 15.0

_log = structlog.get_logger()


Settled = Callable[[], AbstractAsyncContextManager[None]]


class _Mark(Struct):
    version: int
    facts: int
    decisions: int
    copies: dict[int, str]
    """Bucket → its copy, of those that were ever written."""


class _Bucket(Struct, Generic[S]):
    version: int
    copy: str
    facts: int
    decisions: int
    keys: dict[str, KeyFold[S]]
    parked: dict[str, Parked[S]]


class _RawBucket(Struct):
    version: int
    copy: str
    facts: int
    decisions: int
    keys: dict[str, msgspec.Raw]
    parked: dict[str, msgspec.Raw]


class Snapshots(Generic[S]):
    """The snapshots of one partition of a processor."""

    def __init__(self, ledger: Ledger, processor: Processor[S], partition: int) -> None:
        self._ledger = ledger
        self._processor = processor
        self._partition = partition
        self._name: Final = f"{STATE}{processor.name}"
        self._type: Any = _Bucket[processor.state_type]  # type: ignore[name-defined]
        self._copies: dict[int, str] = {}
        self._members: dict[int, dict[str, None]] = {number: {} for number in range(BUCKETS)}
        self._place: Final = {"process": processor.name, "partition": partition}

    async def load(self) -> Image[S]:
        """Return the newest snapshot; an empty one, with a warning, where it cannot be read."""
        self._copies = {}
        self._members = {number: {} for number in range(BUCKETS)}
        try:
            async with asyncio.timeout(_LOADS_WITHIN_S):
                image, self._copies = await self._load()
        except (LedgerError, TimeoutError, msgspec.DecodeError) as error:
            reason = str(error) or f"no answer within {_LOADS_WITHIN_S:g} s"
            _log.warning(
                "no snapshot loaded: folding from the beginning", reason=reason, **self._place
            )
            return Image()
        for key in (*image.keys, *image.parked):
            self._members[_bucket_of(key)][key] = None
        return image

    async def _load(self, keys: Collection[str] | None = None) -> tuple[Image[S], dict[int, str]]:
        value = await self._ledger.snapshot(self._name, self._partition)
        if value is None:
            return Image(), {}
        mark = msgspec.json.decode(without_checksum(value), type=_Mark)
        if mark.version != self._processor.version:
            return Image(), {}
        image: Image[S] = Image(mark.facts, mark.decisions)
        reached: dict[str, int] = {}
        numbers = range(BUCKETS) if keys is None else sorted({_bucket_of(key) for key in keys})
        buckets = await asyncio.gather(*(self._bucket(number, keys) for number in numbers))
        for number, bucket in zip(numbers, buckets, strict=True):
            if bucket is None:
                if number in mark.copies:
                    raise LedgerError(f"bucket {number} of the snapshot is gone")
                continue
            reach = max(mark.facts, bucket.facts)
            if bucket.copy != mark.copies.get(number):
                reach = bucket.facts
                image.facts = min(image.facts, bucket.facts)
                image.decisions = min(image.decisions, bucket.decisions)
            image.keys |= bucket.keys
            image.parked |= bucket.parked
            reached |= dict.fromkeys(bucket.keys, reach)
        image.ahead = {key: reach for key, reach in reached.items() if reach > image.facts}
        return image, mark.copies

    async def newest(self, keys: Collection[str]) -> Image[S]:
        """Return these keys of the newest snapshot; an empty one if it cannot be read."""
        try:
            async with asyncio.timeout(_LOADS_WITHIN_S):
                return (await self._load(keys))[0]
        except (LedgerError, TimeoutError, msgspec.DecodeError):
            return Image()

    async def save(self, fold: PartitionFold[S], settled: Settled) -> None:
        """Save what changed since the last save.

        In the context that `settled` returns, the fold is not ahead of what is on record, and no
        key is torn.

        Raises:
            LedgerError: it cannot be saved; the snapshot before it stays valid.
        """
        async with settled():
            facts, decisions = fold.facts, fold.decisions
            changed = fold.changed
            fold.saving, fold.changed = changed, {}
        for key in changed:
            self._members[_bucket_of(key)][key] = None
        try:
            for number in sorted({_bucket_of(key) for key in changed}):
                async with settled():
                    bucket = self._make(fold, number)
                    value = with_checksum(msgspec.json.encode(bucket))
                await self._ledger.save_snapshot(self._object(number), self._partition, value)
                self._copies[number] = bucket.copy
            mark = _Mark(self._processor.version, facts, decisions, self._copies)
            value = with_checksum(msgspec.json.encode(mark))
            await self._ledger.save_snapshot(self._name, self._partition, value)
            fold.since = facts
        except BaseException:
            fold.changed |= changed
            raise
        finally:
            fold.saving = {}

    def _make(self, fold: PartitionFold[S], number: int) -> _Bucket[S]:
        members = self._members[number]
        return _Bucket(
            self._processor.version,
            secrets.token_hex(8),
            fold.facts,
            fold.decisions,
            {key: known for key in members if (known := fold.known(key)) is not None},
            {key: fold.parked[key] for key in members if key in fold.parked},
        )

    async def _bucket(self, number: int, keys: Collection[str] | None) -> _Bucket[S] | None:
        """Return a bucket, with all of its keys or with these."""
        value = await self._ledger.snapshot(self._object(number), self._partition)
        if value is None:
            return None
        content = without_checksum(value)
        if keys is not None:
            content = _only(content, keys)
        bucket: _Bucket[S] = msgspec.json.decode(content, type=self._type)
        return bucket if bucket.version == self._processor.version else None

    def _object(self, number: int) -> str:
        return f"{self._name}/{number:02}"


def _only(content: bytes, keys: Collection[str]) -> bytes:
    """Return a bucket with these keys alone; the states of the others are not decoded."""
    bucket = msgspec.json.decode(content, type=_RawBucket)
    for fields in (bucket.keys, bucket.parked):
        for key in fields.keys() - keys:
            del fields[key]
    return msgspec.json.encode(bucket)


def _bucket_of(key: str) -> int:
    """Return the bucket of a key; not by the bits that choose its partition."""
    return zlib.crc32(key.encode()) >> 16 & BUCKETS - 1
