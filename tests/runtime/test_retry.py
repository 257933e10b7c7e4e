"""Retries of services: what is logged and counted of an outage, and how a loop starts again."""

import asyncio
import math

import pytest
from structlog.testing import capture_logs

from rung.backoff import Backoff
from rung.events import Fenced, LedgerRefused, LedgerUnavailable
from rung.runtime import retry as module
from rung.runtime.metrics import catalog
from rung.runtime.retry import Outage, keep_running, retry, supervise

_FAST = Backoff(0.001, 0.001)


async def test_an_outage_is_logged_where_it_begins_changes_and_ends() -> None:
    """A day without a store is three lines, and a number that grows."""
    errors = [LedgerUnavailable("away")] * 5 + [LedgerUnavailable("full")] * 5

    async def call() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    with capture_logs() as lines:
        assert await retry(call, "test behind", backoff=_FAST, topic="logs") == "done"
        assert await retry(call, "test behind", backoff=_FAST) == "done"

    assert [(it["event"], it.get("reason"), it["topic"]) for it in lines] == [
        ("test behind", "away", "logs"),
        ("test behind", "full", "logs"),
        ("no longer: test behind", None, "logs"),
    ]
    assert lines[-1]["tries"] == 10
    exposed = catalog.METER.expose().decode()
    assert 'rung_retries_total{what="test behind"} 10.0' in exposed


async def test_a_loop_that_was_well_for_long_starts_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The failures of last week neither make today's wait longer nor keep it out of the log."""
    monkeypatch.setattr(module, "_CALM_S", -1.0)
    waits: list[float] = []
    outage = Outage("test behind")
    started = asyncio.Event()

    async def run() -> None:
        if len(waits) == 20:
            started.set()
            await asyncio.Event().wait()
        raise LedgerUnavailable("away")

    def note(error: BaseException, wait_s: float) -> None:
        waits.append(wait_s)
        outage.note(error, wait_s)

    with capture_logs() as lines:
        kept = asyncio.create_task(keep_running(run, note, backoff=Backoff(60.0, 60.0)))
        async with asyncio.timeout(30):
            await started.wait()
        kept.cancel()
        await asyncio.gather(kept, return_exceptions=True)

    assert waits == [0.0] * 20
    assert [it["event"] for it in lines] == ["test behind"] * 20


async def test_a_loop_starts_again_after_what_may_pass_alone() -> None:
    """A fenced writer folds again; what a person must mend ends it."""
    errors = [LedgerUnavailable("away"), Fenced("late"), LedgerRefused("no rights")]

    async def run() -> None:
        raise errors.pop(0)

    with capture_logs() as lines, pytest.raises(LedgerRefused, match="no rights"):
        await supervise(run, name="test/0")

    assert [(it["event"], it["reason"]) for it in lines] == [
        ("starting again", "away"),
        ("starting again", "late"),
    ]
    assert math.isfinite(sum(it["wait_s"] for it in lines))
