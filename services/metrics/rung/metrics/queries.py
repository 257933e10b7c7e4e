"""The queries and inserts; every function blocks and runs on the engine's thread."""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from rung.api import LogLine, LogSelection, TrialLines
from rung.events.metric import LogsDeleted, MetricsDeleted
from rung.metrics.batch import Batch
from rung.metrics.clickhouse.engine import Parameter, Tables
from rung.metrics.clickhouse.literal import literal
from rung.metrics.clickhouse.native import Column, texts
from rung.metrics.clickhouse.schema import (
    KEEP_DAYS,
    applied,
    has_severe,
    log_tables,
    metric_tables,
    query,
)

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
LOG_LIMIT_MAX: Final = 100_000
_FIRST_ROUND: Final = 1_000
_PAGE_CHARACTERS: Final = 8 << 20
"""A page ends at the line that reaches this."""
_SEVERE: Final = LEVELS["warning"]
"""Lines from this level on are also in the table `severe`, sorted by level."""
_COMPARISONS: Final = {"oldest": ">", "newest": "<"}
_BEHIND: Final = (
    "({after_time_ms:Int64}, {after_trial_id:String}, {after_sequence:UInt64}, "
    "{after_line:Int64}, {after_origin:String})"
)
_DELETES_AT_ONCE: Final = (23, 8)
"""Since then a deletion hides rows at once; before, parts are written anew in the background."""
_PAIRED_MAX: Final = "\u052f"
"""The last Cyrillic letter: up to here, every release has the same pairs of cases."""
_SIGMAS: Final = "\u03c3\u03c2"
"""In lower case one of them at the end of a word, the other within."""
_WILDCARDS: Final = {ord(letter): f"\\{letter}" for letter in "\\%_"}


class LineKey(NamedTuple):
    """The sort key of printed lines, unique."""

    time_ms: int
    trial_id: str
    sequence: int
    line: int
    origin: str


_cursor_decoder: Final = msgspec.json.Decoder(LineKey)


class _LogRow(LogLine, kw_only=True, gc=False, array_like=True):
    sequence: int
    line: int
    origin: str


def write(tables: Tables, batch: Batch) -> None:
    """Insert a batch: its rows, then deletions, then the positions behind its records."""
    _write_rows(tables, batch)
    if batch.deleted:
        _delete(tables, batch.deleted)
    if batch.without_metrics:
        _delete_metrics(tables, batch.without_metrics)
    keys = sorted(batch.positions)
    if not keys:  # a record that was rejected before
        return
    tables.insert(
        "positions",
        [
            texts("topic", [topic for topic, _ in keys]),
            Column("partition", "UInt32", [partition for _, partition in keys]),
            Column("position", "UInt64", [batch.positions[key] for key in keys]),
        ],
    )


def write_again(tables: Tables, batch: Batch) -> None:
    """Insert the rows of a batch that are gone, although blocks like them were inserted before."""
    _write_rows(tables, batch, again=True)


def _write_rows(tables: Tables, batch: Batch, *, again: bool = False) -> None:
    for table, columns in (("metrics", batch.metrics.block()), ("logs", batch.logs.block())):
        if columns:
            tables.insert(table, _known(tables, columns), again=again)


def _known(tables: Tables, columns: list[Column]) -> list[Column]:
    """Return the columns without the one that an old server's table does not have."""
    if columns[-1].name == "keep_days" and not applied(tables, KEEP_DAYS):
        return columns[:-1]
    return columns


def _delete(tables: Tables, deleted: Sequence[LogsDeleted]) -> None:
    """Delete the lines of trials that were printed before a time; idempotent."""
    tables.insert(
        "deletions",
        [
            texts("experiment_id", [each.experiment_id for each in deleted]),
            texts("trial_id", [each.trial_id for each in deleted]),
            Column("before_ms", "Int64", [each.before_ms for each in deleted]),
        ],
    )
    trials: dict[tuple[str, int], list[str]] = {}
    for each in deleted:
        trials.setdefault((each.experiment_id, each.before_ms), []).append(each.trial_id)
    for (experiment_id, before_ms), names in trials.items():
        condition = f"{_of_trials(tables, experiment_id, names)} AND time_ms < {before_ms}"
        for table in log_tables(tables):
            _delete_where(tables, table, condition)


def _delete_metrics(tables: Tables, deleted: Sequence[MetricsDeleted]) -> None:
    """Delete the metrics of trials; idempotent."""
    trials: dict[str, list[str]] = {}
    for each in deleted:
        trials.setdefault(each.experiment_id, []).append(each.trial_id)
    for experiment_id, names in trials.items():
        for table in metric_tables(tables):
            _delete_where(tables, table, _of_trials(tables, experiment_id, names))


