"""Untracked variables: those that exist beside `keep`, and that training must not change.

A run that resumes has such a variable as the script makes it. That is right for what no step
changes, such as a frozen teacher, and for what `validate` alone changes. An average of the
weights, a sum or a generator would begin anew; so a change is refused at the next validation or
checkpoint, before anything is lost. TensorFlow has no list of its variables outside graphs: they
are found among all objects, when the loop begins and after its first batch, by which a
`tf.function` has made its own.
"""

import gc
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import keras
import tensorflow as tf

from rung.tensorflow.checkpoint_items import Kept
from rung.training.errors import NotResumable

_NAMED: Final = 3
"""How many variables an error names."""
_UNREADABLE: Final = (tf.resource, tf.variant, tf.string)
"""Types of variables whose values cannot be compared."""


class UntrackedVariables:
    """Knows the variables that are not kept, and by a checksum each value."""

    def __init__(self, kept: Kept, aside: Iterable[Any], *, exactly: bool) -> None:
        """Look for variables, when the loop begins.

        Args:
            kept: what the checkpoints hold.
            aside: variables of the loop itself.
            exactly: whether the run must resume exactly; else integers, which states of
                generators and counts are, may begin anew.
        """
        held = [*kept.shared, *kept.own, *_variables_in(kept.pairs.values()), *aside]
        self._kept: Final = {id(_variable(each)) for each in held}
        self._held: Final = held  # so that no other object gets the identity of one of them
        self._exactly: Final = exactly
        self._found: list[weakref.ref[Any]] = []
        self._checksums: dict[int, int] = {}
        self._find()
        self._looks_again = True

    def batch_trained(self) -> None:
        """Look again, behind the first batch."""
        if self._looks_again:
            self._looks_again = False
            self._find()

    def note(self) -> None:
        """Take the values of now as unchanged."""
        self._checksums = {id(each): _checksum(each) for each in self._alive()}

    def demand_unchanged(self) -> None:
        """Check that no variable has changed since it was found or noted.

        Raises:
            NotResumable: one has; the message names it.
        """
        changed = [it for it in self._alive() if _checksum(it) != self._checksums[id(it)]]
        if not changed:
            return
        names = [f"{it.name} ({it.dtype.name}, shape {tuple(it.shape)})" for it in changed]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise NotResumable(
            "training has changed variables that are in no checkpoint, so that a run that resumes"
            f" would begin with other values: {', '.join(names[:_NAMED])}{more}. Name them, or the"
            " modules, metrics and generators that hold them, in Training(…, keep={…})"
        )

    def _find(self) -> None:
        """Look for variables; those that are new count as unchanged so far."""
        known = {id(each) for each in self._alive()}
        for each in gc.get_objects():
            if issubclass(type(each), tf.Variable) and self._concerns(each, known):
                self._found.append(weakref.ref(each))
                self._checksums[id(each)] = _checksum(each)

    def _alive(self) -> list[Any]:
        return [each for each in (found() for found in self._found) if each is not None]

    def _concerns(self, variable: Any, known: set[int]) -> bool:
        if id(variable) in known or id(variable) in self._kept:
            return False
        if variable.dtype in _UNREADABLE or not variable.is_initialized():
            return False
        return self._exactly or bool(variable.dtype.is_floating)


def _variable(each: Any) -> Any:
    """Return TensorFlow's variable, also of one of Keras."""
    return each.value if isinstance(each, keras.Variable) else each


def _variables_in(things: Iterable[Any]) -> Iterator[Any]:
    """Yield the variables in attributes of objects, which tell their state by themselves."""
    waiting, seen = list(things), set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, tf.Variable | keras.Variable):
            yield thing
        else:
            waiting.extend(_parts(thing))


def _parts(thing: Any) -> Iterable[Any]:
    match thing:
        case tf.Module() | keras.layers.Layer() | keras.optimizers.Optimizer():
            return list(thing.variables)
        case Mapping():
            return thing.values()
        case list() | tuple() | set() | frozenset():
            return thing
        case type() | ModuleType():
            return ()
        case _:
            return vars(thing).values() if hasattr(thing, "__dict__") else ()


def _checksum(variable: Any) -> int:
    return (
        zlib.crc32(memoryview(variable.numpy()).cast("B")) if variable.shape.num_elements() else 0
    )
