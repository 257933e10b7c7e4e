"""Services as tables of components: a new component of a service is one line in its table."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rung.events.installation import LEVEL
from rung.ledger import Ledger
from rung.runtime.assignment.assignment import AllPartitions, Assignment
from rung.runtime.metrics.observer import Observer
from rung.runtime.processor.loop import host
from rung.runtime.processor.processor import Processor
from rung.runtime.projection.projection import Projection
from rung.runtime.projection.runner import project
from rung.runtime.relay import Relay, relay
from rung.runtime.retry import supervise
from rung.runtime.sink.batch_sink import BatchSink, PeriodicSink, batch_sink, periodic_sink
from rung.runtime.sink.sink import Sink, sink
from rung.storage import ObjectStore


class Decider(NamedTuple):
    """A processor, as a service hosts it."""

    processor: Processor[Any]
    snapshot_every: int = 10_000
    """Facts between two snapshots of a partition."""
    observer: Observer[Any] | None = None


class Singleton(NamedTuple):
    """Work of one replica of a service: the one with partition 0 of a topic."""

    name: str
    topic: str
    run: Callable[[Ledger], Awaitable[None]]
    reads: tuple[str, ...] = ()
    """Further topics that it reads."""
    appends: tuple[str, ...] = ()
    """Topics that it appends to."""


class Shared(NamedTuple):
    """Work on assigned partitions of topics that is none of the other kinds.

    Where it reads what a processor of its service has folded, both are in one process.
    """

    name: str
    topics: Sequence[str]
    run: Callable[[Ledger, Assignment], Awaitable[None]]
    reads: tuple[str, ...] = ()
    """Further topics that it reads."""
    appends: tuple[str, ...] = ()
    """Topics that it appends to."""


Component = Decider | Relay | Sink | BatchSink | PeriodicSink | Projection | Singleton | Shared


class Service(NamedTuple):
    """A service: its name, and its table of components."""

    name: str
    components: Callable[[ObjectStore | None], Sequence[Component]]
    """Called with the object store; None where there is none, or only the table is read."""


def topics_of(components: Iterable[Component]) -> tuple[str, ...]:
    """Return the topics whose partitions are assigned to replicas, each once."""
    found: list[str] = []
    for it in components:
        match it:
            case Decider():
                found.append(it.processor.facts)
            case Relay() | Sink() | Singleton():
                found.append(it.topic)
            case BatchSink() | PeriodicSink() | Shared():
                found += it.topics
            case Projection():
                pass  # each replica folds all partitions
    return tuple(dict.fromkeys(found))


def level_of(components: Iterable[Component]) -> int:
    """Return the newest logic level that all processors among components know."""
    levels = [it.processor.level for it in components if isinstance(it, Decider)]
    return min(levels, default=LEVEL)


async def serve(
    ledger: Ledger, components: Iterable[Component], assignment: Assignment | None = None
) -> None:
    """Run components on the assigned partitions, by default all, until cancelled.

    Raises:
        LedgerError: one that does not pass by itself.
    """
    assignment = assignment or AllPartitions(ledger)
    async with asyncio.TaskGroup() as group:
        for it in components:
            group.create_task(_run(ledger, it, assignment))


async def _run(ledger: Ledger, it: Component, assignment: Assignment) -> None:
    match it:
        case Decider(processor, snapshot_every, observer):
            await host(
                ledger,
                processor,
                snapshot_every=snapshot_every,
                assignment=assignment,
                observer=observer,
            )
        case Relay():
            await relay(ledger, it, assignment)
        case Sink():
            await sink(ledger, it, assignment)
        case BatchSink():
            await batch_sink(ledger, it, assignment)
        case PeriodicSink():
            await periodic_sink(ledger, it, assignment)
        case Projection():
            await project(ledger, it)
        case Singleton():
            await _run_alone(ledger, it, assignment)
        case Shared():
            await it.run(ledger, assignment)


async def _run_alone(ledger: Ledger, it: Singleton, assignment: Assignment) -> None:
    async def work(partition: int) -> None:
        if partition == 0:
            await supervise(lambda: it.run(ledger), name=it.name, follows=False)

    await assignment.run(it.topic, work)
