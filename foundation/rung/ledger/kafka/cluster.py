"""Cluster: connections to its brokers, metadata of the ledger's topics, and retries.

The clients of a ledger are aiokafka's own: `AIOKafkaProducer` in `writer`, an `AIOKafkaConsumer`
each in `reader` and `follower`, and here an `AIOKafkaClient` for all other requests. They find
new leaders by themselves, but keep to the brokers that they saw last. So a client that failed is
replaced by a new one, which begins with the addresses of the URL.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaClient, AIOKafkaConsumer, errors
from aiokafka.client import CoordinationType
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from rung.backoff import Backoff
from rung.events.errors import LedgerDamaged, LedgerError, LedgerUnavailable
from rung.ledger.kafka.errors import FAILURES, describe, error_of, explain, is_transient
from rung.ledger.kafka.settings import Address, KafkaSettings, Server

CLIENT_ID: Final = "rung"
_BACKOFF: Final = Backoff(0.05, 1.0)
_LOOKS_EACH_S: Final = 1.0
"""How often to check, while a request is not answered, that its topic still exists."""
_TURNS: Final = 20
_STARTS_WITHIN_S: Final = 1.0
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
    """A cluster and the metadata of a ledger's topics; connects at the first request."""

    def __init__(self, address: Address, settings: KafkaSettings) -> None:
        self.address: Final = address
        self.settings: Final = settings
        self.brokers: dict[int, Server] = {}
        """By node id, as of the newest metadata."""
        self.topics: dict[str, list[Partition]] = {}
        """The ledger's topics that exist, by name on the cluster, as of the newest metadata."""
        self._login: Final = settings.login()
        self._client: AIOKafkaClient | None = None
        self._starting = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        self._missing: dict[str, tuple[float, int]] = {}
        self._emptied: dict[tuple[str, int], float] = {}
        self._lost: set[str] = set()

    def options(self) -> dict[str, Any]:
        """Return the options that all clients of aiokafka share."""
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
        starting = asyncio.ensure_future(one.bootstrap() if plain else one.start())
        try:
            await asyncio.shield(starting)
        except BaseException as error:
            # Cancelled during its first request, it would leave the connection of that open.
            await asyncio.wait({starting}, timeout=_STARTS_WITHIN_S)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await (one.close() if plain else one.stop())
            if isinstance(error, errors.KafkaConnectionError):
                await self._probe()
            raise
        return client

    async def send(self, request: Any, node: int | None = None) -> Any:
        """Send a request to a node, by default to any, and return its answer.

        Raises:
            KafkaError, OSError: there is no answer.
        """
        client = await self._started()
        try:
            return await client.send(client.get_random_node() if node is None else node, request)
        except FAILURES as error:
            if is_transient(error) and self._client is not None and self._client is client:
                self._client = None
                await client.close()
            raise

    async def coordinator(self, group: str) -> int:
        """Return the node that coordinates a group.

        Raises:
            KafkaError, OSError: none is known.
        """
        return int(await (await self._started()).coordinator_lookup(CoordinationType.GROUP, group))

    async def refresh(self) -> None:
        """Fetch the metadata again; concurrent callers share one request.

        Raises:
            KafkaError, OSError: no broker answers.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(retrieve)
        await asyncio.shield(self._refreshing)

    def require(self, name: str) -> None:
        """Check that a topic exists.

        Raises:
            LedgerDamaged: several answers over some seconds lacked it.
        """
        since, answers = self._missing.get(name, (0.0, 0))
        waited_s = asyncio.get_running_loop().time() - since
        if name in self._lost or (answers >= _GONE_ANSWERS and waited_s > _GONE_S):
            raise self.gone(name)

    def lose(self, name: str) -> None:
        """Mark a topic as lost, so that nothing is appended to it any more.

        It may exist again: brokers may be configured to create topics that clients ask for.
        """
        self._lost.add(name)

    def emptied(self, name: str, partition: int) -> None:
        """Note that a partition which had records is empty.

        Raises:
            LedgerDamaged: it has been empty for some seconds.
        """
        now = asyncio.get_running_loop().time()
        if now - self._emptied.setdefault((name, partition), now) > _GONE_S:
            raise self.gone(name)

    def seen(self, name: str, partition: int) -> None:
        """Note that a partition has records, whatever a broker reported while it was starting.

        Without this, short moments of several starts would add up.
        """
        self._missing.pop(name, None)
        self._emptied.pop((name, partition), None)

    def gone(self, name: str) -> LedgerDamaged:
        """Return the error of a topic that no longer exists."""
        return LedgerDamaged(
            f"the topic {name} is not on {self.address} any more: it was deleted, or the "
            "cluster lost it. Restore it, or begin a new ledger under another prefix"
        )

    async def look(self, name: str) -> None:
        """Fetch the metadata and check that a topic exists, if there is an answer.

        Raises:
            LedgerDamaged: it no longer exists.
        """
        try:
            await self.refresh()
        except FAILURES:
            return
        self.require(name)

    async def persist(
        self, attempt: Callable[[], Awaitable[T]], what: str, *, topic: str | None = None
    ) -> T:
        """Retry an operation with back-off until it succeeds.

        Args:
            attempt: may raise KafkaError or OSError.
            what: the operation, for messages.
            topic: the topic it needs, by its name on the cluster.

        Raises:
            LedgerUnavailable: it did not succeed within `timeout_s`.
            LedgerDamaged: the topic no longer exists.
            LedgerError: it cannot succeed.
        """
        last: BaseException | None = None

        async def attempt_once() -> T:
            if last is not None and topic is not None:
                await self.look(topic)
            return await self._attempt(attempt, topic)

        def note(error: BaseException, _: float) -> None:
            nonlocal last
            last = error

        try:
            async with asyncio.timeout(self.settings.timeout_s):
                return await _BACKOFF.retry(attempt_once, _patience_s, note=note)
        except TimeoutError:
            raise LedgerUnavailable(
                f"{what}: {self.address} does not serve it since {self.settings.timeout_s:g} s "
                f"({describe(last) if last else 'no answer'})"
            ) from last
        except FAILURES as error:
            raise explain(error, what) from error

    async def attend(self, future: asyncio.Future[T], topic: str) -> T:
        """Return the result of a future, unless the topic it needs no longer exists.

        Raises:
            LedgerDamaged: it does not.
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
        """Raise once a topic no longer exists."""
        while True:
            await self.look(topic)
            await asyncio.sleep(_LOOKS_EACH_S)

    async def _refresh(self) -> None:
        # The clients' own requests would create missing topics, where brokers do that.
        request = MetadataRequest(self.address.topics, allow_auto_topic_creation=False)
        answer = await self.send(request)
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
            if code and not is_transient(error := error_of(code)):
                raise error
            topics[name] = sorted(Partition(*item[1:5]) for item in partitions)
        self.topics = topics

    async def _probe(self) -> None:
        """Connect to one broker to learn why a client could not: it only logs the reason.

        Raises:
            KafkaError, OSError: the reason.
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


async def connect(address: Address, settings: KafkaSettings) -> Cluster:
    """Connect to a cluster.

    Raises:
        LedgerUnavailable: no broker answers in time.
        LedgerError: the settings do not fit the cluster.
    """
    _quiet_aiokafka()
    cluster = Cluster(address, settings)
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
    """Stop a consumer.

    A fetch that is canceled in its back-off would end `AIOKafkaConsumer.stop` half-way, so
    fetching is ended first.
    """
    if consumer.assignment():
        consumer.unsubscribe()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    await asyncio.gather(asyncio.create_task(consumer.stop()), return_exceptions=True)


def retrieve(task: asyncio.Future[Any]) -> None:
    """Mark the exception of a task as retrieved, as nothing may await it any more."""
    if not task.cancelled():
        task.exception()


class _Unexpected(logging.Handler):
    """Passes records with a traceback on to the root logger."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            logging.getLogger().handle(record)


_unexpected: Final = _Unexpected()


def _quiet_aiokafka() -> None:
    """Log of aiokafka only what it did not expect.

    It logs each attempt of each retry, without a traceback; here such failures are raised, and
    the caller that retries logs them once.
    """
    logger = logging.getLogger("aiokafka")
    logger.propagate = False
    logger.addHandler(_unexpected)


def _patience_s(error: BaseException) -> float:
    return math.inf if isinstance(error, FAILURES) and is_transient(error) else 0.0
