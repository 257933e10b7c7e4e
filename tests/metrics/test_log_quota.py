"""The oldest logs go where all of them together are too large."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.lines import all_lines
from metrics.report import EXPERIMENT, draft, line, logs
from rung.api import TrialLines
from rung.events import decode, topic
from rung.events.metric import LogsDeleted
from rung.ledger.memory import MemoryLedger
from rung.metrics import SeriesStore
from rung.metrics.log_quota import excess, keep_within
from rung.metrics.settings import Settings

pytestmark = pytest.mark.stores

_TRIALS = st.lists(
    st.builds(
        TrialLines,
        experiment_id=st.just(EXPERIMENT),
        trial_id=st.integers(0, 9).map(lambda number: f"{EXPERIMENT}.{number}"),
        lines=st.just(1),
        size_bytes=st.integers(0, 100),
        last_ms=st.integers(0, 5),
    ),
    unique_by=lambda trial: trial.trial_id,
)


@given(_TRIALS, st.integers(0, 300))
def test_no_more_goes_than_must(trials: list[TrialLines], most: int) -> None:
    """What stays is within the limit, is the newest, and would not be with one log more."""
    gone = list(excess(trials, most))
    kept = [trial for trial in trials if trial not in gone]
    assert sum(trial.size_bytes for trial in kept) <= most
    assert all(old.last_ms <= new.last_ms for old in gone for new in kept)
    if gone:
        assert sum(trial.size_bytes for trial in [*kept, gone[-1]]) > most


async def test_the_oldest_log_is_deleted_by_a_fact(store: SeriesStore) -> None:
    """It is on the ledger, and names no actor; the log has a mark in its place, the other not."""
    ledger = MemoryLedger(partitions=1, ledger_id="ledger")
    await ledger.append([draft(logs([line("x" * 60, 1_000)]), 1)])
    await ledger.append([draft(logs([line("y" * 60, 2_000)], trial=1), 2)])
    store.absorb(await ledger.read(topic.LOGS, 0, 0, 100))
    keeping = asyncio.create_task(keep_within(ledger, store, 100, every_s=0.01))
    records = ledger.follow(topic.LOGS, 0, 2)
    async with asyncio.timeout(30):
        written = (await anext(aiter(records)))[0]
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    event = decode(written.value)
    assert isinstance(event.data, LogsDeleted)
    assert (event.actor, event.data.trial_id) == (None, f"{EXPERIMENT}.0")
    store.absorb([written])
    async with asyncio.timeout(30):
        while True:  # a server before 23.8 deletes in the background
            found = await _lines(store)
            if ("stdout", "xxxxxxxx") not in found:
                break
            await asyncio.sleep(0.05)
    assert found == [("dropped", "1 line ("), ("stdout", "yyyyyyyy")]


async def _lines(store: SeriesStore) -> list[tuple[str, str]]:
    """Return the stream and the beginning of each line."""
    found = await all_lines(store)
    return [(entry.stream, entry.text[:8]) for entry in found]


def test_a_limit_of_nothing_is_refused() -> None:
    """The error names the field."""
    with pytest.raises(ValueError, match="logs_total_bytes is 0"):
        Settings(logs_total_bytes=0)
