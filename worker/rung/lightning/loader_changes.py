"""Loader changes: what training changes in objects that only loaders refer to.

These are collate functions, and the data sets and samplers of validation. Training data sets are
compared by `rung.torch.checkpoint.object_changes`; samplers of training are part of the position.
"""

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from torch import nn
from torch.utils.data import DataLoader

from rung.torch.checkpoint.changes import copied
from rung.torch.checkpoint.object_changes import ObjectChanges
from rung.torch.checkpoint.reachable import ITEMS_MAX, is_items_only, is_walked
from rung.training.introspection.script_code import encloses, is_of_script


class LoaderChanges:
    """Compares objects of loaders with what they were when a loader was first seen."""

    def __init__(self, model: nn.Module, aside: Callable[[], Iterable[Any]]) -> None:
        """Begin without loaders.

        Args:
            model: that is trained.
            aside: returns what belongs to the loop, or is compared elsewhere.
        """
        self._model: Final = model
        self._aside: Final = aside
        self._seen: Final[dict[str, tuple[Any, ObjectChanges]]] = {}
        self.at_start: dict[str, list[dict[str, Any]]] = {}
        """What had changed when the epoch began."""

    @property
    def things(self) -> dict[str, Any]:
        """What is compared, by the names that it has in messages."""
        return {place: thing for place, (thing, _) in self._seen.items()}

    def look(self, found: Iterable[tuple[str, Any]]) -> None:
        """Note objects as they are, where they are not those of before."""
        aside = {id(each) for each in self._aside()}
        for place, thing in found:
            if id(thing) in aside or (place in self._seen and self._seen[place][0] is thing):
                continue
            changes = ObjectChanges({place: thing}, self._aside, model=self._model)
            self._seen[place] = thing, changes

    def capture(self) -> dict[str, list[dict[str, Any]]]:
        """Return what has changed, by place.

        Raises:
            NotResumable: a change cannot be stored, or not be set again.
        """
        found = {place: changes.capture() for place, (_, changes) in self._seen.items()}
        return {place: entries for place, entries in found.items() if entries}

    def set(self, kept: Mapping[str, list[dict[str, Any]]]) -> None:
        """Set again what `capture` has returned."""
        for place, entries in kept.items():
            if place in self._seen:
                self._seen[place][1].set(entries)

    def begin_epoch(self) -> None:
        """Note what has changed by the start of an epoch."""
        found = self.capture()
        self.at_start = {place: [copied(it) for it in each] for place, each in found.items()}


def of_collate(place: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects whose attributes or variables a collate function may read."""
    match function:
        case functools.partial():
            yield from of_collate(place, function.func)
            for index, each in enumerate(function.args):
                yield from of_collate(f"{place}.args[{index}]", each)
            for name, each in function.keywords.items():
                yield from of_collate(f"{place}.{name}", each)
        case types.MethodType():
            yield from of_collate(place, function.__self__)
        case types.FunctionType():
            if encloses(function):
                yield place, function
        case list() | dict():
            if len(function) <= ITEMS_MAX:
                yield place, function
        case _ if is_walked(function):
            yield place, function


def of_validation(place: str, loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield a loader's data set, its samplers of the script, and what its collate function has."""
    if not isinstance(loader, DataLoader):
        if is_walked(loader):
            yield place, loader
        return
    if not is_items_only(loader.dataset):
        yield f"{place}.dataset", loader.dataset
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        if sampler is not None and is_of_script(type(sampler).__module__):
            yield f"{place}.{name}", sampler
    yield from of_collate(f"{place}.collate_fn", loader.collate_fn)
