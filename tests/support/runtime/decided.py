"""Decisions of processors that a test does not run, and facts of earlier releases."""

from rung.events import Payload, decision, decode, encode, fact, partition_of
from rung.events.codec import decode_head
from rung.events.experiment import PauseRequested
from rung.events.upcast import UPCASTERS
from rung.ledger import Draft, Ledger


async def append_decision(ledger: Ledger, data: Payload) -> None:
    """Append a decision, each of a topic on a later fact than the one before."""
    asked = PauseRequested(experiment_id="k3f9x2ma")
    cause = fact(asked, source="/rung/test", origin="test", sequence=1, time="t")
    event = decision(data, source="/rung/test", cause=cause, position=0, index=0)
    partition = partition_of(event.key, ledger.partitions(event.topic))
    position = await ledger.end(event.topic, partition)
    event = decision(data, source="/rung/test", cause=cause, position=position, index=0)
    await ledger.append([Draft.of(event)])


def as_read(line: bytes) -> bytes:
    """Return a recorded event as it is; of a fact of a type that was given up, what it is now."""
    if decode_head(line).type not in UPCASTERS:
        return line
    event = decode(line)
    assert event.origin is not None, event
    assert event.sequence is not None, event
    now = fact(
        event.data,
        source=event.source,
        origin=event.origin,
        sequence=event.sequence,
        time=event.time,
    )
    return encode(now)
