"""What goes to one partition in one request: all or nothing of it is written."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aiokafka import errors
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from rung.events.errors import EventTooLarge, LedgerError
from rung.ledger.kafka.errors import explain

BATCH_BYTES: Final = 1 << 20
OVERHEAD_BYTES: Final = 100
"""What a batch and a record weigh beside key and value, at most."""
_FORMAT: Final = 2

Row = tuple[bytes, bytes]
"""Key and value."""
Place = tuple[str, int]
"""A topic by its name on the cluster, and a partition."""


class Part:
    """What one append has for one partition."""

    __slots__ = ("done", "place", "positions", "rows", "sent")

    def __init__(self, place: Place, rows: Sequence[Row]) -> None:
        self.place = place
        self.rows = rows
        self.sent = 0
        self.positions: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Batch(NamedTuple):
    """What goes from a lane into a request: the bytes, and how many rows of which part."""

    place: Place
    data: bytes
    parts: list[tuple[Part, int]]


def build(place: Place, lane: Iterable[Part], size: int) -> Batch:
    """Make one batch of what lies at the head of a lane, at least one row if there is any."""
    builder = DefaultRecordBatchBuilder(_FORMAT, 0, 0, -1, -1, 0, size)
    timestamp = int(time.time() * 1000)
    taken: list[tuple[Part, int]] = []
    for number, (part, key, value) in enumerate(_rows(lane)):
        if builder.append(number, timestamp, key, value, []) is None:
            break
        if taken and taken[-1][0] is part:
            taken[-1] = (part, taken[-1][1] + 1)
        else:
            taken.append((part, 1))
    return Batch(place, bytes(builder.build()), taken)


def acknowledge(batch: Batch, first: int) -> None:
    """Tell the parts of a batch their positions."""
    for part, count in batch.parts:
        part.positions += range(first, first + count)
        first += count
        part.sent += count
        if part.sent == len(part.rows) and not part.done.done():
            part.done.set_result(None)


def fail(parts: Iterable[Part], error: LedgerError) -> None:
    """Tell parts that they failed."""
    for part in parts:
        if not part.done.done():
            part.done.set_exception(error)


def refusal(error: errors.KafkaError, batch: Batch) -> LedgerError:
    """Return why the cluster does not take a batch."""
    name, partition = batch.place
    if isinstance(error, errors.MessageSizeTooLargeError):
        return EventTooLarge(
            f"the cluster refuses a batch of {len(batch.data)} bytes for {name}: raise the "
            "topic's max.message.bytes"
        )
    return explain(error, f"appending to {name}/{partition}")


def _rows(lane: Iterable[Part]) -> Iterator[tuple[Part, bytes, bytes]]:
    for part in lane:
        if not part.done.done():
            for key, value in part.rows[part.sent :]:
                yield part, key, value
