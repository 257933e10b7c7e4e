"""Search spaces in the spelling of other tools: found, with what to write for each.

Without this check `{low: 0.1, high: 0.2}` would be a group of two constants, `{values: [1, 2]}` a
constant map, and `{type: log, minval: 1e-4, maxval: 1e-1}` the numbers from 1.0002 to 1.2589. Such
a map stays possible as an explicit constant: `{type: const, val: {low: 0.1, high: 0.2}}`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from rung.config.problem import PROBLEMS_MAX, PathPart, shortened
from rung.config.sections.hyperparameter import KINDS

_Kind = Literal["int", "double", "log", "log int", "categorical", "const", "normal"]

_ENDS: Final = (
    ("min", "max"),
    ("minval", "maxval"),
    ("minvalue", "maxvalue"),
    ("low", "high"),
    ("lower", "upper"),
    ("lowerbound", "upperbound"),
    ("mu", "sigma"),
)
"""The ends of a range; of a normal distribution, its centre and its width."""
_VALUES: Final = ("values", "vals", "choices", "choice", "categories", "gridsearch")
_VALUE: Final = ("value", "val")
_BOTH: Final = ("bounds", "range", "value")
"""Both ends in one list, where there is also a type."""
_TYPE: Final = ("type", "distribution", "dist", "parametertype")
_BESIDE: Final = (
    "step", "q", "log", "logscale", "scale", "base", "count", "probabilities",
)  # fmt: skip
_KNOWN: Final = frozenset(
    [*_VALUES, *_VALUE, *_BOTH, *_TYPE, *_BESIDE, *(end for ends in _ENDS for end in ends)]
)

_TYPES: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("uniform", "float", "real", "number", "continuous", "range"), "double"),
    **dict.fromkeys(("quniform", "uniformfloat", "floatdistribution", "double"), "double"),
    **dict.fromkeys(("log", "loguniform", "loguniformvalues", "qloguniform"), "log"),
    **dict.fromkeys(("qloguniformvalues", "reciprocal", "logfloat"), "log"),
    **dict.fromkeys(("int", "integer", "randint", "intuniform", "uniformint"), "int"),
    **dict.fromkeys(("intdistribution", "qrandint"), "int"),
    **dict.fromkeys(("lograndint", "qlograndint"), "log int"),
    **dict.fromkeys(("categorical", "choice", "choices", "discrete", "ordinal"), "categorical"),
    **dict.fromkeys(("gridsearch", "categoricaldistribution"), "categorical"),
    **dict.fromkeys(("const", "constant", "fixed"), "const"),
    **dict.fromkeys(("normal", "qnormal", "randn"), "normal"),
}
"""A type or distribution of Rung, Optuna, Ray Tune, Weights & Biases, Hyperopt, NNI or Ax."""

_CALL: Final = re.compile(
    r"\s*(?:(?:(?:ray\.)?tune|hp|trial|optuna|nni)\.(?:suggest_)?(?P<named>\w+)"
    r"|(?P<bare>q?log_?uniform|q?log_?randint))\s*\((?P<arguments>.*)\)\s*",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

_LOOKS: Final = "looks like {}; write {}"
_IN_LIST: Final = (
    "nothing is drawn inside a list: name each item (`{name}: {{a: {item}, b: …}}`), or choose"
    " among whole lists (`{name}: {{type: categorical, vals: [[…], […]]}}`); a list that is a"
    " constant is `{{type: const, val: […]}}`"
)
_IN_CHOICE: Final = (
    "nothing is drawn inside a choice: make this a hyperparameter of its own, which the script"
    " reads where the choice asks for it"
)

_EXPONENT_MAX: Final = math.log(1e18)
"""No hyperparameter has values above this; exponents that lead there were meant as values."""
_VALUE_MAX: Final = 0.1
"""A smallest exponent above 0 and up to this was meant as a value: 10**0.1 is 1.26."""
_STEPS_MAX: Final = 16
"""Values of a range with steps that are written out as a choice."""

Found = tuple[tuple[PathPart, ...], str]
"""Path and message."""


class _Read(NamedTuple):
    """What a map or a call of another tool means."""

    kind: _Kind
    low: float = 0
    high: float = 0
    values: Sequence[Any] = ()
    step: float | None = None
    count: Any = None


def foreign(hyperparameters: Any) -> list[Found]:
    """Return the hyperparameters that are in another tool's spelling, or inside a list.

    No more than a refusal lists, and one.
    """
    if not isinstance(hyperparameters, dict):
        return []
    return list(islice(_group(hyperparameters, ("hyperparameters",)), PROBLEMS_MAX + 1))


def _group(group: Mapping[str, Any], path: tuple[PathPart, ...]) -> Iterator[Found]:
    for name, item in group.items():
        yield from _member(item, (*path, name))


def _member(item: Any, path: tuple[PathPart, ...]) -> Iterator[Found]:
    message = misspelling(item)
    if message is not None:
        yield path, message
    elif isinstance(item, list):
        yield from _inside(item, path)
    elif isinstance(item, dict) and "type" not in item:
        yield from _group(item, path)
    elif isinstance(item, dict) and item["type"] == "categorical":
        vals = item.get("vals")
        for place, _ in _drawn(vals, (*path, "vals"), typed=True):
            yield place, _IN_CHOICE


def _inside(items: Sequence[Any], path: tuple[PathPart, ...]) -> Iterator[Found]:
    name = str(path[-1])
    for place, item in _drawn(items, path, typed=False):
        own = isinstance(item, dict) and _is_own(item)
        shown = f"{{type: {item['type']}, …}}" if own else "{type: …}"
        yield place, _IN_LIST.format(name=shortened(name, 20), item=shown)


def _drawn(
    value: Any, path: tuple[PathPart, ...], *, typed: bool
) -> Iterator[tuple[tuple[PathPart, ...], Any]]:
    """Yield the maps in a constant that look like hyperparameters; with `typed`, by their type.

    And texts that are calls of another tool.
    """
    if isinstance(value, dict):
        read = _read(value) if not typed or _type_of(value) is not None else None
        if _is_own(value) or (read is not None and read.kind != "const"):
            yield path, value
            return
        parts: Iterator[tuple[PathPart, Any]] = iter(value.items())
    elif isinstance(value, list):
        parts = iter(enumerate(value))
    else:
        if isinstance(value, str) and _called(value) is not None:
            yield path, value
        return
    for part, inner in parts:
        yield from _drawn(inner, (*path, part), typed=typed)


def _is_own(item: Mapping[str, Any]) -> bool:
    """Return whether a map is a hyperparameter of the experiment file, if with something missing.

    Its `type` alone makes it none, for a list may describe columns or layers by their types.
    """
    kind = item.get("type")
    model = KINDS.get(kind) if isinstance(kind, str) and kind != "const" else None
    if model is None:
        return False
    needed = {name for name, field in model.model_fields.items() if field.is_required()}
    return not (needed - {"base", "type"}).isdisjoint(item)


def misspelling(item: Any) -> str | None:
    """Return what is wrong with the spelling of one hyperparameter, None if nothing."""
    if isinstance(item, str):
        read = _called(item)
        return None if read is None else _LOOKS.format("a call of another tool", _written(read))
    if not isinstance(item, dict):
        return None
    if item.get("type") == "log" and "minval" in item and "maxval" in item:
        return _values_for_exponents(item)
    read = _read(item)
    if read is None:
        return None
    what = {"const": "a constant", "categorical": "a choice"}.get(read.kind, "a range")
    message = _LOOKS.format(what, _written(read))
    if "type" in item:
        return message
    return f"{message}; for a constant map write `{{type: const, val: {_flow(item)}}}`"


def _values_for_exponents(item: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a `log` whose ends are values, not exponents."""
    low, high, base = item["minval"], item["maxval"], item.get("base")
    if base is None:
        base = 10
    if not (_is_number(low) and _is_number(high) and _is_number(base)):
        return None
    if not (0 < low < high and base > 1):
        return None
    largest = high * math.log(base)
    if low > _VALUE_MAX and largest <= _EXPONENT_MAX:
        return None
    about = "minval and maxval of `log` are exponents"
    values = _written(_Read("log", low, high, count=item.get("count")))
    if largest > _EXPONENT_MAX:
        return f"{about}; for values from {low:g} to {high:g} write {values}"
    start, end = base**low, base**high
    if high > 1:
        other = _Read("log", base**0.0, end, count=item.get("count"))
    else:
        other = _Read("double", start, end, count=item.get("count"))
    return (
        f"{about}: this would search {start:.5g} to {end:.5g}; for values from {low:g} to"
        f" {high:g} write {values}, for {start:.5g} to {end:.5g} {_written(other)}"
    )


