"""Untracked state: what training changes, and no `state_dict` has.

A script makes its world in `__init__`, so a run that resumes begins with the world of then. What
changes later is noticed at a checkpoint, by comparison with what `__init__` made: whether a
parameter is trained, groups of optimizers, buffers (`structure`), attributes of models, of the
data set, of the trial and of callbacks, modes of layers, and tensors that gradients do not train,
such as an average of the weights or a target network (`reachable`).

    untracked.pt    what has changed, if anything has; read without unpickling objects

What cannot be stored, or set again, is refused at that checkpoint, before it can be lost. A run
that resumes sets a value only where its own `__init__` has made the same as that of the first run:
a setting that differs by intention, such as a path or a hyperparameter, stays.

The data set is set back to what it was at the epoch's start, its loader begins the epoch (workers
fetch from copies of the data set of that moment), and then it is set to what it was at the
checkpoint.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
import torch
from torch import nn
from torch.utils.data import IterableDataset

from rung.torch.callback import Callback
from rung.torch.checkpoint.changes import Changes, copied
from rung.torch.checkpoint.completeness import IncompleteCheckpoint, demand_still_complete
from rung.torch.checkpoint.reachable import World, is_below, is_items_only
from rung.torch.checkpoint.state import Captured, Parts
from rung.torch.checkpoint.structure import Structure, tensors_of
from rung.torch.determinism import is_kept
from rung.torch.pytree import tensors_in

_log = structlog.get_logger("rung")


class UntrackedState:
    """What a trial changes beside its states, from the end of its setup on."""

    def __init__(self, parts: Parts, data: Any, samplers: Sequence[Any]) -> None:
        """Note what there is.

        Args:
            parts: the objects with a state.
            data: the data set.
            samplers: whose changes are part of the position in the data.
        """
        self._parts = parts
        tells = is_items_only(data) or is_kept(data)
        self._data: dict[str, Any] = {} if tells else {type(data).__name__: data}
        self._dataset = data
        self._samplers = samplers
        context = parts.context
        self._models: dict[str, nn.Module] = {
            (f"model-{index}" if index else "model"): it for index, it in enumerate(context.models)
        }
        for name, kept in context.kept.items():
            if isinstance(kept, nn.Module):
                self._models[f"kept.{name}"] = kept
        self._structure = Structure(self._models, context.optimizers)
        self._changes = Changes(self._look(None), parts.context.device)
        self._at_start: list[dict[str, Any]] = []
        self._kept: Mapping[str, Any] = {}
        self._told: set[str] = set()

    def begin_epoch(self) -> None:
        """Note the data set as it is at the start of an epoch."""
        if self._data:
            found = self._changes.compare(self._look_at_data())
            self._at_start = [copied(it) for it in found.entries]

    def demand_structure(self) -> None:
        """Check that a run that resumes can make models and optimizers as they are now.

        Raises:
            IncompleteCheckpoint: it cannot; the message names what, and says what to do.
        """
        if not self._parts.context.parallel.sharded:  # then states come first, see `capture`
            _refuse(self._structure.changes()[1])

    def capture(self, captured: Captured, *, between_epochs: bool) -> dict[str, Any] | None:
        """Return what has changed; None: nothing.

        Args:
            captured: the states; what they hold is left out here.
            between_epochs: whether the next batch begins an epoch.

        Raises:
            IncompleteCheckpoint: a change cannot be stored, or not be set again; the message names
                it and says what to do.
        """
        parts = self._parts
        demand_still_complete(parts.trial, parts.context, captured.training["trial"])
        found, lost_structure = self._structure.changes()
        _refuse(lost_structure)
        told = tensors_in([captured.training["kept"], captured.training["trial"]])
        world = self._look(self._changes.before, told)
        entries, lost, unkept = self._changes.compare(world)
        lost |= {
            place: f"{place} is a {type(each).__name__} whose state is in no checkpoint (write"
            " context.wrap_optimizer in __init__)"
            for place, each in world.optimizers.items()
            if each.state and not place.startswith("optimizers[")  # which have them in theirs
        }
        for place in unkept:
            self._tell(place)
        _refuse([text for place, text in lost.items() if not self._answers_for_itself(place)])
        data = [it for it in entries if self._is_of_data(it["owner"])]
        start = data if between_epochs else self._at_start
        rest = [it for it in entries if not self._is_of_data(it["owner"])]
        for name, value in (("values", rest), ("data", data), ("data_at_start", start)):
            if value:
                found[name] = value
        return found or None

    def apply_structure(self, kept: Mapping[str, Any] | None) -> None:
        """Set again what states depend on: what is trained, groups, shapes of buffers."""
        self._kept = kept or {}
        self._structure.apply(self._kept)

    def apply(self) -> None:
        """Set attributes and tensors again, except those of the data set."""
        self._changes.set(self._kept.get("values", ()))

    def rewind_data(self) -> None:
        """Set the data set to what it was when the epoch began."""
        self._changes.set(self._kept.get("data_at_start", ()))

    def forward_data(self) -> None:
        """Set the data set to what it was at the checkpoint, once the epoch has begun."""
        streams = isinstance(self._dataset, IterableDataset)
        if not (
            streams and self._parts.ranks.size > 1
        ):  # each rank has read to a place of its own
            self._changes.set(self._kept.get("data", ()))
        self._kept = {}

    def _look(self, before: World | None, told: Iterable[torch.Tensor] = ()) -> World:
        self._in_states = [*tensors_of(self._models.values())]
        world = World(self._in_states, told, before)
        for place, thing in self._aside():
            world.name(place, thing)
        roots = [*self._roots()]
        for place, root in roots:
            world.reserve(place, root)
        for place, root in roots:
            world.add(place, root)
        return world

    def _aside(self) -> Iterator[tuple[str, Any]]:
        """Yield what tells its state, or belongs to the loop."""
        context = self._parts.context
        yield "context", context
        if is_kept(self._dataset):
            yield "data", self._dataset
        for index, sampler in enumerate(self._samplers):
            yield f"samplers[{index}]", sampler
        for index, scheduled in enumerate(context.schedulers):
            yield f"schedulers[{index}]", scheduled.scheduler
        for name, thing in context.kept.items():
            if not isinstance(thing, nn.Module):
                yield f"kept.{name}", thing
        for name, hook in self._parts.callbacks.items():
            if type(hook).state_dict is not Callback.state_dict:
                yield f"callbacks[{name!r}]", hook

    def _roots(self) -> Iterator[tuple[str, Any]]:
        """Yield what is looked at."""
        yield from (self._models | self._data).items()
        yield type(self._parts.trial).__name__, self._parts.trial
        for name, hook in self._parts.callbacks.items():
            if type(hook).state_dict is Callback.state_dict:
                yield f"callbacks[{name!r}]", hook
        for index, optimizer in enumerate(self._parts.context.optimizers):
            yield f"optimizers[{index}]", optimizer

    def _look_at_data(self) -> World:
        world = World(self._in_states, (), self._changes.before)
        for place, root in self._data.items():
            world.add(place, root)
        return world

    def _is_of_data(self, place: str) -> bool:
        return is_below(place, self._data)

    def _answers_for_itself(self, place: str) -> bool:
        """Return whether an object with a `state_dict` of its own is responsible for a place."""
        trial = self._parts.trial
        roots = {type(trial).__name__: trial} | self._data
        return is_kept(roots.get(place.partition(".")[0]))

    def _tell(self, place: str) -> None:
        if place not in self._told:
            self._told.add(place)
            _log.warning(f"{place} has changed during training, and is not part of checkpoints")


def _refuse(lost: Sequence[str]) -> None:
    if lost:
        raise IncompleteCheckpoint(
            "what has changed during training, and no state_dict has, would be lost to a run that"
            " resumes: " + "; ".join(lost)
        )
