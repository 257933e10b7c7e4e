"""State trees: the values of objects as JSON values and arrays, and back.

Nothing of it is unpickled. On the way back, containers and objects that are there are filled, so
that what else refers to them finds the same objects; a record of a data class of the script is
made again where there is none.
"""

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import importlib
import inspect
import io
import json
import random
import sys
import types
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

import numpy as np

from rung.training.errors import NotResumable

_DEPTH_MAX: Final = 6
_VALUES_MAX: Final = 1_000_000
"""How many values that are no number and no text an attribute may hold; more are data."""
_SCALARS: Final = (str, int, float, bool, type(None))
_PAIR: Final = ("state_dict", "load_state_dict")
_CONSTANTS: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
    np.ufunc,
)
_SEQUENCES: Final = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_OF_TORCH: Final = ("dtype", "device")
_FACTORIES: Final = {
    getattr(each, "__name__", ""): each for each in (None, int, float, str, list, dict, set)
}
"""What default dicts make, by name."""
_MAPPINGS: Final = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
STANDARD: Final[dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    complex: (lambda it: [it.real, it.imag], lambda found: complex(*found)),
    range: (lambda it: [it.start, it.stop, it.step], lambda found: range(*found)),
    bytearray: (lambda it: it.hex(), bytearray.fromhex),
    dt.datetime: (lambda it: it.isoformat(), dt.datetime.fromisoformat),
    dt.date: (lambda it: it.isoformat(), dt.date.fromisoformat),
    dt.time: (lambda it: it.isoformat(), dt.time.fromisoformat),
    dt.timedelta: (
        lambda it: [it.days, it.seconds, it.microseconds],
        lambda found: dt.timedelta(*found),
    ),
    decimal.Decimal: (str, decimal.Decimal),
    fractions.Fraction: (str, fractions.Fraction),
    uuid.UUID: (str, uuid.UUID),
}
"""Values of Python's own types, which are read and made by these functions."""
_WITH_STATE: Final = {
    "state": "thing with a state_dict",
    "generator": "generator of random numbers",
    "variables": "variable",
}
_STANDARD_NAMES: Final = {kind.__qualname__: kind for kind in STANDARD}


class Resource(Exception):
    """An object that is no state, or one whose state cannot be read."""


class TooLarge(Resource):
    """Data: more values than are kept of a state."""


class Lost(Exception):
    """An object that is state, and cannot be kept; the message says what it is."""


class Node(NamedTuple):
    """What is kept of an attribute."""

    tree: Any
    arrays: dict[str, Any]

    @property
    def size(self) -> int:
        """How many bytes its arrays hold."""
        return sum(array.nbytes for array in self.arrays.values())

    def digest(self) -> str:
        """Return a digest of the value."""
        found = hashlib.sha256(json.dumps(self.tree, sort_keys=True).encode())
        for name, array in self.arrays.items():
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return found.hexdigest()