def _read(item: Mapping[str, Any]) -> _Read | None:
    """Return what a map means in the spelling of another tool, None if it is not in one."""
    fields = {_plain(name): value for name, value in item.items()}
    if len(fields) != len(item) or not fields.keys() <= _KNOWN or _of_own_fields(item):
        return None
    typed, kind = not fields.keys().isdisjoint(_TYPE), _type_of(item)
    if typed and kind is None:
        return None
    if kind == "const" or (not typed and len(fields) == 1 and fields.keys() <= {*_VALUE}):
        found = [fields[name] for name in _VALUE if name in fields]
        return None if not found or isinstance(found[0], dict) else _Read("const", values=found)
    values = _values_of(fields, kind)
    if values is not None:
        return _Read("categorical", values=values)
    ends = None if kind == "categorical" else _ends_of(fields, typed=typed)
    return None if ends is None else _range(fields, kind, *ends)


def _values_of(fields: Mapping[str, Any], kind: _Kind | None) -> list[Any] | None:
    """Return the values of a choice."""
    names = (*_VALUES, *_VALUE) if kind == "categorical" else _VALUES
    found = [fields[name] for name in names if isinstance(fields.get(name), list)]
    return found[0] if found else None


def _range(fields: Mapping[str, Any], kind: _Kind | None, low: float, high: float) -> _Read:
    """Return what a range means, of which the fields beside its ends say more."""
    if kind is None:
        kind = "int" if isinstance(low, int) and isinstance(high, int) else "double"
    scale = fields.get("scale")
    in_logs = isinstance(scale, str) and scale.lower().startswith("log")
    if in_logs or fields.get("log") is True or fields.get("logscale") is True:
        kind = "log int" if kind == "int" else "log"
    if kind == "normal" and "mu" in fields:
        low, high = low - 2 * high, low + 2 * high
    step = next((fields[name] for name in ("step", "q") if _is_number(fields.get(name))), None)
    return _Read(kind, low, high, step=step, count=fields.get("count"))


