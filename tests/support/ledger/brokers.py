"""Ledgers on Apache Kafka for tests: made, opened, and administered."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from aiokafka.admin import AIOKafkaAdminClient

from rung.events import LedgerUnavailable
from rung.ledger.kafka import KafkaLedger, KafkaSettings, create
from rung.storage import FolderStore
from servers.kafka import KafkaBroker

T = TypeVar("T")

_PATIENCE_S: Final = 180.0

_prefixes = itertools.count(1)


def settings(**changes: float) -> KafkaSettings:
    """Return settings for tests: nothing waits for long."""
    return KafkaSettings(**{"timeout_s": 20, "fetch_wait_s": 0.1, **changes})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def administration(broker: KafkaBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    """Give what an operator's tools can do to the cluster."""
    client = AIOKafkaAdminClient(bootstrap_servers=broker.address)
    await client.start()
    yield client
    await client.close()


async def once_there(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return what comes of an attempt that a broker serves, which may just have started or woken.

    Raises:
        TimeoutError: it serves none.
    """
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            with contextlib.suppress(LedgerUnavailable):
                return await attempt()
            await asyncio.sleep(0.05)


class Ground:
    """A new ledger on a broker, in topics of its own, to be opened as often as wanted."""

    def __init__(self, broker_url: str, objects: Path, *, partitions: int = 4) -> None:
        self.url = f"{broker_url}/t{os.getpid()}x{next(_prefixes)}"
        self._partitions = partitions
        self._objects = objects
        self._made: asyncio.Task[object] | None = None

    def again(self) -> "Ground":
        """Return the same place, where the ledger must be made once more."""
        other = Ground.__new__(Ground)
        other.__dict__.update(self.__dict__, _made=None)
        return other

    async def open(self, **changes: float) -> KafkaLedger:
        """Open the ledger, after making it the first time.

        However short the times are that it is opened with: they are for what comes then.
        """
        if self._made is None:
            self._made = asyncio.create_task(once_there(self._make))
        await self._made
        store = await asyncio.to_thread(FolderStore, self._objects)
        chosen = settings(**changes)
        return await once_there(lambda: KafkaLedger.open(self.url, store, settings=chosen))

    async def _make(self) -> object:
        return await create(self.url, settings(), partitions=self._partitions)


Open = Callable[..., Awaitable[KafkaLedger]]