def _of_trials(tables: Tables, experiment_id: str, trial_ids: Sequence[str]) -> str:
    """Return the condition on rows of trials.

    ClickHouse 18.16 confuses the sets of `IN` of mutations that it applies to a part together, and
    deletes rows that match none of them (github.com/ClickHouse/ClickHouse/issues/4058): older
    servers get no `IN`.
    """
    names = ", ".join(map(literal, sorted(set(trial_ids))))
    at_once = tables.version >= _DELETES_AT_ONCE
    among = f"trial_id IN ({names})" if at_once else f"has([{names}], trial_id)"
    return f"experiment_id = {literal(experiment_id)} AND {among}"


def _delete_where(tables: Tables, table: str, condition: str) -> None:
    if tables.version >= _DELETES_AT_ONCE:
        tables.execute(f"DELETE FROM {table} WHERE {condition}")  # noqa: S608 - of literals
    else:
        tables.execute(f"ALTER TABLE {table} DELETE WHERE {condition}")


def positions(tables: Tables) -> dict[tuple[str, int], int]:
    """Return the position from which on each topic and partition is not stored yet."""
    rows = tables.rows(query("positions"), tuple[str, int, int])
    return {(topic, partition): position for topic, partition, position in rows}


def lacking(tables: Tables, batch: Batch) -> Batch:
    """Return those of a trial's rows that the tables do not have: reports, in no version."""
    metrics, logs = batch.metrics, batch.logs
    missing_reports: list[int] = []
    if metrics.step:
        reports = set(
            tables.rows(
                query("stored_metrics"),
                tuple[str, str, int],
                experiment=metrics.experiment[0].decode(),
                trial=metrics.trial[0].decode(),
                low=min(metrics.step),
                high=max(metrics.step),
            )
        )
        keys = zip(metrics.kind, metrics.name, metrics.step, strict=True)
        missing_reports = [
            row
            for row, (kind, name, step) in enumerate(keys)
            if (kind.decode(), name.decode(), step) not in reports
        ]
    missing_lines: list[int] = []
    if logs.line:
        lines = set(
            tables.rows(
                query("stored_lines"),
                tuple[str, int, int, int],
                experiment=logs.experiment[0].decode(),
                trial=logs.trial[0].decode(),
                since=min(logs.time),
                until=max(logs.time),
                low=min(logs.sequence),
                high=max(logs.sequence),
            )
        )
        places = zip(logs.origin, logs.time, logs.sequence, logs.line, strict=True)
        missing_lines = [
            row
            for row, (origin, *place) in enumerate(places)
            if (origin.decode(), *place) not in lines
        ]
    return Batch(metrics=metrics.at(missing_reports), logs=logs.at(missing_lines))


def names(tables: Tables, experiment_id: str) -> list[tuple[str, str]]:
    """Return the kind and name of every metric of an experiment, sorted."""
    return tables.rows(query("names"), tuple[str, str], experiment=experiment_id)


def logs(tables: Tables, asked: LogSelection) -> tuple[list[LogLine], str | None]:
    """Return a page of lines, and the cursor of the next one.

    It ends early where its lines have many bytes. Rows are read in the order of the table, so the
    time of a page does not depend on the number of rows.

    Raises:
        ValueError: the level, the order, the cursor or the limit is none.
    """
    if not 1 <= asked.limit <= LOG_LIMIT_MAX:
        raise ValueError(f"limit is {asked.limit}: give a number from 1 to {LOG_LIMIT_MAX}")
    if asked.order not in _COMPARISONS:
        raise ValueError(f"order is {asked.order!r}: give one of {', '.join(_COMPARISONS)}")
    _severity(asked.level)
    behind = read_cursor(asked.after) if asked.after else None
    found: list[_LogRow] = []
    size = 0
    while True:
        wanted = _round(asked.limit - len(found), len(found), size)
        rows = _log_rows(tables, asked, behind, wanted + 1)
        more = len(rows) > wanted
        last = found[-1] if found else None
        for row in rows[:wanted]:
            if row != last:  # else delivered twice, and not merged yet
                last = row
                found.append(row)
                size += len(row.text)
        if last is not None:
            behind = LineKey(last.time_ms, last.trial_id, last.sequence, last.line, last.origin)
        if not more or len(found) >= asked.limit or size >= _PAGE_CHARACTERS:
            break
    cursor = write_cursor(behind) if more and behind is not None else None
    return msgspec.convert(found, list[LogLine], from_attributes=True), cursor


def log_sizes(tables: Tables, experiment_id: str | None, before_ms: int) -> list[TrialLines]:
    """Return how many lines of each trial, or of an experiment's, were printed before a time."""
    return tables.rows(
        query("log_sizes"), TrialLines, experiment=experiment_id or "", before=before_ms
    )


def deletions(tables: Tables) -> dict[str, int]:
    """Return, by trial, the time before which its lines were deleted."""
    return dict(tables.rows(query("deletions"), tuple[str, int]))


