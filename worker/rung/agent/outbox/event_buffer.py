"""Event buffer: collects the reports and log lines of one run into batches for the outbox.

Metrics that were reported before a checkpoint enter the outbox before it: if the agent died
between the two, the run would resume from the checkpoint and not report them again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import structs

from rung.agent.logs.line_splitter import Level, Severity
from rung.agent.logs.masking import Masked
from rung.agent.logs.policy_match import SHARE, PolicyMatch
from rung.agent.logs.quota import MAX_BYTES, LogQuota, Missing
from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Change, MessagesTaken
from rung.core.ipc.protocol import REPORT_BYTES_MAX, Reported, encoder
from rung.events import Payload
from rung.events.metric import LogLine, LogsDropped, LogsPrinted, MetricRow, MetricsReported
from rung.events.trial import LogMatched, RunSpec, allocation_id_of

_DELAY_S: Final = 0.2
_ROWS_MAX: Final = 1000
_LINES_MAX: Final = 1000
_BYTES_MAX: Final = REPORT_BYTES_MAX
"""Limit of a batch, unless one report is larger; below Kafka's default limit of 1 MiB."""
_LAST_LINES: Final = 60
_MATCHED_CHARACTERS: Final = 1024


class EventBuffer:
    """Collects the reports of one run."""

    def __init__(
        self,
        outbox: Outbox,
        spec: RunSpec,
        log_bytes: int = MAX_BYTES,
        masked: Masked | None = None,
    ) -> None:
        """Begin the reports of a run.

        Args:
            outbox: of the agent.
            spec: of the run.
            log_bytes: limit of the run's log.
            masked: replaces the run's secrets in its log.
        """
        self._masked = masked or Masked()
        self._outbox = outbox
        self._spec = spec
        self._log_bytes = log_bytes
        self._quota = LogQuota(log_bytes)
        self._full_noted = False
        self._policies = PolicyMatch(spec.config)
        self._told_passed_over = False
        self._keep_days: int = (spec.config.get("logs") or {}).get("keep_days") or 0
        self._taken: dict[str, int] = {}
        """Stream → the number of the last message that took effect."""
        self._noted: dict[str, int] = {}
        """The part of that which is in the outbox."""
        self._rows: list[MetricRow] = []
        self._rows_bytes = 0
        self._lines: list[LogLine] = []
        self._lines_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stdout: dict[int, Severity] = {}
        self._stderr: dict[int, Severity] = {}
        self._last_lines: dict[int, deque[str]] = {}

    def put(
        self,
        payload: Payload,
        taken: Mapping[str, int] | None = None,
        changes: Sequence[Change] = (),
    ) -> None:
        """Put a fact into the outbox, in one transaction with the metrics before it.

        Args:
            payload: the fact.
            taken: the stream and number of the message that reported it.
            changes: further changes of that transaction.
        """
        self._taken |= taken or {}
        self._put(*self._metrics(), payload, changes=changes)

    def save(self, changes: Sequence[Change], taken: Mapping[str, int]) -> None:
        """Put changes into the outbox, in one transaction with the message that they follow from.

        Args:
            changes: what to save.
            taken: the stream and number of the message.
        """
        self._taken |= taken
        self._put(*self._metrics(), changes=changes)

    async def written(self) -> None:
        """Return when everything that was flushed so far is on disk."""
        await self._outbox.written()

    def take(self, taken: Mapping[str, int]) -> None:
        """Note that a stream's messages up to a number are in the outbox or here."""
        if any(self._noted.get(stream) != number for stream, number in taken.items()):
            self._taken |= taken

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

    def error_line(self, rank: int) -> str:
        """Return the last line of a process's traceback, or else of its stderr."""
        stderr = self._stderr.get(rank)
        return (stderr.exception or stderr.last) if stderr else ""

    def exception(self, rank: int) -> str:
        """Return the last line of a process's traceback, empty if it printed none."""
        stderr = self._stderr.get(rank)
        return stderr.exception if stderr else ""

    def last_lines(self, rank: int) -> list[str]:
        """Return the last lines of a process's stderr."""
        return list(self._last_lines.get(rank, ()))

    @property
    def saturated(self) -> bool:
        """Whether output should not be read for now; output that is dropped always is."""
        return self._outbox.saturated and not self._quota.dropping

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the outbox is not saturated."""
        self._outbox.when_room(callback)

    def printed_out(self, lines: list[str], rank: int) -> None:
        """Take lines of stdout."""
        lines = self._masked.lines(lines)
        self._printed(lines, rank, "stdout", self._stdout.setdefault(rank, Severity()))

    def printed_err(self, lines: list[str], rank: int) -> None:
        """Take lines of stderr."""
        lines = self._masked.lines(lines)
        self._last_lines.setdefault(rank, deque(maxlen=_LAST_LINES)).extend(lines)
        self._printed(lines, rank, "stderr", self._stderr.setdefault(rank, Severity()))

    def note(self, level: Level, text: str, rank: int) -> None:
        """Add a line of the platform to the log."""
        now = time.time_ns() // 1_000_000
        text = self._masked.text(text)
        self._take([LogLine(rank=rank, stream="platform", level=level, time_ms=now, text=text)])

    def flush(self) -> None:
        """Put everything into the outbox, except lines that the log's quota holds back."""
        self._timer = None
        self._store(self._quota.due(time.monotonic()))
        self._flush_metrics()
        self._flush_lines()
        if self._quota.holding:
            self._flush_soon()

    def close(self) -> None:
        """Put everything into the outbox, including the lines that the quota held back."""
        self._store(self._quota.end())
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def _printed(
        self, texts: list[str], rank: int, stream: Literal["stdout", "stderr"], severity: Severity
    ) -> None:
        self._match(texts, rank)
        now = time.time_ns() // 1_000_000
        for start in range(0, len(texts), _LINES_MAX):
            block = texts[start : start + _LINES_MAX]
            self._take(
                [
                    LogLine(rank=rank, stream=stream, level=level, time_ms=now, text=text)
                    for text, level in zip(block, severity.of_lines(block), strict=True)
                ]
            )

    def _match(self, texts: list[str], rank: int) -> None:
        """Report the log policies that the lines match, before the run's end can be reported."""
        spec = self._spec
        for policy, line in self._policies.matches(texts):
            matched = LogMatched(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                agent_id=self._outbox.agent_id,
                policy=policy.name,
                action=policy.action,
                rank=rank,
                line=line[:_MATCHED_CHARACTERS],
            )
            self._outbox.put(matched)
        if self._policies.passed_over and not self._told_passed_over:
            self._told_passed_over = True
            text = (
                f"looking for log_policies takes more than {SHARE:.0%} of the time: some lines "
                "are passed over; simpler patterns, or fewer, take less"
            )
            self.note("warning", text, rank)

    def _take(self, lines: list[LogLine]) -> None:
        self._store(self._quota.take(lines, time.monotonic()))
        if self._quota.holding:
            self._flush_soon()
        if self._quota.full and not self._full_noted:
            self._full_noted = True
            self._stored(self._full(lines[-1]))

    def _store(self, parts: Sequence[LogLine | Missing]) -> None:
        for part in parts:
            if isinstance(part, LogLine):
                self._stored(part)
                continue
            self._flush_lines()
            spec = self._spec
            self._outbox.put(
                LogsDropped(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    keep_days=self._keep_days,
                    **part._asdict(),
                )
            )

    def _full(self, line: LogLine) -> LogLine:
        """Return the line that tells users who follow the log that it is full."""
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
        if self._rows or self._taken:
            self._put(*self._metrics())

    def _metrics(self) -> list[MetricsReported]:
        """Return the collected metrics, as a fact, if there are any."""
        if not self._rows:
            return []
        rows, self._rows, self._rows_bytes = self._rows, [], 0
        spec = self._spec
        return [
            MetricsReported(
                experiment_id=spec.experiment_id,
                trial_id=spec.trial_id,
                run=spec.run,
                rows=rows,
            )
        ]

    def _put(self, *facts: Payload, changes: Sequence[Change] = ()) -> None:
        """Put facts into the outbox, with the numbers of the messages that reported them."""
        taken, self._taken = self._taken, {}
        self._noted |= taken
        name = allocation_id_of(self._spec.trial_id, self._spec.run)
        numbers = [MessagesTaken(stream, name, number) for stream, number in taken.items()]
        self._outbox.put(*facts, changes=[*changes, *numbers])

    def _flush_lines(self) -> None:
        if self._lines:
            lines, self._lines, self._lines_bytes = self._lines, [], 0
            spec = self._spec
            self._outbox.put(
                LogsPrinted(
                    experiment_id=spec.experiment_id,
                    trial_id=spec.trial_id,
                    run=spec.run,
                    lines=lines,
                    keep_days=self._keep_days,
                )
            )
