"""States of callbacks that have no `state_dict`: their attributes, as a file of a checkpoint.

Kept are plain values (numbers, text, containers, arrays, tensors), generators of random numbers,
objects that have `state_dict` and `load_state_dict`, variables of Keras and TensorFlow, and
objects all of whose own attributes are such. Of a function of the script the variables that it
encloses are kept, and of a method its object, as `on_epoch_end.losses` for the attribute
`on_epoch_end`. Classes and what belongs to the loop (its model, its optimizers) are no state. What
is certainly state and cannot be kept, such as an iterator, is refused before the first batch; what
else cannot be kept, such as an open file, is named in the log.

Of an attribute that is as the script has made it a checkpoint holds only that: a run that resumes
has what its own script makes, so that a path or another setting is that of the process at hand.

    callbacks.npz   arrays, and a tree of the other values as JSON; nothing of it is unpickled
"""

import functools
import io
import json
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import structlog

from rung.training.errors import NotResumable
from rung.training.introspection.function_parts import UNASSIGNED, Part, parts_of
from rung.training.states.state_tree import (
    Lost,
    Node,
    Reader,
    Resource,
    TooLarge,
    Writer,
    objects_in,
    tells_state,
)

FILE: Final = "callbacks.npz"
_TREE: Final = "tree"
_OWN: Final = "state_dict()"
"""Stands for the attributes of a callback that tells its state itself."""
_MADE_MAX: Final = 1 << 20
"""How many bytes of arrays that the script has made are remembered beside their digest."""
_log = structlog.get_logger("rung")


class _Made(NamedTuple):
    """What the script has made of an attribute, before the first hook."""

    digest: str
    node: Node | None
    """None: it is too large to be remembered."""

    @classmethod
    def of(cls, node: Node) -> "_Made":
        """Remember a value."""
        if node.size > _MADE_MAX:
            return cls(node.digest(), None)
        arrays = {name: array.copy() for name, array in node.arrays.items()}
        return cls(node.digest(), node._replace(arrays=arrays))


