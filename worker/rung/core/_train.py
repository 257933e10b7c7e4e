"""Reporting: `ctx.train`."""

import enum
import math
import operator
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, SupportsFloat

import msgspec

from rung.cache.log import log
from rung.core._agent_connection import Connection
from rung.core._tensorboard import TensorboardFiles
from rung.core.errors import MetricMissing, ReportRefused
from rung.core.ipc.protocol import (
    METADATA_BYTES_MAX,
    STATUS_CHARACTERS_MAX,
    Heartbeat,
    HparamsRefused,
    MetadataSet,
    ProgressReported,
    Reported,
    StatusSet,
    encoder,
)
from rung.events.trial import MetricValue, RunSpec

_HEARTBEAT_S: Final = 1.0
"""Minimum interval between two heartbeats to the agent."""
_ANSWER_S: Final = 60.0
_ANSWER_S_MAX: Final = 3600.0
_STEPS_MAX: Final = 2**63 - 1
"""Databases hold whole numbers up to this."""


COUNTED: Final = ("batches", "epochs", "records", "steps")
"""Time metrics for which `steps_completed` is used where a validation lacks them."""


class EarlyExitReason(enum.Enum):
    """Why a script ends early."""

    INVALID_HP = "the script refused its hyperparameters"


class TargetLength:
    """The run's length, and the metrics that a validation must contain."""

    def __init__(self, spec: RunSpec, *, tells: bool = True) -> None:
        """Take length and metrics from a run's specification.

        Args:
            spec: of the run.
            tells: whether this process logs a warning about a doubtful time.
        """
        searcher = spec.config.get("searcher") or {}
        self._metric: str | None = searcher.get("metric")
        self._time_metric = spec.time_metric
        self._length = spec.length
        self._tells = tells
        self.reached = False
        """Whether a validation was reported at or beyond the run's length."""

    def check(self, steps: int, values: Mapping[str, MetricValue]) -> None:
        """Check a validation, and whether it reaches the length.

        Raises:
            MetricMissing: the searcher's metric or the time metric is missing.
            ReportRefused: the time is not a finite number.
        """
        if self._metric is not None and self._metric not in values:
            raise MetricMissing(_missing("searcher.metric", self._metric, values))
        time = self._time(steps, values)
        if self._length is not None and time >= self._length:
            self.reached = True

    def _time(self, steps: int, values: Mapping[str, MetricValue]) -> float:
        value = values.get(self._time_metric)
        if value is None:
            if self._time_metric in COUNTED:
                self._warn_if_doubtful(steps)
                return steps
            raise MetricMissing(_missing("searcher.time_metric", self._time_metric, values))
        time = plain_number(value)
        if not math.isfinite(time):
            raise ReportRefused(
                f"validation metric {self._time_metric!r} is the search's time_metric and must "
                f"be a finite number, not {value}"
            )
        return time

    def _warn_if_doubtful(self, steps: int) -> None:
        """Log once that steps are used for a time metric that probably differs from them.

        A script may count epochs as its steps; then it never validates beyond its length.
        """
        name, length = self._time_metric, self._length
        if length is None or not self._tells:
            return
        if name == "records" or (name == "epochs" and steps > length):
            self._tells = False
            log().warning(
                f"the validation at steps_completed={steps} has no metric {name!r}, so it counts"
                f" as {steps} {name} of {length}; if a step is something else, report {name!r}"
                " with each validation"
            )


