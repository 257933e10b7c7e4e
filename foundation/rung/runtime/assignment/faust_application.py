"""Assigns the partitions of a service to its replicas by a Faust application.

Theory of operation. Each replica is a worker of one Faust application, and so a member of a Kafka
group with heartbeats. When a member joins, leaves or falls silent, Faust's assignor rebalances:
equal partitions of all topics of a service to one replica, and as few as possible to another one
than before.

Kafka's group protocol revokes all partitions of all members at each rebalance. Work on them goes
on until the new assignment is known: only then the work on partitions that moved is ended, which
may overlap with its begin elsewhere (decision 0006). A replica that gets no new assignment in time
lets go of all.

No event passes through Faust. Its streams pass a few thousand a second and its tables may not be
the record, so components follow their partitions through the ledger. Faust resumes assigned
partitions when its tables are recovered; their service is not started here, so it consumes
nothing. The client below it fetches one batch of a partition, the possible minimum. There is no
producer, no leader election by topic, no web server, and a folder only while it runs.

Only documented interfaces of Faust are used: settings, signals, and classes of the application
that may be replaced (decision 0028).

Heartbeats are sent by a thread of the consumer's. A process that is stopped or dead loses its
partitions after `session_timeout_s`; one whose event loop is blocked keeps them, and its probe
reports that.
"""

import asyncio
import contextlib
import socket
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import faust
import structlog
from faust.app.base import BootStrategy
from faust.tables import TableManager
from faust.types import TP

from rung.events import LedgerUnavailable
from rung.events.installation import LEVEL
from rung.ledger.kafka import Address, KafkaSettings, parse_address
from rung.runtime.assignment.assignment import ENDS_WITHIN_S, ChangingAssignment, Work
from rung.runtime.assignment.settings import GroupSettings, client_id_of
from rung.runtime.retry import supervise

_STOPS_WITHIN_S: Final = 5.0
_PATIENCE_S: Final = 30.0
_NEVER_S: Final = 2_000_000.0
"""Faust's consumer leaves the group if nothing is consumed for this time, and nothing ever is."""
_FETCH_BYTES: Final = 1
"""Of a partition at once. A broker returns a larger batch all the same, of one partition."""

_log = structlog.get_logger()


