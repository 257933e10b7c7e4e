"""What one run says, on its way into the spool: in batches, facts at once.

Metrics that were reported before a checkpoint are in the spool before it: should the agent die
between the two, the run starts from the checkpoint and will not report them again.
"""

import asyncio
import time
from collections import deque
from typing import Final

from rung.agent.lines import Level, Severity
from rung.agent.spool import Spool
from rung.core.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogLine, LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import RunSpec

_DELAY_S: Final = 0.2
_ROWS_MAX: Final = 1000
_LINES_MAX: Final = 1000
_BYTES_MAX: Final = REPORT_BYTES_MAX
"""Of a batch, unless one report is more; so a topic that takes Kafka's own 1 MiB takes it."""
_LAST_LINES: Final = 60


class Reports:
    """Collects the reports of one run."""

    def __init__(self, spool: Spool, spec: RunSpec) -> None:
        self._spool = spool
        self._spec = spec
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

    def printed_out(self, lines: list[str], rank: int) -> None:
        """Take lines of stdout."""
        now = time.time_ns() // 1_000_000
        severity = self._stdout.setdefault(rank, Severity("info"))
        for line in lines:
            level = severity.of(line)
            self._line(LogLine(rank=rank, stream="stdout", level=level, time_ms=now, text=line))

    def printed_err(self, lines: list[str], rank: int) -> None:
        """Take lines of stderr."""
        now = time.time_ns() // 1_000_000
        severity = self._stderr.setdefault(rank, Severity("warning"))
        self._last_lines.setdefault(rank, deque(maxlen=_LAST_LINES)).extend(lines)
        for line in lines:
            level = severity.of(line)
            self._line(LogLine(rank=rank, stream="stderr", level=level, time_ms=now, text=line))

    def note(self, level: Level, text: str, rank: int) -> None:
        """Add a line of the platform's own."""
        now = time.time_ns() // 1_000_000
        self._line(LogLine(rank=rank, stream="platform", level=level, time_ms=now, text=text))

    def flush(self) -> None:
        """Put everything into the spool."""
        self._timer = None
        self._flush_metrics()
        self._flush_lines()

    def close(self) -> None:
        """Put everything into the spool, for good."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()

    def _line(self, line: LogLine) -> None:
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
                )
            )
