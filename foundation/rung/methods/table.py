"""The table of search methods: a new one is a module of this package and its line here."""

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Union

import msgspec

from rung.events.errors import InvalidConfig, invalid_field
from rung.methods.method import Method, SearchOptions

MODULES: Final = (
    "single",
    "random_search",
    "grid",
    "asha",
    "adaptive_asha",
    "hyperband",
)
"""Modules of `rung.methods`; each holds the `Options` of a method."""

METHODS: Final[Mapping[str, type[SearchOptions]]] = {
    str(options.__struct_config__.tag): options
    for options in (import_module(f"rung.methods.{name}").Options for name in MODULES)
}
"""Name → the method's options, in the order of the table."""

_CANONICAL: Final = {
    name: method for method, options in METHODS.items() for name in (method, *options.ALIASES)
}

NAMES: Final = tuple(_CANONICAL)
"""Every name by which an experiment file may ask for a method."""

if TYPE_CHECKING:
    AnyOptions = SearchOptions
    AnyMethod = Method
else:
    AnyOptions = Union[tuple(METHODS.values())]  # noqa: UP007 - made of the table
    """Options of any method, told apart by their tag."""
    AnyMethod = Union[  # noqa: UP007 - made of the table
        tuple(state for options in METHODS.values() for state in options.STATES)
    ]
    """The state of any method, told apart by its tag."""


def options_named(name: Any) -> type[SearchOptions] | None:
    """Return the options of the method of this name, None if there is none."""
    return METHODS[_CANONICAL[name]] if isinstance(name, str) and name in _CANONICAL else None


def canonical(name: str) -> str:
    """Return the method's name where it is one of its aliases, else the name itself."""
    return _CANONICAL.get(name, name)


def read_options(searcher: Mapping[str, Any], *, timed: bool = True) -> SearchOptions:
    """Return the options in the section `searcher` of an expanded configuration.

    Null means "not given"; fields that the method does not have are ignored. With `timed`,
    `max_time` is required where the method needs it.

    Raises:
        InvalidConfig: there is no such method, or a field that it needs is missing or of another
            type.
    """
    name = searcher.get("name")
    kind = options_named(name)
    if kind is None:
        known = ", ".join(METHODS)
        raise InvalidConfig([("searcher.name", f"{name!r} is none of {known}")])
    given = {field: value for field, value in searcher.items() if value is not None}
    needed = _required(kind)
    for field in (*needed, "max_time") if timed and kind.NEEDS_TIME else needed:
        if field not in given:
            raise InvalidConfig([(f"searcher.{field}", f"{name} needs it")])
    try:
        return msgspec.convert(given | {"name": canonical(str(name))}, kind)
    except msgspec.ValidationError as error:
        path, text = invalid_field(error)
        raise InvalidConfig([(f"searcher.{path}" if path else "searcher", text)]) from error


@functools.cache
def _required(kind: type[SearchOptions]) -> tuple[str, ...]:
    """Return the fields that a method's options must have; cached, as to look takes a while."""
    return tuple(it.encode_name for it in msgspec.structs.fields(kind) if it.required)


def rungs_passed(searcher: Mapping[str, Any]) -> list[int]:
    """Return the lengths at which a run validates on its way, or ends, shortest first.

    None in searches that do not stop trials on their way: there each run ends at its rung. The
    section may lack required fields.
    """
    try:
        return read_options({"metric": "", **searcher}).rungs() if searcher.get("max_time") else []
    except InvalidConfig:
        return []
