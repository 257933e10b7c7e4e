"""Streams without decisions: metrics, logs, heartbeats, dead letters."""

from typing import ClassVar, Literal

from msgspec import Struct

from rung.events import topic
from rung.events.trial import MetricValue


class MetricRow(Struct, frozen=True, kw_only=True):
    """One report: all values that a script gave at one step."""

    kind: str
    """`training`, `validation`, or a group of the script's own."""
    step: int
    """Batches completed since the trial's beginning."""
    time_ms: int
    """When it was reported, Unix time in milliseconds."""
    values: dict[str, MetricValue]


class MetricsReported(Struct, frozen=True, kw_only=True):
    """A batch of reports of one run, in the order in which the script gave them."""

    TYPE: ClassVar[str] = "rung.metrics.reported.v1"
    TOPIC: ClassVar[str] = topic.METRICS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("metrics", "gateway")

    experiment_id: str
    trial_id: str
    run: int
    rows: list[MetricRow]


class LogLine(Struct, frozen=True, kw_only=True):
    """One line that a trial printed."""

    rank: int
    stream: Literal["stdout", "stderr", "platform"]
    level: Literal["debug", "info", "warning", "error", "critical"]
    time_ms: int
    text: str


class LogsPrinted(Struct, frozen=True, kw_only=True):
    """A batch of lines that a run printed, in order."""

    TYPE: ClassVar[str] = "rung.logs.printed.v1"
    TOPIC: ClassVar[str] = topic.LOGS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("metrics", "gateway")

    experiment_id: str
    trial_id: str
    run: int
    lines: list[LogLine]


class AgentBeat(Struct, frozen=True, kw_only=True):
    """An agent is alive."""

    TYPE: ClassVar[str] = "rung.agent.beat.v1"
    TOPIC: ClassVar[str] = topic.HEARTBEATS
    WRITER: ClassVar[str] = "agent"
    READERS: ClassVar[tuple[str, ...]] = ("scheduler", "gateway")

    pool: str
    agent_id: str
    incarnation: int
    allocations: list[str]


class MessageRejected(Struct, frozen=True, kw_only=True):
    """A message that a reader could not fold; it stopped nothing else."""

    TYPE: ClassVar[str] = "rung.message.rejected.v1"
    TOPIC: ClassVar[str] = topic.DEADLETTER
    WRITER: ClassVar[str] = "host"
    READERS: ClassVar[tuple[str, ...]] = ("gateway",)

    topic: str
    partition: int
    position: int
    key: str
    reader: str
    reason: str
    value: str
    """The message as text, undecodable bytes replaced."""
