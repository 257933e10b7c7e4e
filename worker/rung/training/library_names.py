"""Library names: the attributes of an object that its class's library uses, not the script."""

import functools
import inspect
from collections.abc import Hashable
from types import FunctionType
from typing import cast

from rung.training.seams import codes_of


def library_names(kind: type, libraries: frozenset[str]) -> frozenset[str]:
    """Return the names to which those methods and properties refer that a class has of libraries.

    Args:
        kind: a class.
        libraries: names of top-level packages.
    """
    return _library_names(cast("Hashable", kind), libraries)


@functools.cache
def _library_names(kind: Hashable, libraries: frozenset[str]) -> frozenset[str]:
    assert isinstance(kind, type)
    found: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] in libraries:
            for member in vars(each).values():
                function = getattr(member, "fget", getattr(member, "__func__", member))
                function = inspect.unwrap(function) if callable(function) else function
                if isinstance(function, FunctionType):
                    for code in codes_of(function):
                        found.update(code.co_names)
    return frozenset(found)
