"""Curves and best values: from their stretches where these are exact, else from their reports.

A stretch holds the extremes of up to 64 reports. It is exact unless one of its reports was
replaced, by a run that began again, or stored twice; a curve with such a stretch is answered from
its reports, and so is one that is not much longer than what is asked for. Both ways give the same
points.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from rung.metrics.clickhouse.engine import Parameter, Tables
from rung.metrics.clickhouse.literal import fill, literal
from rung.metrics.clickhouse.schema import has_stretches, query, statements

T = TypeVar("T")

Point = tuple[int, float, int]
"""Step, value (may be NaN or infinite), Unix time in milliseconds."""

_Extreme = tuple[float, int, int]
"""Value, step (inverted for the highest one), time; the value is infinite if none is finite."""

_LEVELS: Final = (10, 5, 0)
"""A stretch of a level has 64 slots of 2 ** level steps; coarse ones first."""
_SLOT_BITS: Final = 6
_STEP_BITS: Final = 64
_OFFSET: Final = 1 << 63
_POINTS_MIN: Final = 5
"""First, last, lowest, highest, and one that is not finite."""
_POINTS_MAX: Final = 1_000_000
_TRIALS_MAX: Final = 1_000
"""Named in one query; a server takes 256 KiB of SQL."""
_MARKS: Final = 1 << 63
"""Above the numbers of all stretches: marks of curves whose stretches are being built anew."""
_DAY_NS: Final = 86_400_000_000_000
_OF_CURVES: Final = "FROM stretches WHERE (experiment_id, kind, name, trial_id) IN ({curves})"


class Whole(NamedTuple):
    """A curve as a whole, from its stretches of one level."""

    trial_id: str
    first: int
    last: int
    total: int
    """Its reports; too many where some were replaced or stored twice."""
    has_odd: bool
    """Whether a value is not finite."""
    doubtful: bool
    """Whether reports were replaced or stored twice, or lie closer than the slots of the level."""


class Metric(NamedTuple):
    """Which metric of an experiment."""

    experiment: str
    kind: str
    name: str


class Curve(NamedTuple):
    """Which metric of a trial."""

    experiment_id: str
    kind: str
    name: str
    trial_id: str


def curves(  # noqa: PLR0913, PLR0917 - what a curve is chosen by
    tables: Tables, experiment_id: str, trial_id: str, kind: str, name: str, points: int
) -> dict[str, list[Point]]:
    """Return a trial's curve, or those of all trials if none is named.

    Raises:
        ValueError: `points` is out of range.
    """
    if not 1 <= points <= _POINTS_MAX:
        raise ValueError(f"points is {points}: give a number from 1 to {_POINTS_MAX}")
    metric = Metric(experiment_id, kind, name)
    most = max(points, _POINTS_MIN)
    chosen = [trial_id] if trial_id else None
    if has_stretches(tables):
        found = _from_stretches(tables, metric, chosen, most)
    else:
        found = _reported(tables, metric, chosen, most)
    return {trial: _thin(found[trial], points) for trial in sorted(found)}


def best(
    tables: Tables, experiment_id: str, name: str, sign: float
) -> dict[str, tuple[int, float]]:
    """Return each trial's best validation; `sign` is 1 where smaller is better, else -1."""
    metric = Metric(experiment_id, "validation", name)
    if not has_stretches(tables):
        return _best_reported(tables, metric, None, sign)
    wholes = _wholes(tables, metric, _LEVELS[0], None)
    exact, reported = _exact(tables, metric, wholes)
    found = _best_reported(tables, metric, reported, sign) if reported else {}
    chosen = [whole.trial_id for _, whole in exact] if reported else None
    rows = _rows(tables, "extremes", tuple[str, _Extreme, _Extreme], metric, chosen)
    for trial, least, most in rows:
        if least[0] <= most[0]:  # else none is finite
            found[trial] = (least[1], least[0]) if sign > 0 else (~most[1], most[0])
    return {trial: found[trial] for trial in sorted(found)}


def doubtful(tables: Tables) -> list[Curve]:
    """Return the curves with stretches that are not known to be exact."""
    return tables.rows(query("doubtful"), Curve) if has_stretches(tables) else []


