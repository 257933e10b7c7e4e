"""The loop of relays and sinks: processes the events of a partition from a committed position on.

An event that cannot be processed becomes a dead letter, and the loop goes on with the next. An
operator may have a dead letter retried or dropped.

The facts made of a batch and the position behind it are written to the ledger in one step. Behind
a batch without facts the position is committed at intervals, because repeating it costs nothing.
"""

import asyncio
from collections.abc import Container, Sequence
from typing import Final

from rung.events import Event, LedgerError, UndecodableEvent
from rung.events.codec import decode_handled
from rung.ledger import Draft, Ledger, Record, append_and_commit
from rung.runtime.deadletter import Request, Requests, dead_letter, log_rejected
from rung.runtime.health.loops import CURRENT_LOOP
from rung.runtime.processor.fold import Rejected
from rung.runtime.retry import Outage, keep_running, of_ledger
from rung.runtime.shield import finish

_COMMIT_EVERY_S: Final = 0.5


class Consumer:
    """One partition of a topic; subclasses process the events."""

    def __init__(
        self, ledger: Ledger, name: str, topic: str, partition: int, types: Container[str]
    ) -> None:
        """Prepare to follow a partition.

        The position is committed under `name`; events of other than `types` are skipped.
        """
        self._ledger = ledger
        self._name = name
        self._topic = topic
        self._partition = partition
        self._types = types
        self._requests = Requests(ledger, name, topic, partition)
        self._reached = 0
        """Behind the last processed record."""
        self._passed = asyncio.Event()
        """Set while that is not committed."""
        self._committing = asyncio.Lock()

    async def run(self) -> None:
        """Process records until cancelled.

        An error of any of the loops ends all of them.

        Raises:
            LedgerError: the ledger failed; run again to go on from the committed position.
        """
        await self._requests.open()
        start = await self._start()
        self._passed.clear()
        works = (self._follow(start), self._answer(), self._beside(), self._commit_passed())
        loops = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in loops:
                task.cancel()  # once: what `finish` completes ends at a second one
            await asyncio.gather(*loops, return_exceptions=True)
        for task in loops:
            if not task.cancelled():
                task.result()

    async def _follow(self, start: int) -> None:
        """Process the records from a position on."""
        async for records in self._ledger.follow(*self._place, start):
            await self._deliver(records)

    @property
    def _place(self) -> tuple[str, int]:
        return self._topic, self._partition

    async def _start(self) -> int:
        """Prepare; return the position to begin at."""
        return await self._ledger.position(self._name, *self._place)

    async def _deliver(self, records: Sequence[Record]) -> None:
        """Process a batch, completely or not at all."""
        await finish(self._take_all(records))

    async def _beside(self) -> None:
        """Run beside following."""

    async def _take(self, record: Record, event: Event) -> list[Event]:
        """Process an event; return the facts to append.

        Raises:
            LedgerError: the ledger failed: the batch is repeated.
            Exception: the event becomes a dead letter.
        """
        raise NotImplementedError

    async def _take_again(self, record: Record, event: Event) -> list[Event]:
        """Process an event that was a dead letter; return the facts to append."""
        raise NotImplementedError

    async def _take_all(self, records: Sequence[Record]) -> None:
        drafts: list[Draft] = []
        for record in records:
            drafts += await self._drafts(record)
        await self._conclude(drafts, records[-1].position + 1)

    async def _conclude(self, drafts: Sequence[Draft], position: int) -> None:
        """Append the facts made of a batch, and commit the position behind it, now or soon."""
        if not drafts:
            self._reached = position
            self._passed.set()
            return
        async with self._committing:
            await append_and_commit(self._ledger, drafts, self._name, self._place, position)
            self._reached = position
            self._passed.clear()

    async def _commit_passed(self) -> None:
        """Commit the position at intervals where nothing is appended."""
        CURRENT_LOOP.set(None)  # no part of the loop's health

        async def commit() -> None:
            while True:
                await self._passed.wait()
                async with self._committing:
                    position = self._reached
                    await self._ledger.commit(self._name, *self._place, position)
                    if position == self._reached:
                        self._passed.clear()
                await asyncio.sleep(_COMMIT_EVERY_S)

        outage = Outage("position not committed yet", name=self._name)
        await keep_running(commit, outage.note, patience_s=of_ledger)

    async def _drafts(self, record: Record) -> list[Draft]:
        try:
            event = self._decode(record)
            return [] if event is None else _drafts(await self._take(record, event))
        except UndecodableEvent as error:
            reason = str(error)
        except LedgerError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises concerns this event alone
            reason = f"{type(error).__name__}: {error}"
        rejected = Rejected(record, reason)
        log_rejected(self._name, [rejected])
        return [dead_letter(self._ledger.id, self._name, rejected)]

    def _decode(self, record: Record) -> Event | None:
        """Return the event of a record; None where it is skipped."""
        return decode_handled(record.value, self._types)

    async def _answer(self) -> None:
        """Carry out operators' requests about dead letters."""
        CURRENT_LOOP.set(None)  # no part of the loop's health

        async def answer() -> None:
            async for requests in self._requests.news():
                for request in requests:
                    await self._answer_one(request)

        outage = Outage("not tried again yet", name=self._name)
        await keep_running(answer, outage.note, patience_s=of_ledger)

    async def _answer_one(self, request: Request) -> bool:
        """Carry out a request; return whether the message is settled by that."""
        for record in await self._ledger.read(*self._place, request.position, 1):
            drafts, reason = list[Draft](), None
            try:
                if not request.drop:
                    drafts = await self._drafts_again(record)
            except UndecodableEvent as error:
                reason = str(error)
            except LedgerError:
                raise
            except Exception as error:  # noqa: BLE001 - as in `_drafts`
                reason = repr(error)
            if reason is not None:
                rejected = Rejected(record, reason)
                log_rejected(self._name, [rejected])
                again = dead_letter(self._ledger.id, self._name, rejected, asked=request.asked)
                await self._requests.answer([again], {})
                return False
            await self._requests.answer(drafts, {request.position: record.key})
        return True

    async def _drafts_again(self, record: Record) -> list[Draft]:
        event = self._decode(record)
        return [] if event is None else _drafts(await self._take_again(record, event))


def _drafts(events: Sequence[Event]) -> list[Draft]:
    return [Draft.of(event) for event in events]
