"""What the log says of messages that are not taken."""

from typing import Any

import pytest
import structlog
from structlog.contextvars import get_contextvars, merge_contextvars

from rung.events import Event, encode, fact
from rung.events.trial import TrialStarted
from rung.ledger import Record
from rung.runtime.deadletter import log_rejected
from rung.runtime.processor.fold import Rejected
from runtime.tally import pause

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def _said(event: Event | None) -> dict[str, Any]:
    """Return what the log says of an event's record, or of one that is no event."""
    value = b"{" if event is None else encode(event)
    with structlog.testing.capture_logs(processors=[merge_contextvars]) as lines:
        log_rejected("searcher", [Rejected(Record("experiments", 3, 7, "a", value), "why")])
    (line,) = lines
    return dict(line)


def test_what_was_rejected_is_found_by_its_request_and_by_its_ids() -> None:
    """A search for the trace, the experiment, the trial or the event finds the line."""
    started = fact(
        TrialStarted(experiment_id="a", trial_id="a.0", run=1, agent_id="a1"),
        source="/rung/agent/a1",
        origin="agent/a1",
        sequence=1,
        time="t",
        traceparent=f"00-{TRACE_ID}-00f067aa0ba902b7-01",
    )
    assert _said(started) == {
        "event": "message rejected",
        "log_level": "error",
        "reader": "searcher",
        "topic": "experiments",
        "partition": 3,
        "position": 7,
        "key": "a",
        "reason": "why",
        "event_id": started.id,
        "experiment": "a",
        "trial": "a.0",
        "trace": TRACE_ID,
    }
    assert get_contextvars() == {}


@pytest.mark.parametrize("event", [None, pause(1)])
def test_what_is_not_known_is_not_said(event: Event | None) -> None:
    """A message that is no event has a place and a key only, and one without a trace has none."""
    line = _said(event)
    assert (line["position"], line["key"]) == (7, "a")
    assert ("experiment" in line) == (event is not None)
    assert line.keys().isdisjoint({"trial", "allocation", "trace"})