def recount(tables: Tables, chosen: Sequence[Curve]) -> None:
    """Build the stretches of curves in doubt anew from their reports, so that they are exact.

    Until this is done, and after it was interrupted, a mark keeps them in doubt.
    """
    now = time.time_ns()
    mark = _MARKS + now
    for statement in statements(query("recount")):
        given = {"mark": mark, "old": mark - _DAY_NS, "now": now // 1_000_000}
        tables.execute(_of_curves(fill(statement, given), chosen))
    marked = f"{_of_curves(_OF_CURVES, chosen)} AND stretch = {mark}"
    kept = tables.rows(f"SELECT DISTINCT {', '.join(Curve._fields)} {marked}", Curve)
    if deleted := set(chosen).difference(kept):  # and again: rows were inserted behind that
        tables.execute(f"DELETE {_of_curves(_OF_CURVES, sorted(deleted))}")
    tables.execute(f"DELETE {marked}")


def width_of(first: int, last: int, stretches: int) -> int:
    """Return the bits of the least width of which so many stretches hold a curve."""
    if stretches <= 1:
        return _STEP_BITS
    low, high = first + _OFFSET, last + _OFFSET
    width = max(0, ((high - low) // stretches).bit_length() - 1)
    while (high >> width) - (low >> width) >= stretches:
        width += 1
    return width


def level_of(whole: Whole) -> int:
    """Return the coarsest level whose slots are likely to hold one report each."""
    distance = (whole.last - whole.first) // max(whole.total - 1, 1)
    return next(level for level in _LEVELS if distance >> level or level == 0)


def _from_stretches(
    tables: Tables, metric: Metric, chosen: Sequence[str] | None, points: int
) -> dict[str, list[Point]]:
    wholes = _wholes(tables, metric, _LEVELS[0], chosen)
    exact, reported = _exact(tables, metric, [each for each in wholes if each.total > points])
    reported += [each.trial_id for each in wholes if each.total <= points]
    groups: dict[tuple[int, int], list[str]] = {}
    for level, whole in exact:
        width = width_of(whole.first, whole.last, (points - 2) // (3 if whole.has_odd else 2))
        if width < level + _SLOT_BITS or whole.total <= points:
            reported.append(whole.trial_id)
        else:
            groups.setdefault((level, width - level - _SLOT_BITS), []).append(whole.trial_id)

    def named(trials: Sequence[str]) -> Sequence[str] | None:
        return None if chosen is None and len(trials) == len(wholes) else trials

    found = _reported(tables, metric, named(reported), points) if reported else {}
    for (level, shift), trials in groups.items():
        found |= _rows(
            tables,
            "thinned",
            tuple[str, list[Point]],
            metric,
            named(trials),
            level=level,
            shift=shift,
        )
    return found


def _exact(
    tables: Tables, metric: Metric, wholes: Iterable[Whole]
) -> tuple[list[tuple[int, Whole]], list[str]]:
    """Return curves with the level at which each is exact, and the trials of all others.

    Args:
        tables: of the database.
        metric: whose curves they are.
        wholes: of the coarsest level.
    """
    exact: list[tuple[int, Whole]] = []
    left: dict[int, list[str]] = {level: [] for level in _LEVELS}
    for whole in wholes:
        level = level_of(whole)
        if level == _LEVELS[0] and not whole.doubtful:
            exact.append((level, whole))
        else:
            left[min(level, _LEVELS[1])].append(whole.trial_id)
    inexact: list[str] = []
    for level in _LEVELS[1:]:
        trials = inexact + left[level]
        inexact = []
        for whole in _wholes(tables, metric, level, trials) if trials else ():
            if whole.doubtful:
                inexact.append(whole.trial_id)
            else:
                exact.append((level, whole))
    return exact, inexact


def _wholes(
    tables: Tables, metric: Metric, level: int, chosen: Sequence[str] | None
) -> list[Whole]:
    return _rows(tables, "wholes", Whole, metric, chosen, level=level)


def _reported(
    tables: Tables, metric: Metric, chosen: Sequence[str] | None, points: int
) -> dict[str, list[Point]]:
    return dict(_rows(tables, "curves", tuple[str, list[Point]], metric, chosen, points=points))


def _best_reported(
    tables: Tables, metric: Metric, chosen: Sequence[str] | None, sign: float
) -> dict[str, tuple[int, float]]:
    rows = _rows(tables, "best", tuple[str, int, float], metric, chosen, sign=sign)
    return {trial: (step, value) for trial, step, value in rows}


def _of_curves(sql: str, curves: Iterable[Curve]) -> str:
    """Return a statement with the curves in place of `{curves}`."""
    named = ", ".join(f"({', '.join(map(literal, curve))})" for curve in curves)
    return sql.replace("{curves}", named)


def _rows(
    tables: Tables,
    name: str,
    kind: type[T],
    metric: Metric,
    chosen: Sequence[str] | None,
    **parameters: Parameter,
) -> list[T]:
    """Return what a query finds of some trials, or of all if None are named."""
    sql, given = query(name), metric._asdict() | parameters
    if chosen is None:
        return tables.rows(sql.replace("{chosen}", "1"), kind, **given)
    found: list[T] = []
    for start in range(0, len(chosen), _TRIALS_MAX):
        trials = chosen[start : start + _TRIALS_MAX]
        named = {f"trial_{i}": trial for i, trial in enumerate(trials)}
        names = ", ".join(f"{{{parameter}:String}}" for parameter in named)
        found += tables.rows(
            sql.replace("{chosen}", f"trial_id IN ({names})"), kind, **given, **named
        )
    return found


def _thin(curve: list[Point], points: int) -> list[Point]:
    """Cut a curve to fewer points than SQL gives at least: the first and the last ones stay."""
    if len(curve) <= points:
        return curve
    return curve[:1] + curve[-(points - 1) :] if points > 1 else curve[-1:]