def _plain(name: str) -> str:
    """Return a name without what tools spell differently: `minValue`, `min_value`."""
    return re.sub(r"[^a-z]", "", name.lower())


def _of_own_fields(item: Mapping[str, Any]) -> bool:
    """Return whether a map of a known `type` has fields of that type alone."""
    model = KINDS.get(item["type"]) if isinstance(item.get("type"), str) else None
    return model is not None and item.keys() <= model.model_fields.keys()


def _type_of(item: Mapping[str, Any]) -> _Kind | None:
    for name, value in item.items():
        if _plain(name) in _TYPE and isinstance(value, str):
            return _TYPES.get(_plain(value))
    return None


def _ends_of(fields: Mapping[str, Any], *, typed: bool) -> tuple[float, float] | None:
    pairs = [(fields[low], fields[high]) for low, high in _ENDS if {low, high} <= fields.keys()]
    if typed and not pairs:
        pairs = [
            (both[0], both[1])
            for name in _BOTH
            if isinstance(both := fields.get(name), list) and len(both) in {2, 3}
        ]
    if len(pairs) != 1 or not all(_is_number(end) for end in pairs[0]):
        return None
    return pairs[0]


def _called(text: str) -> _Read | None:
    """Return what a call of another tool means, written as text; None if it is no call."""
    call = _CALL.fullmatch(text)
    if call is None:
        return None
    kind = _TYPES.get(_plain(call["named"] or call["bare"]))
    numbers = [_number(number) for number in _NUMBER.findall(call["arguments"])]
    if kind == "categorical":
        return _Read(kind, values=numbers or ["…"])
    if kind is None or kind == "const" or len(numbers) < 2:
        return None
    low, high = numbers[:2]
    if kind == "normal":
        low, high = low - 2 * high, low + 2 * high
    if re.search(r"\blog\s*=\s*True", call["arguments"]):
        kind = "log int" if kind == "int" else "log"
    return _Read(kind, low, high)


def _number(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _written(read: _Read) -> str:
    """Return what to write in the experiment file."""
    more = f", count: {_flow(read.count)}" if read.count is not None else ""
    match read.kind:
        case "const":
            return f"`{_flow(read.values[0])}`"
        case "categorical":
            return f"`{{type: categorical, vals: {_flow(list(read.values))}}}`"
        case "log" | "log int":
            rounded = ", and round it in the script" if read.kind == "log int" else ""
            if min(read.low, read.high) <= 0:  # exponents of e
                ends = f"base: {math.e:.6g}, minval: {read.low:g}, maxval: {read.high:g}"
            else:
                ends = _exponents(read.low, read.high)
            return f"`{{type: log, {ends}{more}}}`{rounded}"
        case "int" | "double" | "normal":
            pass
    values = _steps(read)
    if values:
        return f"`{{type: categorical, vals: {_flow(values)}}}`"
    rounded = ", and round it to steps in the script" if read.step not in {None, 1} else ""
    kind = "int" if read.kind == "int" else "double"
    low, high = (f"{end:.5g}" if isinstance(end, float) else end for end in (read.low, read.high))
    return f"`{{type: {kind}, minval: {low}, maxval: {high}{more}}}`{rounded}"


def _exponents(low: float, high: float) -> str:
    base = 2 if all(math.log2(end).is_integer() and end >= 1 for end in (low, high)) else 10
    log = math.log2 if base == 2 else math.log10
    return f"base: {base}, minval: {log(low):.4g}, maxval: {log(high):.4g}"


def _steps(read: _Read) -> list[float]:
    """Return the values of a range with steps, where they are few."""
    step = read.step
    if step is None or step <= 0 or (read.kind == "int" and step == 1):
        return []
    steps = (read.high - read.low) / step
    if not 0 < steps < _STEPS_MAX:
        return []
    values = [read.low + i * step for i in range(int(steps + 1e-9) + 1)]
    return (
        values
        if all(isinstance(value, int) for value in values)
        else [float(f"{value:.6g}") for value in values]
    )


def _flow(value: Any) -> str:
    """Return a value in YAML's flow style, on one line."""
    if isinstance(value, dict):
        members = (f"{name}: {_flow(item)}" for name, item in value.items())
        return shortened(f"{{{', '.join(members)}}}", 100)
    if isinstance(value, list):
        return shortened(f"[{', '.join(map(_flow, value))}]", 100)
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_…][\w.-]*", value):
        return shortened(value)
    return shortened(json.dumps(value, ensure_ascii=False, default=repr))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
