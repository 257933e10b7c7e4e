"""Own generators: those of random numbers that a script has made, in attributes of its objects.

Each rank keeps the states of its generators, by the attributes that refer to them. The log names
those that cannot be kept: such as draw for batches that are read ahead or in worker processes, and
such as training makes.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import structlog
import torch
from torch import nn

from rung.torch.determinism import is_kept, parts_of
from rung.training.errors import NotResumable
from rung.training.states.state_tree import Reader, Writer

_KINDS: Final = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DEPTH_MAX: Final = 4

_log = structlog.get_logger("rung")


class OwnGenerators:
    """Keeps the states of a script's own generators."""

    def __init__(
        self,
        roots: Callable[[], Mapping[str, Any]],
        aside: Callable[[], Iterable[Any]],
        *,
        without: frozenset[str],
    ) -> None:
        """Look at nothing yet.

        Args:
            roots: returns where to look, by the names that they have in messages.
            aside: returns what is not looked into.
            without: names of attributes that belong to the framework.
        """
        self._roots: Final = roots
        self._aside: Final = aside
        self._without: Final = without
        self._there: dict[str, str] | None = None
        """The kind of each generator before the first batch, by its place."""
        self._told: Final[set[str]] = set()

    def begin(self, ahead: Mapping[str, Any]) -> None:
        """Note which there are before the first batch; name those whose draws cannot be kept.

        Args:
            ahead: what draws for batches that are fetched ahead, or in processes of their own, of
                which this one has only a copy.
        """
        self._there = {place: _kind(generator) for place, generator in self._found()}
        for place, _ in self._in(ahead):
            self._tell(place)

    def states(self) -> dict[str, Any]:
        """Return the states of this moment.

        Raises:
            NotResumable: a generator is of another kind than before the first batch.
        """
        states = {}
        for place, generator in self._found():
            kind = _kind(generator)
            made = kind if self._there is None else self._there.get(place)
            if made not in {kind, None}:
                raise NotResumable(
                    f"a run that resumes would lose that {place} is a {kind} now, and was a {made}"
                    " at the start: make it before training begins"
                )
            if isinstance(generator, random.SystemRandom):  # has no state
                self._tell(place)
                continue
            writer = Writer(())
            tree = writer.tree(generator, ())
            if made is None:
                self._tell(place)
            arrays = {name: _to_json(array) for name, array in writer.arrays.items()}
            states[place] = {"tree": tree, "arrays": arrays}
        return states

    def set(self, kept: Mapping[str, Any]) -> None:
        """Set the generators that there are to what `states` has returned.

        Raises:
            NotResumable: one is of another kind now.
        """
        for place, generator in self._found():
            if place not in kept:
                continue
            arrays = {name: _from_json(it) for name, it in kept[place]["arrays"].items()}
            try:
                Reader(arrays, place).value(kept[place]["tree"], generator)
            except (TypeError, ValueError, RuntimeError, KeyError) as error:
                raise NotResumable(
                    f"{place} is a generator of another kind than in the checkpoint: make the "
                    f"same one in every run ({error})"
                ) from error

    def _tell(self, place: str) -> None:
        if place not in self._told:
            self._told.add(place)
            _log.warning(
                f"{place} is a generator of its own that no checkpoint holds: a resumed run draws"
                " other numbers from it; make it before training begins and draw no batches that"
                " are read ahead from it, or draw from Python's, NumPy's or torch's global ones"
            )

    def _found(self) -> Iterator[tuple[str, Any]]:
        return self._in(self._roots())

    def _in(self, roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        seen = {id(each): each for each in (*self._aside(), *roots.values())}
        for place, root in roots.items():
            yield from self._below(root, place, seen, _DEPTH_MAX)

    def _below(
        self, thing: Any, place: str, seen: dict[int, Any], depth: int
    ) -> Iterator[tuple[str, Any]]:
        if isinstance(thing, nn.Module):
            for name, each in thing.named_children():
                if id(each) not in seen:
                    seen[id(each)] = each
                    yield from self._below(each, f"{place}.{name}", seen, depth)
        for name, each in parts_of(thing, place):
            if isinstance(each, _KINDS):
                yield name, each
            elif (
                depth
                and id(each) not in seen
                and name.removeprefix(f"{place}.") not in self._without
            ):
                seen[id(each)] = each
                if isinstance(each, nn.Module) or not is_kept(each):
                    yield from self._below(each, name, seen, depth - 1)


def _to_json(array: Any) -> dict[str, Any]:
    found = np.ascontiguousarray(array)
    return {"dtype": str(found.dtype), "shape": [*found.shape], "bytes": found.tobytes().hex()}


def _from_json(kept: Mapping[str, Any]) -> Any:
    found = np.frombuffer(bytearray.fromhex(kept["bytes"]), kept["dtype"])
    return found.reshape(kept["shape"])


def _kind(generator: Any) -> str:
    """Return the kind of a generator, on which the form of its state depends."""
    bits = getattr(generator, "bit_generator", None)
    own = type(generator).__name__
    return own if bits is None else f"{own} of {type(bits).__name__}"