def _round(left: int, found: int, size: int) -> int:
    """Return how many lines to ask for next, so that a page of long lines stays small."""
    if not found:
        return min(left, _FIRST_ROUND)
    return max(1, min(left, 4 * found, (_PAGE_CHARACTERS - size) * found // max(size, 1) + 1))


def _log_rows(
    tables: Tables, asked: LogSelection, behind: LineKey | None, limit: int
) -> list[_LogRow]:
    """Return the next lines; one that was delivered twice may come twice, one after the other.

    Severe levels are read one by one, each in the order of its table, and then merged: so a page
    takes as long however rare one of them is.
    """
    conditions, given = _conditions(asked, behind)
    columns = ["experiment_id"] if "experiment" in given else []
    choices = [("logs", conditions, columns)]
    least = _severity(asked.level)
    if least >= _SEVERE and has_severe(tables):
        choices = [
            ("severe", [f"level = '{name}'", *conditions], [*columns, "level"])
            for name, severity in LEVELS.items()
            if severity >= least
        ]
    elif asked.level is not None:
        conditions.append("level >= {level:Int8}")
        given["level"] = least
    direction = " DESC" if asked.order == "newest" else ""
    selected = ", ".join(_LogRow.__struct_fields__)

    def ordered(prefix: Sequence[str]) -> str:
        order = ", ".join(f"{name}{direction}" for name in (*prefix, *LineKey._fields))
        return f"ORDER BY {order} LIMIT {{limit:UInt32}}"

    parts = [
        f"SELECT {selected} FROM {table} "  # noqa: S608 - parameters hold the input
        f"WHERE {' AND '.join(wanted)} {ordered(prefix if columns else [])}"
        for table, wanted, prefix in choices
    ]
    sql = parts[0]
    if len(parts) > 1:
        merged = " UNION ALL ".join(f"SELECT * FROM ({part})" for part in parts)  # noqa: S608
        sql = f"SELECT {selected} FROM ({merged}) {ordered([])}"  # noqa: S608 - parameters, too
    return tables.rows(sql, _LogRow, limit=limit, **given)


def _conditions(
    asked: LogSelection, behind: LineKey | None
) -> tuple[list[str], dict[str, Parameter]]:
    """Return the conditions on lines, except their level, and their parameters.

    Only what is asked for becomes a condition, so that the table's key and indexes are used.
    """
    experiment_id = asked.experiment_id or experiment_of(asked.trial_id or "")
    given: dict[str, Parameter] = {}
    conditions = ["time_ms >= {since:Int64}", "time_ms < {until:Int64}"]
    since = _INT64_MIN if asked.since_ms is None else asked.since_ms
    until = _INT64_MAX if asked.until_ms is None else asked.until_ms
    if experiment_id:
        conditions.append("experiment_id = {experiment:String}")
        given["experiment"] = experiment_id
    if asked.trial_id:
        conditions.append("trial_id = {trial:String}")
        given["trial"] = asked.trial_id
    if asked.rank is not None:
        conditions.append("rank = {rank:Int64}")
        given["rank"] = asked.rank
    if asked.text:
        conditions.append("positionCaseInsensitiveUTF8(text, {text:String}) > 0")
        given["text"] = asked.text
        conditions.append("indexHint(lowerUTF8(text) LIKE {pattern:String})")
        given["pattern"] = f"%{''.join(map(_lowered, asked.text))}%"
    if behind is not None:
        comparison = _COMPARISONS[asked.order]
        conditions.append(f"(time_ms, trial_id, sequence, line, origin) {comparison} {_BEHIND}")
        given |= {f"after_{name}": value for name, value in behind._asdict().items()}
        if asked.order == "newest":
            until = min(until, behind.time_ms + 1)
        else:
            since = max(since, behind.time_ms)
    return conditions, given | {"since": since, "until": until}


def _lowered(letter: str) -> str:
    """Return what a pattern has for a letter, in lower case as the indexes of lines are.

    It is a wildcard for a letter whose lower case the engine may see otherwise: one that changes
    with the letters around, with the release, or back and forth.
    """
    lower, upper = letter.lower(), letter.upper()
    if letter.isascii() or (letter.isprintable() and lower == upper):
        return lower.translate(_WILDCARDS)
    paired = lower.upper() == upper and upper.lower() == lower and len(lower) == len(upper) == 1
    return lower if paired and letter <= _PAIRED_MAX and lower not in _SIGMAS else "%"


def experiment_of(trial_id: str) -> str:
    """Return the experiment that a trial's id names."""
    return trial_id.rpartition(".")[0]


def _severity(level: str | None) -> int:
    if level is None:
        return 0
    if level not in LEVELS:
        raise ValueError(f"level is {level!r}: give one of {', '.join(LEVELS)}")
    return LEVELS[level]


def write_cursor(key: LineKey) -> str:
    """Return the cursor behind a line."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def read_cursor(text: str) -> LineKey:
    """Return the line behind which a cursor stands.

    Raises:
        ValueError: it is no cursor of this service.
    """
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return _cursor_decoder.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError) as error:
        raise ValueError(
            f"after is {text!r}: give the cursor that came with the page before, unchanged"
        ) from error
