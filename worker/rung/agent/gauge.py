"""What an agent tells Prometheus of itself: its runs, and what waits in its spool."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol

from rung.agent.spool import Spool
from rung.agent.suspension import Suspension
from rung.runtime.metrics import catalog


class Launchable(Protocol):
    """A run."""

    @property
    def launched(self) -> bool:
        """Whether a process was asked for."""
        ...


@contextlib.contextmanager
def measured(
    spool: Spool, runs: Mapping[str, Launchable], suspension: Suspension
) -> Iterator[None]:
    """Let Prometheus read an agent's numbers while the context lasts."""

    def by_state() -> dict[tuple[str, ...], float]:
        launched = sum(run.launched for run in runs.values())
        return {("preparing",): float(len(runs) - launched), ("running",): float(launched)}

    with (
        catalog.RUNS.read_from(by_state),
        catalog.SPOOL_RECORDS.read_from(lambda: {(): float(spool.backlog)}),
        catalog.SPOOL_BYTES.read_from(lambda: {(): float(spool.size_bytes)}),
        catalog.SPOOL_OLDEST_SECONDS.read_from(lambda: {(): spool.oldest_s}),
        catalog.AGENT_SUSPENDED.read_from(lambda: {(): float(suspension.reason is not None)}),
    ):
        yield
