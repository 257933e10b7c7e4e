"""What one run says, on its way into the spool: in batches, facts at once.

Metrics that were reported before a checkpoint are in the spool before it: should the agent die
between the two, the run starts from the checkpoint and will not report them again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import structs

from rung.agent.lines import Level, Severity
from rung.agent.log_quota import MAX_BYTES, LogQuota, Missing
from rung.agent.spool import Spool
from rung.core.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogLine, LogsDropped, LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import RunSpec

_DELAY_S: Final = 0.2
_ROWS_MAX: Final = 1000
_LINES_MAX: Final = 1000
_BYTES_MAX: Final = REPORT_BYTES_MAX
"""Of a batch, unless one report is more; so a topic that takes Kafka's own 1 MiB takes it."""
_LAST_LINES: Final = 60


class Reports:
    """Collects the reports of one run."""

    def __init__(self, spool: Spool, spec: RunSpec, log_bytes: int = MAX_BYTES) -> None:
        """Begin the reports of a run.

        Args:
            spool: where they go.
            spec: of the run.
            log_bytes: how much of what it prints is stored.
        """
        self._spool = spool
        self._spec = spec
        self._log_bytes = log_bytes
        self._quota = LogQuota(log_bytes)
        self._told_full = False
        self._keep_days: int = (spec.config.get("logs") or {}).get("keep_days") or 0
        self._rows: list[MetricRow] = []
        self._rows_bytes = 0
        self._lines: list[LogLine] = []
        self._lines_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stdout: dict[int, Severity] = {}
        self._stderr: dict[int, Severity] = {}
        self._last_lines: dict[int, deque[str]] = {}

    def put(self, payload: Payload) -> None:
        """Take a fact; the metrics that came before it go first."""
        self._flush_metrics()
        self._spool.put(payload)

    def reported(self, report: Reported) -> None:
        """Take metrics."""
        row = MetricRow(
            kind=report.kind, step=report.step, time_ms=report.time_ms, values=report.values
        )
        size = len(encoder.encode(row))
        if len(self._rows) >= _ROWS_MAX or self._rows_bytes + size > _BYTES_MAX:
            self._flush_metrics()
        self._rows.append(row)
        self._rows_bytes += size
        self._flush_soon()

    def last_words(self, rank: int) -> str:
        """Return the last line of a process's traceback, or of what it printed as errors."""
        stderr = self._stderr.get(rank)
        return (stderr.exception or stderr.last) if stderr else ""

    def exception(self, rank: int) -> str:
        """Return the last line of a process's traceback, empty if it printed none."""
        stderr = self._stderr.get(rank)
        return stderr.exception if stderr else ""

    def last_lines(self, rank: int) -> list[str]:
        """Return what a process printed to stderr last."""
        return list(self._last_lines.get(rank, ()))

    @property
    def saturated(self) -> bool:
        """Whether what is printed should wait; what will not be stored need not."""
        return self._spool.saturated and not self._quota.dropping

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the spool is not saturated."""
        self._spool.when_room(callback)

    def printed_out(self, lines: list[str], rank: int) -> None:
        """Take lines of stdout."""
        self._printed(lines, rank, "stdout", self._stdout.setdefault(rank, Severity("info")))

    def printed_err(self, lines: list[str], rank: int) -> None:
        """Take lines of stderr."""
        self._last_lines.setdefault(rank, deque(maxlen=_LAST_LINES)).extend(lines)
        self._printed(lines, rank, "stderr", self._stderr.setdefault(rank, Severity("warning")))

    def note(self, level: Level, text: str, rank: int) -> None:
        """Add a line of the platform's own."""
        now = time.time_ns() // 1_000_000
        self._take([LogLine(rank=rank, stream="platform", level=level, time_ms=now, text=text)])

    def flush(self) -> None:
        """Put everything into the spool, but for lines that the log has no room for now."""
        self._timer = None
        self._store(self._quota.due(time.monotonic()))
        self._flush_metrics()
        self._flush_lines()
        if self._quota.holding:
            self._flush_soon()

    def close(self) -> None:
        """Put everything into the spool, for good, also the end of a log that is full."""
        self._store(self._quota.end())
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def _printed(
        self, texts: list[str], rank: int, stream: Literal["stdout", "stderr"], severity: Severity
    ) -> None:
        now = time.time_ns() // 1_000_000
        for start in range(0, len(texts), _LINES_MAX):
            block = texts[start : start + _LINES_MAX]
            self._take(
                [
                    LogLine(rank=rank, stream=stream, level=level, time_ms=now, text=text)
                    for text, level in zip(block, severity.of_lines(block), strict=True)
                ]
            )

    def _take(self, lines: list[LogLine]) -> None:
        self._store(self._quota.take(lines, time.monotonic()))
        if self._quota.holding:
            self._flush_soon()
        if self._quota.full and not self._told_full:
            self._told_full = True
            self._stored(self._full(lines[-1]))

    def _store(self, parts: Sequence[LogLine | Missing]) -> None:
        for part in parts:
            if isinstance(part, LogLine):
                self._stored(part)
                continue
            self._flush_lines()
            spec = self._spec
            self._spool.put(
                LogsDropped(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    keep_days=self._keep_days,
                    **part._asdict(),
                )
            )

    def _full(self, line: LogLine) -> LogLine:
        """Return the line that says that a log is full, for those who follow it."""
        text = (
            f"the log of this run has reached its limit of {self._log_bytes:,} bytes "
            f"(logs.max_bytes): of what follows, the last {self._quota.tail_bytes:,} bytes are "
            "added when the run ends"
        )
        return structs.replace(line, stream="platform", level="warning", text=text)

    def _stored(self, line: LogLine) -> None:
        size = len(encoder.encode(line))
        if len(self._lines) >= _LINES_MAX or self._lines_bytes + size > _BYTES_MAX:
            self._flush_lines()
        self._lines.append(line)
        self._lines_bytes += size
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self.flush)

    def _flush_metrics(self) -> None:
        if self._rows:
            rows, self._rows, self._rows_bytes = self._rows, [], 0
            spec = self._spec
            self._spool.put(
                MetricsReported(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    rows=rows,
                )
            )

    def _flush_lines(self) -> None:
        if self._lines:
            lines, self._lines, self._lines_bytes = self._lines, [], 0
            spec = self._spec
            self._spool.put(
                LogsPrinted(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    lines=lines,
                    keep_days=self._keep_days,
                )
            )
