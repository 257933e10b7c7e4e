"""Dead letters of projections: what operators ask of the messages that could not be folded.

All partitions of a topic are looked at together, because an answer concerns whole files.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from rung.events import partition_of, topic
from rung.events.deadletter import MessageDropped, MessageRetryRequested
from rung.ledger import Draft, Ledger, Record
from rung.runtime.deadletter import DeadLetters, dead_letter, messages_in
from rung.runtime.processor.fold import Rejected
from rung.runtime.projection.merge import Answered, Location
from rung.runtime.projection.projection import Projection

_READ_MAX: Final = 2_000


def requested_topics(projection: Projection) -> tuple[str, ...]:
    """Return the topics of a projection about whose messages there are dead letters.

    There are none about dead letters.
    """
    return tuple(name for name in projection.topics if name != topic.DEADLETTER)


class Requests:
    """The dead letters that one reader wrote about one topic."""

    def __init__(self, ledger: Ledger, reader: str, name: str) -> None:
        """Take whose they are; nothing is read yet."""
        self.topic: Final = name
        self._ledger = ledger
        self._reader = reader
        self._partition = partition_of(name, ledger.partitions(topic.DEADLETTER))
        self._reading = asyncio.Lock()
        self._letters: dict[int, DeadLetters] = {}
        self._position = 0
        """Behind what was read."""
        self._newest = -1
        """Where the newest request to try a message again lies."""
        self._dropped: dict[tuple[int, int], int] = {}
        """Partition and position of a message that was dropped → where that was asked."""

    async def open(self) -> None:
        """Read what is on record until now.

        Raises:
            LedgerError: the ledger does not answer.
        """
        async with self._reading:
            start = await self._ledger.start(topic.DEADLETTER, self._partition)
            self._position = max(self._position, start)
            while records := await self._ledger.read(
                topic.DEADLETTER, self._partition, self._position, _READ_MAX
            ):
                self._take(records)

    async def news(self) -> AsyncIterator[None]:
        """Yield at once, and after each record that came.

        Raises:
            LedgerError: the ledger does not answer.
        """
        await self.open()
        yield
        async for _ in self._ledger.follow(topic.DEADLETTER, self._partition, self._position):
            await self.open()
            yield

    def is_dropped(self, record: Record) -> bool:
        """Return whether an operator is known to have dropped a message."""
        return (record.partition, record.position) in self._dropped

    async def before(self) -> Answered:
        """Return which requests there are now.

        Raises:
            LedgerError: the ledger does not answer.
        """
        end = await self._ledger.end(topic.DEADLETTER, self._partition)
        return Answered(end, self._position)

    def ask_for_more(
        self, answered: Answered, folded: Mapping[int, int], rejected: Mapping[Location, str]
    ) -> bool:
        """Return whether tables lack what was asked for.

        Args:
            answered: by the tables, since they were empty.
            folded: partition → the position behind what was folded of the topic.
            rejected: what of that could not be folded.
        """
        return self._newest >= answered.done or any(
            asked >= answered.known
            and position < folded.get(partition, 0)
            and (self.topic, partition, position) not in rejected
            for (partition, position), asked in self._dropped.items()
        )

    async def answer(self, folded: Mapping[int, int], rejected: Mapping[Location, str]) -> None:
        """Answer what was asked until now, and settle what could be folded after all.

        Args:
            folded: partition → the position behind what was folded of the topic.
            rejected: what of that could not be folded, and why.

        Raises:
            LedgerError: the ledger does not answer.
        """
        for partition, letters in self._letters.items():
            again, taken = list[Draft](), dict[int, str]()
            asked = {it.position: it.asked for it in letters.pending}
            known = letters.rejected | {it.position: it.key for it in letters.pending}
            for position, key in known.items():
                reason = rejected.get((self.topic, partition, position))
                if reason is None or (partition, position) in self._dropped:
                    taken |= {position: key} if position < folded.get(partition, 0) else {}
                elif position in asked:
                    place = self.topic, partition, position
                    for record in await self._ledger.read(*place, 1):
                        item = Rejected(record, reason)
                        draft = dead_letter(
                            self._ledger.id, self._reader, item, asked=asked[position]
                        )
                        again.append(draft)
            await letters.answer(again, taken)

    def _take(self, records: Sequence[Record]) -> None:
        for asked, event, data in messages_in(records):
            if (data.reader, data.topic) != (self._reader, self.topic):
                continue
            if data.partition not in self._letters:
                place = data.topic, data.partition
                self._letters[data.partition] = DeadLetters(self._ledger, self._reader, *place)
            self._letters[data.partition].note(asked, event, data)
            if isinstance(data, MessageRetryRequested):
                self._newest = asked
            elif isinstance(data, MessageDropped):
                self._dropped[data.partition, data.position] = asked
        self._position = records[-1].position + 1
