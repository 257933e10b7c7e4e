"""Library code: the names to which functions and classes of a library refer."""

import functools
import inspect
from collections.abc import Hashable, Iterator
from types import CodeType, FunctionType
from typing import Any, cast


def codes_of(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function, without decorators, and of functions defined within it."""
    function = function.fget if isinstance(function, property) else function
    found = [inspect.unwrap(function).__code__]
    for code in found:
        yield code
        found.extend(each for each in code.co_consts if isinstance(each, CodeType))


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