class FaustAssignment:
    """The partitions that Faust assigns to this replica."""

    def __init__(  # noqa: PLR0913 - the settings of a member
        self,
        address: Address,
        kafka: KafkaSettings,
        *,
        service: str,
        topics: Sequence[str],
        level: int = LEVEL,
        settings: GroupSettings,
    ) -> None:
        """Prepare it; `joined` joins the group.

        Args:
            address: of the ledger.
            kafka: how to reach the cluster.
            service: whose replicas form the group.
            topics: whose partitions are assigned, by their names in the ledger; the same in all
                replicas.
            level: the newest logic level that this replica supports; the broker lists it with the
                members.
            settings: the timeouts of the group.
        """
        self._address = address
        self._kafka = kafka
        self._service = service
        self._level = level
        self._names = {address.topic(name): name for name in topics}
        self._settings = settings
        self._assignment = ChangingAssignment()
        self._assigned = asyncio.Event()
        self._overdue: asyncio.Task[None] | None = None
        """Lets go of all partitions, unless some are assigned in time."""

    @property
    def partitions(self) -> Mapping[str, frozenset[int]]:
        """The partitions that are assigned now, by topic."""
        return self._assignment.partitions

    @property
    def ready(self) -> bool:
        """Whether this replica is a member of the group and got its partitions."""
        return self._assigned.is_set()

    async def run(self, topic: str, work: Work) -> None:
        """Run `work(partition)` for each partition of a topic while it is assigned."""
        assert topic in self._names.values(), f"{topic} is not shared out"
        await self._assignment.run(topic, work)

    @contextlib.asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be a member of the group; leave it at the end, so that partitions move at once."""
        member = asyncio.create_task(
            supervise(self._be_member, name=f"{self._service}-replicas", follows=False)
        )
        try:
            yield
        finally:
            member.cancel()
            await asyncio.gather(member, return_exceptions=True)

    async def _be_member(self) -> None:
        """Be a member until the application fails.

        Raises:
            LedgerUnavailable: it failed; another one may not.
        """
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rung-replica-"))
                app = self._new_app(Path(folder))
            except Exception as error:
                raise LedgerUnavailable(f"no member of the replicas' group: {error}") from error
            try:
                await app.start()
                await self._stay(app)
            except Exception as error:  # noqa: BLE001 - whatever it was, see above
                app.failed(error)
            finally:
                await self._leave(app)
        raise LedgerUnavailable(f"no member of the group {app.conf.id}: {app.reason}")

    async def _stay(self, app: "_App") -> None:
        """Wait until the application fails."""
        while not app.ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await app.ended.wait()
            if not app.ended.is_set() and not self.ready:
                _log.warning("no partitions are assigned yet", service=self._service)

    async def _leave(self, app: "_App") -> None:
        self._assigned.clear()
        await self._assignment.change({})
        try:
            async with asyncio.timeout(_STOPS_WITHIN_S):
                await app.stop()
        except Exception as error:  # noqa: BLE001 - the broker notices by its silence
            _log.warning("the group was not left", service=self._service, reason=repr(error))
        finally:
            self._stop_waiting()

    def _new_app(self, folder: Path) -> "_App":
        settings, kafka = self._settings, self._kafka
        app = _App(
            self._address.topic(f"replicas.{self._service}"),
            broker=[f"kafka://{server}" for server in self._address.servers],
            broker_client_id=client_id_of(self._level),
            broker_credentials=_credentials(kafka),
            broker_request_timeout=max(kafka.request_timeout_s, settings.session_timeout_s),
            broker_session_timeout=settings.session_timeout_s,
            broker_heartbeat_interval=settings.heartbeat_s,
            broker_rebalance_timeout=settings.rebalance_timeout_s,
            broker_max_poll_interval=_NEVER_S,
            consumer_auto_offset_reset="latest",
            consumer_max_fetch_size=_FETCH_BYTES,
            TableManager=_Tables,
            datadir=folder,
            # A member is known by its URL, which nobody opens.
            canonical_url=f"http://{socket.gethostname()}.{uuid.uuid4().hex}",
            autodiscover=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            web_enabled=False,
            loop=asyncio.get_running_loop(),
        )
        app.share_out(sorted(self._names), given=self._give, taken=self._take)
        return app

    async def _give(self, assigned: Collection[TP]) -> None:
        self._stop_waiting()
        held: dict[str, set[int]] = defaultdict(set)
        for place in assigned:
            held[self._names[place.topic]].add(place.partition)
        _log.info(
            "partitions assigned",
            service=self._service,
            **{name: sorted(held[name]) for name in self._names.values()},
        )
        await self._assignment.change(held, within_s=self._ends_within_s)
        self._assigned.set()

    async def _take(self, revoked: Collection[TP]) -> None:
        """Wait for the new assignment, in which most of what was revoked is assigned again."""
        self._assigned.clear()
        if revoked:
            _log.info("partitions revoked", service=self._service, count=len(revoked))
        self._stop_waiting()
        self._overdue = asyncio.create_task(self._let_go())

    async def _let_go(self) -> None:
        """Let go of all partitions: by now they may be assigned to others."""
        await asyncio.sleep(self._settings.session_timeout_s + self._settings.rebalance_timeout_s)
        _log.warning("no partitions are assigned again: work on all ends", service=self._service)
        await self._assignment.change({}, within_s=self._ends_within_s)

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    @property
    def _ends_within_s(self) -> float:
        return min(ENDS_WITHIN_S, 0.8 * self._settings.rebalance_timeout_s)


class _Tables(TableManager):
    """No tables."""

    async def wait_until_tables_registered(self) -> None:
        """Return at once: the subscription need not wait for any."""


class _Boot(BootStrategy):
    enable_web = False
    enable_kafka_producer = False
    enable_sensors = False

    def tables(self) -> Iterable[Any]:
        """Return none, so that nothing is recovered, and nothing resumes the partitions."""
        return []


Callback = Callable[[Collection[TP]], Any]


class _App(faust.App):
    """A member of the group, from its start to its failure."""

    BootStrategy = _Boot

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ended = asyncio.Event()
        self.reason = "it ended"

    def share_out(self, topics: Sequence[str], *, given: Callback, taken: Callback) -> None:
        """Subscribe to topics; call back with what is assigned and revoked."""

        async def on_assigned(_: Any, /, *assigned: Any, signal: Any, **_more: Any) -> None:  # noqa: ARG001 - mode's signature
            await given(assigned[0])

        async def on_revoked(_: Any, /, *revoked: Any, signal: Any, **_more: Any) -> None:  # noqa: ARG001 - mode's signature
            await taken(revoked[0])

        self.on_partitions_assigned.connect(on_assigned)
        self.on_partitions_revoked.connect(on_revoked)
        for topic in topics:
            self.topics.add(self.topic(topic))

    def failed(self, reason: BaseException) -> None:
        """Note the first failure."""
        if not self.ended.is_set():
            self.reason = f"{type(reason).__name__}: {reason}"
            self.ended.set()

    async def crash(self, reason: BaseException) -> None:
        """Note a failure that Faust reports."""
        self.failed(reason)
        await super().crash(reason)


def _credentials(kafka: KafkaSettings) -> Any:
    """Return the credentials for Faust."""
    context = kafka.ssl_context()
    if kafka.sasl_mechanism is not None:
        return faust.SASLCredentials(
            username=kafka.sasl_username,
            password=kafka.sasl_password,
            ssl_context=context,
            mechanism=kafka.sasl_mechanism,
        )
    return None if context is None else faust.SSLCredentials(context)


def open_assignment(
    url: str, *, service: str, topics: Sequence[str], level: int = LEVEL
) -> FaustAssignment:
    """Return the assignment of one more replica of a service, with settings of the environment.

    Raises:
        LedgerError: the URL or the environment is invalid.
    """
    return FaustAssignment(
        parse_address(url),
        KafkaSettings.from_environment(),
        service=service,
        topics=topics,
        level=level,
        settings=GroupSettings.from_environment(),
    )
