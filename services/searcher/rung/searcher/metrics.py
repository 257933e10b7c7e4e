"""What the searcher tells Prometheus: how often trials are started again after a failure."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rung.events import Event, decode
from rung.events.trial import RunRequested, TrialExited
from rung.ledger import Record
from rung.runtime.fold import PartitionFold
from rung.runtime.metrics import catalog


class Restarts:
    """Counts the runs that are asked for because the one before failed."""

    def __init__(self) -> None:
        self._count = catalog.TRIAL_RESTARTS

    def measured(self) -> AbstractContextManager[None]:
        """Return a context without an effect: restarts are counted as they happen."""
        return nullcontext()

    def begin(self, partition: int, fold: PartitionFold[Any]) -> None:
        """Keep nothing of it."""

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """Count."""
        for event in decisions:
            # Its first run is no restart; another one may be a promotion as well.
            if isinstance(event.data, RunRequested) and event.data.spec.run > 1:
                cause = _cause(records, event)
                if (
                    isinstance(cause, TrialExited)
                    and cause.outcome == "failed"
                    and not cause.machine
                    and cause.trial_id == event.data.spec.trial_id
                ):
                    self._count.inc()

    def end(self, partition: int) -> None:
        """Keep nothing of it."""


def _cause(records: Sequence[Record], event: Event) -> object:
    """Return the fact that a decision answers, if it is among the records."""
    for record in records:
        if record.position == event.causeposition:
            return decode(record.value).data
    return None
