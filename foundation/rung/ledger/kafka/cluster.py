"""Cluster: how its clients are configured, and what it tells of its brokers and topics.

The clients of a ledger are aiokafka's own: `AIOKafkaProducer` in `writer`, an `AIOKafkaConsumer`
each in `reader` and `follower`, and here an `AIOKafkaClient` for whatever else is asked. They find
new leaders by themselves, but keep to the brokers that they saw last. So a client that failed is
replaced by a new one, which begins with the addresses of the URL.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaClient, AIOKafkaConsumer, errors
from aiokafka.client import CoordinationType
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from rung.events.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from rung.ledger.kafka.errors import FAILURES, explain, failed, passes, told
from rung.ledger.kafka.settings import Address, KafkaSettings, Server

CLIENT_ID: Final = "rung"
_WAIT_S_MIN: Final = 0.05
_WAIT_S_MAX: Final = 1.0
_LOOKS_EACH_S: Final = 1.0
"""So often it is asked, while something is not answered, whether the topic is still there."""
_TURNS: Final = 20
_GONE_S: Final = 3.0
_GONE_ANSWERS: Final = 3
_UNKNOWN_TOPIC: Final = 3
_WANTED: Final = " And does it want a certificate of yours (RUNG_KAFKA_SSL_CERTFILE)?"

T = TypeVar("T")


class Partition(NamedTuple):
    """One partition of a topic."""

    number: int
    leader: int
    """A broker's node id, -1 where none leads."""
    replicas: Sequence[int]
    in_sync: Sequence[int]


