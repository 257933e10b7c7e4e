"""A rolling upgrade of deciders on a broker, and the raise of the level that ends it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rung.cli.operations.cluster.replicas import replicas_of
from rung.cli.operations.cluster.upgrade import Upgrade, upgrade
from rung.events import topic
from rung.ledger import Ledger
from rung.ledger.kafka import parse_address
from rung.ledger.kafka.cluster import Cluster, connect
from rung.runtime.assignment.faust_application import FaustAssignment, open_assignment
from support.ledger.brokers import Ground, settings
from support.runtime.releases import (
    Load,
    Replica,
    assert_clean,
    assert_of_one_level,
    letters,
    within,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_SHARED = {"searcher": topic.EXPERIMENTS, "scheduler": topic.POOLS}
_IDLE = {"checkpoint-gc": topic.EXPERIMENTS, "gateway": topic.REQUESTS}


class Member:
    """A replica of searcher and scheduler that gets its partitions from their groups."""

    def __init__(self, url: str, ledger: Ledger, level: int) -> None:
        self._assignments: dict[str, FaustAssignment] = {
            name: open_assignment(url, service=name, topics=[of], level=level)
            for name, of in _SHARED.items()
        }
        self._ledger = ledger
        self._level = level
        self._left = asyncio.Event()
        self._task = asyncio.create_task(self._stay())

    async def _stay(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for assignment in self._assignments.values():
                await stack.enter_async_context(assignment.joined())
            replica = Replica(self._ledger, self._level, self._assignments)
            await self._left.wait()
            await replica.end()

    async def leave(self) -> None:
        """Go down in good order."""
        self._left.set()
        await self._task


@contextlib.asynccontextmanager
async def _idle(url: str, level: int) -> AsyncIterator[None]:
    """Be a replica of each of the deciders that have nothing to do here."""
    async with contextlib.AsyncExitStack() as stack:
        for service, facts in _IDLE.items():
            assignment = open_assignment(url, service=service, topics=[facts], level=level)
            await stack.enter_async_context(assignment.joined())
        yield


class Groups:
    """Who is in the groups of a cluster."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def are(self, *levels: int) -> None:
        """Wait until replicas that know these levels share all partitions out, some to each."""
        address = parse_address(self._url)
        cluster = await connect(address, settings())
        try:
            async with asyncio.timeout(60):
                for name in _SHARED:
                    while True:
                        if await self._settled(cluster, name, levels):
                            break
                        await asyncio.sleep(0.2)
        finally:
            await cluster.close()

    @staticmethod
    async def _settled(cluster: Cluster, name: str, levels: tuple[int, ...]) -> bool:
        found = await replicas_of(cluster, name)
        held = [len(replica.partitions.get(_SHARED[name], [])) for replica in found]
        return sorted(it.level for it in found) == sorted(levels) and sum(held) == 4 and all(held)


async def test_a_rolling_upgrade_of_deciders(ground: Ground) -> None:
    """The raise is refused while replicas of the old release run; audits are always clean."""
    async with contextlib.AsyncExitStack() as stack:
        ledger = await ground.open()
        stack.push_async_callback(ledger.close)
        groups = Groups(ground.url)
        load = Load(ledger)
        loading = asyncio.create_task(load.run())
        stack.push_async_callback(_cancel, loading)

        def member(level: int) -> Member:
            made = Member(ground.url, ledger, level)
            stack.push_async_callback(made.leave)
            return made

        async def go_on(runs: int = 24) -> None:
            await within(load.trials.reached(len(load.trials.answered) + runs))

        async def raised(*, dry_run: bool = False) -> Upgrade:
            return await upgrade(ground.url, settings(), dry_run=dry_run, level=2)

        first, second = member(1), member(1)
        await groups.are(1, 1)
        await go_on()
        third = member(2)
        await first.leave()
        await groups.are(1, 2)
        await go_on()
        for level in (1, 2):
            await assert_clean(ledger, level)
        refused = await raised()
        assert (refused.before, refused.level) == (1, 2)
        missing = {line.partition(": no replica runs")[0] for line in refused.obstacles[:2]}
        assert missing == _IDLE.keys()
        named = [line.split(" on ")[0] for line in refused.obstacles[2:]]
        assert sorted(named) == ["scheduler", "searcher"]

        fourth = member(2)
        await second.leave()
        await groups.are(2, 2)
        async with _idle(ground.url, 2):
            async with asyncio.timeout(60):
                while True:
                    if not (await raised(dry_run=True)).obstacles:
                        break
                    await asyncio.sleep(0.2)
            assert (await raised()).before == 1
            assert (await raised()).before == 2
        await go_on(48)
        await assert_clean(ledger, 2)

        load.stop()
        await within(loading)
        for each in (third, fourth):
            await each.leave()
        await assert_clean(ledger, 2, complete=True)
        await assert_of_one_level(ledger, load.levels)
        assert await letters(ledger) == []


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