class CallbackStates:
    """The states of a loop's callbacks, from before its first hook on."""

    def __init__(
        self,
        callbacks: Mapping[str, Any],
        foreign: Callable[[], Iterable[Any]],
        *,
        left_out: Collection[str] = (),
        resources: Collection[str] = (),
        silent: bool = False,
    ) -> None:
        """Look at callbacks as the script has made them.

        Args:
            callbacks: by names that are the same in every run.
            foreign: returns what belongs to the loop: models with their weights, optimizers.
            left_out: attributes that are no state.
            resources: names of callbacks whose unkept attributes are not worth a line in the log.
            silent: whether the callbacks have `state_dict` from their framework's own class, which
                tells nothing.
        """
        self._callbacks: Final = dict(callbacks)
        self._foreign: Final = foreign
        self._left_out: Final = frozenset(left_out)
        self._resources: Final = frozenset(resources)
        self._silent: Final = silent
        self._unkept: Final[set[tuple[str, str]]] = set()
        """What the log has named already."""
        self._there: set[tuple[str, ...]] | None = None
        """The places of objects that a state belongs to, before the first batch."""
        self._made: Final = {
            name: {field: _Made.of(node) for field, node in self._nodes(name)}
            for name in self._callbacks
        }

    def demand_complete(self) -> None:
        """See to it that all that is state can be kept; log what else cannot.

        Raises:
            NotResumable: something would be lost; the message names it and what to write.
        """
        lost: list[str] = []
        self._there = set()
        for name, callback in self._callbacks.items():
            for field, value in self._fields(callback):
                try:
                    self._there.update(objects_in(self._node(value).tree, (name, field)))
                except Lost as error:
                    lost.append(f"{name}.{field} is {error}")
                except Resource:
                    self._unkept.add((name, field))
                    if name not in self._resources:
                        _log.info("not part of checkpoints", callback=name, attribute=field)
        if lost:
            raise NotResumable(
                f"a run that resumes would lose the state of a callback: {'; '.join(lost)}. Keep "
                "in the callback a number, text, a list, a dict, an array or a tensor instead, or "
                "give it state_dict() and load_state_dict(state)"
            )

    def write(self, file: Path) -> None:
        """Write the state of this moment.

        Raises:
            NotResumable: something that is state cannot be kept any more.
        """
        tree: dict[str, dict[str, Any]] = {}
        arrays: dict[str, Any] = {}
        for name, made in self._made.items():
            tree[name] = {}
            for field, node in self._nodes(name, demanded=True):
                self._demand_there(name, field, node)
                if field in made and made[field].digest == node.digest():
                    tree[name][field] = {"made": None}
                else:
                    tree[name][field] = {"value": node.tree}
                    arrays |= {f"{name}/{field}/{key}": each for key, each in node.arrays.items()}
        arrays[_TREE] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
        with io.BytesIO() as buffer:
            np.savez(buffer, **arrays)
            file.write_bytes(buffer.getbuffer())

    def _demand_there(self, name: str, field: str, node: Node) -> None:
        """Check that a run that resumes has the objects that a state belongs to."""
        if self._there is None or field == _OWN:
            return
        new = [it for it in objects_in(node.tree, (name, field)) if it not in self._there]
        if new:
            raise NotResumable(
                f"a run that resumes would lose {name}.{field}: it holds a {new[0][-1]} that was"
                " made in training. Make it before the first batch, in __init__ or where training"
                " begins; or keep its values in numbers, lists, arrays or a data class"
            )

    def read(self, file: Path) -> None:
        """Set what `write` has written, where there is such a file.

        Raises:
            NotResumable: an object that a state belongs to is not there.
        """
        if not file.exists():
            return
        with np.load(file, allow_pickle=False) as found:
            arrays = dict(found.items())
        tree = json.loads(bytes(arrays.pop(_TREE)).decode())
        for name, callback in self._callbacks.items():
            for field, entry in tree.get(name, {}).items():
                node = self._kept(name, field, entry, arrays)
                if node is None:
                    continue
                reader = Reader(node.arrays, f"{name}.{field}")
                if field == _OWN:
                    callback.load_state_dict(reader.value(node.tree, None))
                    continue
                part = self._parts(callback).get(field)
                if part is not None:
                    current = None if part.value is UNASSIGNED else part.value
                    value = reader.value(node.tree, current)
                    if value is not part.value:
                        part.put(value)
                elif "." in field:
                    raise NotResumable(
                        f"the checkpoint has {name}.{field}, which no function refers to now"
                    )
                else:  # training has added the attribute
                    vars(callback)[field] = reader.value(node.tree, None)

    def _kept(
        self, name: str, field: str, entry: Mapping[str, Any], arrays: Mapping[str, Any]
    ) -> Node | None:
        """Return what to set an attribute to; None: it is that already."""
        if "value" in entry:
            prefix = f"{name}/{field}/"
            own = {
                key.removeprefix(prefix): each
                for key, each in arrays.items()
                if key.startswith(prefix)
            }
            return Node(entry["value"], own)
        made = self._made[name].get(field)
        if made is None or made.node is None:
            return None
        try:
            now = self._node(dict(self._fields(self._callbacks[name])).get(field)).digest()
        except (Lost, Resource):
            return None
        return None if now == made.digest else made.node

    def _nodes(self, name: str, *, demanded: bool = False) -> Iterator[tuple[str, Node]]:
        """Yield what is kept of a callback."""
        for field, value in self._fields(self._callbacks[name]):
            try:
                yield field, self._node(value)
            except Resource as error:
                if demanded and isinstance(error, TooLarge) and field in self._made[name]:
                    raise NotResumable(
                        f"{name}.{field} holds too many values now to be part of a checkpoint: "
                        "keep them in an array, or in a file"
                    ) from None
                if demanded and (name, field) not in self._unkept:
                    self._unkept.add((name, field))
                    _log.warning("no longer part of checkpoints", callback=name, attribute=field)
            except Lost as error:
                if demanded:
                    raise NotResumable(
                        f"a run that resumes would lose {name}.{field}, which is {error} now"
                    ) from None

    def _fields(self, callback: Any) -> Iterator[tuple[str, Any]]:
        if not self._silent and tells_state(callback):
            yield _OWN, callback.state_dict()
            return
        for place, part in self._parts(callback).items():
            if part.value is not UNASSIGNED:
                yield place, part.value

    def _parts(self, callback: Any) -> dict[str, Part]:
        """Return the attributes of a callback and what functions among them refer to."""
        own = vars(callback)
        found = {}
        for field, value in sorted(own.items()):
            if field not in self._left_out:
                put = functools.partial(operator.setitem, own, field)
                found[field] = Part(field, value, put)
                found |= {part.place: part for part in parts_of(field, value)}
        return found

    def _node(self, value: Any) -> Node:
        foreign = [*self._foreign(), *self._callbacks.values()]
        writer = Writer(foreign)
        return Node(writer.tree(value, ()), writer.arrays)


def named(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Return callbacks by names that are the same in every run: their classes, and numbers."""
    counts: Counter[str] = Counter()
    found = {}
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] += 1
        found[kind if counts[kind] == 1 else f"{kind}-{counts[kind]}"] = callback
    return found