class Cluster:
    """A cluster, and what it tells about the topics of a ledger."""

    def __init__(self, address: Address, settings: KafkaSettings, topics: Sequence[str]) -> None:
        """Prepare it; nothing is connected yet.

        Args:
            address: some of its brokers.
            settings: how to speak to them.
            topics: by their names on the cluster.
        """
        self.address: Final = address
        self.settings: Final = settings
        self.brokers: dict[int, Server] = {}
        """Those that take requests, by node id, as of the newest answer."""
        self.topics: dict[str, list[Partition]] = {}
        """Those of the ledger that are there, as of the newest answer."""
        self._names: Final = list(topics)
        self._login: Final = settings.login()
        self._client: AIOKafkaClient | None = None
        self._starting = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        self._missing: dict[str, tuple[float, int]] = {}
        self._emptied: dict[str, float] = {}
        self._lost: set[str] = set()

    def options(self) -> dict[str, Any]:
        """Return what all clients of aiokafka are made with."""
        servers = [*self.address.servers]
        random.shuffle(servers)
        return {
            "bootstrap_servers": [str(server) for server in servers],
            "client_id": CLIENT_ID,
            "request_timeout_ms": int(self.settings.request_timeout_s * 1000),
            **self._login,
        }

    async def started(self, client: T) -> T:
        """Start a client of aiokafka and return it.

        Raises:
            KafkaError, OSError: it cannot be started; the client is stopped.
        """
        one: Any = client
        plain = isinstance(client, AIOKafkaClient)
        try:
            await (one.bootstrap() if plain else one.start())
        except BaseException as error:
            await (one.close() if plain else one.stop())
            if isinstance(error, errors.KafkaConnectionError):
                await self._greet()
            raise
        return client

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request to a node, any one if none is named, and return its answer.

        Raises:
            KafkaError, OSError: there is none.
        """
        client = await self._started()
        try:
            return await client.send(client.get_random_node() if node is None else node, request)
        except FAILURES as error:
            if passes(error) and self._client is not None and self._client is client:
                self._client = None
                await client.close()
            raise

    async def coordinator(self, group: str) -> int:
        """Return the node that keeps the positions of a group.

        Raises:
            KafkaError, OSError: none is known.
        """
        return int(await (await self._started()).coordinator_lookup(CoordinationType.GROUP, group))

    async def refresh(self) -> None:
        """Ask for brokers and topics anew; callers at the same time share one answer.

        Raises:
            KafkaError, OSError: no broker answers.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(_retrieve)
        await asyncio.shield(self._refreshing)

    def require(self, name: str) -> None:
        """Refuse a topic that brokers agree for a while not to have.

        Raises:
            LedgerDamaged: the topic is gone.
        """
        since, answers = self._missing.get(name, (0.0, 0))
        waited_s = asyncio.get_running_loop().time() - since
        if name in self._lost or (answers >= _GONE_ANSWERS and waited_s > _GONE_S):
            raise self.gone(name)

    def lose(self, name: str) -> None:
        """Take note that what was in a topic is gone; nothing is appended to it any more.

        Brokers make a topic that is missing when a client asks for it, if they are set up so.
        """
        self._lost.add(name)

    def emptied(self, name: str) -> None:
        """Take note that a topic which had records has none, as if it were not there.

        Raises:
            LedgerDamaged: this has been so for a while, the topic is gone.
        """
        now = asyncio.get_running_loop().time()
        if now - self._emptied.setdefault(name, now) > _GONE_S:
            raise self.gone(name)

    def gone(self, name: str) -> LedgerDamaged:
        """Return the error that says so."""
        return LedgerDamaged(
            f"the topic {name} is not on {self.address} any more: it was deleted, or the "
            "cluster lost it. Restore it, or begin a new ledger under another prefix"
        )

    async def look(self, name: str) -> None:
        """Ask whether a topic is still there, if there is an answer.

        Raises:
            LedgerDamaged: it is gone.
        """
        try:
            await self.refresh()
        except FAILURES:
            return
        self.require(name)

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], what: str, *, topic: str | None = None
    ) -> T:
        """Try until it succeeds.

        Args:
            attempt: may raise KafkaError or OSError.
            what: is being done, for the message.
            topic: that it needs, by its name on the cluster.

        Raises:
            LedgerUnavailable: it did not succeed in time.
            LedgerDamaged: the topic is gone.
            LedgerError: it cannot succeed.
        """
        wait_s = _WAIT_S_MIN
        last: Exception = TimeoutError("no answer")
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                while True:
                    try:
                        return await self._attempt(attempt, topic)
                    except FAILURES as error:
                        if not passes(error):
                            raise explain(error, what) from error
                        last = error
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
                    wait_s = min(2 * wait_s, _WAIT_S_MAX)
                    if topic is not None:
                        await self.look(topic)
        except TimeoutError:
            raise LedgerUnavailable(
                f"{what}: {self.address} does not serve it since {self.settings.timeout_s:g} s "
                f"({told(last)})"
            ) from last

    async def attend(self, future: asyncio.Future[T], topic: str) -> T:
        """Return what becomes of a future, unless the topic that it needs is gone.

        Raises:
            LedgerDamaged: it is.
        """
        await asyncio.wait({future}, timeout=_LOOKS_EACH_S)
        if not future.done():
            watching = asyncio.create_task(self._watch(topic))
            try:
                both: set[asyncio.Future[Any]] = {future, watching}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not future.done():
                    watching.result()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        return future.result()

    async def close(self) -> None:
        """Close the connections of the cluster's own client."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _started(self) -> AIOKafkaClient:
        async with self._starting:
            if self._client is None:
                self._client = await self.started(AIOKafkaClient(**self.options()))
            return self._client

    async def _attempt(self, attempt: Callable[[], Awaitable[T]], topic: str | None) -> T:
        if topic is None:
            return await attempt()
        trying = asyncio.ensure_future(attempt())
        try:
            return await self.attend(trying, topic)
        finally:
            if not trying.done():
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)

    async def _watch(self, topic: str) -> None:
        """Look after a topic until it is gone."""
        while True:
            await self.look(topic)
            await asyncio.sleep(_LOOKS_EACH_S)

    async def _refresh(self) -> None:
        # What the clients ask by themselves would make missing topics, where brokers do that.
        answer = await self.send(MetadataRequest(self._names, allow_auto_topic_creation=False))
        if not answer.brokers:
            raise errors.KafkaConnectionError("no broker takes requests yet")
        self.brokers = {node: Server(host, port) for node, host, port, _ in answer.brokers}
        now = asyncio.get_running_loop().time()
        topics: dict[str, list[Partition]] = {}
        for code, name, _, partitions in answer.topics:
            if code == _UNKNOWN_TOPIC:
                since, answers = self._missing.get(name, (now, 0))
                self._missing[name] = (since, answers + 1)
                continue
            self._missing.pop(name, None)
            if code and not passes(error := failed(code)):
                raise error
            topics[name] = sorted(Partition(*item[1:5]) for item in partitions)
        self.topics = topics

    async def _greet(self) -> None:
        """Connect to one broker, to see why a client could not: it logs that, and does not raise.

        Raises:
            KafkaError, OSError: why.
        """
        server = random.choice(self.address.servers)  # noqa: S311 - no secret
        try:
            link: Any = await create_conn(
                server.host,
                server.port,
                client_id=CLIENT_ID,
                request_timeout_ms=int(self.settings.request_timeout_s * 1000),
                **self._login,
            )
        except TimeoutError:
            raise errors.KafkaConnectionError(
                f"{server} did not greet within {self.settings.request_timeout_s:g} s"
            ) from None
        link.close()


async def connect(address: Address, settings: KafkaSettings, topics: Sequence[str]) -> Cluster:
    """Connect to a cluster.

    Raises:
        LedgerUnavailable: no broker answers in time.
        LedgerError: the settings do not fit the cluster.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs each attempt of each retry
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


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, whatever it waits for.

    A fetch that is canceled in its back-off would end `AIOKafkaConsumer.stop` half-way, so it is
    ended before.
    """
    if consumer.assignment():
        consumer.unsubscribe()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    await asyncio.gather(asyncio.create_task(consumer.stop()), return_exceptions=True)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended that perhaps nobody waits for any more."""
    if not task.cancelled():
        task.exception()
