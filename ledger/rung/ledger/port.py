"""What every adapter of the ledger can do; `tests/ledger/conformance.py` holds them to it.

The ledger is a set of topics, each cut into partitions, each a growing sequence of records
numbered from 0 without gaps. A record is never changed. Methods that touch the disk or the
network are coroutines and never block the event loop.
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


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
        """Append in order, all or none of them, and return their positions.

        They are durable when this returns.

        Raises:
            LedgerUnavailable: the disk is full or the ledger does not answer; nothing of it
                was written, or whether it was is not known.
        """
        ...

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        """Return up to `limit` records from `position` on; an empty list at the end."""
        ...

    async def end(self, topic: str, partition: int) -> int:
        """Return the position that the next record will get."""
        ...

    def follow(self, topic: str, partition: int, position: int) -> AsyncIterator[Sequence[Record]]:
        """Yield batches of records from `position` on, for ever, as they are appended.

        Also sees what other processes append, and waits without polling.
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
