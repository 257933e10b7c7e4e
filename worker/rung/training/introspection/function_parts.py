"""Function parts: what a function, a method or a `functools.partial` of a script refers to.

Of a function these are the variables that it encloses, of a method its object, of a partial its
function and its arguments. Such a part has a place, the name of the function and its own:
`on_epoch_end.losses`. Global variables are none.
"""

import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from rung.training.errors import NotResumable
from rung.training.introspection.script_code import cells_of, enclosed_by, encloses, is_of_script

UNASSIGNED: Final = object()
"""The value of a variable that is not assigned yet."""


class Part(NamedTuple):
    """A value to which a function refers."""

    place: str
    value: Any
    put: Callable[[Any], None]
    """Makes the function refer to another value."""


def parts_of(place: str, thing: Any, above: tuple[int, ...] = ()) -> Iterator[Part]:
    """Yield the parts of a function, and of functions among them.

    Args:
        place: of the function.
        thing: the function; nothing is yielded for anything else.
        above: the functions that it is part of.
    """
    if id(thing) in above:
        return
    for part in _own_parts(place, thing):
        yield part
        yield from parts_of(part.place, part.value, (*above, id(thing)))


def _own_parts(place: str, thing: Any) -> Iterator[Part]:
    match thing:
        case functools.partial():
            yield Part(f"{place}.func", thing.func, _fixed(f"{place}.func", thing.func))
            for index, each in enumerate(thing.args):
                own = f"{place}.args[{index}]"
                yield Part(own, each, _fixed(own, each))
            for name, each in thing.keywords.items():
                put = functools.partial(operator.setitem, thing.keywords, name)
                yield Part(f"{place}.{name}", each, put)
        case types.MethodType() if is_of_script(type(thing.__self__).__module__):
            own = f"{place}.__self__"
            yield Part(own, thing.__self__, _fixed(own, thing.__self__))
        case types.FunctionType() if encloses(thing):
            values = dict(enclosed_by(thing))
            for name, cell in cells_of(thing).items():
                put = functools.partial(setattr, cell, "cell_contents")
                yield Part(f"{place}.{name}", values.get(name, UNASSIGNED), put)
        case _:
            pass


def _fixed(place: str, current: Any) -> Callable[[Any], None]:
    """Return what gives an array or a tensor the content of another one, as it cannot be replaced.

    It raises NotResumable for all else.
    """

    def fill(value: Any) -> None:
        content = current.detach() if hasattr(current, "detach") else current
        is_array = isinstance(content, np.ndarray) or content is not current
        if not is_array or type(value) is not type(content) or _form(value) != _form(content):
            raise NotResumable(
                f"a run that resumes cannot set {place} to another value: keep it in an attribute"
                " of an object, or in a list or dict"
            )
        content[...] = value

    return fill


def _form(array: Any) -> tuple[Any, Any]:
    return array.shape, array.dtype
