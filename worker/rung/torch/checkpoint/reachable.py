"""What a trial reaches: the attributes, tensors and objects of its world, each with its place.

Looked at are the attributes of models and their layers, of the data set, of the trial and of
callbacks, and those of the objects that they hold. Not looked at are

    items               of data sets, and of long lists of objects
    what has a state    weights, optimizers and all else that checkpoints hold, and the context
    what has none       functions, iterators, generators, loggers, locks, files; objects of the
                        standard library, and of other packages if they hold such a thing
    caches              attributes with `cache` in their name

Of functions of the script the variables that they enclose are looked at, of its classes the
attributes with plain values, and of loaders the data set.
"""

import argparse
import functools
import itertools
import logging
import random
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from rung.torch.callback import Callback
from rung.torch.checkpoint.sharded_tensors import is_shard
from rung.torch.metrics.reducers import MetricReducer
from rung.torch.pytree import is_strided, tensors_in
from rung.training.introspection.script_code import (
    enclosed_by,
    encloses,
    is_installed,
    is_of_script,
)
from rung.training.states.state_tree import (
    STANDARD,
    attributes,
    found_by_name,
    has_attributes,
    is_frame,
    is_record,
    name_of,
)

DEPTH_MAX: Final = 6
ITEMS_MAX: Final = 100
"""How many objects of a list or dict are looked at; one with more of them are data."""
_OBJECTS_MAX: Final = 100_000
"""How many objects are looked at in all."""
_SCALARS: Final = (str, int, float, bool, bytes, type(None))
_PLAIN: Final = (Enum, PurePath, np.ndarray, np.generic, torch.dtype, torch.device)
_ENTRIES: Final = (list, tuple, dict)
_LISTS: Final = (list, tuple, set, frozenset, deque)
_MAPPINGS: Final = (dict, OrderedDict, Counter, defaultdict)
_FACTORIES: Final = (None, int, float, str, list, dict, set)
_CODE: Final = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
_GENERATORS: Final = (
    random.Random,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
    torch.Generator,
)
_WITH_STATE: Final = (Optimizer, LRScheduler, MetricReducer, Callback)
_WITHOUT: Final = (*_CODE, Iterator, logging.Logger, DataLoader, *_GENERATORS)
_OF_MODULE: Final = frozenset(vars(nn.Module())) - {"training"}
_OF_OPTIMIZER: Final = frozenset({"state", "param_groups", "defaults", "grad_scale", "found_inf"})
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
_WRAPPING: Final = ("torch._dynamo", "torch.nn.parallel", "rung.")
"""Of these modules are classes that compile or replicate a model."""


class Kind(Enum):
    """What an entry is."""

    VALUE = auto()
    """Numbers, text, arrays, and containers of them."""
    TENSOR = auto()
    """A tensor that no state holds."""
    OBJECT = auto()
    """An object that has entries itself."""
    REFERENCE = auto()
    """An object that has a place already."""
    LARGE = auto()
    """A container of more objects than are looked at."""
    FUNCTION = auto()
    """A function or a class, which is known by its name."""


class Entry(NamedTuple):
    """An attribute of an object, or an item of a container."""

    owner: str
    """The place of the object."""
    key: Any
    kind: Kind
    value: Any


