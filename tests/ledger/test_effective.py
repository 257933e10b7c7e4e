"""The effective stream: each fact and each decision once, whatever was appended again or late."""

import random

from hypothesis import given
from hypothesis import strategies as st

from rung.events import Event, decision, fact
from rung.events.allocation import AllocationSignaled
from rung.events.trial import RunWithdrawn
from rung.ledger.effective import Effective

POOLS = ["a", "b"]


def _fact(pool: str, origin: str, sequence: int) -> Event:
    data = RunWithdrawn(
        experiment_id="k3v9x2ab", trial_id="k3v9x2ab.1", run=1, pool=pool, how="kill", reason=""
    )
    return fact(data, source="/rung/scheduler", origin=origin, sequence=sequence, time="t")


def _decision(pool: str, position: int, index: int) -> Event:
    data = AllocationSignaled(
        pool=pool, allocation_id=f"{position}.{index}", agents=["a1"], how="kill"
    )
    cause = _fact(pool, "o", position)
    return decision(data, source="/rung/scheduler", cause=cause, position=position, index=index)


@given(
    st.lists(st.tuples(st.sampled_from(POOLS), st.sampled_from(["o", "p"])), max_size=30),
    st.lists(st.tuples(st.sampled_from(POOLS), st.integers(1, 3)), max_size=15),
    st.randoms(use_true_random=False),
)
def test_what_is_appended_again_counts_once(
    facts: list[tuple[str, str]], decided: list[tuple[str, int]], draws: random.Random
) -> None:
    """Any part of what is there already may come again; what counts is the stream without it."""
    streams = {
        "pools": [_fact(*of, number) for number, of in enumerate(facts)],
        "placements": [
            _decision(pool, position, index)
            for position, (pool, count) in enumerate(decided)
            for index in range(count)
        ],
    }
    effective = Effective()
    for topic, events in streams.items():
        counted = []
        for end, event in enumerate(events, 1):
            again = events[draws.randrange(end) : end] if draws.random() < 0.5 else []
            counted += [it for it in (event, *again) if effective.is_new(topic, it)]
        assert counted == events
