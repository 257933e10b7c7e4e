"""Follows several topics at once, as one stream of records."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Literal

from rung.events.errors import LedgerError
from rung.ledger.port import Ledger, Record

_AHEAD: Final = 64
"""Batches that are buffered for a slow reader."""


async def tail(
    ledger: Ledger,
    topics: Sequence[str],
    *,
    start: Literal["beginning", "end"] = "end",
    key: str | None = None,
) -> AsyncGenerator[Record, None]:
    """Yield the records of several topics as they are appended, for ever.

    Each partition's records come in their order; those of different partitions as they arrive.
    Close it (`contextlib.aclosing`) to stop following.

    Args:
        ledger: what to follow.
        topics: to follow.
        start: with the first record that exists, or with the next one.
        key: only records of this key.

    Raises:
        LedgerError: a topic does not exist, or following failed.
    """
    batches: asyncio.Queue[Sequence[Record] | LedgerError] = asyncio.Queue(_AHEAD)

    async def pump(name: str, partition: int, position: int) -> None:
        try:
            async for records in ledger.follow(name, partition, position):
                await batches.put(records)
        except LedgerError as error:
            await batches.put(error)

    begin = ledger.start if start == "beginning" else ledger.end
    streams = [(name, part) for name in topics for part in range(ledger.partitions(name))]
    pumps = [
        asyncio.create_task(pump(name, part, position))
        for name, part, position in [(*stream, await begin(*stream)) for stream in streams]
    ]
    try:
        while True:
            batch = await batches.get()
            if isinstance(batch, LedgerError):
                raise batch
            for record in batch:
                if key is None or record.key == key:
                    yield record
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
