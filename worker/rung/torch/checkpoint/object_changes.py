"""Object changes: what training changes in a script's objects beside its model.

They are compared with what they were at one moment, as by `untracked_state`: the data set of a
loop of another framework, the module that makes it, a trainer's own attributes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
import torch
from torch import nn

from rung.torch.checkpoint.changes import Changes, Found, copied, fingerprints
from rung.torch.checkpoint.reachable import World, is_items_only
from rung.torch.checkpoint.structure import tensors_of
from rung.torch.determinism import is_kept
from rung.training.errors import NotResumable

_log = structlog.get_logger("rung")


class ObjectChanges:
    """Compares objects with what they were when this was made."""

    def __init__(
        self,
        roots: Mapping[str, Any],
        aside: Callable[[], Iterable[Any]],
        *,
        model: nn.Module,
        without: frozenset[str] = frozenset(),
        remade: tuple[type, ...] = (),
    ) -> None:
        """Note what there is.

        Args:
            roots: the objects, by the names that they have in messages.
            model: that is trained, whose tensors its state has.
            aside: returns what belongs to the loop, and is not looked into.
            without: names of attributes that belong to the framework.
            remade: kinds of objects that hooks of the framework make in each run; of a new one
                the log has a line.
        """
        self._roots = roots
        self._aside = aside
        self._model = model
        self._without = without
        self._remade = remade
        self._changes = Changes(self._look(None), torch.device("cpu"))
        self._told: set[str] = set()

    def capture(self) -> list[dict[str, Any]]:
        """Return what has changed.

        Raises:
            NotResumable: a change cannot be stored, or not be set again; the message names it and
                says what to do.
        """
        world = self._look(self._changes.before)
        found = self._changes.compare(world)
        remade = [it for it in found.lost if isinstance(world.entries[it].value, self._remade)]
        refuse([text for place, text in found.lost.items() if place not in remade])
        self.tell([*found.unkept, *remade])
        return found.entries

    def compared(self) -> Found:
        """Return what has changed, refuse nothing, and log nothing."""
        return self._changes.compare(self._look(self._changes.before))

    def tell(self, places: Iterable[str]) -> None:
        """Name in the log what has changed and is not kept, each place once."""
        for place in sorted({*places} - self._told):
            self._told.add(place)
            _log.warning(f"{place} has changed during training, and is not part of checkpoints")

    def set(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Set again what `capture` has returned."""
        self._changes.set(entries)

    def _look(self, before: World | None) -> World:
        world = World(tensors_of([self._model]), (), before, without=self._without)
        for index, each in enumerate(self._aside()):
            world.name(f"the loop's {type(each).__name__} {index}", each)
        for place, root in self._roots.items():
            world.reserve(place, root)
        for place, root in self._roots.items():
            world.add(place, root)
        return world


class DataChanges(ObjectChanges):
    """Compares a data set with what the script has made, and with its epoch's start."""

    def __init__(
        self,
        data: Any,
        aside: Callable[[], Iterable[Any]],
        *,
        model: nn.Module,
        told: bool = True,
    ) -> None:
        """Note what there is.

        Args:
            data: the data set; one that is nothing but items, or has a state that the loop
                stores, is not looked at.
            aside: returns what belongs to the loop.
            model: that is trained.
            told: whether the loop stores what the `state_dict` of a data set returns.
        """
        tells = is_items_only(data) or (told and is_kept(data))
        super().__init__({} if tells else {type(data).__name__: data}, aside, model=model)
        self.at_start: list[dict[str, Any]] = []
        """What had changed when the epoch began."""

    def begin_epoch(self) -> None:
        """Note the data set as it is at the start of an epoch."""
        self.at_start = [copied(it) for it in self.capture()]

    def changed_in_epoch(self, now: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return sentences about what has changed since the epoch began.

        Args:
            now: what `capture` has just returned.
        """
        before = fingerprints(self.at_start)
        return [
            f"{place} of the data set has changed within an epoch, whose batches are fetched"
            " ahead: change it as an epoch begins; what can be rebuilt may have `cache` in its"
            " name"
            for place, text in fingerprints(now).items()
            if before.get(place) != text
        ]


def demand_same(made: Mapping[str, Sequence[Any]], now: Mapping[str, Sequence[Any]]) -> None:
    """Check that a trainer has the same callbacks and optimizers as at the start.

    Args:
        made: those of then, by attribute of the trainer.
        now: those of now.

    Raises:
        NotResumable: it has others.
    """
    lost = []
    for kind, parts in made.items():
        if [*map(id, parts)] != [*map(id, now[kind])]:
            names = [", ".join(type(it).__name__ for it in each) for each in (now[kind], parts)]
            lost.append(
                f"{kind} of the trainer: {names[0]} now, and {names[1]} at the start (give all of"
                " them before training begins, and switch them by an attribute, which is kept)"
            )
    refuse(lost)


def refuse(lost: Sequence[str]) -> None:
    """Refuse what a run that resumes would lose.

    Raises:
        NotResumable: there is such.
    """
    if lost:
        raise NotResumable(
            "what has changed during training, and no state_dict has, would be lost to a run"
            " that resumes: " + "; ".join(lost)
        )
