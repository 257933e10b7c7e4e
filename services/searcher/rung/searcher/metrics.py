"""Prometheus metrics of searches: how often trials are started again after a failure."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rung.events import Event, UndecodableEvent
from rung.events.codec import decode_handled
from rung.events.trial import RunRequested, TrialExited
from rung.ledger import Record
from rung.runtime.metrics import catalog
from rung.runtime.metrics.observer import Observer


class Restarts(Observer[Any]):
    """Counts the runs that are requested because the one before failed."""

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """Count."""
        for event in decisions:
            # A first run is no restart; a later one may be a promotion as well.
            if isinstance(event.data, RunRequested) and event.data.spec.run > 1:
                cause = _exit(records, event)
                if (
                    cause is not None
                    and cause.outcome == "failed"
                    and not cause.machine
                    and cause.trial_id == event.data.spec.trial_id
                ):
                    catalog.TRIAL_RESTARTS.inc()


def _exit(records: Sequence[Record], event: Event) -> TrialExited | None:
    """Return the end of a run that a decision answers, if it is one and among the records."""
    for record in records:
        if record.position == event.causeposition:
            with suppress(UndecodableEvent):
                cause = decode_handled(record.value, (TrialExited.TYPE,))
                if cause is not None and isinstance(cause.data, TrialExited):
                    return cause.data
    return None
