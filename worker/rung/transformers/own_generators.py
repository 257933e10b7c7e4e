"""Generators of random numbers that a script has made, in attributes of what it trains with.

Those of the model, the loss and validation data draw where the loop does, so a checkpoint holds
their states. Those of training data and of the collator draw for batches that are fetched ahead,
in worker processes or not, so they are named in the log. Callbacks' are kept by
`callback_states`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import structlog
import torch
from torch import nn

from rung.torch.checkpoint.attribute_value import stored, value_of
from rung.torch.checkpoint.object_changes import refuse
from rung.torch.checkpoint.reachable import World, entries_of, is_cache, place_of
from rung.torch.checkpoint.structure import tensors_of

_KINDS: Final = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_ITEMS: Final = (list, tuple, dict, torch.Tensor)
"""Data sets that are nothing but their items."""

_log = structlog.get_logger("rung")


class OwnGenerators:
    """Finds a script's generators, and keeps their states."""

    def __init__(
        self,
        roots: Mapping[str, Any],
        fetched: Mapping[str, Any],
        aside: Callable[[], Iterable[Any]],
        *,
        kept: bool,
    ) -> None:
        """Find those that there are, and name in the log those whose states are not kept.

        Args:
            roots: what has them, the model among these, by the names in messages.
            fetched: what batches are made from.
            aside: returns what belongs to the loop, and is not looked into.
            kept: whether the states of generators can be kept: there are no other ranks, whose
                states would be others.
        """
        self._roots = roots
        self._fetched = {n: it for n, it in fetched.items() if not isinstance(it, _ITEMS)}
        self._aside = aside
        self._kept = kept
        self._told: set[str] = set()
        self._made = {place: _kind(it) for place, it in self._found().items()}

    def capture(self) -> list[dict[str, Any]]:
        """Return the states.

        Raises:
            NotResumable: training has made a generator, which a run that resumes would not have.
        """
        found = self._found()
        refuse(
            [
                f"{place} is a {_kind(it)} now, and was"
                f" {self._made.get(place, 'not there')}: make it before training begins"
                for place, it in found.items()
                if self._made.get(place) != _kind(it)
            ]
        )
        return [{"place": place, **stored(it)} for place, it in found.items()]

    def set(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Set the states that `capture` has returned, where the script has made the same."""
        found = self._found()
        for entry in entries:
            generator = found.get(entry["place"])
            if generator is not None:
                value_of(entry, generator, entry["place"])

    def _found(self) -> dict[str, Any]:
        """Return the generators that are kept, by their places; tell of the others."""
        models = [it for it in self._roots.values() if isinstance(it, nn.Module)]
        modules = [each for it in models for each in it.modules()]
        fetched = dict(_generators_in(self._fetched, [*self._aside(), *modules]))
        own = dict(_generators_in(self._roots, self._aside()))
        there = {*map(id, fetched.values())}
        found = {place: it for place, it in own.items() if id(it) not in there}
        for place in [*fetched, *(() if self._kept else found)]:
            if place not in self._told:
                self._told.add(place)
                _log.warning(
                    f"{place} is a generator of its own that no checkpoint holds: a resumed run"
                    " draws other numbers from it; draw from Python's, NumPy's or torch's global"
                    " ones"
                )
        return found if self._kept else {}


def _generators_in(roots: Mapping[str, Any], aside: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the generators that objects reach, each with its place."""
    models = [it for it in roots.values() if isinstance(it, nn.Module)]
    world = World(tensors_of(models))
    for index, each in enumerate(aside):
        if not any(each is it for it in roots.values()):
            world.name(f"the loop's {type(each).__name__} {index}", each)
    for place, root in roots.items():
        world.reserve(place, root)
    for place, root in roots.items():
        world.add(place, root)
    seen: set[int] = set()
    for owner, thing in world.owners.items():
        for key, value in () if isinstance(thing, type) else entries_of(thing):
            if isinstance(value, _KINDS) and not is_cache(key) and id(value) not in seen:
                seen.add(id(value))
                yield place_of(owner, thing, key), value


def _kind(generator: Any) -> str:
    """Return what a generator is, on which the kind of its state depends."""
    bits = getattr(generator, "bit_generator", None)
    own = type(generator).__name__
    return own if bits is None else f"{own} of {type(bits).__name__}"
