"""Metrics of an agent for Prometheus: its runs, and the backlog of its outbox."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

from rung.agent.membership.suspension import Suspension
from rung.agent.outbox.outbox import Outbox
from rung.runtime.metrics import catalog


class Launchable(Protocol):
    """A run."""

    @property
    def launched(self) -> bool:
        """Whether a process was requested."""
        ...


@contextlib.contextmanager
def measured(
    outbox: Outbox, runs: Mapping[str, Launchable], suspension: Suspension
) -> Iterator[None]:
    """Export an agent's gauges to Prometheus while the context lasts."""

    def by_state() -> dict[tuple[str, ...], float]:
        launched = sum(run.launched for run in runs.values())
        return {("preparing",): float(len(runs) - launched), ("running",): float(launched)}

    with (
        catalog.RUNS.read_from(by_state),
        catalog.SPOOL_RECORDS.read_from(lambda: {(): float(outbox.backlog)}),
        catalog.SPOOL_BYTES.read_from(lambda: {(): float(outbox.size_bytes)}),
        catalog.SPOOL_OLDEST_SECONDS.read_from(lambda: {(): outbox.oldest_s}),
        catalog.AGENT_SUSPENDED.read_from(lambda: {(): float(suspension.reason is not None)}),
    ):
        yield
