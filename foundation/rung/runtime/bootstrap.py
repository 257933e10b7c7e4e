"""Runs a service as a process, from its command line to its graceful shutdown.

The composition roots of all services share: the options for the ledger and the object store,
opening both, joining the replicas of the service, answering probes, logging, running until SIGTERM
or SIGINT, and reporting an error in one line.

At SIGTERM the loops finish their appends and save snapshots, the replica leaves its group, so that
its partitions are assigned to others at once, and the ledger is closed.
"""

import asyncio
import contextlib
import functools
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import click
import structlog

from rung.backoff import Backoff
from rung.events import LedgerError, LedgerMissing, RungError
from rung.events.installation import LEVEL
from rung.ledger import Ledger
from rung.ledger.export.import_record import check_imported
from rung.ledger.factory import open_ledger
from rung.runtime import logs
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.garbage import short_collections
from rung.runtime.health.checks import HEALTH
from rung.runtime.health.probe import probe
from rung.runtime.http.limits import raise_open_files
from rung.runtime.metrics.observed_ledger import ObservedLedger
from rung.runtime.metrics.observed_store import ObservedStore
from rung.runtime.retry import retry
from rung.runtime.service import Component, Service, level_of, serve, topics_of
from rung.storage import ObjectStore, open_store

T = TypeVar("T")

_KAFKA: Final = "kafka://"
_BACKOFF: Final = Backoff(0.2, 5.0)

_log = structlog.get_logger()


class Place(NamedTuple):
    """The options of every service."""

    ledger: str
    """A folder, or `kafka://host:9092/prefix`."""
    objects: str | None
    """URL of the object store."""
    probe: str | None = None
    """`ADDRESS:PORT` of the probe."""


class Opened(NamedTuple):
    """The ledger and the stores of a service, opened."""

    ledger: Ledger
    assignment: Assignment
    """The partitions of this replica."""
    store: ObjectStore | None

    @property
    def objects(self) -> ObjectStore:
        """The object store, of a service that requires one."""
        assert self.store is not None, "--objects is required there"
        return self.store


def placed(*, objects: bool = False) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add the options --ledger, --objects and --probe to a command, as its argument `place`.

    `objects`: whether --objects is required.
    """
    where = "URL of the object store: s3://bucket/prefix, file:///srv/objects."
    if not objects:
        where += " Snapshots of a ledger on Kafka lie there."

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @click.option(
            "--ledger",
            required=True,
            envvar="RUNG_LEDGER",
            help="Folder of the ledger, or kafka://host:9092,other:9092/prefix.",
        )
        @click.option("--objects", required=objects, envvar="RUNG_OBJECTS", help=where)
        @click.option(
            "--probe",
            envvar="RUNG_PROBE",
            metavar="ADDRESS:PORT",
            help="Answer /healthz, /readyz and /metrics there.  [default: nowhere]",
        )
        @functools.wraps(command)
        def wrapped(
            *arguments: Any, ledger: str, objects: str | None, probe: str | None, **options: Any
        ) -> T:
            return command(*arguments, place=Place(ledger, objects, probe), **options)

        return wrapped

    return decorate


def checked(kind: Callable[..., T], **options: Any) -> T:
    """Return settings made from options.

    Raises:
        UsageError: one is out of range.
    """
    try:
        return kind(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def launch(
    place: Place,
    work: Callable[[Opened], Coroutine[Any, Any, None]],
    *,
    service: str,
    topics: Sequence[str] = (),
) -> None:
    """Run a service until SIGTERM or SIGINT.

    Args:
        place: its options.
        work: the service.
        service: its name, which its replicas share.
        topics: those whose partitions are assigned to replicas; none if each works on all.

    Raises:
        ClickException: an error, in one line.
    """

    async def run() -> None:
        async with (
            probe(place.probe, service=service),
            _store(place) as store,
            _opened(place, service, topics, store) as opened,
        ):
            await work(opened)

    _run(run(), service)


def launch_components(
    place: Place,
    build: Callable[[ObjectStore | None], Sequence[Component]],
    *,
    service: str,
) -> None:
    """Run the components that `build` returns until SIGTERM or SIGINT, as `launch` does."""

    async def run() -> None:
        async with probe(place.probe, service=service), _store(place) as store:
            components = build(store)
            level = level_of(components)
            async with _opened(place, service, topics_of(components), store, level) as opened:
                await serve(opened.ledger, components, opened.assignment)

    _run(run(), service)


def command_of(service: Service, text: str) -> click.Command:
    """Return the command of a service without options of its own; `text` is its help."""

    @click.command(name=service.name, help=text)
    @placed()
    def main(place: Place) -> None:
        launch_components(place, service.components, service=service.name)

    return main


def _run(work: Coroutine[Any, Any, None], service: str) -> None:
    try:
        logs.log_to(service=service)
        raise_open_files()
        with short_collections():
            asyncio.run(until_stopped(work))
    except (RungError, BaseExceptionGroup) as failure:
        first = _first(failure)
        if not isinstance(first, RungError):
            raise
        raise click.ClickException(str(first)) from failure


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run something until it ends, or a first SIGTERM or SIGINT ends it."""
    running = asyncio.ensure_future(work)

    def stop() -> None:
        if not HEALTH.stopping:
            _log.info("stopping")
            HEALTH.stopping = True
            running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await asyncio.wait([running])
    if not (HEALTH.stopping and running.cancelled()):
        running.result()


