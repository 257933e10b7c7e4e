"""The interface of ledgers, and functions on it; all adapters pass one set of conformance tests.

The ledger is a set of topics, each divided into partitions, each a growing sequence of records
numbered from 0 without gaps. A record never changes; the oldest of a partition may be removed.
Methods that use the disk or the network are coroutines and never block the event loop.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, Self, runtime_checkable

from msgspec import Struct

from rung.events import Event, encode, topic
from rung.events.errors import LedgerError

_READ_MAX: Final = 1_000
FLEETING: Final = frozenset({topic.HEARTBEATS})
"""Topics whose removed records are not needed: reads below their start begin at it."""


class Record(Struct, frozen=True, gc=False):
    """One event in the ledger.

    It refers to nothing that could refer to it, so the garbage collector does not track it: a
    reader would have it look at each batch, and again and again at what followers keep.
    """

    topic: str
    partition: int
    position: int
    key: str
    value: bytes
    """A CloudEvent in JSON, see `rung.events.codec`."""


class Draft(NamedTuple):
    """One event to append."""

    topic: str
    key: str
    value: bytes

    @classmethod
    def of(cls, event: Event) -> Self:
        """Return an event as it is appended."""
        return cls(event.topic, event.key, encode(event))


class Readable(Protocol):
    """The reading half of a ledger, also of an archive or an export."""

    @property
    def id(self) -> str:
        """The ledger's id, drawn when it was created."""
        ...

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        ...

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end.

        Raises:
            LedgerTrimmed: the position was removed; but for the `FLEETING` topics.
            LedgerDamaged: the position lies beyond the end, so records were lost.
        """
        ...

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists: 0 unless old records were removed."""
        ...

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        ...

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        ...


class Ledger(Readable, Protocol):
    """An open ledger."""

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order and return the positions, which are durable then.

        When it fails, nothing, all, or in each partition the first drafts were written: never a
        later draft without the earlier ones of its partition. Kafka may also have written the
        first ones twice. SQLite writes all or nothing, once.

        So after a failure the whole append is repeated, with the same origins and sequences or the
        same causes, before anything later of the same origin: then readers drop repetitions, and
        miss nothing.

        Raises:
            LedgerUnavailable: the disk is full or the ledger does not answer; whether all was
                written is not known.
            EventTooLarge: a draft is larger than the limit of records.
            LedgerError: a draft is refused; nothing was written.
        """
        ...

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position for good; `start` returns it then.

        Records that are removed already are ignored. Others may append and read meanwhile.

        Raises:
            LedgerError: the position lies beyond the end; nothing was removed.
        """
        ...

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended.

        Includes records of other processes, and waits without polling. Raises the errors of
        `read`, at first or later.
        """
        ...

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the last committed position of a consumer, 0 if there is none."""
        ...

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Commit the position at which a consumer resumes."""
        ...

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        ...

    async def close(self) -> None:
        """Finish pending appends and close the ledger."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A ledger with transactions of any size."""

    def transaction(self) -> AbstractAsyncContextManager[Ledger]:
        """Open a transaction.

        Writes through the ledger that it yields become durable, and visible to others, when the
        body ends; its own reads include them. If the body raises or the process is killed, nothing
        is changed. On a disk, memory does not grow with the transaction. The ledger that it yields
        need not support `follow`.

        Nothing else may append meanwhile: in the body, appending through the ledger itself waits
        for ever or is refused.

        Raises:
            LedgerUnavailable: the disk is full; nothing was changed.
            LedgerError: something else was appended meanwhile, where such appends do not wait;
                nothing was changed.
        """
        ...


@runtime_checkable
class Combining(Protocol):
    """A ledger that appends and commits in one step."""

    async def append_and_commit(
        self, drafts: Sequence[Draft], consumer: str, topic: str, partition: int, position: int
    ) -> list[int]:
        """Append as `append` does and commit as `commit` does: both, or neither."""
        ...


@runtime_checkable
class Staging(Protocol):
    """A ledger some of whose readers get records before these are durable."""

    def staged(self) -> Ledger:
        """Return the ledger including staged records, see the function `staged`."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A ledger that finds the records of one experiment without reading all others."""

    async def read_of(
        self, topic: str, partition: int, begin: int, end: int, root: str
    ) -> tuple[list[Record], int]:
        """Return some records with keys of a root, as the function `read_of`."""
        ...


async def read_all(
    ledger: Readable, topic: str, partition: int, position: int = 0, end: int | None = None
) -> AsyncIterator[Record]:
    """Yield the records of a partition from a position to `end`, or until there are no more.

    Raises:
        LedgerError: as by `Ledger.read`.
    """
    while end is None or position < end:
        limit = _READ_MAX if end is None else min(_READ_MAX, end - position)
        records = await ledger.read(topic, partition, position, limit)
        if not records:
            return
        for record in records:
            yield record
        position = records[-1].position + 1


def root_of(key: str) -> str:
    """Return the part of a key before its first dot: the experiment, also of a trial's key."""
    return key.partition(".")[0]


async def read_of(
    ledger: Ledger, place: tuple[str, int], begin: int, end: int, root: str | None
) -> tuple[list[Record], int]:
    """Return the first records between two positions whose keys are of a root; None: all.

    Returns:
        Some records, perhaps none, and the position up to which these are all.

    Raises:
        LedgerError: as by `Ledger.read`.
    """
    if root is not None and isinstance(ledger, Rooted):
        return await ledger.read_of(*place, begin, end, root)
    records = await ledger.read(*place, begin, min(_READ_MAX, end - begin))
    reached = records[-1].position + 1 if records else end
    return [record for record in records if root in {None, root_of(record.key)}], reached


def staged(ledger: Ledger) -> Ledger:
    """Return the ledger for processors and relays, whose only effects are writes to it.

    Records that it returns, and what is appended, committed and saved through it, may not be
    durable yet. They become durable in order: no write without the records that were read before
    it. So a fact and its consequences can become durable together.

    If that fails, nothing of it was written: appends to the ledger itself raise, and so does each
    further call of what this returned. Its user discards the state that it folded and starts again
    with a new one.

    Where records are always durable before they are read, this is the ledger itself.
    """
    return ledger.staged() if isinstance(ledger, Staging) else ledger


async def append_and_commit(
    ledger: Ledger, drafts: Sequence[Draft], consumer: str, place: tuple[str, int], position: int
) -> list[int]:
    """Append a consumer's results, and commit its position in the topic and partition `place`.

    That is one step where the ledger supports it. Elsewhere the drafts may be appended again after
    a crash, as after any failure of `Ledger.append`.

    Raises:
        LedgerError: as by `Ledger.append`.
    """
    if isinstance(ledger, Combining):
        return await ledger.append_and_commit(drafts, consumer, *place, position)
    positions = await ledger.append(drafts)
    await ledger.commit(consumer, *place, position)
    return positions


def check_trim(topic: str, partition: int, position: int, end: int) -> None:
    """Check that records to trim exist.

    Raises:
        LedgerError: the position lies beyond the end.
    """
    if position > end:
        raise LedgerError(
            f"{topic}/{partition} ends at {end}: it cannot be trimmed to position {position}"
        )
