"""Decisions of processors that a test does not run."""

from rung.events import Payload, decision, fact, partition_of
from rung.events.experiment import PauseRequested
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
