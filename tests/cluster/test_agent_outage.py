"""An agent whose broker is not there yet, or not any more."""

import asyncio
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from rung.events import Payload, decode, topic
from rung.events.allocation import AgentJoined, AgentLeft
from rung.events.metric import AgentBeat
from rung.ledger.kafka import KafkaLedger, create
from rung.storage import FolderStore
from servers import kafka
from servers.kafka import KafkaBroker
from servers.process import ServerProcess
from support.ledger.brokers import settings
from support.user import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not kafka.available(), reason=kafka.missing() or ""),
]

TIMEOUT_S = 2.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """Return a broker of this test's own, not started."""
    made = KafkaBroker(tmp_path / "kafka")
    yield made
    made.kill()


@pytest.fixture
def agent(tmp_path: Path, broker: KafkaBroker) -> Iterator[ServerProcess]:
    """Return an agent of that broker, not started."""
    options = {
        "--ledger": f"{broker.url}/t",
        "--objects": (tmp_path / "objects").as_uri(),
        "--folder": str(tmp_path / "agent"),
        "--agent-id": "a1",
        "--slots": "1",
    }
    made = ServerProcess(
        [sys.executable, "-m", "rung.cli", "service", "agent", "--cold", *chain(*options.items())],
        log=tmp_path / "agent.log",
        environment={"RUNG_KAFKA_TIMEOUT_S": f"{TIMEOUT_S}"},
    )
    yield made
    made.kill()


class Reader:
    """Reads one topic on, across outages."""

    def __init__(self, ledger: KafkaLedger, name: str) -> None:
        self._ledger = ledger
        self._name = name
        self._positions = [0] * ledger.partitions(name)

    async def until(self, kind: type[Payload]) -> Payload:
        """Wait for the next event of a kind, in whichever partition."""
        followers = [
            asyncio.create_task(self._next(partition, kind))
            for partition in range(len(self._positions))
        ]
        try:
            async with asyncio.timeout(60):
                done, _ = await asyncio.wait(followers, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def _next(self, partition: int, kind: type[Payload]) -> Payload:
        position = self._positions[partition]
        async for records in self._ledger.follow(self._name, partition, position):
            for record in records:
                self._positions[partition] = record.position + 1
                data = decode(record.value).data
                if isinstance(data, kind):
                    return data
        raise AssertionError


async def test_an_agent_outlives_its_broker(
    broker: KafkaBroker, agent: ServerProcess, tmp_path: Path
) -> None:
    """It waits for one, and for its topics, goes on after one was killed, and leaves at last."""
    agent.start()
    await _said(agent, "does not serve it")
    broker.start()
    await _said(agent, "there is no ledger")
    ledger = await _made(f"{broker.url}/t", tmp_path)
    try:
        pools, beats = Reader(ledger, topic.POOLS), Reader(ledger, topic.HEARTBEATS)
        joined = await pools.until(AgentJoined)
        assert isinstance(joined, AgentJoined)
        await beats.until(AgentBeat)

        broker.kill()
        await _said(agent, "no beat: the ledger is away")
        broker.start()
        beat = await beats.until(AgentBeat)
        assert isinstance(beat, AgentBeat)
        assert beat.incarnation == joined.incarnation
        assert await asyncio.to_thread(agent.stop) == 0
        await pools.until(AgentLeft)
    finally:
        await ledger.close()


async def _said(agent: ServerProcess, what: str) -> None:
    """Wait until the agent says something, and lives."""
    await asyncio.to_thread(wait_for, lambda: what in agent.said(), f"the agent says: {what}")
    assert agent.running, agent.said()


async def _made(url: str, folder: Path) -> KafkaLedger:
    """Make the ledger and open it."""
    await create(url, settings(), partitions=2)
    store = await asyncio.to_thread(FolderStore, folder / "objects")
    return await KafkaLedger.open(url, store, settings=settings())