class Writer:
    """Makes a tree of JSON values, and arrays, of a value."""

    def __init__(
        self, foreign: Iterable[Any], left_out: Callable[[Any], bool] = lambda _: False
    ) -> None:
        """Begin.

        Args:
            foreign: what is kept elsewhere, or is no state.
            left_out: which objects are none besides.
        """
        self._left_out = left_out
        self._foreign = {id(each) for each in foreign}
        self._memory = {place for each in foreign if (place := _memory(each))}
        self._values = 0
        self.arrays: dict[str, Any] = {}

    def tree(self, value: Any, above: tuple[int, ...]) -> Any:
        """Return the tree of a value; `above` are the objects that it is part of.

        Raises:
            Resource: it is no state.
            Lost: it is, and cannot be kept.
        """
        if type(value) in _SCALARS:
            return value
        self._values += 1
        if self._values > _VALUES_MAX:
            raise TooLarge
        if len(above) > _DEPTH_MAX or id(value) in above:
            raise Resource
        if isinstance(value, _CONSTANTS) or id(value) in self._foreign or self._left_out(value):
            return {"constant": None}
        own = (*above, id(value))
        kinds = (self._array, self._constant, self._frame, self._container, self._generator)
        for kind in (*kinds, self._object):
            found = kind(value, own)
            if found is not None:
                return found
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            raise Lost(f"an iterator ({type(value).__name__})")
        raise Resource

    def _array(self, value: Any, _own: tuple[int, ...]) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise Resource
            return {"scalar" if isinstance(value, np.generic) else "array": self._add(array)}
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor):
            return None
        if _memory(value) in self._memory:
            return {"constant": None}
        if value.layout != torch.strided:
            raise Lost("a tensor that is not dense")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {
            "tensor": self._add(flat.numpy()),
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "device": value.device.type,
        }

    def _constant(self, value: Any, _own: tuple[int, ...]) -> Any:
        if type(value) in STANDARD:
            return {"standard": STANDARD[type(value)][0](value), "is": type(value).__qualname__}
        match value:
            case enum.Enum():
                return {"enum": value.name, "type": name_of(type(value))}
            case bytes():
                return {"bytes": value.hex()}
            case PurePath():
                return {"path": str(value)}
            case _ if type(value).__module__ == "torch" and type(value).__name__ in _OF_TORCH:
                return {"torch": str(value).removeprefix("torch."), "is": type(value).__name__}
            case _:
                return None

    def _frame(self, value: Any, own: tuple[int, ...]) -> Any:
        """Return the tree of a DataFrame, by its columns, if it is the same when it is read."""
        if not is_frame(value):
            return None
        index = value.index
        numbered = type(index).__name__ == "RangeIndex"
        tree = {
            "frame": [self.tree(_column(each), own) for _, each in value.items()],
            "dtypes": [str(each) for each in value.dtypes],
            "columns": [self.tree(each, own) for each in value.columns],
            "index": self.tree(
                range(index.start, index.stop, index.step) if numbered else _column(index), own
            ),
        }
        if not _is_same_frame(Reader(self.arrays, "").value(tree, None), value):
            raise Lost("a DataFrame of other columns than numbers and text")
        return tree

    def _container(self, value: Any, own: tuple[int, ...]) -> Any:  # noqa: PLR0911 - as many kinds
        match value:
            case dict():
                items = [[self.tree(k, own), self.tree(v, own)] for k, v in value.items()]
                kind = {"type": type(value).__name__}
                if type(value) is defaultdict and value.default_factory in _FACTORIES.values():
                    kind["factory"] = getattr(value.default_factory, "__name__", "")
                return {"mapping": items} | kind
            case set() | frozenset():
                found = [self.tree(each, own) for each in value]
                name = "set" if isinstance(value, set) else "frozenset"
                return {name: sorted(found, key=json.dumps)}
            case list():
                return {"list": [self.tree(each, own) for each in value]}
            case tuple():
                items = [self.tree(each, own) for each in value]
                if hasattr(value, "_fields"):
                    return {"record": items, "type": name_of(type(value))}
                return {"tuple": items}
            case deque():
                found = [self.tree(each, own) for each in value]
                return {"deque": found, "maxlen": value.maxlen}
            case _ if isinstance(value, _SCALARS):  # a number or a text of a type of its own
                raise Resource
            case _:
                return None

    def _generator(self, value: Any, own: tuple[int, ...]) -> Any:
        found = _generator_state(value)
        return None if found is None else {"generator": self.tree(found[0](), own)}

    def _object(self, value: Any, own: tuple[int, ...]) -> Any:
        """Return the tree of an object by its methods, its variables, or its attributes."""
        if tells_state(value):
            try:
                return {"state": self.tree(value.state_dict(), own)}
            except (Lost, Resource):
                name = type(value).__name__
                raise Lost(f"a {name} whose state_dict() has more than plain values") from None
        variables = _variables(value)
        if variables is not None:
            return {"variables": [self._add(np.asarray(each.numpy())) for each in variables]}
        if not has_attributes(value):
            return None
        found, lost = {}, None
        for name, each in sorted(attributes(value).items()):
            try:
                found[name] = self.tree(each, own)
            except Resource:
                return None
            except Lost as error:
                lost = error
        if lost is not None:
            raise lost
        made: dict[str, Any] = {"record": name_of(type(value))} if is_record(value) else {}
        return {"object": found, "type": type(value).__qualname__} | made

    def _add(self, array: Any) -> str:
        name = str(len(self.arrays))
        self.arrays[name] = array
        return name


