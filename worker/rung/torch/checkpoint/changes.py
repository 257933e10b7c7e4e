"""Changes of a world: what differs from a world that was looked at earlier, stored and set again.

An entry is known by its owner's place and its key. Beside its value goes its *origin*: what it was
before. It is set again only where the origin is the same.
"""

import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from rung.torch.checkpoint.attribute_value import (
    NotStorable,
    TensorMark,
    fingerprint,
    has_arrays,
    stored,
    value_of,
)
from rung.torch.checkpoint.reachable import (
    Entry,
    Kind,
    World,
    entries_of,
    holds_resource,
    place_of,
)
from rung.training.errors import NotResumable
from rung.training.introspection.script_code import cells_of, is_of_script
from rung.training.states.state_tree import found_by_name, name_of, put_attribute, slots

FILE: Final = "untracked.pt"
"""Of a checkpoint, with what has changed beside the states."""


class Mark(NamedTuple):
    """By what an entry is known again."""

    origin: str
    """The same in each run in which `__init__` makes the same."""
    now: str | TensorMark
    """The same as long as it does not change."""


class Found(NamedTuple):
    """What has changed."""

    entries: list[dict[str, Any]]
    """For a checkpoint."""
    lost: dict[str, str]
    """By place, what it cannot hold, and why."""
    unkept: list[str]
    """Places of objects that are bound to this process."""


