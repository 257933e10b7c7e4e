"""What a run says, in batches that every ledger takes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.outbox.outbox_file import Change, MessagesTaken
from rung.core.ipc.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogsDropped, LogsPrinted, MetricsReported
from rung.events.trial import LogMatched, MetricValue, RunSpec, TrialRestored

KAFKAS_OWN = 1 << 20
"""What a topic of Kafka's takes where nothing else was asked for; the envelope comes on top."""


class Kept:
    """Keeps what a outbox would."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []
        self.changes: list[tuple[list[Payload], list[Change]]] = []
        """Of each transaction."""

    def put(self, *payloads: Payload, changes: Sequence[Change] = ()) -> None:
        """Keep facts, and what is written with them."""
        self.payloads += payloads
        self.changes.append((list(payloads), list(changes)))


@pytest.fixture
def kept() -> Kept:
    """Give a outbox's stand-in."""
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
def event_buffer(kept: Any) -> EventBuffer:
    """Give the reports of a run."""
    return EventBuffer(kept, spec_of({}))


async def test_large_metrics_go_in_several_batches(event_buffer: EventBuffer, kept: Kept) -> None:
    """Whatever letters their names have, no batch is larger than a topic takes, none is lost."""
    values: dict[str, MetricValue] = {
        f"\N{SNOWMAN}\x01{number:05}": 1.0 for number in range(10_000)
    }
    for step in range(6):
        event_buffer.reported(Reported("training", step, 1, values))
    event_buffer.close()
    batches = [it for it in kept.payloads if isinstance(it, MetricsReported)]
    assert len(kept.payloads) == len(batches) > 1
    assert [row.step for batch in batches for row in batch.rows] == list(range(6))
    assert max(len(encoder.encode(batch)) for batch in batches) < KAFKAS_OWN - 1000


@pytest.mark.parametrize("text", ["\x00" * 60_000, "\N{SNOWMAN}" * 20_000, "x"])
async def test_large_lines_go_in_several_batches(
    event_buffer: EventBuffer, kept: Kept, text: str
) -> None:
    """Whatever is printed, no batch of lines is larger than a topic takes, none is lost."""
    event_buffer.printed_out([text] * 40, rank=0)
    event_buffer.close()
    batches = [it for it in kept.payloads if isinstance(it, LogsPrinted)]
    assert [line.text for batch in batches for line in batch.lines] == [text] * 40
    assert max(len(encoder.encode(batch)) for batch in batches) < KAFKAS_OWN - 1000


async def test_what_is_printed_on_stderr_is_no_warning(
    event_buffer: EventBuffer, kept: Kept
) -> None:
    """Progress bars and most loggers write to stderr; a warning says that it is one."""
    event_buffer.printed_err([" 50%|#####     | 5/10", "INFO: begins"], rank=0)
    event_buffer.printed_err(["x.py:1: UserWarning: old"], rank=0)
    event_buffer.close()
    levels = [
        line.level for it in kept.payloads if isinstance(it, LogsPrinted) for line in it.lines
    ]
    assert levels == ["info", "info", "warning"]


async def test_the_largest_report_fits(event_buffer: EventBuffer, kept: Kept) -> None:
    """A batch of one report that is as large as it may be is no larger than a topic takes."""
    name = "x" * (REPORT_BYTES_MAX - 100)
    for step in range(2):
        event_buffer.reported(Reported("training", step, 1, {name: 1.0}))
    event_buffer.close()
    assert len(kept.payloads) == 2
    assert max(len(encoder.encode(batch)) for batch in kept.payloads) < KAFKAS_OWN - 1000


async def test_a_log_has_its_beginning_a_mark_and_its_end(kept: Any) -> None:
    """A run that prints without end stores what it may, says so at once, and how it ended."""
    event_buffer = EventBuffer(kept, spec_of({"logs": {"keep_days": 7}}), 100_000)
    for number in range(50):
        event_buffer.printed_out([f"{number} {line}" for line in range(1000)], rank=0)
    event_buffer.flush()
    live = [it.lines[-1] for it in kept.payloads if isinstance(it, LogsPrinted)][-1]
    assert (live.stream, live.level) == ("platform", "warning")
    assert "has reached its limit of 100,000 bytes (logs.max_bytes)" in live.text
    event_buffer.printed_err(["Traceback (most recent call last):", "ValueError: no"], rank=0)
    event_buffer.close()
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
    event_buffer = EventBuffer(kept, spec_of({}), 1 << 30)
    for number in range(900):
        event_buffer.printed_out([f"{number} {'x' * 60_000}"], rank=0)
    async with asyncio.timeout(10):
        while not any(isinstance(it, LogsDropped) for it in kept.payloads):  # noqa: ASYNC110 - a timer
            await asyncio.sleep(0.05)
        while kept.payloads[-1].lines[-1].text[:3] != "899":  # noqa: ASYNC110 - a timer
            await asyncio.sleep(0.05)
    event_buffer.close()


async def test_the_number_of_a_message_is_written_with_its_fact(
    event_buffer: EventBuffer, kept: Kept
) -> None:
    """A message's number is in the transaction of what it means, and in none before that."""
    report = Reported("training", 1, 1, {"loss": 1.0})
    restored = TrialRestored(
        experiment_id="e", trial_id="e.0", run=1, checkpoint_id="e.0.0.1", steps_completed=1
    )
    event_buffer.reported(report)
    event_buffer.take({"s": 1})
    event_buffer.reported(report)
    event_buffer.put(restored, {"s": 2})
    event_buffer.take({"s": 2})
    event_buffer.reported(report)
    event_buffer.take({"s": 3})
    event_buffer.close()
    assert [([type(each) for each in facts], changes) for facts, changes in kept.changes] == [
        ([MetricsReported, TrialRestored], [MessagesTaken("s", "e.0.1", 2)]),
        ([MetricsReported], [MessagesTaken("s", "e.0.1", 3)]),
    ]


async def test_matched_policies_are_reported_before_the_line(kept: Any) -> None:
    """The searcher knows of a match before it learns that the run has ended."""
    kept.agent_id = "node-a"
    config = {"log_policies": [{"name": "oom", "pattern": "memory", "action": "cancel_retries"}]}
    buffer = EventBuffer(kept, spec_of(config))

    buffer.printed_err(["fine", "CUDA out of memory" + "x" * 2000, "no memory"], 3)
    buffer.close()

    matched, printed = kept.payloads
    assert isinstance(matched, LogMatched)
    assert isinstance(printed, LogsPrinted)
    assert (matched.policy, matched.action) == ("oom", "cancel_retries")
    assert (matched.agent_id, matched.rank) == ("node-a", 3)
    assert len(matched.line) == 1024
    assert len(printed.lines) == 3
