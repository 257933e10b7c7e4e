"""Checks between fields, on the raw tree, so that an invalid field hides no other problem."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rung.config.problem import PathPart, shortened, shown
from rung.config.secret import hidden_in
from rung.config.sections.hyperparameter import DEPTH_MAX, KINDS, Group
from rung.config.sections.length import UNITS
from rung.config.sections.searcher import Searcher, Searching
from rung.methods.space import grid_steps
from rung.methods.table import options_named

GRID_MAX: Final = 100_000
"""Trials of a grid search."""
AT_ONCE_MAX: Final = 10_000
"""Trials that are requested at once, in one decision of the searcher."""
HPARAMS_BYTES_MAX: Final = 64 * 1024
"""The hyperparameters of a trial as JSON: its process gets them with its environment."""

_HIDDEN: Final = "is what is shown in place of a secret; write the secret itself again"

Found = tuple[tuple[PathPart, ...], str]
"""Path and message."""

_group: Final = TypeAdapter(Group)
_searcher: Final = TypeAdapter[Searching](Searcher)


def check(tree: dict[str, Any]) -> list[Found]:
    """Return what is wrong between fields."""
    searcher = _map(tree, "searcher")
    return [
        *_clock(searcher),
        *_source(searcher, _map(tree, "reproducibility")),
        *_depth(tree.get("hyperparameters")),
        *_space(searcher.get("name"), tree.get("hyperparameters")),
        *_at_once(searcher, tree.get("hyperparameters")),
        *_size(tree.get("hyperparameters")),
        *_slots(_map(tree, "resources")),
        *_place(tree),
        *_profiling(_map(tree, "profiling")),
        *[(path, _HIDDEN) for path in hidden_in(tree)],
    ]


def _map(tree: dict[str, Any], name: str) -> dict[str, Any]:
    value = tree.get(name)
    if not isinstance(value, dict):
        return {}
    return {key: item for key, item in value.items() if item is not None}


def _clock(searcher: dict[str, Any]) -> list[Found]:
    name, time, metric = (searcher.get(field) for field in ("name", "max_time", "time_metric"))
    method = options_named(name)
    takes_length = method is None or method.MAX_LENGTH != "none"
    length = searcher.get("max_length") if takes_length else None
    if isinstance(length, dict):
        given = [(unit, length[unit]) for unit in UNITS if length.get(unit) is not None]
        unit, number = given[0] if given else (metric, time)
    else:
        unit, number = metric, length
    found: list[Found] = []
    if length is not None and time is not None and time != number:
        message = f"max_time ({shown(time)}) and max_length differ; give one of them"
        found.append((("searcher", "max_time"), message))
    if length is not None and metric is not None and metric != unit:
        message = f"time_metric ({shown(metric)}) and max_length differ; give one of them"
        found.append((("searcher", "time_metric"), message))
    if method is not None and method.NEEDS_TIME:
        if time is None and length is None:
            message = f"is required by {name}: the longest that a trial may train, such as 20"
            found.append((("searcher", "max_time"), message))
        if metric is None and length is None:
            message = (
                f"is required by {name}: what max_time counts; `batches`, `epochs`, `records`, or"
                " a metric that the script reports with its validations"
            )
            found.append((("searcher", "time_metric"), message))
    return found


def _source(searcher: dict[str, Any], reproducibility: dict[str, Any]) -> list[Found]:
    found: list[Found] = []
    if "source_trial_id" in searcher and "source_checkpoint_uuid" in searcher:
        message = "trials can start from one place only; give source_trial_id or this, not both"
        found.append((("searcher", "source_checkpoint_uuid"), message))
    sources = searcher.keys() & {"source_trial_id", "source_checkpoint_uuid"}
    if reproducibility.get("continue_source") is True and (
        searcher.get("name") != "single" or not sources
    ):
        message = (
            "needs the searcher `single`, and searcher.source_trial_id or source_checkpoint_uuid"
        )
        found.append((("reproducibility", "continue_source"), message))
    return found


def _depth(item: Any, path: tuple[str, ...] = ()) -> list[Found]:
    """Return the groups that are nested too deep."""
    if not isinstance(item, dict) or (path and "type" in item):
        return []
    if len(path) > DEPTH_MAX:
        message = f"groups of hyperparameters may be nested {DEPTH_MAX} levels deep at most"
        return [(("hyperparameters", *path), message)]
    return [found for name, member in item.items() for found in _depth(member, (*path, str(name)))]


def _space(name: Any, hyperparameters: Any) -> list[Found]:
    """Return what keeps the method from searching this space."""
    method = options_named(name)
    if method is None or method.SPACE != "counted":
        return []
    missing: list[Found] = [
        (
            ("hyperparameters", *path, "count"),
            f"is required by the searcher `{name}`: how many values it tries",
        )
        for path, item in _ranges(hyperparameters)
        if item["type"] != "categorical" and item.get("count") is None
    ]
    return missing or _grid(hyperparameters)


def _ranges(item: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    """Return the hyperparameters that are no constants, with their paths."""
    if not isinstance(item, dict):
        return []
    kind = item.get("type") if path else None
    if isinstance(kind, str):
        return [(path, item)] if kind in KINDS and kind != "const" else []
    return [
        found for name, member in item.items() for found in _ranges(member, (*path, str(name)))
    ]


def _grid(hyperparameters: Any) -> list[Found]:
    """Return what is wrong with the size of a grid all of whose ranges have a count."""
    sizes = _points(hyperparameters)
    total = math.prod(points for _, points in sizes)
    if total <= GRID_MAX:
        return []
    listed = ", ".join(f"{'.'.join(path)} {points:,}" for path, points in sizes if points > 1)
    message = (
        f"the grid would have {shown(total)} trials ({shortened(listed, 200)}); at most"
        f" {GRID_MAX:,} are possible. Lower `count`, or use `random`"
    )
    return [(("hyperparameters",), message)]


def _points(hyperparameters: Any) -> list[tuple[list[str], int]]:
    """Return the hyperparameters' paths, and how many values of each a grid has."""
    try:
        space = _group.validate_python(hyperparameters or {}).leaves()
    except ValidationError:
        return []  # reported with the other fields
    return [(leaf.path, grid_steps(leaf.parameter) or 1) for leaf in space]


