"""How far the forwarders of a ledger are, which carry what one topic says over to another."""

from typing import Final

from msgspec import Struct, field

from rung.checkpoint_gc.service import DELETER
from rung.ledger import Ledger

LAG_MAX: Final = 10_000
"""Records behind which a forwarder that moves is too slow, as for the alert `RungLagging`."""


class Consumer(Struct, kw_only=True):
    """What is not yet carried over from one topic to another."""

    name: str
    topic: str
    lag: int
    lags: list[int]
    """By partition."""
    positions: list[int]
    """Where it is, by partition."""
    still: list[int] = field(default_factory=list[int])
    """Partitions with records behind that were not carried over while somebody looked on."""

    def problem(self) -> str | None:
        """Return what is wrong with it, if anything is."""
        behind = f"{self.lag:,} records behind on {self.topic}"
        if self.still:
            return f"{self.name}: stands still, {behind}"
        return f"{self.name}: {behind}" if self.lag > LAG_MAX else None


async def look(ledger: Ledger, name: str, topic: str) -> Consumer:
    """Return how far a forwarder is.

    Raises:
        LedgerError: the ledger does not answer.
    """
    partitions = range(ledger.partitions(topic))
    ends = [await ledger.end(topic, number) for number in partitions]
    positions = [await ledger.position(name, topic, number) for number in partitions]
    lags = [max(end - position, 0) for end, position in zip(ends, positions, strict=True)]
    return Consumer(name=name, topic=topic, lag=sum(lags), lags=lags, positions=positions)


async def look_again(ledger: Ledger, consumer: Consumer) -> None:
    """See, a moment later, whether a forwarder that was behind has moved.

    The one that deletes is let be: one record may cost it minutes.

    Raises:
        LedgerError: the ledger does not answer.
    """
    if consumer.name == DELETER:
        return
    consumer.still = [
        number
        for number, (lag, was) in enumerate(zip(consumer.lags, consumer.positions, strict=True))
        if lag and await ledger.position(consumer.name, consumer.topic, number) == was
    ]
