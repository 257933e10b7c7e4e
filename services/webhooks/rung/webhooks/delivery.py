"""Delivery: carries out what is requested on the topic `deliveries`, and records each attempt.

The ledger is the queue. A replica folds the requests of a partition that have not ended, from the
lowest of them on: of each it keeps its place and how often it was tried, and reads its event when
its turn comes. So a receiver that is away for a day costs some hundred bytes a delivery, a service
that is killed goes on where it was, and whoever takes a partition over knows what was tried.

An attempt whose record is lost with the process is repeated under the same id. All deliveries of a
webhook lie in one partition; partitions, and webhooks within one, do not wait for each other.
"""

import asyncio
import contextlib
import random
import time
from datetime import datetime
from typing import Any, Final

import structlog

from rung.events import Event, UndecodableEvent, topic
from rung.events.codec import decode_handled
from rung.events.errors import ObjectError, SecretError
from rung.events.webhook import (
    AttemptOutcome,
    DeliveryAttempted,
    DeliveryRequested,
    RedeliveryRequested,
)
from rung.ledger import Ledger, Record
from rung.runtime.fact_writer import FactWriter
from rung.runtime.health.loops import waiting_for
from rung.webhooks.directory import Directory, Hook
from rung.webhooks.schedule import WAITING_MAX, Lane, Schedule, Waiting
from rung.webhooks.settings import Settings
from rung.webhooks.transport import Outcome, Transport, failure

NAME: Final = "webhooks-deliverer"
_SOURCE: Final = "/rung/webhooks"
_TYPES: Final = frozenset(
    {DeliveryRequested.TYPE, RedeliveryRequested.TYPE, DeliveryAttempted.TYPE}
)
_ENDS: Final = frozenset({"delivered", "dead", "dropped", "gone"})
_AT_ONCE: Final = 64
"""Attempts of one partition."""
_LOOK_MS: Final = 60_000
_COMMIT_S: Final = 1.0

_log = structlog.get_logger()


