"""What is asked of the tables; every function blocks and runs on the engine's thread."""

from typing import Final, NamedTuple

from rung.metrics.batch import Batch
from rung.metrics.cursor import FIRST, LineKey, read_cursor, write_cursor
from rung.metrics.engine import Tables
from rung.metrics.native import Column, texts
from rung.metrics.schema import query

Point = tuple[int, float, int]
"""Step, value (may be NaN or infinite), Unix time in milliseconds."""

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_POINTS_MIN: Final = 5
"""First, last, lowest, highest, and one that is not finite."""
_POINTS_MAX: Final = 1_000_000
_LIMIT_MAX: Final = 100_000


class LogEntry(NamedTuple):
    """One line that a trial printed."""

    trial_id: str
    run: int
    rank: int
    stream: str
    level: str
    time_ms: int
    text: str


class LogQuery(NamedTuple):
    """Which lines are wanted, see `SeriesStore.logs`."""

    experiment_id: str | None
    trial_id: str | None
    rank: int | None
    level: str | None
    text: str | None
    since_ms: int | None
    until_ms: int | None
    after: str | None
    limit: int


class _CurveRow(NamedTuple):
    trial_id: str
    step: int
    value: float
    time_ms: int


class _BestRow(NamedTuple):
    trial_id: str
    step: int
    value: float


class _NameRow(NamedTuple):
    kind: str
    name: str


class _PositionRow(NamedTuple):
    topic: str
    partition: int
    position: int


class _LogRow(NamedTuple):
    trial_id: str
    run: int
    rank: int
    stream: str
    level: str
    time_ms: int
    text: str
    sequence: int
    line: int
    origin: str


def write(tables: Tables, batch: Batch) -> None:
    """Insert a batch: its rows, then the positions up to which they were taken."""
    for table, columns in (("metrics", batch.metrics.block()), ("logs", batch.logs.block())):
        if columns:
            tables.insert(table, columns)
    keys = sorted(batch.positions)
    tables.insert(
        "positions",
        [
            texts("topic", [topic for topic, _ in keys]),
            Column("partition", "UInt32", [partition for _, partition in keys]),
            Column("position", "UInt64", [batch.positions[key] for key in keys]),
        ],
    )


def positions(tables: Tables) -> dict[tuple[str, int], int]:
    """Return the position from which on each topic and partition is not stored yet."""
    rows = tables.rows(query("positions"), _PositionRow)
    return {(row.topic, row.partition): row.position for row in rows}


def curves(  # noqa: PLR0913, PLR0917 - what a curve is chosen by
    tables: Tables, experiment_id: str, trial_id: str, kind: str, name: str, points: int
) -> dict[str, list[Point]]:
    """Return a trial's curve, or those of all trials if none is named.

    Raises:
        ValueError: `points` is out of range.
    """
    if not 1 <= points <= _POINTS_MAX:
        raise ValueError(f"points is {points}: give a number from 1 to {_POINTS_MAX}")
    rows = tables.rows(
        query("curves"),
        _CurveRow,
        experiment=experiment_id,
        trial=trial_id,
        kind=kind,
        name=name,
        points=max(points, _POINTS_MIN),
    )
    found: dict[str, list[Point]] = {}
    for row in rows:
        found.setdefault(row.trial_id, []).append(row[1:])
    return {trial: _thin(curve, points) for trial, curve in found.items()}


def best(
    tables: Tables, experiment_id: str, name: str, sign: float
) -> dict[str, tuple[int, float]]:
    """Return each trial's best validation; `sign` is 1 where smaller is better, else -1."""
    rows = tables.rows(query("best"), _BestRow, experiment=experiment_id, name=name, sign=sign)
    return {row.trial_id: (row.step, row.value) for row in rows}


def names(tables: Tables, experiment_id: str) -> list[tuple[str, str]]:
    """Return the kind and name of every metric of an experiment, sorted."""
    rows = tables.rows(query("names"), _NameRow, experiment=experiment_id)
    return [(row.kind, row.name) for row in rows]


def logs(tables: Tables, asked: LogQuery) -> tuple[list[LogEntry], str | None]:
    """Return a page of lines, and where the next one begins.

    Raises:
        ValueError: the level, the cursor or the limit is none.
    """
    severity = _severity(asked.level)
    behind = read_cursor(asked.after) if asked.after else FIRST
    if not 1 <= asked.limit <= _LIMIT_MAX:
        raise ValueError(f"limit is {asked.limit}: give a number from 1 to {_LIMIT_MAX}")
    rows = tables.rows(
        query("logs"),
        _LogRow,
        experiment=asked.experiment_id or experiment_of(asked.trial_id or ""),
        trial=asked.trial_id or "",
        rank=-1 if asked.rank is None else asked.rank,
        level=severity,
        text=asked.text or "",
        since=max(_INT64_MIN if asked.since_ms is None else asked.since_ms, behind.time_ms),
        until=_INT64_MAX if asked.until_ms is None else asked.until_ms,
        after_time=behind.time_ms,
        after_trial=behind.trial_id,
        after_sequence=behind.sequence,
        after_line=behind.line,
        after_origin=behind.origin,
        limit=asked.limit + 1,
    )
    return [LogEntry(*row[:7]) for row in rows[: asked.limit]], _next_cursor(rows, asked.limit)


def experiment_of(trial_id: str) -> str:
    """Return the experiment that a trial's id names."""
    return trial_id.rpartition(".")[0]


def _severity(level: str | None) -> int:
    if level is None:
        return 0
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: give one of {', '.join(LEVELS)}")
    return LEVELS[level]


def _thin(curve: list[Point], points: int) -> list[Point]:
    """Cut down to less than a curve's first, last, lowest and highest: the last ones stay."""
    if len(curve) <= points:
        return curve
    return curve[:1] + curve[-(points - 1) :] if points > 1 else curve[-1:]


def _next_cursor(rows: list[_LogRow], limit: int) -> str | None:
    if len(rows) <= limit:
        return None
    last = rows[limit - 1]
    return write_cursor(
        LineKey(last.time_ms, last.trial_id, last.sequence, last.line, last.origin)
    )
