"""Components as processes of the simulated world: the runtime runs them, and they are killed.

Each component of the services' tables has a process of its own, as a gateway has; what reads the
states of a processor is in the processor's. A component sees the ledger and the object store
through links, which are where its process is killed: before a call, in the middle of it, or when
it was done and before the process learns of it. A process that was killed has no effect any more,
but for an append that was on its way; it is started again a little later.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from rung.cli.operations.service import tables
from rung.events.errors import ObjectUnavailable
from rung.gateway.projections.read_models import ReadModels
from rung.ledger import Draft, Ledger, Record
from rung.runtime.projection import Projection
from rung.runtime.relay import Relay
from rung.runtime.service import Component, Decider, Shared, serve
from rung.sim.clock import BEFORE_JOB
from rung.sim.objects import MemoryStore
from rung.sim.world import LATENCY_MS_MAX, Faults, World
from rung.storage import ObjectInfo, ObjectStore

_SNAPSHOT_EVERY: Final = 50
"""Facts between two snapshots of a processor, so that some are read in a short search."""
_LATE_MS_MAX: Final = 2_000
_BATCH_MS_MAX: Final = 20 * LATENCY_MS_MAX
"""How long after an append a gateway learns of it, so that there is much in a batch."""

Run = Callable[[Ledger], Awaitable[None]]
"""Runs a component until it is cancelled."""
Risk = Callable[[Faults], float]
"""How probable it is, at each of a component's effects, that its process is killed."""


class Part(NamedTuple):
    """What a process runs."""

    name: str
    risk: Risk


class Killed(BaseException):
    """The process was killed: nothing that it runs may go on."""


class _Life:
    """One start of a part of a process, until the process is killed."""

    def __init__(
        self, world: World, part: Part, latency_ms_max: int, killed: asyncio.Future[None]
    ) -> None:
        self.world: Final = world
        self.latency_ms_max: Final = latency_ms_max
        self.killed: Final = killed
        self._name, self._risk = part

    def check(self) -> None:
        """Raise where the process was killed before."""
        if self.killed.done():
            raise Killed

    @property
    def is_over(self) -> bool:
        """Draw whether the process is killed at this moment."""
        return not self.killed.done() and self.world.happens(self._risk(self.world.faults))

    def kill(self) -> NoReturn:
        """End it."""
        if not self.killed.done():
            self.killed.set_result(None)
            self.world.kills[self._name] += 1
        raise Killed

    def risk(self) -> None:
        """Perhaps be killed at this moment."""
        if self.is_over:
            self.kill()


class _LinkToLedger:
    """The ledger as a process sees it: some time away. Appends and commits are two steps."""

    def __init__(self, life: _Life) -> None:
        self._life = life
        self._world = life.world
        self._ledger = life.world.ledger

    @property
    def id(self) -> str:
        return self._ledger.id

    def partitions(self, topic: str) -> int:
        return self._ledger.partitions(topic)

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        self._life.check()
        await self._world.latency()
        self._life.check()
        if self._life.is_over:
            self._leave(drafts)
        positions = await self._ledger.append(drafts)
        self._life.risk()
        return positions

    def _leave(self, drafts: Sequence[Draft]) -> NoReturn:
        """Die, with an append of which a beginning arrives, now or late."""
        begun = list(drafts[: self._world.random.randint(0, len(drafts))])
        if begun and self._world.happens(self._world.faults.late):
            delay_ms = self._world.random.randint(1, _LATE_MS_MAX)
            self._world.after(delay_ms, lambda: self._world.append(begun))
        elif begun:
            self._world.append(begun)
        self._life.kill()

    async def read(self, topic: str, partition: int, position: int, limit: int) -> list[Record]:
        self._life.check()
        return await self._ledger.read(topic, partition, position, limit)

    async def start(self, topic: str, partition: int) -> int:
        self._life.check()
        return await self._ledger.start(topic, partition)

    async def end(self, topic: str, partition: int) -> int:
        self._life.check()
        return await self._ledger.end(topic, partition)

    async def trim(self, topic: str, partition: int, position: int) -> None:
        self._life.check()
        await self._ledger.trim(topic, partition, position)

    async def follow(
        self, topic: str, partition: int, position: int
    ) -> AsyncIterator[Sequence[Record]]:
        assert partition == 0, partition
        ms_max = self._life.latency_ms_max
        async for records in self._world.follow(topic, position, ms_max=ms_max):
            self._life.check()
            yield records

    async def position(self, consumer: str, topic: str, partition: int) -> int:
        self._life.check()
        return await self._ledger.position(consumer, topic, partition)

    async def commit(self, consumer: str, topic: str, partition: int, position: int) -> None:
        self._life.check()
        self._life.risk()
        await self._ledger.commit(consumer, topic, partition, position)

    async def snapshot(self, name: str, partition: int) -> bytes | None:
        self._life.check()
        return await self._ledger.snapshot(name, partition)

    async def save_snapshot(self, name: str, partition: int, value: bytes) -> None:
        self._life.check()
        self._life.risk()
        await self._ledger.save_snapshot(name, partition, value)

    async def close(self) -> None:
        """Leave the ledger open: others use it."""