class TrainContext:
    """Reports the metrics of a run.

    Every call returns within microseconds, but for `get_experiment_best_validation`.
    """

    def __init__(  # noqa: PLR0913 - most have a default
        self,
        connection: Connection,
        target: TargetLength,
        *,
        reports: bool = True,
        metadata: dict[str, Any] | None = None,
        tensorboard: TensorboardFiles | None = None,
        rank: int = 0,
    ) -> None:
        """Report the metrics of a run.

        Args:
            connection: to the agent.
            target: the run's length.
            reports: whether reports of this process are sent: those of the chief are.
            metadata: the trial's metadata, from earlier runs.
            tensorboard: the trial's files for TensorBoard.
            rank: of this process.
        """
        self._connection = connection
        self._target = target
        self._reports = reports
        self._metadata = metadata
        self._tensorboard = tensorboard or TensorboardFiles("", managed=True)
        self._rank = rank
        self._heartbeat_at = time.monotonic() + _HEARTBEAT_S

    def report_training_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of the training set at a step.

        Raises:
            ReportRefused: a value is not a number; the message names it.
        """
        self.report_metrics("training", steps_completed, metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of the validation set, on which the search decides.

        They must contain the searcher's metric and its time_metric. Where the latter is `batches`,
        `epochs` or `records` and is missing, steps_completed is used: a script whose steps are
        epochs need not report `epochs`, one whose steps are batches must.

        Raises:
            MetricMissing: the searcher's metric or its time metric is missing.
            ReportRefused: a value is not a number.
        """
        self.report_metrics("validation", steps_completed, metrics)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group, such as `test`.

        Raises:
            ReportRefused: a value is not a number, the message names it; or the report is larger
                than 512 KiB.
        """
        step = step_number(steps_completed)
        values = wire_values(metrics)
        if group == "validation":
            self._target.check(step, values)
        if self._reports:
            self._connection.send(Reported(group, step, time.time_ns() // 1_000_000, values))

    def report_progress(self, progress: float) -> None:
        """Report the progress of the trial, from 0 to 1; it is shown beside the trial.

        Raises:
            ReportRefused: it is not a number from 0 to 1.
        """
        value = wire_values({"progress": progress})["progress"]
        if isinstance(value, str) or not 0 <= value <= 1:
            raise ReportRefused(f"progress must be between 0 and 1, not {progress}")
        if self._reports:
            self._connection.send(ProgressReported(float(value)))

    def set_status(self, status: str) -> None:
        """Set a short text about the trial's current activity; shown until the next call.

        Raises:
            ReportRefused: it has more than 1000 characters.
        """
        text = str(status)
        if len(text) > STATUS_CHARACTERS_MAX:
            raise ReportRefused(
                f"a status of {len(text)} characters; at most {STATUS_CHARACTERS_MAX} are shown"
            )
        if self._reports:
            self._connection.send(StatusSet(text))

    def set_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the trial's metadata; return them as they are stored.

        Raises:
            ReportRefused: they cannot be encoded as JSON, or are larger than 64 KiB.
        """
        try:
            data = encoder.encode(dict(metadata))
            kept: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        except (TypeError, ValueError) as error:
            raise ReportRefused(f"the metadata cannot be encoded as JSON: {error}") from error
        if len(data) > METADATA_BYTES_MAX:
            raise ReportRefused(
                f"metadata of {len(data)} bytes, more than {METADATA_BYTES_MAX}; keep larger ones"
                " in a file of the checkpoint"
            )
        self._metadata = kept
        if self._reports:
            self._connection.send(MetadataSet(kept))
        return kept

    def get_metadata(self) -> dict[str, Any] | None:
        """Return the trial's metadata, including those of earlier runs; None: there are none.

        Only the chief's are stored.
        """
        return self._metadata

    def get_experiment_best_validation(self, timeout_s: float = _ANSWER_S) -> float | None:
        """Return the best validation of the whole experiment so far, by the searcher's metric.

        It is what is on record when it is asked for, including what this process has reported
        before; the smallest finite value, or the largest where `smaller_is_better` is false. None
        before the first one, and in an unmanaged run. Another trial may validate at any time, so a
        repeated or resumed run may get another value: what a run is to do again exactly must not
        depend on it, unless the script keeps it in its checkpoints.

        Waits for the agent: milliseconds, longer where an experiment has run for long.

        Args:
            timeout_s: how long to wait, at most an hour.

        Raises:
            NoAnswer: the agent could not answer in time, such as while the ledger is away.
            RuntimeError: this process is not rank 0.
            ValueError: `timeout_s` is out of range.
        """
        if not 0 < timeout_s <= _ANSWER_S_MAX:
            raise ValueError(f"timeout_s is {timeout_s}: give 0 to {_ANSWER_S_MAX:g} seconds")
        if not self._reports:
            raise RuntimeError(
                f"rank {self._rank} asked for the experiment's best validation: let rank 0 ask, "
                "and give it to the others with `distributed.broadcast`"
            )
        return self._connection.best_validation(timeout_s)

    def get_tensorboard_path(self) -> Path:
        """Return the folder for files that TensorBoard is to show; it is created if need be.

        The files are part of every checkpoint that the chief stores from a folder, and
        `rung tensorboard` shows them.
        """
        return self._tensorboard.path()

    def upload_tensorboard_files(
        self,
        selector: Callable[[Path], bool] = lambda _: True,
        mangler: Callable[[Path, int], Path] = lambda path, _: path,
    ) -> None:
        """Select files of the folder to store with the trial's next and all later checkpoints.

        Without any call all files are. With several ranks, only those on the chief's agent count.

        Args:
            selector: takes a path; returns whether to store the file.
            mangler: takes the name within the folder and this rank; returns the name to store.
        """
        self._tensorboard.select(selector, mangler, self._rank)

    def heartbeat(self) -> None:
        """Report that the script makes progress; may be called as often as you like.

        Needed where the experiment file has a `hang_timeout`: a run that reports nothing for that
        long is killed as hanging. Other reports and checkpoints count as well.
        """
        now = time.monotonic()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + _HEARTBEAT_S
            self._connection.send(Heartbeat())

    def report_early_exit(self, reason: EarlyExitReason | str) -> None:
        """Report that the script cannot train with these hyperparameters; exit soon after.

        Args:
            reason: `EarlyExitReason.INVALID_HP`, or a text about what is wrong with them.
        """
        text = reason.value if isinstance(reason, EarlyExitReason) else reason
        self._connection.send(HparamsRefused(text))


