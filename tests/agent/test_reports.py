"""What a run says, in batches that every ledger takes."""

import asyncio
from typing import Any

import pytest

from rung.agent.reports import Reports
from rung.core.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogsDropped, LogsPrinted, MetricsReported
from rung.events.trial import MetricValue, RunSpec

KAFKAS_OWN = 1 << 20
"""What a topic of Kafka's takes where nothing else was asked for; the envelope comes on top."""


class Kept:
    """Keeps what a spool would."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []

    def put(self, payload: Payload) -> None:
        """Keep a fact."""
        self.payloads.append(payload)


@pytest.fixture
def kept() -> Kept:
    """Give a spool's stand-in."""
    return Kept()


def spec_of(config: dict[str, Any]) -> RunSpec:
    """Return a run of an experiment."""
    return RunSpec(
        experiment_id="e",
        trial_id="e.0",
        trial_index=0,
        run=1,
        hparams={},
        seed=0,
        length=None,
        time_metric="batches",
        restore=[],
        code_digest=None,
        config=config,
    )


@pytest.fixture
def reports(kept: Any) -> Reports:
    """Give the reports of a run."""
    return Reports(kept, spec_of({}))


async def test_large_metrics_go_in_several_batches(reports: Reports, kept: Kept) -> None:
    """Whatever letters their names have, no batch is larger than a topic takes, none is lost."""
    values: dict[str, MetricValue] = {
        f"\N{SNOWMAN}\x01{number:05}": 1.0 for number in range(10_000)
    }
    for step in range(6):
        reports.reported(Reported("training", step, 1, values))
    reports.close()
    batches = [it for it in kept.payloads if isinstance(it, MetricsReported)]
    assert len(kept.payloads) == len(batches) > 1
    assert [row.step for batch in batches for row in batch.rows] == list(range(6))
    assert max(len(encoder.encode(batch)) for batch in batches) < KAFKAS_OWN - 1000


@pytest.mark.parametrize("text", ["\x00" * 60_000, "\N{SNOWMAN}" * 20_000, "x"])
async def test_large_lines_go_in_several_batches(reports: Reports, kept: Kept, text: str) -> None:
    """Whatever is printed, no batch of lines is larger than a topic takes, none is lost."""
    reports.printed_out([text] * 40, rank=0)
    reports.close()
    batches = [it for it in kept.payloads if isinstance(it, LogsPrinted)]
    assert [line.text for batch in batches for line in batch.lines] == [text] * 40
    assert max(len(encoder.encode(batch)) for batch in batches) < KAFKAS_OWN - 1000


async def test_the_largest_report_fits(reports: Reports, kept: Kept) -> None:
    """A batch of one report that is as large as it may be is no larger than a topic takes."""
    name = "x" * (REPORT_BYTES_MAX - 100)
    for step in range(2):
        reports.reported(Reported("training", step, 1, {name: 1.0}))
    reports.close()
    assert len(kept.payloads) == 2
    assert max(len(encoder.encode(batch)) for batch in kept.payloads) < KAFKAS_OWN - 1000


async def test_a_log_has_its_beginning_a_mark_and_its_end(kept: Any) -> None:
    """A run that prints without end stores what it may, says so at once, and how it ended."""
    reports = Reports(kept, spec_of({"logs": {"keep_days": 7}}), 100_000)
    for number in range(50):
        reports.printed_out([f"{number} {line}" for line in range(1000)], rank=0)
    reports.flush()
    live = [it.lines[-1] for it in kept.payloads if isinstance(it, LogsPrinted)][-1]
    assert (live.stream, live.level) == ("platform", "warning")
    assert "has reached its limit of 100,000 bytes (logs.max_bytes)" in live.text
    reports.printed_err(["Traceback (most recent call last):", "ValueError: no"], rank=0)
    reports.close()
    assert sum(len(encoder.encode(it)) for it in kept.payloads) < 110_000
    assert kept.payloads[0].lines[0].text == "0 0"
    assert kept.payloads[-1].lines[-1].text == "ValueError: no"
    (mark,) = (it for it in kept.payloads if isinstance(it, LogsDropped))
    stored = sum(len(it.lines) for it in kept.payloads if isinstance(it, LogsPrinted))
    assert (mark.reason, mark.lines) == ("quota", 50_000 + 3 - stored)
    assert kept.payloads.index(mark) not in {0, len(kept.payloads) - 1}
    assert {it.keep_days for it in kept.payloads} == {7}


async def test_lines_that_came_too_fast_follow_by_themselves(kept: Any) -> None:
    """Nobody has to print more for that."""
    reports = Reports(kept, spec_of({}), 1 << 30)
    for number in range(900):
        reports.printed_out([f"{number} {'x' * 60_000}"], rank=0)
    async with asyncio.timeout(10):
        while not any(isinstance(it, LogsDropped) for it in kept.payloads):  # noqa: ASYNC110 - a timer
            await asyncio.sleep(0.05)
        while kept.payloads[-1].lines[-1].text[:3] != "899":  # noqa: ASYNC110 - a timer
            await asyncio.sleep(0.05)
    reports.close()
