"""W3C Trace Context."""

import pytest
from structlog.contextvars import get_contextvars

from rung.runtime.tracing import Trace, current, following

_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
_SPAN_ID = "00f067aa0ba902b7"
_HEADER = f"00-{_TRACE_ID}-{_SPAN_ID}-01"


def test_a_header_is_read_and_written() -> None:
    """What came in goes out the same."""
    trace = Trace.parse(_HEADER)

    assert trace == Trace(_TRACE_ID, _SPAN_ID, "01")
    assert str(trace) == _HEADER


def test_a_later_version_may_say_more() -> None:
    """The standard wants what is known of it to be used."""
    assert Trace.parse(f"cc-{_TRACE_ID}-{_SPAN_ID}-01-what") == Trace(_TRACE_ID, _SPAN_ID, "01")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        _HEADER.upper(),
        f"ff-{_TRACE_ID}-{_SPAN_ID}-01",
        f"{_HEADER}-what",
        f"00-{'0' * 32}-{_SPAN_ID}-01",
        f"00-{_TRACE_ID}-{'0' * 16}-01",
        f"00-{_TRACE_ID[1:]}-{_SPAN_ID}-01",
        f"00-{_TRACE_ID}-{_SPAN_ID}-1",
        _HEADER + "\n" + _HEADER,
    ],
)
def test_what_is_no_trace_is_not_taken_for_one(header: str) -> None:
    """A header that the standard calls invalid begins a new trace."""
    assert Trace.parse(header) is None
    assert Trace.begin(header).trace_id != _TRACE_ID


def test_a_caller_s_trace_goes_on_in_a_place_of_its_own() -> None:
    """The trace is the caller's and the span is not."""
    trace = Trace.begin(_HEADER)

    assert (trace.trace_id, trace.flags) == (_TRACE_ID, "01")
    assert trace.span_id != _SPAN_ID
    assert Trace.parse(str(trace)) == trace


def test_traces_that_are_begun_are_valid_and_differ() -> None:
    """Nobody has to send one."""
    traces = [Trace.begin() for _ in range(100)]

    assert len({trace.trace_id for trace in traces}) == 100
    assert all(Trace.parse(str(trace)) == trace for trace in traces)


def test_what_follows_from_a_request_knows_it() -> None:
    """Inside, facts can carry the trace and log lines say it; outside, nothing is left of it."""
    with following(_HEADER):
        assert current() == _HEADER
        assert get_contextvars()["trace"] == _TRACE_ID
    assert current() is None
    assert "trace" not in get_contextvars()


@pytest.mark.parametrize("traceparent", [None, "", "rubbish"])
def test_nothing_follows_from_no_request(traceparent: str | None) -> None:
    """Without a trace, nothing changes."""
    with following(traceparent):
        assert current() is None