async def open_when_ready(url: str, snapshots: ObjectStore | None = None) -> Ledger:
    """Open a ledger; wait for brokers that do not answer yet, and for its topics.

    Machines start in any order: a service may start before `rung cluster init`.
    """

    def patience_s(error: BaseException) -> float:
        waits = isinstance(error, LedgerError) and (
            error.retriable or isinstance(error, LedgerMissing)
        )
        return math.inf if waits and url.startswith(_KAFKA) else 0.0

    return await retry(
        lambda: open_ledger(url, snapshots),
        "waiting for the ledger",
        backoff=_BACKOFF,
        patience_s=patience_s,
    )


async def observed(opening: Awaitable[Ledger]) -> Ledger:
    """Open a ledger and measure its use; log lines carry its id.

    Args:
        opening: opens it, such as `open_when_ready`.

    Raises:
        LedgerError: it cannot be used, or an import into it is not complete.
    """
    ledger = ObservedLedger(await opening)
    logs.bind(ledger=ledger.id)
    try:
        await check_imported(ledger)
    except BaseException:
        await ledger.close()
        raise
    return ledger


@contextlib.asynccontextmanager
async def _store(place: Place) -> AsyncIterator[ObjectStore | None]:
    store = ObservedStore(open_store(place.objects)) if place.objects else None
    try:
        yield store
    finally:
        if store is not None:
            await asyncio.to_thread(store.close)


@contextlib.asynccontextmanager
async def _opened(
    place: Place,
    service: str,
    topics: Sequence[str],
    store: ObjectStore | None,
    level: int = LEVEL,
) -> AsyncIterator[Opened]:
    shared = bool(topics) and place.ledger.startswith(_KAFKA)
    if shared and not place.objects:
        raise LedgerError(
            "--objects: the snapshots of a ledger on Kafka lie in an object store; give its URL, "
            "such as s3://bucket/prefix"
        )
    ledger = await observed(open_when_ready(place.ledger, store))
    try:
        if not shared:
            yield Opened(ledger, AllPartitions(ledger), store)
            return
        from rung.runtime.assignment.faust_application import open_assignment  # noqa: PLC0415 - an extra, not always there

        assignment = open_assignment(place.ledger, service=service, topics=topics, level=level)

        async def unready() -> str | None:
            return None if assignment.ready else "no partitions are assigned yet"

        with HEALTH.check("replicas", unready):
            async with assignment.joined():
                yield Opened(ledger, assignment, store)
    finally:
        if store is not None:  # first, so that nothing waits for it
            await asyncio.to_thread(store.close)
        await ledger.close()


def _first(error: BaseException) -> BaseException:
    """Return the first error of groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
