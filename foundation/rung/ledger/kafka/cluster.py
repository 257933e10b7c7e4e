"""The brokers of a cluster: who leads which partition, and connections to them.

Kept apart from the clients of aiokafka on purpose, although it speaks through their protocol and
connections: a paused broker must not hold up requests to others, an error must arrive as what it
is, and a cluster that came back at other addresses must be found again.

Each purpose has connections of its own, because a broker answers the requests of one connection
one after the other, and a follower's lie there until something is appended.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import structlog
from aiokafka import errors
from aiokafka.conn import CloseReason, create_conn
from aiokafka.protocol.metadata import MetadataRequest

from rung.events.errors import LedgerError, LedgerUnavailable
from rung.ledger.kafka.errors import FAILURES, explain, passes, told
from rung.ledger.kafka.metadata import Metadata
from rung.ledger.kafka.settings import Address, KafkaSettings, Server

_HEDGE_S: Final = 0.5
"""After this long another broker is asked for the metadata too."""
_WAIT_S_MIN: Final = 0.05
_WAIT_S_MAX: Final = 1.0
_IDLE_MS: Final = 9 * 60 * 1000
_WANTED: Final = " And does it want a certificate of yours (RUNG_KAFKA_SSL_CERTFILE)?"

T = TypeVar("T")

_log = structlog.get_logger()


class Cluster:
    """Connections to a cluster, and what it says about some topics."""

    def __init__(self, address: Address, settings: KafkaSettings, topics: Sequence[str]) -> None:
        """Prepare it; nothing is connected yet.

        Args:
            address: some of its brokers.
            settings: how to speak to them.
            topics: by their names on the cluster.
        """
        self.address: Final = address
        self.settings: Final = settings
        self._topics: Final = list(topics)
        self._login = settings.login()
        self.metadata: Final = Metadata(address)
        self._links: dict[tuple[Server, str], Any] = {}
        self._connecting: dict[tuple[Server, str], asyncio.Task[Any]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._closed = False

    async def send(self, node: int, request: Any, purpose: str) -> Any:
        """Send a request to a node and return its answer.

        Raises:
            KafkaError, OSError: there is none.
        """
        server = self.metadata.brokers.get(node)
        if server is None:
            raise errors.NodeNotReadyError(f"node {node} is not known")
        return await self._ask(server, request, purpose)

    async def refresh(self) -> None:
        """Ask for the metadata anew; callers at the same time share one answer.

        Raises:
            KafkaError, OSError: no broker answers.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], what: str, *, within_s: float | None = None
    ) -> T:
        """Try until it succeeds, asking who leads now in between.

        Args:
            attempt: may raise KafkaError or OSError.
            what: is being done, for the message.
            within_s: how long to try; as the settings say if not given.

        Raises:
            LedgerUnavailable: it did not succeed in time.
            LedgerError: it cannot succeed.
        """
        limit_s = self.settings.timeout_s if within_s is None else within_s
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit_s
        wait_s = _WAIT_S_MIN
        last: Exception = TimeoutError("no answer")
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await attempt()
                    except FAILURES as error:
                        if not passes(error):
                            raise explain(error, what) from error
                        last = error
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
                    wait_s = min(2 * wait_s, _WAIT_S_MAX)
                    await self.refresh_quietly()
        except TimeoutError:
            raise LedgerUnavailable(
                f"{what}: {self.address} does not serve it since {limit_s:g} s ({told(last)})"
            ) from last

    async def refresh_quietly(self) -> None:
        """Ask for the metadata anew; no answer is one that the next request will notice."""
        with contextlib.suppress(*FAILURES):
            await self.refresh()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        tasks = [*self._connecting.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [link.close(reason=CloseReason.SHUTDOWN) for link in self._links.values()]
        self._links.clear()
        await asyncio.gather(*(future for future in closing if future), return_exceptions=True)

    async def _ask(self, server: Server, request: Any, purpose: str) -> Any:
        link = await self._link(server, purpose)
        try:
            return await link.send(request)
        except TimeoutError:
            link.close(reason=CloseReason.CONNECTION_TIMEOUT)
            raise errors.RequestTimedOutError(
                f"{server} did not answer within {self.settings.request_timeout_s:g} s"
            ) from None

    async def _link(self, server: Server, purpose: str) -> Any:
        key = (server, purpose)
        link = self._links.get(key)
        if link is not None and link.connected():
            return link
        if self._closed:
            raise errors.KafkaConnectionError("closed")
        task = self._connecting.get(key)
        if task is None:
            if link is not None:
                link.close()
            task = asyncio.create_task(self._connect(key))
            task.add_done_callback(_retrieve)
            self._connecting[key] = task
        return await asyncio.shield(task)

    async def _connect(self, key: tuple[Server, str]) -> Any:
        server, _ = key
        settings = self.settings
        try:
            async with asyncio.timeout(settings.request_timeout_s):
                link = await create_conn(
                    server.host,
                    server.port,
                    client_id="rung",
                    request_timeout_ms=int(settings.request_timeout_s * 1000),
                    max_idle_ms=_IDLE_MS,
                    **self._login,
                )
        except TimeoutError:
            raise errors.KafkaConnectionError(
                f"{server} did not greet within {settings.request_timeout_s:g} s"
            ) from None
        else:
            self._links[key] = link
            return link
        finally:
            del self._connecting[key]

    async def _refresh(self) -> None:
        """Ask brokers in turn, the next one when the last is slow, until one answers."""
        known = list(self.metadata.brokers.values())
        random.shuffle(known)
        servers = [*known, *(at for at in self.address.servers if at not in known)]
        request = MetadataRequest(self._topics, allow_auto_topic_creation=False)
        asking: set[asyncio.Task[Any]] = set()
        last: Exception | None = None
        try:
            while servers or asking:
                if servers:
                    server = servers.pop(0)
                    asking.add(asyncio.create_task(self._ask(server, request, "metadata")))
                done, asking = await asyncio.wait(
                    asking,
                    timeout=_HEDGE_S if servers else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    try:
                        answer = task.result()
                    except FAILURES as error:
                        last = error
                        continue
                    if answer.brokers:
                        self._learn(answer)
                        return
                    last = errors.KafkaConnectionError("no broker takes requests yet")
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        assert last is not None
        raise last

    def _learn(self, answer: Any) -> None:
        self.metadata.learn(answer)
        live = {*self.metadata.brokers.values(), *self.address.servers}
        for key in [key for key in self._links if key[0] not in live]:
            self._links.pop(key).close()


async def connect(address: Address, settings: KafkaSettings, topics: Sequence[str]) -> Cluster:
    """Connect to a cluster.

    Raises:
        LedgerUnavailable: no broker answers in time.
        LedgerError: the settings do not fit the cluster.
    """
    cluster = Cluster(address, settings, topics)
    try:
        await cluster.persist(cluster.refresh, "connecting")
    except LedgerError as error:
        await cluster.close()
        certificate = "SSL" in settings.security_protocol and settings.ssl_certfile is None
        raise type(error)(
            f"{address}: {error}. Is it the right address, and does "
            f"RUNG_KAFKA_SECURITY_PROTOCOL ({settings.security_protocol}) fit that port?"
            f"{_WANTED if certificate else ''}"
            if error.retriable
            else str(error)
        ) from error.__cause__
    except BaseException:
        await cluster.close()
        raise
    return cluster


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended that perhaps nobody waits for any more."""
    if not task.cancelled():
        task.exception()
