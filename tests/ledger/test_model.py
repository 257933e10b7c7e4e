"""Any interleaving of calls gives what a list per stream would give."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.events import LedgerDamaged, partition_of, topic
from rung.ledger import Draft, Ledger, MemoryLedger, Record, SqliteLedger
from support.ledger.conformance import read_all

NAMES = (topic.EXPERIMENTS, topic.SEARCHES, topic.LOGS)
KEYS = ("a", "b", "c")

drafts = st.lists(
    st.builds(Draft, st.sampled_from(NAMES), st.sampled_from(KEYS), st.binary(max_size=40)),
    max_size=12,
)
"""One append."""
reads = st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(0, 30), st.integers(1, 9))
turns = st.lists(st.one_of(st.lists(drafts, min_size=1, max_size=4), reads), max_size=25)
"""What happens one after the other: appends that run at the same time, or a read."""

Turns = list[list[list[Draft]] | tuple[str, int, int, int]]
Model = dict[tuple[str, int], list[Record]]


async def play(openers: list[Callable[[], Awaitable[Ledger]]], script: Turns) -> None:
    """Play a script on ledgers that share their records, beside a model."""
    ledgers = [await opener() for opener in openers]
    model: Model = {(name, part): [] for name in NAMES for part in range(2)}
    for number, turn in enumerate(script):
        if isinstance(turn, tuple):
            await read_like(model, ledgers[number % len(ledgers)], turn)
            continue
        appends = [ledgers[index % len(ledgers)].append(batch) for index, batch in enumerate(turn)]
        given_positions = await asyncio.gather(*appends)
        order = sorted(
            (position, draft, partition_of(draft.key, 2))
            for batch, positions in zip(turn, given_positions, strict=True)
            for draft, position in zip(batch, positions, strict=True)
        )
        for position, (name, key, value), part in order:
            assert position == len(model[name, part])
            model[name, part].append(Record(name, part, position, key, value))
    for (name, part), records in model.items():
        for ledger in ledgers:
            assert await read_all(ledger, name, part, limit=7) == records
            assert await ledger.end(name, part) == len(records)
    for ledger in ledgers:
        await ledger.close()


async def read_like(model: Model, ledger: Ledger, place: tuple[str, int, int, int]) -> None:
    """Read, and expect what the model has there, or that a place beyond its end is refused."""
    name, part, position, limit = place
    there = model[name, part]
    if position > len(there):
        with pytest.raises(LedgerDamaged):
            await ledger.read(name, part, position, limit)
    else:
        expected = there[position : position + limit]
        assert await ledger.read(name, part, position, limit) == expected


@given(script=turns)
@settings(deadline=None, max_examples=60)
def test_memory(script: Turns) -> None:
    """The ledger in memory behaves like the model."""
    ledger = MemoryLedger(partitions=2)

    async def opener() -> Ledger:
        return ledger

    asyncio.run(play([opener], script))


@pytest.mark.ledger
@given(script=turns, count=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_sqlite(script: Turns, count: int) -> None:
    """So does a file that is open once or several times."""
    with tempfile.TemporaryDirectory() as folder:
        openers = [lambda: SqliteLedger.open(Path(folder), partitions=2)] * count
        asyncio.run(play([*openers], script))