def _at_once(searcher: dict[str, Any], hyperparameters: Any) -> list[Found]:
    """Return whether more trials would be requested at once than can be."""
    try:
        section = _searcher.validate_python(searcher)
    except ValidationError:
        return []  # reported with the other fields
    options = section.options()
    if options.NEEDS_TIME and options.max_time is None:
        return []  # reported as well
    points = min(math.prod(points for _, points in _points(hyperparameters)), GRID_MAX)
    trials = options.trials(points)
    wanted = min(trials, section.concurrent() or trials)
    if wanted <= AT_ONCE_MAX:
        return []
    message = (
        f"would have {wanted:,} trials asked for at once; give a number from 1 to"
        f" {AT_ONCE_MAX:,}: more than there are slots for gains nothing"
    )
    return [(("searcher", "max_concurrent_trials"), message)]


def _slots(resources: dict[str, Any]) -> list[Found]:
    wanted, most = resources.get("slots_per_trial", 1), resources.get("max_slots")
    if isinstance(wanted, int) and isinstance(most, int) and wanted > most >= 1:
        message = f"must be at least slots_per_trial ({wanted}), or no trial could ever start"
        return [(("resources", "max_slots"), message)]
    return []


def _place(tree: dict[str, Any]) -> list[Found]:
    workspace, project = tree.get("workspace"), tree.get("project")
    if workspace and not project:
        return [(("project",), "is required with workspace: give both or neither")]
    if project and not workspace:
        return [(("workspace",), "is required with project: give both or neither")]
    return []


def _profiling(profiling: dict[str, Any]) -> list[Found]:
    begin, end = profiling.get("begin_on_batch", 0), profiling.get("end_after_batch")
    if isinstance(begin, int) and isinstance(end, int) and begin > end:
        message = f"must be at least begin_on_batch ({begin})"
        return [(("profiling", "end_after_batch"), message)]
    return []


def _size(hyperparameters: Any) -> list[Found]:
    """Refuse hyperparameters that are too large to pass to a process, at the largest of them."""
    if not isinstance(hyperparameters, dict):
        return []
    sizes = dict(_sizes(hyperparameters, ("hyperparameters",)))
    if sum(sizes.values()) <= HPARAMS_BYTES_MAX:
        return []
    largest = max(sizes, key=sizes.__getitem__)
    message = (
        f"takes {sizes[largest]:,} bytes as JSON; all hyperparameters of a trial may take"
        f" {HPARAMS_BYTES_MAX:,}: put large values into a file beside the code"
    )
    return [(largest, message)]


def _sizes(
    group: dict[str, Any], path: tuple[PathPart, ...]
) -> Iterator[tuple[tuple[PathPart, ...], int]]:
    """Yield each hyperparameter with the bytes that its name and its largest value take."""
    for name, item in group.items():
        here = (*path, name)
        if isinstance(item, dict) and item and "type" not in item:
            if len(here) <= DEPTH_MAX:
                yield from _sizes(item, here)
            continue
        values = [item]
        if isinstance(item, dict) and item.get("type") == "categorical":
            vals = item.get("vals")
            values = vals if isinstance(vals, list) else []
        elif isinstance(item, dict) and item.get("type") == "const":
            values = [item.get("val")]
        yield here, len(str(name)) + max((len(_json(value)) for value in values), default=0)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode(
        errors="surrogatepass"
    )
