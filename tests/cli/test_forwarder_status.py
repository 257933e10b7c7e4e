"""How far forwarders are, and whether they move."""

import pytest

from rung.cli.operations.cluster.relay_status import look, look_again
from rung.ledger import Draft, MemoryLedger


@pytest.mark.parametrize(
    ("name", "moved", "expected"),
    [
        ("scheduler-intake", 0, 1),
        ("scheduler-intake", 1, 0),
        ("scheduler-intake", 2, 0),
        ("checkpoint-gc-deleter", 0, 0),
    ],
)
async def test_whether_it_stands_still(name: str, moved: int, expected: int) -> None:
    """One that took nothing meanwhile does; to delete takes time, so that one is let be."""
    ledger = MemoryLedger()
    await ledger.append([Draft("searches", "k", b"1"), Draft("searches", "k", b"2")])
    consumer = await look(ledger, name, "searches")
    (partition,) = (number for number, lag in enumerate(consumer.lags) if lag)
    assert (consumer.lag, consumer.lags[partition]) == (2, 2)
    if moved:
        await ledger.commit(name, "searches", partition, moved)
    await look_again(ledger, consumer)
    assert consumer.still == [partition] * expected
    assert (consumer.problem() is None) == (not expected)