class World:
    """All that is reached, by place; an object keeps the place at which it was first seen."""

    def __init__(
        self,
        held: Iterable[torch.Tensor],
        told: Iterable[torch.Tensor] = (),
        before: "World | None" = None,
        within: tuple[type, ...] = (object,),
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Begin with nothing.

        Args:
            held: tensors of models, which their states hold.
            told: tensors that objects with a `state_dict` of their own return.
            before: what was reached earlier.
            within: kinds of objects that are looked into.
            without: names of attributes that are not looked at.
        """
        self._without = without
        self._within = within
        self._held = {place for each in held for place in _addresses(each)}
        self._told = {place for each in told for place in _addresses(each)}
        self.places: Final[dict[int, str]] = dict(before.places) if before else {}
        """The place of each object, by its id."""
        self._before = frozenset(self.places)
        self._named: dict[str, Any] = {}
        self.owners: Final[dict[str, Any]] = {}
        self.entries: Final[dict[str, Entry]] = {}
        self.optimizers: Final[dict[str, Optimizer]] = {}
        """Optimizers that have no place: no checkpoint has their states."""

    def name(self, place: str, thing: Any) -> None:
        """Give an object a place without looking at it: its state is kept."""
        self._named[place] = thing
        self.places.setdefault(id(thing), place)

    def reserve(self, place: str, root: Any) -> None:
        """Give an object a place, at which it is looked at whoever refers to it."""
        self.places.setdefault(id(root), place)

    def add(self, place: str, root: Any) -> None:
        """Look at an object, and at what it reaches."""
        place = self.places.setdefault(id(root), place)
        if place not in self.owners:
            self._look(place, root, 0)

    def _look(self, place: str, thing: Any, depth: int) -> None:
        self.owners[place] = thing
        for key, found in entries_of(thing):
            if is_cache(key) or key in self._without or len(self.entries) > _OBJECTS_MAX:
                continue
            value = _unwrapped(found)
            kind = self._kind(value)
            deep = 0 if isinstance(value, nn.Module) else depth + 1
            below = place_of(place, thing, key)
            if kind is None:
                if isinstance(value, Optimizer):
                    self.optimizers[below] = value
                continue
            if kind is Kind.OBJECT and self._looks_into(value, deep):
                first = self.places.setdefault(id(value), below)
                kind = Kind.OBJECT if first == below else Kind.REFERENCE
                if first not in self.owners and first not in self._named:
                    self._look(first, value, deep)
            elif kind is Kind.FUNCTION and deep <= DEPTH_MAX and encloses(value):
                first = self.places.setdefault(id(value), below)
                if first not in self.owners:
                    self._look(first, value, deep)
            self.entries[below] = Entry(place, key, kind, value)
        self._look_at_class(type(thing))

    def _look_at_class(self, kind: type) -> None:
        """Look at the plain values of a class of the script, and of those it derives from."""
        for each in kind.__mro__:
            place = f"class {each.__module__}.{each.__qualname__}"
            if place in self.owners or not is_of_script(str(each.__module__)):
                continue
            self.owners[place] = each
            for key, value in vars(each).items():
                if not (key.startswith("__") or is_cache(key)) and self._is_plain(value):
                    self.entries[f"{place}.{key}"] = Entry(place, key, Kind.VALUE, value)

    def _looks_into(self, value: Any, depth: int) -> bool:
        return depth <= DEPTH_MAX and isinstance(value, self._within)

    def found(self, place: str) -> Any:
        """Return the object that has a place; None: it was not reached."""
        return self.owners.get(place, self._named.get(place))

    def _kind(self, value: Any) -> Kind | None:
        """Return what a value is; None: it is not looked at."""
        if self._is_plain(value):
            return Kind.VALUE
        if isinstance(value, torch.Tensor):
            return None if self._holds(value) or self.is_told(value) else Kind.TENSOR
        if isinstance(value, _CODE):
            return Kind.FUNCTION
        if isinstance(value, DataLoader):
            return Kind.OBJECT
        return Kind.OBJECT if id(value) in self.places else _kind_of_object(value)

    def _holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a model has a tensor, or another one of the same memory."""
        return is_shard(tensor) or any(place in self._held for place in _addresses(tensor))

    def is_told(self, value: Any) -> bool:
        """Return whether a value has tensors, all of which are in the states of objects."""
        found = [*tensors_in(value)]
        return bool(found) and all(
            any(place in self._told for place in _addresses(each)) for each in found
        )

    def _is_plain(self, value: Any, depth: int = 0) -> bool:
        """Return whether a value is made of numbers, text, arrays and containers alone.

        Of a long container the first items are looked at. A tensor alone is none: it counts its
        changes.
        """
        if type(value) in _SCALARS or type(value) in STANDARD:
            return True
        if isinstance(value, np.ndarray):
            return not value.dtype.hasobject
        if isinstance(value, torch.Tensor):
            return depth > 0 and not isinstance(value, nn.Parameter) and not self._holds(value)
        if isinstance(value, _PLAIN) or is_frame(value):
            return True
        items = _items_of_plain(value) if depth <= DEPTH_MAX else None
        return items is not None and all(self._is_plain(item, depth + 1) for item in items)

    def is_made_of_values(self, value: Any, place: str, depth: int = 0) -> bool:
        """Return whether an object at a place can be made again, of values and records alone.

        One that can change and has another place, too, cannot: it would become two.
        """
        if self._is_plain(value, 1):
            return True
        if is_record(value):
            there = self.places.get(id(value), place)
            fixed = type(value).__dataclass_params__.frozen
            if not (fixed or is_below(there, [place])) or (depth and id(value) in self._before):
                return False
            held: Iterable[Any] = attributes(value).values()
        elif type(value) in {list, tuple, dict}:
            held = value.values() if isinstance(value, dict) else value
        else:
            return False
        return depth <= DEPTH_MAX and all(
            self.is_made_of_values(each, place, depth + 1) for each in held
        )


def _items_of_plain(value: Any) -> Iterable[Any] | None:
    """Return the first items of a container of a kind that is kept; None: it is none."""
    if type(value) in _MAPPINGS:
        if type(value) is defaultdict and value.default_factory not in _FACTORIES:
            return None
        return itertools.chain.from_iterable(itertools.islice(value.items(), ITEMS_MAX))
    kind = type(value)
    named = isinstance(value, tuple) and hasattr(value, "_fields")
    named = named and found_by_name(name_of(kind)) is kind
    if type(value) in _LISTS or named or isinstance(value, torch.Size):
        return itertools.islice(value, ITEMS_MAX)
    return None


def _kind_of_object(value: Any) -> Kind | None:
    if isinstance(value, (*_WITHOUT, *_WITH_STATE)):
        return None
    if isinstance(value, (*_ENTRIES, Mapping, set, frozenset, deque)):
        small = isinstance(value, _ENTRIES) and len(value) <= ITEMS_MAX
        return Kind.OBJECT if small else Kind.LARGE
    return Kind.OBJECT if is_walked(value) else None


def _unwrapped(value: Any) -> Any:
    """Return the model that a module compiles or replicates; anything else itself."""
    while isinstance(value, nn.Module) and type(value).__module__.startswith(_WRAPPING):
        value = next(value.children())
    return value


def place_of(owner: str, thing: Any, key: Any) -> str:
    """Return the place of an attribute, or an item, of an object that has a place."""
    return f"{owner}[{key!r}]" if isinstance(thing, _ENTRIES) else f"{owner}.{key}"


def is_below(place: str, roots: Iterable[str]) -> bool:
    """Return whether a place is one of others, or of an object that these hold."""
    return any(place == it or place.startswith((f"{it}.", f"{it}[")) for it in roots)


def entries_of(thing: Any) -> Iterator[tuple[Any, Any]]:
    """Yield an object's attributes, or a container's items, each with its name or key."""
    match thing:
        case nn.Module():
            yield from _entries_of_module(thing)
        case Optimizer():
            names = sorted(vars(thing).keys() - _OF_OPTIMIZER)
            yield from ((name, vars(thing)[name]) for name in names if "hook" not in name)
        case list() | tuple():
            yield from enumerate(thing)
        case dict():
            for key, value in thing.items():
                if type(key) in {str, int, bool}:
                    yield key, value
        case types.FunctionType():
            yield from enclosed_by(thing)
        case DataLoader():
            yield "dataset", thing.dataset
        case _:
            yield from sorted(attributes(thing).items())  # sorted: in any run the same places


def _entries_of_module(module: nn.Module) -> Iterator[tuple[str, Any]]:
    own = vars(module)
    for name, value in own.items():
        if name not in _OF_MODULE:
            yield name, value
    for kind in ("_parameters", "_buffers", "_modules"):
        for name, value in own[kind].items():
            yield name, value


def is_cache(key: Any) -> bool:
    """Return whether an attribute's name says that it can be rebuilt."""
    return isinstance(key, str) and "cache" in key.lower()


def is_items_only(data: Any) -> bool:
    """Return whether a data set is nothing but its items, and has no state beside them."""
    return isinstance(data, (*_ENTRIES, torch.Tensor))


def is_walked(thing: Any) -> bool:
    """Return whether an object's attributes may be a state."""
    if isinstance(thing, (nn.Module, *_NAMESPACES)):
        return True
    if not has_attributes(thing):
        return False
    package = type(thing).__module__.partition(".")[0]
    if package == "rung" or (package in sys.stdlib_module_names and package != "__main__"):
        return False
    installed = is_installed(type(thing).__module__)
    return not (installed and any(map(is_resource, attributes(thing).values())))


def is_resource(value: Any) -> bool:
    """Return whether a value is bound to a process: a lock, a file, an iterator, a thread."""
    if isinstance(value, (Iterator, logging.Logger)):
        return True
    known = (*_CODE, *_PLAIN, *_NAMESPACES, *_GENERATORS, *STANDARD, Mapping, *_LISTS, *_SCALARS)
    if isinstance(value, known):
        return False
    package = type(value).__module__.partition(".")[0]
    if package in sys.stdlib_module_names and package != "__main__":
        return True
    return not has_attributes(value) and not hasattr(type(value), "__slots__")


def holds_resource(thing: Any, depth: int = 3) -> bool:
    """Return whether an object, or one that it holds, is bound to a process."""
    if isinstance(thing, nn.Module):
        return False
    for _, value in itertools.islice(entries_of(thing), ITEMS_MAX):
        if is_resource(value):
            return True
        into = isinstance(value, _ENTRIES) or is_walked(value)
        if depth and into and holds_resource(value, depth - 1):
            return True
    return False


def _addresses(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield what tensors of the same memory have in common, and what is the tensor's alone."""
    yield "id", id(tensor)
    if not is_shard(tensor) and is_strided(tensor) and not tensor.is_meta and tensor.numel():
        yield tensor.data_ptr()
