"""Tracing of requests by W3C Trace Context.

The gateway begins a trace for each request, or continues the caller's. The events that a request
writes, and the decisions that follow, have it as the attribute `traceparent` of CloudEvents'
distributed tracing extension, so that one search in the logs of all services shows what a request
caused. No decision depends on it.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final, NamedTuple, Self

from structlog.contextvars import bound_contextvars

from rung.events import Event
from rung.events.envelope import experiment_of

HEADER: Final = "traceparent"

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


class Trace(NamedTuple):
    """A place in a trace."""

    trace_id: str
    span_id: str
    flags: str = "00"

    @classmethod
    def parse(cls, header: str) -> Self | None:
        """Read a `traceparent`; None if it is invalid by the standard."""
        match = _FORM.fullmatch(header.strip())
        if match is None:
            return None
        version, trace_id, span_id, flags, more = match.groups()
        if version == "ff" or (version == "00" and more is not None):
            return None
        if not trace_id.strip("0") or not span_id.strip("0"):
            return None
        return cls(trace_id, span_id, flags)

    @classmethod
    def begin(cls, header: str | None = None) -> Self:
        """Return a new place in the caller's trace, or in a new one."""
        caller = cls.parse(header) if header else None
        span_id = _drawn(8)
        return cls(caller.trace_id, span_id, caller.flags) if caller else cls(_drawn(16), span_id)

    def __str__(self) -> str:
        """Return the `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def _drawn(size: int) -> str:
    """Draw an id that is not all zeros, which would be invalid."""
    return f"{secrets.randbelow(2 ** (8 * size) - 1) + 1:0{2 * size}x}"


def current() -> str | None:
    """Return the `traceparent` of this context, if it is known."""
    return _current.get()


@contextlib.contextmanager
def following(traceparent: str | None) -> Iterator[None]:
    """Give what is written and logged in this context the trace of a request."""
    trace = Trace.parse(traceparent) if traceparent else None
    if trace is None:
        yield
        return
    token = _current.set(str(trace))
    try:
        with bound_contextvars(trace=trace.trace_id):
            yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def about(event: Event | None) -> Iterator[None]:
    """Give this context the trace of an event, if known, and log lines the ids in it."""
    if event is None:
        yield
        return
    ids = {
        "event_id": event.id,
        "experiment": experiment_of(event.data),
        "trial": getattr(event.data, "trial_id", None),
        "allocation": getattr(event.data, "allocation_id", None),
    }
    known = {name: value for name, value in ids.items() if value is not None}
    with following(event.traceparent), bound_contextvars(**known):
        yield