class Deliverer:
    """One partition of the topic `deliveries`."""

    def __init__(  # noqa: PLR0913 - its parts
        self,
        ledger: Ledger,
        partition: int,
        *,
        directory: Directory,
        transport: Transport,
        settings: Settings,
        origin: str,
    ) -> None:
        self._ledger = ledger
        self._partition = partition
        self._directory = directory
        self._transport = transport
        self._settings = settings
        self._writer = FactWriter(ledger, source=_SOURCE, origin=f"{origin}/{partition}")
        self._chance = random.Random()  # noqa: S311 - spreads attempts over time, guards nothing
        self._schedules: dict[str, Schedule] = {}
        self._gone: dict[str, str] = {}
        """Webhook → when its receiver answered that it wants nothing any more."""
        self._reached = 0
        self._committed = -1
        self._caught_up = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Deliver until cancelled.

        Raises:
            LedgerError: the ledger failed; a new one goes on from the committed position.
        """
        start = await self._ledger.position(NAME, topic.DELIVERIES, self._partition)
        self._reached = start
        goal = await self._ledger.end(topic.DELIVERIES, self._partition)
        with waiting_for("the directory"):
            await self._directory.ready.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fold(start, goal))
            group.create_task(self._commit())
            await self._caught_up.wait()
            while True:
                self._begin(group)
                await self._pause()

    async def _fold(self, start: int, goal: int) -> None:
        if start >= goal:
            self._caught_up.set()
        async for records in self._ledger.follow(topic.DELIVERIES, self._partition, start):
            for record in records:
                with contextlib.suppress(UndecodableEvent):  # of a newer release, or damaged
                    event = decode_handled(record.value, _TYPES)
                    if event is not None:
                        await self._take(record, event)
                self._reached = record.position + 1
            if self._reached >= goal:
                self._caught_up.set()
            self._news.set()

    async def _take(self, record: Record, event: Event) -> None:
        match event.data:
            case DeliveryRequested() | RedeliveryRequested() as asked:
                schedule = self._schedule(asked.webhook_id)
                waiting = Waiting(asked.delivery_id, record.position, _ms_of(event))
                lane = asked.experiment_id or asked.delivery_id
                if len(schedule) >= WAITING_MAX:
                    if self._caught_up.is_set():
                        reason = f"more than {WAITING_MAX:,} deliveries wait"
                        await self._record(asked.webhook_id, waiting, "dead", reason=reason)
                    return
                if not schedule.add(lane, waiting) and isinstance(asked, RedeliveryRequested):
                    schedule.hurry(asked.delivery_id)
            case DeliveryAttempted() as made:
                schedule = self._schedule(made.webhook_id)
                if made.outcome == "gone":
                    self._gone[made.webhook_id] = event.time
                if made.outcome in _ENDS:
                    if not self._caught_up.is_set():
                        schedule.end(made.delivery_id)
                elif not self._caught_up.is_set():
                    schedule.attempted(made.delivery_id, made.attempt, made.next_ms or 0)
            case _:
                raise AssertionError(event)

    def _schedule(self, webhook_id: str) -> Schedule:
        found = self._schedules.get(webhook_id)
        if found is None:
            found = self._schedules[webhook_id] = Schedule(self._settings, self._chance)
        return found

    def _begin(self, group: asyncio.TaskGroup) -> None:
        now = _now_ms()
        for webhook_id, schedule in list(self._schedules.items()):
            hook = self._directory.hooks.get(webhook_id)
            why = self._unwanted(hook)
            if why:
                for each in schedule.clear():
                    group.create_task(self._record(webhook_id, each, "dropped", reason=why))
            else:
                assert hook is not None
                for lane, waiting in schedule.begin(now):
                    group.create_task(self._try(hook, schedule, lane, waiting))
            if not len(schedule):
                del self._schedules[webhook_id]

    def _unwanted(self, hook: Hook | None) -> str:
        if hook is None:
            return "the webhook was removed"
        if not hook.active:
            return "the webhook is switched off"
        if self._gone.get(hook.webhook_id, "") > hook.changed:
            return "the receiver answered 410: set the webhook again to go on"
        return ""

    async def _try(self, hook: Hook, schedule: Schedule, lane: Lane, waiting: Waiting) -> None:
        event = await self._event_of(waiting)
        if event is None:
            schedule.released(lane)
            return
        begun = time.monotonic()
        async with self._room:
            outcome = await self._attempt(hook, event)
        took_ms = int((time.monotonic() - begun) * 1000)
        next_ms: int | None = None
        if outcome.delivered:
            schedule.succeeded(lane)
            waiting.attempts += 1
            result: AttemptOutcome = "delivered"
        elif outcome.gone:
            schedule.released(lane)
            waiting.attempts += 1
            result = "gone"
            self._gone[hook.webhook_id] = "~"  # until its record is read
        else:
            retry_after_ms = int(outcome.retry_after_s * 1000)
            verdict = schedule.failed(lane, _now_ms(), retry_after_ms)
            result = "dead" if verdict.dead else "failed"
            next_ms = None if verdict.dead else verdict.next_ms
        if result in {"dead", "gone"}:
            _log.warning(
                "not delivered",
                webhook=hook.webhook_id,
                delivery=waiting.delivery_id,
                reason=outcome.reason,
            )
        await self._record(
            hook.webhook_id,
            waiting,
            result,
            reason=outcome.reason,
            status=outcome.status,
            took_ms=took_ms,
            next_ms=next_ms,
        )
        self._news.set()

    async def _attempt(self, hook: Hook, event: dict[str, Any]) -> Outcome:
        try:
            receiver = await self._directory.receiver_of(hook)
        except (SecretError, ObjectError) as error:
            return failure(str(error))
        return await self._transport.deliver(hook.subscription.format, receiver, event)

    async def _event_of(self, waiting: Waiting) -> dict[str, Any] | None:
        """Return the event to deliver; None if it is no longer in the ledger."""
        place = (topic.DELIVERIES, self._partition, waiting.position)
        for record in await self._ledger.read(*place, 1):
            event = decode_handled(record.value, _TYPES)
            if event is not None and isinstance(event.data, DeliveryRequested):
                return event.data.event
        return None

    async def _record(  # noqa: PLR0913 - what is recorded of an attempt
        self,
        webhook_id: str,
        waiting: Waiting,
        outcome: AttemptOutcome,
        *,
        reason: str = "",
        status: int | None = None,
        took_ms: int = 0,
        next_ms: int | None = None,
    ) -> None:
        await self._writer.write(
            DeliveryAttempted(
                webhook_id=webhook_id,
                delivery_id=waiting.delivery_id,
                attempt=waiting.attempts,
                outcome=outcome,
                status=status,
                reason=reason,
                took_ms=took_ms,
                next_ms=next_ms,
            )
        )

    async def _pause(self) -> None:
        """Wait until something may be tried."""
        dues = [due for it in self._schedules.values() if (due := it.due_ms()) is not None]
        wait_ms = min([max(min(dues) - _now_ms(), 0) if dues else _LOOK_MS, _LOOK_MS])
        changed = asyncio.create_task(self._directory.changed())
        news = asyncio.create_task(self._news.wait())
        try:
            await asyncio.wait(
                [changed, news],
                timeout=wait_ms / 1000 + 0.001,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            changed.cancel()
            news.cancel()
        self._news.clear()

    async def _commit(self) -> None:
        """Commit the lowest position that is still needed, at intervals."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            found = [low for it in self._schedules.values() if (low := it.lowest) is not None]
            position = min([*found, self._reached])
            if self._caught_up.is_set() and position > self._committed:
                await self._ledger.commit(NAME, topic.DELIVERIES, self._partition, position)
                self._committed = position


def _ms_of(event: Event) -> int:
    return int(datetime.fromisoformat(event.time).timestamp() * 1000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
