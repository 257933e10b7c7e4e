"""What the searcher tells Prometheus: how often trials are started again after a failure."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from rung.events import Event, UndecodableEvent
from rung.events.codec import decode_handled
from rung.events.trial import RunRequested, TrialExited
from rung.ledger import Record
from rung.runtime.metrics import catalog
from rung.runtime.processor.fold import PartitionFold


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
                cause = _exit(records, event)
                if (
                    cause is not None
                    and cause.outcome == "failed"
                    and not cause.machine
                    and cause.trial_id == event.data.spec.trial_id
                ):
                    self._count.inc()

    def end(self, partition: int) -> None:
        """Keep nothing of it."""


def _exit(records: Sequence[Record], event: Event) -> TrialExited | None:
    """Return the end of a run that a decision answers, if it is one and among the records."""
    for record in records:
        if record.position == event.causeposition:
            with suppress(UndecodableEvent):
                cause = decode_handled(record.value, (TrialExited.TYPE,))
                if cause is not None and isinstance(cause.data, TrialExited):
                    return cause.data
    return None
