"""Model changes: what the loop of another framework changes in a model beside its state.

They are kept as by `untracked_state`, in a file of the same name.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import nn
from torch.optim import Optimizer

from rung.torch.checkpoint import tensor_file
from rung.torch.checkpoint.changes import FILE, Changes
from rung.torch.checkpoint.object_changes import refuse
from rung.torch.checkpoint.reachable import World, is_below
from rung.torch.checkpoint.structure import Structure, tensors_of

_log = structlog.get_logger("rung")


class ModelChanges:
    """Compares a model and its optimizers with what the script has made."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        aside: Callable[[], Iterable[Any]],
        *,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Note what there is.

        Args:
            model: that is trained.
            optimizers: all of them.
            aside: returns what belongs to the loop, and is not looked into.
            without: names of attributes that belong to the framework.
        """
        self._model = model
        self._aside = aside
        self._without = without
        self._structure = Structure({"model": model}, optimizers)
        device = next((it.device for it in model.parameters()), torch.device("cpu"))
        self._changes = Changes(self._look(None), device)
        self._told: set[str] = set()

    def capture(self, *, groups: bool = True, apart: Iterable[Any] = ()) -> dict[str, Any]:
        """Return what has changed.

        Args:
            groups: whether groups of optimizers can be set again.
            apart: objects whose changes are stored apart, also if the model refers to them.

        Raises:
            NotResumable: a change cannot be stored, or not be set again; the message names it and
                says what to do.
        """
        found, lost = self._structure.changes()
        lost += [f"{it} is a buffer of another shape now" for it in found.get("buffers", ())]
        if not groups and "groups" in found:
            lost.append(
                "the optimizer has other groups of parameters now than at the start: give it all"
                " of them, and change requires_grad or the learning rate of a group instead"
            )
        world = self._look(self._changes.before)
        lost += [
            f"{place} is a {type(each).__name__} whose state is in no checkpoint: give it to the"
            " trainer, as what configure_optimizers returns"
            for place, each in world.optimizers.items()
            if each.state
        ]
        entries, more, unkept = self._changes.compare(world)
        others = [world.places[id(it)] for it in apart if id(it) in world.places]
        entries = [it for it in entries if not is_below(it["owner"], others)]
        lost += [text for place, text in more.items() if not is_below(place, others)]
        refuse(lost)
        for place in {*unkept} - self._told:
            self._told.add(place)
            _log.warning(f"{place} has changed during training, and is not part of checkpoints")
        return found | ({"values": entries} if entries else {})

    def apply_structure(self, folder: Path) -> None:
        """Set again what states depend on: what is trained, and in which groups."""
        self._structure.apply(read(folder))

    def apply(self, folder: Path) -> None:
        """Set again what is trained, modes and other attributes of layers."""
        kept = read(folder)
        self._structure.apply({name: it for name, it in kept.items() if name == "trained"})
        self._changes.set(kept.get("values", ()))

    def _look(self, before: World | None) -> World:
        model = self._model
        world = World(tensors_of([model]), (), before, without=self._without)
        for index, each in enumerate(self._aside()):
            world.name(f"the loop's {type(each).__name__} {index}", each)
        world.add("model", model)
        return world


def write(changes: dict[str, Any], folder: Path) -> None:
    """Write what has changed, if anything has."""
    if changes:
        with (folder / FILE).open("wb") as file:
            tensor_file.save(changes, file)


def read(folder: Path) -> dict[str, Any]:
    """Return what `write` has written; nothing where there was nothing."""
    file = folder / FILE
    found: dict[str, Any] = tensor_file.owned(tensor_file.load(file)) if file.exists() else {}
    return found