class Changes:
    """Compares later worlds with that of one moment."""

    def __init__(self, before: World, device: torch.device) -> None:
        """Remember a world.

        Args:
            before: the world.
            device: for tensors in place of what is none.
        """
        self.before: Final = before
        self._device = device
        self._marks = {place: _mark(entry, before) for place, entry in before.entries.items()}
        self._index = {(it.owner, it.key): place for place, it in before.entries.items()}

    def compare(self, world: World) -> Found:
        """Return what has changed up to a world that was looked at with `before`."""
        found: list[dict[str, Any]] = []
        lost: dict[str, str] = {}
        unkept: list[str] = []
        for place, entry in world.entries.items():
            before = self._marks.get(place)
            if entry.owner not in self.before.owners or _same(before, entry, world):
                continue
            if _is_own_method(world.owners[entry.owner], entry):
                continue
            if entry.kind is Kind.VALUE and world.is_told(entry.value):
                continue
            origin = before.origin if before is not None else None
            common = {"owner": entry.owner, "key": entry.key, "origin": origin}
            try:
                found.append(common | self._stored(entry, before, world))
            except NotStorable as error:
                lost[place] = f"{place} {error}"
            except _Unkept:
                unkept.append(place)
        for place, entry in self.before.entries.items():
            if place not in world.entries and _is_gone(entry, world):
                origin = self._marks[place].origin
                found.append(
                    {"owner": entry.owner, "key": entry.key, "origin": origin, "gone": True}
                )
        return Found(found, lost, unkept)

    def _stored(self, entry: Entry, before: Mark | None, world: World) -> dict[str, Any]:
        """Return what a checkpoint holds of an entry that has changed.

        Raises:
            NotStorable: it cannot hold it.
            _Unkept: it is bound to this process.
        """
        owner = world.owners[entry.owner]
        if entry.kind is Kind.TENSOR:
            if isinstance(entry.value, nn.Parameter) and not _is_alike(before, entry.value):
                raise NotStorable("is a parameter of another shape now: make it in __init__")
            return {"tensor": entry.value.detach()} | _as_buffer(owner, entry.key)
        if isinstance(owner, tuple):
            raise NotStorable("is another item of a tuple now: use a list")
        if entry.kind is Kind.VALUE:
            return stored(entry.value) | _as_buffer(owner, entry.key)
        if entry.kind is Kind.REFERENCE:
            where = world.places[id(entry.value)]
            if self.before.found(where) is entry.value:
                return {"reference": where}
        if entry.kind is Kind.FUNCTION and _is_named(entry.value):
            return {"function": name_of(entry.value)}
        place = place_of(entry.owner, owner, entry.key)
        if entry.kind is not Kind.FUNCTION and world.is_made_of_values(entry.value, place):
            return stored(entry.value)
        raise _refusal(entry, before, owner)

    def set(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Set again what `compare` has found, where the script has made the same as then."""
        for it in entries:
            owner, key = self.before.owners.get(it["owner"]), it["key"]
            mark = self._marks.get(self._index.get((it["owner"], key), ""))
            if owner is None or it["origin"] != (mark.origin if mark is not None else None):
                continue
            current = dict(entries_of(owner)).get(key)
            if "gone" in it:
                _delete(owner, key)
            elif "reference" in it:
                _put(owner, key, self.before.found(it["reference"]), it)
            elif "function" in it:
                _put(owner, key, _function(it["function"], f"{it['owner']}.{key}"), it)
            elif "tensor" in it:
                _put(owner, key, self._with_content(current, it["tensor"]), it)
            else:
                _put(owner, key, value_of(it, current, f"{it['owner']}.{key}"), it)

    def _with_content(self, current: Any, kept: torch.Tensor) -> torch.Tensor:
        """Return the tensor that is there with the content of another, or else that one."""
        if not isinstance(current, torch.Tensor):
            return kept.to(self._device)
        if current.shape == kept.shape and current.dtype == kept.dtype:
            with torch.no_grad():
                current.detach().copy_(kept)
            return current
        return kept.to(current.device)


def copied(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry that training does not change."""
    return entry | {"tensor": entry["tensor"].clone()} if "tensor" in entry else entry


def fingerprints(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return a text for each entry, by its place, that differs for different values."""
    return {f"{it['owner']}.{it['key']}": fingerprint(dict(it)) for it in entries}


class _Unkept(Exception):
    """An object that is bound to its process."""


def _mark(entry: Entry, world: World) -> Mark:
    value = entry.value
    match entry.kind:
        case Kind.TENSOR:
            return Mark(f"tensor {value.dtype} {tuple(value.shape)}", TensorMark.of(value))
        case Kind.VALUE:
            now = fingerprint(value)
            return Mark(f"{_name(value)} of arrays" if has_arrays(value) else now, now)
        case Kind.REFERENCE:
            text = f"the object {world.places[id(value)]}"
        case Kind.FUNCTION:
            text = f"{_FUNCTION} {getattr(value, '__module__', '')}.{_qualified(value)}"
            return Mark(text, f"{text} {_line_of(value)}")
        case Kind.LARGE:
            text = f"a {_name(value)} of {len(value)}"
        case Kind.OBJECT:
            text = f"a {_name(value)}"
            if isinstance(value, list | tuple):
                text += f" of {len(value)}"
            if isinstance(value, DataLoader):
                text += f" with batches of {value.batch_size}"
    return Mark(text, text)


def _same(before: Mark | None, entry: Entry, world: World) -> bool:
    if before is None:
        return False
    if isinstance(before.now, TensorMark):
        return entry.kind is Kind.TENSOR and before.now.is_of(entry.value)
    if entry.kind is Kind.VALUE:
        return fingerprint(entry.value) == before.now
    return entry.kind is not Kind.TENSOR and _mark(entry, world).now == before.now


def _is_own_method(owner: Any, entry: Entry) -> bool:
    """Return whether an attribute is the method that its class has under this name."""
    method = entry.value
    if not isinstance(method, types.MethodType) or method.__self__ is not owner:
        return False
    return getattr(type(owner), str(entry.key), None) is method.__func__


def _is_alike(before: Mark | None, tensor: torch.Tensor) -> bool:
    return before is not None and before.origin == f"tensor {tensor.dtype} {tuple(tensor.shape)}"


def _refusal(entry: Entry, before: Mark | None, owner: Any) -> Exception:
    """Return the error for an object that was not there in `__init__`."""
    was = "was not there" if before is None else f"was {before.origin}"
    value = entry.value
    if entry.kind is Kind.FUNCTION:
        replaces = isinstance(owner, nn.Module) and hasattr(type(owner), entry.key)
        if not replaces and (before is None or not before.origin.startswith(_FUNCTION)):
            return _Unkept()
        return NotStorable(
            f"is {_FUNCTION} {_qualified(value)} now, and {was}: choose it by a number or a text"
            " in an attribute, which is kept"
        )
    if isinstance(value, DataLoader) or (entry.kind is not Kind.LARGE and holds_resource(value)):
        return _Unkept()
    count = f" of {len(value)}" if isinstance(value, list | tuple | Mapping) else ""
    return NotStorable(
        f"is a {_name(value)}{count} now, and {was}: make the object in __init__, or keep its"
        " values in numbers, lists or tensors, or give what holds it state_dict and"
        " load_state_dict; what can be rebuilt may have `cache` in its name"
    )


def _is_gone(entry: Entry, world: World) -> bool:
    """Return whether an attribute, or a key, was deleted; and is not only looked at no more."""
    owner = world.owners.get(entry.owner)
    if owner is None or isinstance(owner, list | tuple):
        return False
    return all(key != entry.key for key, _ in entries_of(owner))


def _as_buffer(owner: Any, key: Any) -> dict[str, Any]:
    if not isinstance(owner, nn.Module) or key not in owner._buffers:  # noqa: SLF001 - torch has no other way
        return {}
    return {"persistent": key not in owner._non_persistent_buffers_set}  # noqa: SLF001 - as above


def _put(owner: Any, key: Any, value: Any, kept: Mapping[str, Any]) -> None:
    """Set an attribute or an item, past `__setattr__` and properties."""
    if isinstance(owner, nn.Module):
        own = vars(owner)
        if "persistent" in kept:
            own.pop(key, None)
            owner.register_buffer(key, value, persistent=kept["persistent"])
        else:
            kinds = (own["_parameters"], own["_modules"])
            next((it for it in kinds if key in it), own)[key] = value
    elif isinstance(owner, list | dict):
        owner[key] = value
    elif isinstance(owner, types.FunctionType):
        cells_of(owner)[key].cell_contents = value
    elif isinstance(owner, type):
        setattr(owner, key, value)
    elif not isinstance(owner, tuple):
        put_attribute(owner, key, value)


def _delete(owner: Any, key: Any) -> None:
    if isinstance(owner, nn.Module | type):
        delattr(owner, key)
    elif key in slots(type(owner)):
        object.__delattr__(owner, key)
    elif not isinstance(owner, types.FunctionType):
        (owner if isinstance(owner, dict) else vars(owner)).pop(key, None)


def _name(value: Any) -> str:
    return type(value).__name__


def _qualified(function: Any) -> str:
    """Return a function's name; of a partial one also the plain values that it was given."""
    if isinstance(function, functools.partial):
        given = [*map(_plainly, function.args)]
        given += [f"{name}={_plainly(value)}" for name, value in sorted(function.keywords.items())]
        return f"{_qualified(function.func)}({', '.join(given)})"
    return getattr(function, "__qualname__", repr(type(function)))


def _plainly(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | bool | None) else _name(value)


def _line_of(function: Any) -> int:
    """Return where a function begins, in which functions without a name differ."""
    return int(getattr(getattr(function, "__code__", None), "co_firstlineno", 0))


def _is_named(function: Any) -> bool:
    """Return whether a function or class of the script, or of torch.nn, is found by its name."""
    if not isinstance(function, types.FunctionType | type):
        return False
    where = getattr(function, "__module__", None) or "builtins"
    mine = is_of_script(where) or where.startswith("torch.nn.")
    return mine and found_by_name(name_of(function)) is function


def _function(name: list[str], place: str) -> Any:
    found = found_by_name(name)
    if not _is_named(found):
        raise NotResumable(
            f"{place} was the function {name[1]} when the checkpoint was stored, and the script"
            f" does not have it in {name[0]}: leave it there, and under its name"
        )
    return found


_FUNCTION: Final = "the function"