class Reader:
    """Makes a value of a tree and arrays; containers and objects that are there are filled."""

    def __init__(self, arrays: Mapping[str, Any], place: str) -> None:
        self._arrays = arrays
        self._place = place

    def value(self, tree: Any, current: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case for each kind
        """Return a value: `current` with another content, where it can have that."""
        match tree:
            case {"constant": _}:
                return current
            case {"array": name}:
                return self._arrays[name].copy()
            case {"scalar": name}:
                return self._arrays[name][()]
            case {"tensor": name}:
                return self._tensor(self._arrays[name], tree)
            case {"enum": name, "type": kind}:
                return self._class(kind, current, enum.Enum)[name]
            case {"object": fields, "type": kind}:
                return self._object(fields, kind, self._record(current, tree.get("record")))
            case {"record": items, "type": kind}:
                made = self._class(kind, current, tuple)
                before = current if isinstance(current, tuple) else ()
                return made(*self._items(items, before))
            case {"frame": columns}:
                return self._frame(columns, tree)
            case {"standard": found, "is": kind}:
                return STANDARD[_STANDARD_NAMES[kind]][1](found)
            case {"bytes": text}:
                return bytes.fromhex(text)
            case {"path": text}:
                return type(current)(text) if isinstance(current, PurePath) else Path(text)
            case {"torch": name, "is": kind}:
                torch: Any = importlib.import_module("torch")
                return torch.device(name) if kind == "device" else getattr(torch, name)
            case {"mapping": items}:
                return self._mapping(items, tree, current)
            case {"deque": items, "maxlen": most}:
                return self._filled(items, current, deque, lambda found: deque(found, most))
            case {"generator": state}:
                return self._generator(state, current)
            case {"state": state}:
                self._there(current, object).load_state_dict(self.value(state, None))
                return current
            case {"variables": names}:
                self._set_variables(current, names)
                return current
            case dict():
                [(kind, items)] = tree.items()
                return self._filled(items, current, _SEQUENCES[kind], _SEQUENCES[kind])
            case _:
                return tree

    def _frame(self, columns: list[Any], about: Mapping[str, Any]) -> Any:
        pandas: Any = importlib.import_module("pandas")
        values = zip(self._items(columns, ()), about["dtypes"], strict=True)
        index = self.value(about["index"], None)
        rows = pandas.RangeIndex(index) if isinstance(index, range) else pandas.Index(index)
        found = pandas.DataFrame(
            {
                number: pandas.Series(each, rows, dtype)
                for number, (each, dtype) in enumerate(values)
            },
            index=rows,
        )
        found.columns = self._items(about["columns"], ())
        return found

    def _filled(
        self,
        items: list[Any],
        current: Any,
        kind: type,
        make: Callable[[list[Any]], Any],
    ) -> Any:
        there = isinstance(current, kind)
        found = self._items(items, current if there and kind not in {set, frozenset} else ())
        if not there or not hasattr(current, "clear"):
            return make(found)
        current.clear()
        current.update(found) if kind is set else current.extend(found)
        return current

    def _items(self, items: list[Any], current: Iterable[Any]) -> list[Any]:
        indexed = list(current)
        indexed += [None] * len(items)
        return [self.value(*both) for both in zip(items, indexed, strict=False)]

    def _class(self, name: list[str], current: Any, kind: type) -> Any:
        """Return a class of the script by its name; nothing is imported for it."""
        found = found_by_name(name)
        if isinstance(found, type) and issubclass(found, kind):
            return found
        return type(self._there(current, kind))

    def _mapping(self, items: list[list[Any]], tree: Mapping[str, Any], current: Any) -> Any:
        kind = tree["type"]
        there = isinstance(current, dict) and type(current).__name__ == kind
        if not there and kind not in _MAPPINGS and "factory" not in tree:
            self._there(None, dict)
        before = dict(current) if there else {}
        found = {}
        for key, each in items:
            key = self.value(key, None)  # noqa: PLW2901 - read
            found[key] = self.value(each, before.get(key))
        if not there and "factory" in tree:
            return defaultdict(_FACTORIES[tree["factory"]], found)
        if not there:
            return _MAPPINGS[kind](found)
        current.clear()
        current.update(found)
        return current

    def _generator(self, state: Any, current: Any) -> Any:
        found = _generator_state(self._there(current, object))
        if found is None:
            return self._there(None, object)
        found[1](self.value(state, None))
        return current

    def _set_variables(self, current: Any, names: list[str]) -> None:
        variables = _variables(self._there(current, object)) or []
        if len(variables) != len(names):
            raise NotResumable(
                f"{self._place}: the checkpoint holds {len(names)} variables of it, and it has "
                f"{len(variables)}: make them all before the first batch, as many in every run"
            )
        for variable, name in zip(variables, names, strict=True):
            variable.assign(self._arrays[name])

    def _object(self, fields: dict[str, Any], kind: str, current: Any) -> Any:
        if type(self._there(current, object)).__qualname__ != kind:
            self._there(None, object)
        own = attributes(current)
        for name, tree in fields.items():
            put_attribute(current, name, self.value(tree, own.get(name)))
        return current

    def _record(self, current: Any, name: list[str] | None) -> Any:
        """Return the record that is there, or else one without attributes."""
        kind = found_by_name(name) if name is not None else None
        if not isinstance(kind, type) or type(current) is kind:
            return current
        made: Any = object.__new__(kind)
        return made if is_record(made) else current

    def _tensor(self, array: Any, tree: dict[str, Any]) -> Any:
        torch: Any = importlib.import_module("torch")
        flat = torch.from_numpy(array.copy()).view(getattr(torch, tree["dtype"]))
        away = tree["device"] == "cuda" and not torch.cuda.is_available()
        return flat.reshape(tree["shape"]).to("cpu" if away else tree["device"])

    def _there(self, current: Any, kind: type) -> Any:
        if current is None or not isinstance(current, kind):
            raise NotResumable(
                f"{self._place}: the checkpoint holds the state of an object that this run does "
                "not have: make it before the first batch, in __init__ or where training begins"
            )
        return current


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas."""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and type(value) is getattr(pandas, "DataFrame", None)


def _column(column: Any) -> Any:
    """Return the values of a column or an index: an array of numbers, or else a list."""
    plain = isinstance(column.dtype, np.dtype) and not column.dtype.hasobject
    return column.to_numpy() if plain else column.tolist()


def _is_same_frame(found: Any, wanted: Any) -> bool:
    """Return whether two tables have the same rows, columns, names and types."""
    pairs = [(getattr(found, name), getattr(wanted, name)) for name in ("index", "columns")]
    named = all(one.equals(other) and one.names == other.names for one, other in pairs)
    return bool(named and found.equals(wanted) and not wanted.attrs)


def objects_in(  # noqa: C901 - a case for each kind
    tree: Any, place: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield the places of objects that must be there when a tree is read, each with its kind."""
    match tree:
        case {"state": _} | {"generator": _} | {"variables": _}:
            yield (*place, _WITH_STATE[next(iter(tree))])
        case {"object": fields, "type": kind, **more}:
            if not more:
                yield (*place, kind)
            for name, each in fields.items():
                yield from objects_in(each, (*place, name))
        case {"mapping": items}:
            for key, each in items:
                yield from objects_in(each, (*place, json.dumps(key)))
        case dict():
            for items in tree.values():
                if isinstance(items, list):
                    for number, each in enumerate(items):
                        yield from objects_in(each, (*place, str(number)))
        case _:
            pass


def name_of(thing: Any) -> list[str]:
    """Return the name of a class or a function: its module, and its name in there."""
    return [thing.__module__, thing.__qualname__]


def found_by_name(name: list[str]) -> Any:
    """Return what a loaded module has under a name; None: there is none. Nothing is imported."""
    found: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def is_record(value: Any) -> bool:
    """Return whether a value is of a data class that is found by its name, and no container."""
    kind = type(value)
    if issubclass(kind, dict | list | tuple | set | frozenset):
        return False
    return dataclasses.is_dataclass(kind) and found_by_name(name_of(kind)) is kind


def attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes, without calling its `__getattr__`."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        found = {}
    named = {name: it for name, it in found.items() if isinstance(name, str)}
    for name in slots(type(thing)):
        with contextlib.suppress(AttributeError):  # nothing is assigned yet
            named[name] = object.__getattribute__(thing, name)
    return named


def has_attributes(thing: Any) -> bool:
    """Return whether an object can have attributes of its own."""
    try:
        object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return any(True for _ in slots(type(thing)))
    return True


def put_attribute(thing: Any, name: str, value: Any) -> None:
    """Set an attribute, past `__setattr__` and properties."""
    if name in slots(type(thing)):
        object.__setattr__(thing, name, value)
    else:
        vars(thing)[name] = value


def slots(kind: type) -> Iterator[str]:
    """Yield the names of the attributes that a class has in `__slots__`."""
    for each in kind.__mro__:
        own = vars(each).get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            if name not in {"__dict__", "__weakref__"}:
                hidden = name.startswith("__") and not name.endswith("__")
                yield f"_{each.__name__.lstrip('_')}{name}" if hidden else name


def _memory(value: Any) -> int | None:
    """Return where a tensor of torch's lies, by which other tensors of the same data are known."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if value.layout != torch.strided or not value.numel():
        return None
    return int(value.data_ptr())


def tells_state(value: Any) -> bool:
    """Return whether an object tells its state, and takes it, by its own two methods."""
    return all(inspect.getattr_static(value, name, None) is not None for name in _PAIR)


def _generator_state(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return how to get and set the state of a generator of random numbers; None: it is none."""
    if isinstance(value, random.Random) and type(value) is not random.SystemRandom:
        return value.getstate, value.setstate
    if isinstance(value, np.random.RandomState):
        return lambda: value.get_state(legacy=False), value.set_state
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Generator):
        return value.get_state, value.set_state
    return None


def _variables(value: Any) -> list[Any] | None:
    """Return the variables of Keras or TensorFlow that an object is or has; None: it has none."""
    if type(value).__module__.partition(".")[0] not in {"keras", "tensorflow"} and not any(
        each.__module__.partition(".")[0] in {"keras", "tensorflow"} for each in type(value).mro()
    ):
        return None
    if _is_variable(value):
        return [value]
    found = getattr(value, "variables", None)
    if not isinstance(found, list | tuple) or not all(map(_is_variable, found)):
        return None
    return list(found)


def _is_variable(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("assign", "numpy", "shape"))
