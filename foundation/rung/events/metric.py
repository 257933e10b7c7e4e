"""Streams without decisions: metrics, logs, heartbeats."""

from typing import ClassVar, Final, Literal

from msgspec import Struct

from rung.events import topic
from rung.events.trial import MetricValue, RunReport


class MetricRow(Struct, frozen=True, kw_only=True):
    """One report: all values that a script gave at one step."""

    kind: str
    """`training`, `validation`, or a group of the script's own."""
    step: int
    """Batches completed since the trial's beginning."""
    time_ms: int
    """Unix time in milliseconds."""
    values: dict[str, MetricValue]


class MetricsReported(RunReport, frozen=True, kw_only=True):
    """A batch of reports of one run, in the order in which the script gave them."""

    TYPE: ClassVar[str] = "rung.metrics.reported.v1"
    TOPIC: ClassVar[str] = topic.METRICS
    READERS: ClassVar[tuple[str, ...]] = ("metrics", "gateway")

    rows: list[MetricRow]


class MetricsDeleted(Struct, frozen=True, kw_only=True):
    """The metrics of a trial of a deleted experiment are deleted.

    It follows the reports that it is about, in their partition.
    """

    TYPE: ClassVar[str] = "rung.metrics.deleted.v1"
    TOPIC: ClassVar[str] = topic.METRICS
    WRITER: ClassVar[str] = "checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("metrics",)

    experiment_id: str
    trial_id: str


class LogLine(Struct, frozen=True, kw_only=True):
    """One line that a trial printed."""

    rank: int
    stream: Literal["stdout", "stderr", "platform"]
    level: Literal["debug", "info", "warning", "error", "critical"]
    time_ms: int
    text: str


class LogsPrinted(RunReport, frozen=True, kw_only=True):
    """A batch of lines that a run printed, in order."""

    TYPE: ClassVar[str] = "rung.logs.printed.v1"
    TOPIC: ClassVar[str] = topic.LOGS
    READERS: ClassVar[tuple[str, ...]] = ("metrics", "gateway", "webhooks")

    lines: list[LogLine]
    keep_days: int = 0
    """The experiment's `logs.keep_days`; 0: as long as the installation keeps lines."""


class LogsDropped(RunReport, frozen=True, kw_only=True):
    """Lines of a run are missing at this place of its log."""

    TYPE: ClassVar[str] = "rung.logs.dropped.v1"
    TOPIC: ClassVar[str] = topic.LOGS
    READERS: ClassVar[tuple[str, ...]] = ("metrics", "gateway")

    rank: int
    reason: Literal["quota", "rate", "killed"]
    """quota: the log reached `logs.max_bytes`; rate: the run printed faster than lines are stored;
    killed: the agent was killed before it stored them."""
    time_ms: int
    """When the first of them was printed, Unix time in milliseconds."""
    lines: int
    """How many; 0 where that is not known."""
    size_bytes: int
    """Of them as they would have been stored."""
    keep_days: int = 0


EVER_MS: Final = 2**53 - 1
"""A Unix time, in milliseconds, after which no line is printed; JSON's numbers hold it."""


class LogsDeleted(Struct, frozen=True, kw_only=True):
    """The older lines of a trial were deleted, by a user or by the quota of all logs.

    It follows the lines that it is about, in their partition.
    """

    TYPE: ClassVar[str] = "rung.logs.deleted.v1"
    TOPIC: ClassVar[str] = topic.LOGS
    WRITER: ClassVar[str] = "gateway, metrics, checkpoint-gc"
    READERS: ClassVar[tuple[str, ...]] = ("metrics",)

    experiment_id: str
    trial_id: str
    before_ms: int
    """Lines printed before this Unix time, in milliseconds, are deleted."""
    lines: int
    """How many there were; 0 where their experiment was deleted."""
    size_bytes: int
    """Of their text."""


def deleted_text(event: LogsDeleted) -> str:
    """Return the line shown in a log in place of deleted lines."""
    return f"{_count(event)} deleted before this, by `rung gc logs` or the quota of all logs"


def missing_text(event: LogsDropped) -> str:
    """Return the line shown in a log where lines are missing."""
    count = _count(event)
    match event.reason:
        case "quota":
            return f"{count} dropped here: the run's log has reached its limit, logs.max_bytes"
        case "rate":
            return f"{count} dropped here: the run printed faster than lines are stored"
        case "killed":
            return "lines may be missing here: the agent was killed"


class AgentBeat(Struct, frozen=True, kw_only=True):
    """A heartbeat of an agent."""

    TYPE: ClassVar[str] = "rung.agent.beat.v1"
    TOPIC: ClassVar[str] = topic.HEARTBEATS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    agent_id: str
    incarnation: int
    allocations: list[str]


def _count(event: LogsDropped | LogsDeleted) -> str:
    return f"{event.lines:,} line{'' if event.lines == 1 else 's'} ({event.size_bytes:,} bytes)"
