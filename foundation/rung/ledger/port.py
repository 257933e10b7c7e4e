"""What every adapter of the ledger can do; `tests/ledger/conformance.py` holds them to it.

The ledger is a set of topics, each cut into partitions, each a growing sequence of records
numbered from 0 without gaps. A record is never changed; the oldest of a partition may be removed
where not all is kept. Methods that touch the disk or the network are coroutines and never block
the event loop.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol, runtime_checkable

from rung.events import topic
from rung.events.errors import LedgerError

_READ_MAX: Final = 1_000
FLEETING: Final = frozenset({topic.HEARTBEATS})
"""Topics of which nobody misses what was removed: reading them below their start begins at it."""


class Record(NamedTuple):
    """One event as it lies in the ledger."""

    topic: str
    partition: int
    position: int
    key: str
    value: bytes
    """A CloudEvent in JSON, see `rung.events.codec`."""


class Draft(NamedTuple):
    """One event about to be appended."""

    topic: str
    key: str
    value: bytes


class Ledger(Protocol):
    """An open ledger."""

    @property
    def id(self) -> str:
        """The ledger's own name, drawn when it was created; the same for all who open it."""
        ...

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        ...

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order and return the positions, which are durable then.

        When it fails, what was written is nothing, all, or a beginning in each partition: never
        a later one of these drafts without the earlier ones of its partition. One adapter may
        also have written a beginning twice. A file writes all or nothing, once.

        So whoever goes on after a failure repeats the whole append, with the same origins and
        sequences or the same causes, before anything later of the same origin: then readers drop
        what they have seen, and miss nothing.

        Raises:
            LedgerUnavailable: the disk is full or the ledger does not answer, and whether all of
                it was written is not known.
            EventTooLarge: a draft is larger than a record may be, so it never can be written.
            LedgerError: a draft is refused; nothing was written.
        """
        ...

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end.

        Raises:
            LedgerTrimmed: the position was removed; but for the `FLEETING` topics.
            LedgerDamaged: the position lies beyond the end, so that records were lost.
        """
        ...

    async def start(self, topic: str, partition: int) -> int:
        """Return the first position that exists: 0 unless old records were removed."""
        ...

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        ...

    async def trim(self, topic: str, partition: int, position: int) -> None:
        """Remove the records before a position for good; `start` returns it then.

        Nothing happens where they are removed already. Others append and read meanwhile.

        Raises:
            LedgerError: the position lies beyond the end, or the ledger cannot remove records;
                nothing was removed.
        """
        ...

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended.

        Also sees what other processes append, and waits without polling. Ends by the errors of
        `read`, whether the position is so at first or becomes so later.
        """
        ...

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        """Return the position a consumer committed last, 0 if it never did."""
        ...

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        """Remember where a consumer goes on after a restart."""
        ...

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        """Return the newest snapshot saved under the name, None if there is none."""
        ...

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        """Replace the snapshot of that name."""
        ...

    async def close(self) -> None:
        """Finish pending appends and let go of the ledger."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A ledger in which appends and commits of any size can be made visible all at once."""

    def transaction(self) -> AbstractAsyncContextManager[Ledger]:
        """Open a transaction.

        What is appended, committed and saved through the ledger that it gives becomes visible to
        others, and durable, when the body ends; reading through it sees it before. If the body
        raises or the process is killed, nothing of it ever was. Memory does not grow with it where
        the ledger lies on a disk. What it gives need not be able to `follow`.

        Nothing else may append meanwhile: in the body, appending through the ledger that the
        transaction is of waits for ever or is refused.

        Raises:
            LedgerUnavailable: the disk is full; nothing was changed.
            LedgerError: something else was appended meanwhile, where that is not kept waiting;
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
    """A ledger in which records count for some of its readers before they are durable."""

    def staged(self) -> Ledger:
        """Return the ledger as those see it that do nothing outside of it, see `staged`."""
        ...


@runtime_checkable
class Rooted(Protocol):
    """A ledger that finds the records of one experiment without handing out all others."""

    async def read_of(
        self, topic: str, partition: int, begin: int, end: int, root: str
    ) -> tuple[list[Record], int]:
        """Return some records with keys of a root, see the function `read_of`."""
        ...


def root_of(key: str) -> str:
    """Return what stands before a key's first dot: an experiment, of its own key or a trial's."""
    return key.partition(".")[0]


async def read_of(
    ledger: Ledger, place: tuple[str, int], begin: int, end: int, root: str
) -> tuple[list[Record], int]:
    """Return the first records between two positions whose keys are of a root.

    Args:
        ledger: read.
        place: the topic and the partition.
        begin: where to begin.
        end: behind the last one; not beyond the stream's end.
        root: of the keys.

    Returns:
        Some records, perhaps none, and the position up to which these are all.

    Raises:
        LedgerError: as by `Ledger.read`.
    """
    if isinstance(ledger, Rooted):
        return await ledger.read_of(*place, begin, end, root)
    records = await ledger.read(*place, begin, min(_READ_MAX, end - begin))
    reached = records[-1].position + 1 if records else end
    return [record for record in records if root_of(record.key) == root], reached


def staged(ledger: Ledger) -> Ledger:
    """Return the ledger as processors and relays see it, which do nothing outside of it.

    What they are shown, and what they append, commit and save, may not be durable yet. It becomes
    durable in order: nothing of theirs without what they were shown before. So what follows from a
    fact can become durable together with it.

    If that fails, nothing of it ever was, whoever appended to the ledger itself is told, and what
    this returned is of no use any more: each call of it raises the failure. Its user forgets what
    it has folded, and starts again with another one.

    Where everything is durable before it is shown, this is the ledger itself.
    """
    return ledger.staged() if isinstance(ledger, Staging) else ledger


async def append_and_commit(
    ledger: Ledger, drafts: Sequence[Draft], consumer: str, place: tuple[str, int], position: int
) -> list[int]:
    """Append what a consumer made of a topic, and remember how far it is.

    That is one step where the ledger can. Elsewhere what was appended may be appended again
    after a crash, as after any failure of `Ledger.append`.

    Args:
        ledger: appended to.
        drafts: what was made.
        consumer: who made it.
        place: the topic and the partition that it was made of.
        position: behind what it was made of.

    Raises:
        LedgerError: as by `Ledger.append`.
    """
    if isinstance(ledger, Combining):
        return await ledger.append_and_commit(drafts, consumer, *place, position)
    positions = await ledger.append(drafts)
    await ledger.commit(consumer, *place, position)
    return positions


def check_trim(topic: str, partition: int, position: int, end: int) -> None:
    """Refuse to remove what is not there yet.

    Raises:
        LedgerError: the position lies beyond the end.
    """
    if position > end:
        raise LedgerError(
            f"{topic}/{partition} ends at {end}: it cannot be trimmed to position {position}"
        )
