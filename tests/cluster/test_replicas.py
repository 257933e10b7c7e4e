"""Replicas of one service on a broker: shared out, killed, stopped, and woken too late."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cluster.trials import Trials
from ledger.brokers import Broker, Ground, started, usable
from rung.cli.cluster_group import Replica, replicas_of
from rung.events import topic
from rung.host import audit
from rung.ledger import Ledger
from rung.ledger.kafka import KafkaSettings, parse_address
from rung.ledger.kafka.cluster import connect
from rung.searcher.machine import Searcher
from searcher.scenario import config
from servers.process import ServerProcess

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SESSION_S = 6.0
EXPERIMENTS = [f"replica{letter}" for letter in "abcdefgh"]
SEARCH = config("random", max_trials=12, max_time=4, max_concurrent_trials=3)


@pytest.fixture(scope="module", params=usable())
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """Return a broker of each kind."""
    yield from started(request.param, tmp_path_factory.mktemp("broker"))


class Searchers:
    """Replicas of the searcher, each a process of its own, on a new ledger."""

    def __init__(self, ground: Ground, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self._url = ground.url
        self._folder = folder
        self.processes: list[ServerProcess] = []

    def start(self) -> ServerProcess:
        """Start one more."""
        process = ServerProcess(
            [sys.executable, "-m", "rung.cli", "service", "searcher", "--ledger", self._url],
            log=self._folder / f"searcher-{len(self.processes)}.log",
            environment={
                "RUNG_OBJECTS": (self._folder / "objects").as_uri(),
                "RUNG_KAFKA_SESSION_TIMEOUT_S": f"{SESSION_S}",
                "RUNG_KAFKA_REBALANCE_TIMEOUT_S": "3",
            },
        )
        self.processes.append(process)
        process.start()
        return process

    async def share(self, count: int) -> list[Replica]:
        """Wait until the broker has dealt all partitions out to so many replicas."""
        wanted = sorted(range(self.ledger.partitions(topic.EXPERIMENTS)))
        cluster = await connect(parse_address(self._url), KafkaSettings(), [])
        try:
            while True:
                found = await replicas_of(cluster, "searcher")
                parts = [item.partitions.get(topic.EXPERIMENTS, []) for item in found]
                if len(found) == count and sorted(sum(parts, [])) == wanted:
                    return found
                await asyncio.sleep(0.1)
        finally:
            await cluster.close()

    def said(self, number: int) -> str:
        """Return what a replica logged."""
        return (self._folder / f"searcher-{number}.log").read_text()


@pytest.fixture
async def searchers(broker: Broker, tmp_path: Path) -> AsyncIterator[Searchers]:
    """Return replicas on a new ledger of four partitions, none of them started."""
    ground = Ground(broker.url, tmp_path / "objects")
    ledger = await ground.open()
    made = Searchers(ground, ledger, tmp_path)
    try:
        yield made
    finally:
        for process in made.processes:
            process.kill()
        await ledger.close()


@contextlib.asynccontextmanager
async def training(ledger: Ledger, *, pause_s: float) -> AsyncIterator[Trials]:
    """Have runs train, and submit searches in every partition."""
    trials = Trials(ledger, pause_s=pause_s)
    task = asyncio.create_task(trials.run())
    try:
        for name in EXPERIMENTS:
            await trials.submit(name, SEARCH)
        yield trials
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def assert_as_by_one(ledger: Ledger, trials: Trials) -> None:
    """All searches ended, and were decided as one replica that nothing befell decides them."""
    async with asyncio.timeout(120):
        await trials.ended()
    assert len(trials.answered) == len(set(trials.answered))
    verdict = await audit(ledger, Searcher())
    assert (verdict.differences, verdict.unreadable, verdict.pending) == ([], [], 0)


async def test_a_killed_replica_s_partitions_are_taken_over(searchers: Searchers) -> None:
    """SIGKILL moves its partitions to the other, a new replica takes its share, searches end."""
    first, _ = searchers.start(), searchers.start()
    async with asyncio.timeout(60):
        shares = await searchers.share(2)
    assert [len(share.partitions[topic.EXPERIMENTS]) for share in shares] == [2, 2]

    async with training(searchers.ledger, pause_s=0.3) as trials:
        await trials.reached(30)
        first.kill()
        async with asyncio.timeout(60):
            await searchers.share(1)
            searchers.start()
            await searchers.share(2)
        await assert_as_by_one(searchers.ledger, trials)


async def test_a_replica_that_stops_hands_over_at_once(searchers: Searchers) -> None:
    """SIGTERM leaves the group: the other has all long before a session times out."""
    first, _ = searchers.start(), searchers.start()
    async with asyncio.timeout(60):
        await searchers.share(2)
    async with training(searchers.ledger, pause_s=0.2) as trials:
        await trials.reached(30)
        assert await asyncio.to_thread(first.stop) == 0
        async with asyncio.timeout(SESSION_S - 1.0):
            await searchers.share(1)
        await assert_as_by_one(searchers.ledger, trials)


async def test_a_replica_that_wakes_late_changes_nothing(searchers: Searchers) -> None:
    """Stopped for longer than its session, it finds itself fenced, and every search audits."""
    searchers.start()
    async with asyncio.timeout(60):
        await searchers.share(1)
    async with training(searchers.ledger, pause_s=0.2) as trials:
        await trials.reached(20)
        sleeper = searchers.processes[0]
        searchers.start()
        sleeper.pause()
        async with asyncio.timeout(60):
            await searchers.share(1)
            await trials.reached(len(trials.answered) + 30)
        sleeper.resume()
        async with asyncio.timeout(60):
            await searchers.share(2)
        await assert_as_by_one(searchers.ledger, trials)