class _LinkToObjects(MemoryStore):
    """The object store as a process sees it: it may be away, and a deletion may be cut short."""

    def __init__(self, life: _Life) -> None:
        super().__init__()
        self._life = life
        self._store = life.world.objects

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self._store.list(prefix)

    def delete(self, prefix: str) -> int:
        self._life.check()
        if self._life.world.happens(self._life.world.faults.refusal):
            raise ObjectUnavailable("simulated")
        self._life.risk()
        return self._store.delete(prefix)


class Process:
    """A process that runs for ever; where it is killed, it is started again."""

    def __init__(
        self,
        world: World,
        parts: Sequence[Part],
        build: Callable[[ObjectStore], Sequence[Run]],
        *,
        latency_ms_max: int = LATENCY_MS_MAX,
    ) -> None:
        """Take what it runs.

        Args:
            world: where it runs.
            parts: what it runs.
            build: makes the parts, in their order, at each start.
            latency_ms_max: how long after an append it learns of it, at most.
        """
        self.name: Final = parts[0].name
        self._world = world
        self._parts = parts
        self._build = build
        self._latency_ms_max = latency_ms_max

    async def run(self) -> None:
        """Run it until cancelled."""
        while True:
            killed = asyncio.get_running_loop().create_future()
            lives = [_Life(self._world, it, self._latency_ms_max, killed) for it in self._parts]
            runs = self._build(_LinkToObjects(lives[0]))
            tasks = [
                asyncio.create_task(_live(life, run))
                for life, run in zip(lives, runs, strict=True)
            ]
            try:
                await asyncio.wait([*tasks, killed], return_when=asyncio.FIRST_COMPLETED)
                failed = [task for task in tasks if task.done()]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if not killed.done():
                failed[0].result()
                raise AssertionError(f"{self.name} ended")
            await self._world.latency()


async def _live(life: _Life, run: Run) -> None:
    BEFORE_JOB.set(life.risk)
    await run(_LinkToLedger(life))


def processes(world: World, folder: Path) -> list[Process]:
    """Return the processes of an installation: each component of the services, and a gateway.

    Args:
        world: where they run.
        folder: where the files of the gateway's projections lie.
    """
    found = [
        Process(world, [Part(_name_of(it), _risk_of(it)) for it in group], partial(_runs, number))
        for number, group in enumerate(_groups())
    ]
    gateway = Process(
        world,
        [Part("gateway", attrgetter("projection_crash"))],
        lambda _: [partial(_project, folder)],
        latency_ms_max=_BATCH_MS_MAX,
    )
    return [*found, gateway]


def _groups(store: ObjectStore | None = None) -> list[list[Component]]:
    """Return the components of all services, by process."""
    found: list[list[Component]] = []
    for components in tables(store).values():
        beside: list[Component] = [it for it in components if isinstance(it, Shared)]
        for it in components:
            if isinstance(it, Decider):
                found.append([it, *beside])
            elif not isinstance(it, Shared):
                found.append([it])
    return found


def _name_of(it: Component) -> str:
    return it.processor.name if isinstance(it, Decider) else getattr(it, "name", "")


def _risk_of(it: Component) -> Risk:
    match it:
        case Decider():
            return attrgetter("processor_crash")
        case Relay():
            return attrgetter("relay_crash")
        case Shared():
            return attrgetter("detector_crash")
        case Projection():
            return attrgetter("projection_crash")
        case _:
            return attrgetter("sink_crash")


def _runs(number: int, store: ObjectStore) -> list[Run]:
    """Return what runs the components of a process."""
    return [partial(_serve, it) for it in _groups(store)[number]]


async def _serve(it: Component, ledger: Ledger) -> None:
    if isinstance(it, Decider):
        it = it._replace(snapshot_every=_SNAPSHOT_EVERY)
    await serve(ledger, (it,))


async def _project(folder: Path, ledger: Ledger) -> None:
    """Run the projections of a gateway."""
    models = ReadModels(ledger, folder)
    try:
        await models.start(wait_s=0.0)
        await models.failed()
    finally:
        await models.close()
