"""What a run says, in batches that every ledger takes."""

from typing import Any

import pytest

from rung.agent.reports import Reports
from rung.core.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogsPrinted, MetricsReported
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


@pytest.fixture
def reports(kept: Any) -> Reports:
    """Give the reports of a run."""
    spec = RunSpec(
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
        config={},
    )
    return Reports(kept, spec)


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
