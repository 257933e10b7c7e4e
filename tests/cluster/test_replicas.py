"""Replicas of one service on a broker: shared out, killed, stopped, and woken too late."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest

from rung.events import topic
from rung.ledger import Ledger
from rung.runtime import audit
from rung.searcher import processor
from servers.process import ServerProcess
from support.instant_trials import Trials
from support.ledger.brokers import Ground
from support.searcher.scenario import config

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SESSION_S = 6.0
EXPERIMENTS = [f"replica{letter}" for letter in "abcdefgh"]
SEARCH = config("random", max_trials=12, max_time=4, max_concurrent_trials=3)


class Searcher(ServerProcess):
    """One replica, a process of its own."""

    def __init__(self, url: str, folder: Path, number: int, session_s: float) -> None:
        self._said = folder / f"searcher-{number}.log"
        super().__init__(
            [sys.executable, "-m", "rung.cli", "service", "searcher", "--ledger", url],
            log=self._said,
            environment={
                "RUNG_OBJECTS": (folder / "objects").as_uri(),
                "RUNG_KAFKA_SESSION_TIMEOUT_S": f"{session_s}",
                "RUNG_KAFKA_REBALANCE_TIMEOUT_S": "3",
            },
        )

    @property
    def held(self) -> list[int]:
        """The partitions of `experiments` that it says it has."""
        lines = [json.loads(it) for it in self._said.read_text().splitlines() if it[:1] == "{"]
        held: list[int] = []
        for line in lines:
            if line["event"] == "partitions assigned":
                held = line[topic.EXPERIMENTS]
            elif line["event"] == "partitions revoked":
                held = []
        return held


class Searchers:
    """Replicas of the searcher on a new ledger."""

    def __init__(self, url: str, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self._url = url
        self._folder = folder
        self.started: list[Searcher] = []

    def start(self, *, session_s: float = SESSION_S) -> Searcher:
        """Start one more, which may be silent for so long."""
        replica = Searcher(self._url, self._folder, len(self.started), session_s)
        self.started.append(replica)
        replica.start()
        return replica

    async def share(self, *replicas: Searcher) -> None:
        """Wait until all partitions are dealt out to these replicas, some to each."""
        wanted = list(range(self.ledger.partitions(topic.EXPERIMENTS)))
        async with asyncio.timeout(60):
            while True:
                parts = [replica.held for replica in replicas]
                if all(parts) and sorted(chain(*parts)) == wanted:
                    return
                await asyncio.sleep(0.1)


@pytest.fixture
async def searchers(ground: Ground, tmp_path: Path) -> AsyncIterator[Searchers]:
    """Return replicas on a new ledger of four partitions, none of them started."""
    ledger = await ground.open()
    made = Searchers(ground.url, ledger, tmp_path)
    try:
        yield made
    finally:
        for replica in made.started:
            replica.kill()
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
    verdict = await audit(ledger, processor.Searcher())
    assert (verdict.differences, verdict.unreadable, verdict.pending) == ([], [], 0)


async def test_a_killed_replica_s_partitions_are_taken_over(searchers: Searchers) -> None:
    """SIGKILL moves its partitions to the other, a new replica takes its share, searches end."""
    first, second = searchers.start(), searchers.start()
    await searchers.share(first, second)
    assert sorted([len(first.held), len(second.held)]) == [2, 2]

    async with training(searchers.ledger, pause_s=0.3) as trials:
        await trials.reached(30)
        first.kill()
        await searchers.share(second)
        third = searchers.start()
        await searchers.share(second, third)
        await assert_as_by_one(searchers.ledger, trials)


async def test_a_replica_that_stops_hands_over_at_once(searchers: Searchers) -> None:
    """SIGTERM leaves the group: the other has all long before the session would time out."""
    first, second = searchers.start(session_s=60), searchers.start(session_s=60)
    await searchers.share(first, second)
    async with training(searchers.ledger, pause_s=0.2) as trials:
        await trials.reached(30)
        assert await asyncio.to_thread(first.stop) == 0
        async with asyncio.timeout(20):
            await searchers.share(second)
        await assert_as_by_one(searchers.ledger, trials)


async def test_a_replica_that_wakes_late_changes_nothing(searchers: Searchers) -> None:
    """Stopped for longer than its session, it lost its partitions, and every search audits."""
    sleeper = searchers.start()
    await searchers.share(sleeper)
    async with training(searchers.ledger, pause_s=0.2) as trials:
        await trials.reached(20)
        sleeper.pause()
        owner = searchers.start()
        await searchers.share(owner)
        async with asyncio.timeout(60):
            await trials.reached(len(trials.answered) + 30)
        sleeper.resume()
        await searchers.share(owner, sleeper)
        await assert_as_by_one(searchers.ledger, trials)
