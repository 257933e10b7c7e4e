"""Reading: the part of a ledger that readers need, also of an archive or an export."""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from rung.ledger.port import Record

_READ_MAX: Final = 1_000


class Readable(Protocol):
    """A ledger to read from; its methods are those of `rung.ledger.port.Ledger`."""

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
