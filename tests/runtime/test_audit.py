"""The audit tells of decisions on record that no fact explains."""

from collections.abc import Sequence

from rung.events import Event, decision, encode
from rung.events.experiment import ExperimentEnded
from rung.ledger import Draft, MemoryLedger, Record
from rung.runtime import PartitionFold, audit
from runtime.tally import Tally, pause


async def _append(ledger: MemoryLedger, events: Sequence[Event]) -> None:
    await ledger.append([Draft.of(it) for it in events])


def _decided(facts: Sequence[Event]) -> list[Event]:
    fold = PartitionFold(Tally())
    records = [Record(it.topic, 0, at, it.key, encode(it)) for at, it in enumerate(facts)]
    return [event for record in records for event in fold.fold(record).new]


def _forged(position: int, key: str = "a") -> Event:
    """Return the end of an experiment that no fact at that position caused."""
    ended = ExperimentEnded(experiment_id=key, state="errored", reason="forged")
    return decision(
        ended, source="/rung/searcher", cause=pause(99, key), position=position, index=0
    )


async def test_a_decision_on_no_fact_is_told() -> None:
    """Whether its fact would lie behind all facts, or where that of another key lies."""
    facts = [pause(1, "a"), pause(1, "b")]
    for position in (1, 5_000):
        ledger = MemoryLedger(partitions=1)
        await _append(ledger, facts)
        await _append(ledger, [*_decided(facts), _forged(position)])
        verdict = await audit(ledger, Tally())

        assert not verdict.same
        assert (verdict.decisions, verdict.differences) == (4, [])
        (line,) = verdict.unreadable
        assert line == (
            "searches/0: decisions of a on facts that are not there: 1, "
            f"the first on position {position} of experiments"
        )
        assert not (await audit(ledger, Tally(), key="a")).same
        assert (await audit(ledger, Tally(), key="b")).same


async def test_a_decision_on_another_fact_is_told() -> None:
    """Where the fact that it names gave way to another one, it is not taken for that one's."""
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, [pause(1)])
    await _append(ledger, [_forged(0)])
    (line,) = (await audit(ledger, Tally())).unreadable
    assert line.endswith("is caused by the fact gateway/a#99, and at position 0 lies gateway/a#1")


async def test_facts_lost_from_the_end_are_told() -> None:
    """The decisions on them are still there."""
    facts = [pause(number) for number in range(1, 5)]
    ledger = MemoryLedger(partitions=1)
    await _append(ledger, facts[:2])
    await _append(ledger, _decided(facts))
    verdict = await audit(ledger, Tally())

    assert verdict.decisions == 4
    (line,) = verdict.unreadable
    assert line == (
        "searches/0: decisions of a on facts that are not there: 4, "
        "the first on position 2 of experiments"
    )


async def test_what_is_decided_meanwhile_is_no_difference() -> None:
    """A service that runs appends facts and decisions between two reads of an audit."""
    facts = [pause(number) for number in range(1, 5)]

    class Busy(MemoryLedger):
        async def read(
            self, topic: str, partition: int, position: int, limit: int
        ) -> list[Record]:
            if topic == "searches" and not await self.end(topic, 0):
                await _append(self, [*facts[2:], *_decided(facts)])
            return list(await super().read(topic, partition, position, limit))

    ledger = Busy(partitions=1)
    await _append(ledger, facts[:2])
    verdict = await audit(ledger, Tally())

    assert verdict.same
    assert (verdict.facts, verdict.decisions) == (2, 4)