def _missing(field: str, name: str, values: Mapping[str, MetricValue]) -> str:
    given = ", ".join(repr(key) for key in sorted(values)) or "none"
    return (
        f"the validation metrics lack {name!r}, which the experiment file names as {field}; "
        f"given: {given}"
    )


def wire_values(metrics: Mapping[str, Any]) -> dict[str, MetricValue]:
    """Return the metrics as JSON values; numbers that are not finite become strings.

    Python, NumPy and torch scalars are numbers, a tensor with a single element too.

    Raises:
        ReportRefused: a name is not a string, or a value is not a number; the message names it.
            Or `metrics` is not a mapping.
    """
    if type(metrics) is not dict and not isinstance(metrics, Mapping):
        raise ReportRefused(
            f"metrics must be a mapping, such as {{'loss': 0.1}}, not {metrics!r:.60}"
        )
    values: dict[str, MetricValue] = {}
    for name, value in metrics.items():
        if type(name) is not str or not name:
            raise ReportRefused(f"metric {name!r}: names are strings, such as 'loss'")
        number = value if type(value) is float else _number(name, value)
        values[name] = number if math.isfinite(number) else _word(number)
    return values


def plain_number(value: MetricValue) -> float:
    """Return the number of a wire value; `float` parses the three strings."""
    return float(value)


def step_number(steps_completed: Any) -> int:
    """Return a report's step.

    Raises:
        ReportRefused: it is not a whole number, is negative, or needs more than 64 bits.
    """
    try:
        step = operator.index(steps_completed)
    except TypeError as error:
        raise ReportRefused(
            f"steps_completed={steps_completed!r}: must be a whole number, "
            f"not {type(steps_completed).__name__}"
        ) from error
    if step < 0:
        raise ReportRefused(f"steps_completed={step}: must not be negative")
    if step > _STEPS_MAX:
        raise ReportRefused(f"steps_completed={step}: must be less than 2**63")
    return step


def _number(name: str, value: Any) -> float:
    scalar = value
    if not isinstance(value, int | float) and hasattr(value, "item"):
        try:
            scalar = value.item()
        except (ValueError, RuntimeError) as error:
            raise ReportRefused(
                f"metric {name!r}: has {getattr(value, 'shape', 'several')} elements; "
                "reduce it to one number, such as its mean"
            ) from error
    if isinstance(scalar, str | bytes) or not isinstance(scalar, SupportsFloat):
        hint = " (flatten it: one name for each number)" if isinstance(scalar, Mapping) else ""
        raise ReportRefused(
            f"metric {name!r}: must be a number, not {type(value).__name__} "
            f"({str(value)[:40]!r}){hint}"
        )
    try:
        return float(scalar)
    except OverflowError:
        return math.inf if scalar > 0 else -math.inf  # type: ignore[operator]  # an int too large


def _word(number: float) -> MetricValue:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"
