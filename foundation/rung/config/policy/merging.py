"""Merging of layers, by the rules of Determined: of two layers the upper one wins.

* Maps merge field by field; null is not given.
* `bind_mounts`, `resources.devices` and `log_policies` are appended, one of each key
  (`container_path`, `name`); other lists are values: the upper one replaces the lower one.
* A hyperparameter (a map with `type`) is a value; groups of them merge.
* Sections of several kinds (`searcher`, `checkpoint_storage`) never mix: where the kinds differ,
  only the fields that all kinds have are taken from the lower one.
* Variables and images by device merge per device, also where one is written for all.

The merge is associative for layers that agree in what is a map, what is a list and of which kind a
section is.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from rung.config.policy.layer import Layer, Origin, Path
from rung.config.sections.environment import DEVICES

_APPENDED: Final[dict[Path, str]] = {
    ("bind_mounts",): "container_path",
    ("resources", "devices"): "container_path",
    ("log_policies",): "name",
}
_KINDS: Final[dict[Path, str]] = {("searcher",): "name", ("checkpoint_storage",): "type"}
_COMMON: Final[dict[Path, frozenset[str]]] = {
    ("searcher",): frozenset(
        {
            "metric", "smaller_is_better", "time_metric", "max_time", "max_length",
            "source_trial_id", "source_checkpoint_uuid",
        }
    ),
    ("checkpoint_storage",): frozenset(
        {"save_experiment_best", "save_trial_best", "save_trial_latest"}
    ),
}  # fmt: skip
_PER_DEVICE: Final[frozenset[Path]] = frozenset(
    {("environment", "environment_variables"), ("environment", "image")}
)


def layer_of(tree: Mapping[str, Any], lines: Mapping[Path, int], origin: Origin) -> Layer:
    """Return a document as a layer: without nulls, variables and images per device."""
    kept = _without_nulls(dict(tree), ())
    origins = {
        path: origin._replace(line=_line(path, lines) if lines else origin.line)
        for path in leaves(kept)
    }
    return Layer(kept, origins)


def merged(lower: Layer, upper: Layer) -> Layer:
    """Return two layers as one."""
    origins: dict[Path, Origin] = {}
    tree = _merged(lower.tree, upper.tree, (), (lower, upper, origins))
    return Layer(tree, origins)


_Work = tuple[Layer, Layer, dict[Path, Origin]]


def _merged(lower: Any, upper: Any, path: Path, work: _Work) -> Any:
    if path in _APPENDED and isinstance(lower, list) and isinstance(upper, list):
        return _appended(lower, upper, path, work)
    if not (isinstance(lower, dict) and isinstance(upper, dict)) or _is_value(path, lower, upper):
        return _taken(upper, path, path, work[1], work[2])
    below = _common(path, lower, upper)
    found: dict[str, Any] = {}
    for name in [*upper, *(name for name in below if name not in upper)]:
        inner = (*path, name)
        if name not in upper:
            found[name] = _taken(below[name], inner, inner, work[0], work[2])
        elif name not in below:
            found[name] = _taken(upper[name], inner, inner, work[1], work[2])
        else:
            found[name] = _merged(below[name], upper[name], inner, work)
    if not found:
        _taken(upper, path, path, work[1], work[2])
    return found


def _common(path: Path, lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return what an upper section takes from a lower one."""
    kind = _KINDS.get(path)
    if kind is None or kind not in lower or kind not in upper or lower[kind] == upper[kind]:
        return lower
    shared = _COMMON[path]
    return {name: item for name, item in lower.items() if name in shared}


def _is_value(path: Path, lower: dict[str, Any], upper: dict[str, Any]) -> bool:
    """Whether one of two maps is a hyperparameter, not a group."""
    inside = len(path) > 1 and path[0] == "hyperparameters"
    return inside and ("type" in lower or "type" in upper)


def _appended(lower: list[Any], upper: list[Any], path: Path, work: _Work) -> list[Any]:
    """Return the upper list, and of the lower one what has another key."""
    name = _APPENDED[path]
    known = {_key(item, name) for item in upper}
    found: list[Any] = []
    for layer, items, left_out in ((work[1], upper, set[str]()), (work[0], lower, known)):
        for index, item in enumerate(items):
            if _key(item, name) not in left_out:
                _taken(item, (*path, index), (*path, len(found)), layer, work[2])
                found.append(item)
    if not found:
        _taken(upper, path, path, work[1], work[2])
    return found


def _key(item: Any, name: str) -> str:
    key = item.get(name) if isinstance(item, dict) else None
    if isinstance(item, str) and name == "container_path" and ":" in item:
        key = item.split(":")[1]
    return json.dumps(item, sort_keys=True) if key is None else str(key)


def _taken(value: Any, before: Path, after: Path, layer: Layer, into: dict[Path, Origin]) -> Any:
    """Return a value of a layer, and note the origins of its leaves."""
    for path in leaves(value, before):
        into[(*after, *path[len(before) :])] = layer.origins[path]
    return value


def leaves(value: Any, path: Path = ()) -> list[Path]:
    """Return the paths of the single values in a tree; an empty map or list is one."""
    match value:
        case dict() if value:
            return [leaf for name, item in value.items() for leaf in leaves(item, (*path, name))]
        case list() if value:
            return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
        case _:
            return [path]


def _without_nulls(value: Any, path: Path) -> Any:
    if path in _PER_DEVICE and isinstance(value, list | str):
        return dict.fromkeys(DEVICES, value)
    if path in _PER_DEVICE and isinstance(value, dict) and value.get("gpu") is not None:
        rest = {name: item for name, item in value.items() if name != "gpu"}
        value = {"cuda": value["gpu"]} | {k: v for k, v in rest.items() if v is not None}
    if not isinstance(value, dict) or (path[:1] == ("hyperparameters",) and "type" in value):
        return value
    return {
        name: _without_nulls(item, (*path, name))
        for name, item in value.items()
        if item is not None or path[:1] in {("data",), ("hyperparameters",)}
    }


def _line(path: Path, lines: Mapping[Path, int]) -> int | None:
    """Return the line of the nearest part of a path that a document has."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None
