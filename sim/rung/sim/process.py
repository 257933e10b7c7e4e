"""Processes of the simulated world: each runs the table of a service, and is killed now and then.

Every component sees the ledger and the object store through links, which are where its process is
killed: before a call, in the middle of it, or when it was done and before the process learns of
it. A process that was killed has no effect any more, but for an append that was on its way; it is
started again a little later.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NoReturn

from rung.cli.operations.service import tables
from rung.events.errors import ObjectUnavailable
from rung.gateway.app import SOURCE
from rung.gateway.limit_watch import LimitWatch
from rung.gateway.projections.read_models import ReadModels
from rung.ledger import Draft, Record
from rung.runtime import FactWriter
from rung.runtime.projection import Projection
from rung.runtime.relay import Relay
from rung.runtime.retry import supervise
from rung.runtime.service import Component, Decider, serve
from rung.runtime.sink.batch_sink import BatchSink, PeriodicSink
from rung.runtime.sink.sink import Sink
from rung.sim.clock import BEFORE_JOB
from rung.sim.objects import MemoryStore
from rung.sim.poison import as_released
from rung.sim.world import LATENCY_MS_MAX, Faults, World
from rung.storage import ObjectInfo

_SNAPSHOT_EVERY: Final = 50
"""Facts between two snapshots of a processor, so that some are read in a short search."""
_LIMITS_EVERY_S: Final = 0.5
"""So that searches end close to a limit that they reach in seconds."""
_LATE_MS_MAX: Final = 2_000
_BATCH_MS_MAX: Final = 20 * LATENCY_MS_MAX
"""How long after an append a gateway learns of it, so that there is much in a batch."""

Risk = Callable[[Faults], float]
"""How probable it is, at each effect of a component, that its process is killed."""


class Killed(BaseException):
    """The process was killed: nothing that it runs may go on."""


class _Part:
    """A component in a process that may be killed, until it is."""

    def __init__(
        self, world: World, killed: "asyncio.Future[None]", name: str, risk: Risk
    ) -> None:
        """Take whose it is.

        Args:
            world: where it runs.
            killed: set once its process was killed.
            name: for people.
            risk: of its effects.
        """
        self.world: Final = world
        self._killed = killed
        self._name = name
        self._risk = risk

    def check(self) -> None:
        """Raise where the process was killed before."""
        if self._killed.done():
            raise Killed

    @property
    def is_over(self) -> bool:
        """Draw whether the process is killed at this moment."""
        return not self._killed.done() and self.world.happens(self._risk(self.world.faults))

    def kill(self) -> NoReturn:
        """End the process."""
        if not self._killed.done():
            self._killed.set_result(None)
            self.world.kills[self._name] += 1
        raise Killed

    def risk(self) -> None:
        """Perhaps be killed at this moment."""
        if self.is_over:
            self.kill()

    async def run(self, work: Awaitable[None]) -> None:
        """Run its work, in which it may be killed before each job of a thread, too."""
        BEFORE_JOB.set(self.risk)
        await work


class _LinkToLedger:
    """The ledger as a process sees it: some time away. Appends and commits are two steps."""

    def __init__(self, part: _Part, latency_ms_max: int = LATENCY_MS_MAX) -> None:
        self._part = part
        self._world = part.world
        self._ledger = part.world.ledger
        self._latency_ms_max = latency_ms_max

    @property
    def id(self) -> str:
        return self._ledger.id

    def partitions(self, topic: str) -> int:
        return self._ledger.partitions(topic)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        self._part.check()
        await self._world.latency()
        self._part.check()
        if self._part.is_over:
            self._leave(drafts)
        positions = await self._ledger.append(drafts)
        self._part.risk()
        return positions

    def _leave(self, drafts: Sequence[Draft]) -> NoReturn:
        """Die, with an append of which a beginning arrives, now or late."""
        begun = list(drafts[: self._world.random.randint(0, len(drafts))])
        if begun and self._world.happens(self._world.faults.late):
            delay_ms = self._world.random.randint(1, _LATE_MS_MAX)
            self._world.after(delay_ms, lambda: self._world.append(begun))
        elif begun:
            self._world.append(begun)
        self._part.kill()

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        self._part.check()
        return await self._ledger.read(topic, partition, position, limit)

    async def start(self, topic: str, partition: int) -> int:
        self._part.check()
        return await self._ledger.start(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        self._part.check()
        return await self._ledger.end(topic, partition)

    async def trim(self, topic: str, partition: int, position: int) -> None:
        self._part.check()
        await self._ledger.trim(topic, partition, position)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        following = self._world.follow(topic, partition, position, ms_max=self._latency_ms_max)
        async for records in following:
            self._part.check()
            yield records

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        self._part.check()
        return await self._ledger.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        self._part.check()
        self._part.risk()
        await self._ledger.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        self._part.check()
        return await self._ledger.snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        self._part.check()
        self._part.risk()
        await self._ledger.save_snapshot(name, partition, value)

    async def close(self) -> None:
        """Leave the ledger open: others use it."""


class _LinkToObjects(MemoryStore):
    """The object store as a process sees it: it may be away, and a deletion may be cut short."""

    def __init__(self, part: _Part, store: MemoryStore) -> None:
        super().__init__()
        self._part = part
        self._store = store

    def area(self, name: str) -> "_LinkToObjects":
        return _LinkToObjects(self._part, self._store.area(name))

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, prefix: str) -> int:
        self._part.check()
        if self._part.world.happens(self._part.world.faults.refusal):
            raise ObjectUnavailable("simulated")
        self._part.risk()
        return self._store.delete(prefix)


class Process:
    """A process that runs for ever; where it is killed, it is started again."""

    def __init__(self, world: World, name: str) -> None:
        """Take where it runs, and what it is called."""
        self.name: Final = name
        self._world = world
        self._killed: asyncio.Future[None] | None = None

    def kill(self) -> None:
        """End it at this moment; it is started again."""
        if self._killed is not None and not self._killed.done():
            self._killed.set_result(None)
            self._world.kills[self.name] += 1

    async def run(self) -> None:
        """Run it until cancelled."""
        while True:
            self._killed = killed = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._start(killed))
            try:
                await asyncio.wait([task, killed], return_when=asyncio.FIRST_COMPLETED)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if not killed.done():
                task.result()
                raise AssertionError(f"{self.name} ended")
            await self._world.latency()

    async def _start(self, killed: "asyncio.Future[None]") -> None:
        """Run until cancelled or killed."""
        raise NotImplementedError


class _ServiceProcess(Process):
    """Runs the table of a service."""

    async def _start(self, killed: "asyncio.Future[None]") -> None:
        part = _Part(self._world, killed, self.name, attrgetter("sink_crash"))
        objects = _LinkToObjects(part, self._world.objects)
        release = self._world.release()
        async with asyncio.TaskGroup() as group:
            for it in tables(objects)[self.name]:
                part = _Part(self._world, killed, *_described(it))
                started = self._released(_often_saved(it), release)
                group.create_task(part.run(serve(_LinkToLedger(part), (started,))))

    def _released(self, it: Component, release: int) -> Component:
        """Return a component as a release has it."""
        if not isinstance(it, Decider):
            return it
        found = as_released(it.processor, release, self._world.poison, self._world.seed)
        return it._replace(processor=found)


class _GatewayProcess(Process):
    """Runs the projections of a gateway, and its watch of limits."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world, "gateway")
        self._folder = folder
        self._starts = 0

    async def _start(self, killed: "asyncio.Future[None]") -> None:
        part = _Part(self._world, killed, self.name, attrgetter("projection_crash"))
        ledger = _LinkToLedger(part, _BATCH_MS_MAX)
        models = ReadModels(ledger, self._folder)
        self._starts += 1
        writer = FactWriter(ledger, source=SOURCE, origin=f"gateway/start-{self._starts}")
        limits = LimitWatch(ledger, models, writer, after_s=0.0, every_s=_LIMITS_EVERY_S)

        async def project() -> None:
            try:
                await models.start(wait_s=0.0)
                models.watch(supervise(limits.run, name="gateway-limits", follows=False))
                await models.failed()
            finally:
                await models.close()

        await part.run(project())


def processes(world: World, folder: Path) -> list[Process]:
    """Return the processes of an installation: one for each service, and a gateway.

    Args:
        world: where they run.
        folder: where the files of the gateway's projections lie.
    """
    # Webhooks are not simulated: they depend on real time and real connections.
    services = [_ServiceProcess(world, name) for name in tables() if name != "webhooks"]
    return [*services, _GatewayProcess(world, folder)]


def _described(it: Component) -> tuple[str, Risk]:
    """Return what a component is called, and the risk of its effects."""
    match it:
        case Decider():
            return it.processor.name, attrgetter("processor_crash")
        case Relay():
            return it.name, attrgetter("relay_crash")
        case Sink() | BatchSink() | PeriodicSink():
            return it.name, attrgetter("sink_crash")
        case Projection():
            return it.name, attrgetter("projection_crash")
        case _:
            return "shared", attrgetter("shared_crash")


def _often_saved(it: Component) -> Component:
    """Return a component that saves snapshots in a short search, too."""
    return it._replace(snapshot_every=_SNAPSHOT_EVERY) if isinstance(it, Decider) else it
