"""Who reads an event, as its record says, is who handles it."""

from collections import defaultdict
from typing import Final

from rung.cli.operations.service import tables
from rung.events.codec import PAYLOADS
from rung.gateway.projections.read_models import PROJECTIONS
from rung.runtime.processor.processor import types_of
from rung.runtime.projection import Projection
from rung.runtime.relay import Relay
from rung.runtime.service import Decider
from rung.runtime.sink.sink import Sink

_NOT_IN_TABLES: Final = {
    "agent",
    "audit",
    "host",
    "import",
    "metrics",
    "sealer",
    "upgrade",
    "verify",
}
"""Readers that no service's table has: they are no services, or take records without a type."""
_OTHERWISE: Final = {
    ("rung.agent.beat.v1", "scheduler"),  # the failure detector
    ("rung.agent.beat.v1", "gateway"),
    ("rung.checkpoint.pin_answered.v1", "gateway"),  # a submission awaits it
    ("rung.delivery.again_requested.v1", "webhooks"),  # what delivers
    ("rung.delivery.attempted.v1", "webhooks"),
    ("rung.delivery.requested.v1", "webhooks"),
    ("rung.installation.upgraded.v1", "gateway"),  # the level, read at each submission
    ("rung.logs.dropped.v1", "gateway"),  # streams of server-sent events
    ("rung.logs.printed.v1", "gateway"),
    ("rung.metrics.reported.v1", "gateway"),
}
"""What is read by components that declare no types."""


def _handled() -> dict[str, set[str]]:
    """Return the types that components handle, by processor or service."""
    found = defaultdict[str, set[str]](set)
    for service, components in tables().items():
        for it in components:
            if isinstance(it, Decider):
                found[it.processor.name] |= types_of(it.processor.handles)
            elif isinstance(it, Relay | Sink | Projection):
                found[service] |= types_of(it.handles)
    for make in PROJECTIONS:
        found["gateway"] |= types_of(make().handles)
    return found


def test_what_a_component_handles_names_it_as_a_reader() -> None:
    """A processor reads its own decisions, whether they say so or not."""
    lacking = [
        (kind, name)
        for name, kinds in _handled().items()
        for kind in sorted(kinds)
        if name not in (*PAYLOADS[kind].READERS, PAYLOADS[kind].WRITER)
    ]
    assert lacking == []


def test_a_reader_handles_what_names_it() -> None:
    """None is named for an event that it skips."""
    handled = _handled()
    claims = [(kind, name) for kind, it in PAYLOADS.items() for name in it.READERS]
    assert {
        (kind, name)
        for kind, name in claims
        if name not in _NOT_IN_TABLES and kind not in handled[name]
    } == _OTHERWISE
