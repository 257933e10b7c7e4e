"""Appends: what waits for a partition goes out as one batch, and each batch is all or nothing.

Theory of operation. Every partition has a *lane*, in which what was appended lies in its order.
One request at a time is under way to each broker; it takes along, for each lane whose partition
that broker leads, as much as fits into one batch from the lane's head. Meanwhile more comes to
lie in the lanes, so that a hundred writers share a request, and one writer never waits for
others to come.

What was not acknowledged stays at its lane's head and is sent again, to whoever leads then, so
nothing overtakes it. An append that is too late (`timeout_s`) or canceled leaves its lane, with
all of it that was not sent: what lies in the partition of one append is all of it, or its
beginning. A batch of which the acknowledgement was lost is there twice; readers drop it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from aiokafka import errors
from aiokafka.protocol.produce import ProduceRequest

from rung.events.errors import LedgerError, LedgerUnavailable
from rung.ledger.kafka.batch import (
    BATCH_BYTES,
    OVERHEAD_BYTES,
    Batch,
    Part,
    Place,
    Row,
    acknowledge,
    build,
    fail,
    refusal,
)
from rung.ledger.kafka.budget import Budget
from rung.ledger.kafka.cluster import Cluster
from rung.ledger.kafka.errors import FAILURES, explain, failed, passes, told

_REQUEST_BYTES: Final = 16 << 20
_BACKOFF_S: Final = 0.1
_ALL_IN_SYNC: Final = -1


class Writer:
    """Appends to the partitions of a cluster."""

    def __init__(self, cluster: Cluster, batch_bytes: int = BATCH_BYTES) -> None:
        self._cluster = cluster
        self._batch_bytes = batch_bytes
        self._budget = Budget(cluster.settings.buffer_bytes)
        self._lanes: dict[Place, deque[Part]] = {}
        self._flying: set[Place] = set()
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._waiting: asyncio.Task[None] | None = None
        self._scheduled = False
        self._last: Exception | None = None
        self._open: dict[Part, float] = {}
        """What waits for its acknowledgement, the oldest first, and until when."""
        self._timer: asyncio.TimerHandle | None = None
        self._clock = asyncio.get_running_loop().time
        self._appends = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def buffered_bytes(self) -> int:
        """How much waits to be acknowledged."""
        return self._budget.taken

    async def append(self, rows: dict[Place, list[Row]]) -> dict[Place, list[int]]:
        """Append rows to partitions, in order within each; return their positions.

        Raises:
            LedgerUnavailable: they were not acknowledged in time.
            LedgerError: the cluster refuses them.
        """
        size = sum(
            len(key) + len(value) + OVERHEAD_BYTES for more in rows.values() for key, value in more
        )
        self._appends += 1
        self._idle.clear()
        parts: dict[Place, Part] = {}
        deadline = self._clock() + self._cluster.settings.timeout_s
        try:
            if not self._budget.take_now(size):
                await self._wait_for_room(size, deadline, next(iter(rows)))
            try:
                parts = {place: self._put(place, more, deadline) for place, more in rows.items()}
                for part in parts.values():
                    await part.done
            finally:
                self._budget.give(size)
                for part in parts.values():
                    self._drop(part)
        finally:
            self._appends -= 1
            if not self._appends:
                self._idle.set()
        return {place: part.positions for place, part in parts.items()}

    async def close(self) -> None:
        """Wait until what was appended is acknowledged or given up."""
        await self._idle.wait()
        if self._timer is not None:
            self._timer.cancel()
        tasks = [*self._busy.values(), *([self._waiting] if self._waiting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_room(self, size: int, deadline: float, place: Place) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._budget.take(size)
        except TimeoutError:
            raise self._too_late(place, "nothing of it was written") from self._last

    def _put(self, place: Place, rows: Sequence[Row], deadline: float) -> Part:
        part = Part(place, rows)
        self._lanes.setdefault(place, deque()).append(part)
        self._open[part] = deadline
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)
        self._schedule()
        return part

    def _drop(self, part: Part) -> None:
        """Give up what was not sent of a part, and whatever failed it besides the first."""
        del self._open[part]
        if not part.done.done():
            part.done.cancel()
            self._schedule()
        elif not part.done.cancelled():
            part.done.exception()

    def _expire(self) -> None:
        """Fail what is too late; one timer serves all, for they expire in their order."""
        self._timer = None
        now = self._clock()
        for part, deadline in self._open.items():
            if deadline > now:
                self._timer = asyncio.get_running_loop().call_at(deadline, self._expire)
                return
            if not part.done.done():
                part.done.set_exception(
                    self._too_late(part.place, "whether it was written is not known")
                )

    def _too_late(self, place: Place, outcome: str) -> LedgerUnavailable:
        why = told(self._last) if self._last else "no answer"
        return LedgerUnavailable(
            f"appending to {place[0]}/{place[1]}: {self._cluster.address} did not acknowledge it "
            f"within {self._cluster.settings.timeout_s:g} s ({why}); {outcome}"
        )

    def _schedule(self) -> None:
        """Send soon: what is appended in this turn of the loop goes together."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give every broker that has nothing to do what waits for it."""
        self._scheduled = False
        ready: dict[int, list[Place]] = {}
        for place in self._pending():
            if place in self._flying:
                continue
            try:
                node = self._cluster.metadata.leader(*place)
            except errors.KafkaError as error:
                self._last = error
                self._look_around()
            except LedgerError as error:
                fail(self._lanes[place], error)
            else:
                ready.setdefault(node, []).append(place)
        for node, places in ready.items():
            if node not in self._busy:
                self._busy[node] = asyncio.create_task(self._send(node, places))

    def _pending(self) -> list[Place]:
        """Return the lanes that hold something, after clearing them of what was given up."""
        for place in list(self._lanes):
            lane = self._lanes[place]
            while lane and lane[0].done.done():
                lane.popleft()
            if not lane:
                del self._lanes[place]
        return list(self._lanes)

    async def _send(self, node: int, places: list[Place]) -> None:
        batches: dict[Place, Batch] = {}
        try:
            size = 0
            for place in places:
                batch = build(place, self._lanes[place], self._batch_bytes)
                if not batch.parts:
                    continue
                size += len(batch.data)
                if batches and size > _REQUEST_BYTES:
                    break
                batches[place] = batch
            self._flying.update(batches)
            if batches and not await self._request(node, batches):
                await asyncio.sleep(_BACKOFF_S)
                await self._cluster.refresh_quietly()
        except Exception as error:
            for (name, partition), batch in batches.items():
                reason = LedgerError(f"appending to {name}/{partition}: {told(error)}")
                fail([part for part, _ in batch.parts], reason)
            raise
        finally:
            self._flying.difference_update(batches)
            for place in batches:  # the next request begins with those that had to wait
                if place in self._lanes:
                    self._lanes[place] = self._lanes.pop(place)
            del self._busy[node]
            self._schedule()

    async def _request(self, node: int, batches: dict[Place, Batch]) -> bool:
        """Send batches; return whether all arrived or were refused for good."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for (name, partition), batch in batches.items():
            topics.setdefault(name, []).append((partition, batch.data))
        timeout_ms = int(self._cluster.settings.request_timeout_s * 500)
        request = ProduceRequest(None, _ALL_IN_SYNC, timeout_ms, list(topics.items()))
        try:
            answer = await self._cluster.send(node, request, "write")
        except FAILURES as error:
            self._last = error
            if not passes(error):
                for (name, partition), batch in batches.items():
                    what = f"appending to {name}/{partition}"
                    fail([part for part, _ in batch.parts], explain(error, what))
            return False
        settled = 0
        for name, partitions in answer.topics:
            for partition, code, first, *_ in partitions:
                settled += self._settle(batches[name, partition], code, first)
        return settled == len(batches)

    def _settle(self, batch: Batch, code: int, first: int) -> bool:
        """Take note of what became of a batch; return whether that is final."""
        if code:
            error = failed(code)
            self._last = error
            if passes(error):
                return False
            fail([part for part, _ in batch.parts], refusal(error, batch))
            return True
        acknowledge(batch, first)
        return True

    def _look_around(self) -> None:
        """Ask who leads, and send again then."""
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        await asyncio.sleep(_BACKOFF_S)
        await self._cluster.refresh_quietly()
        self._schedule()
