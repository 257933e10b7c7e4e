"""The order of the training data: a function of the trial's seed and the epoch alone.

A sampler draws from generators that are seeded for the epoch and restored afterwards. So order and
model do not affect each other's random numbers, and a resumed epoch has the same order. A sampler
that changes during training is set to its state at the epoch's start, draws the order, and is then
set to its state at the checkpoint: that of its `state_dict` and `load_state_dict`, or its
attributes that have changed.

An epoch's order is drawn at its start, limited to the sampler's length, so that endless samplers
have epochs, too. A sampler without a length draws as the epoch goes on, from separate generators;
after a resume its draws are repeated from its state at the epoch's start.

In the workers of a DataLoader, the generators are seeded for every batch, so random augmentation
does not depend on the number of workers, nor on where a run resumed.

Where several ranks train, each entry of the sampler is a batch of all of them; each rank gets a
part of every entry, so the number of ranks affects neither the order nor the position.
"""

import copy
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import structlog
import torch
from torch.utils.data import Dataset, Sampler

from rung.torch.checkpoint.changes import Changes
from rung.torch.checkpoint.object_changes import refuse
from rung.torch.checkpoint.reachable import World
from rung.torch.data.dataset_proxy import Forwarding
from rung.torch.determinism import is_kept
from rung.training.rng import (
    Generators,
    capture,
    isolated,
    preserved,
    restore,
    seed_worker,
)
from rung.training.seeds import Domain, derive
from rung.training.shares import WHOLE, Part
from rung.training.units import InvalidPlan

_log = structlog.get_logger()


def refuse_shared(inner: Any, data: str) -> None:
    """Refuse a sampler that assigns this rank a part of the records.

    Args:
        inner: the sampler, or batch sampler, of a loader that several ranks build.
        data: `training` or `validation`, for the message.

    Raises:
        InvalidPlan: it does; sharding it again would leave out most records.
    """
    for sampler in _samplers_of(inner):
        replicas = getattr(sampler, "num_replicas", 1)
        if isinstance(replicas, int) and replicas > 1:
            raise InvalidPlan(
                f"the {data} data loader has a {type(sampler).__name__} with "
                f"num_replicas={replicas}, which gives each slot its own records: leave it out, "
                "give shuffle=True or the sampler that you have on one slot; Rung shares the "
                "batches between the slots"
            )


def _samplers_of(inner: Any) -> list[Any]:
    """Return a sampler, and those that it wraps."""
    found = []
    while inner is not None:
        found.append(inner)
        inner = getattr(inner, "sampler", None)
    return found


class Drawn(NamedTuple):
    """An entry of a sampler, with the seed for fetching it in a worker."""

    seed: int
    entry: Any


class EpochOrder(Sampler[Any]):
    """A sampler's entries in the order that the seed and the epoch give."""

    def __init__(self, inner: Any, seed: int, *, tagged: bool, part: Part = WHOLE) -> None:
        self._inner = inner
        self._part = part
        self.lengths: dict[int, int] = {}
        """Records in each of the epoch's batches that was drawn, of all ranks together; where
        there are several."""
        self._seed = seed
        self.tagged = tagged
        """Whether entries come with a seed for fetching them, as workers need."""
        self._states: list[Any] = [it for it in self.samplers if is_kept(it)]
        self._attributes = ChangedAttributes(inner, self._states)
        self._at_start: list[Any] = []
        self._resumed: dict[str, list[Any]] | None = None
        self._drawn: list[Any] | None = None
        self._told = False
        self.epoch = 0
        self.skipped = 0
        """How many of the epoch's entries are left out, because they were trained already."""
        self.opened = False
        """Whether the order was read since `begin`."""

    def begin(self, epoch: int, skipped: int = 0) -> None:
        """Set the epoch, and how many of its entries to leave out."""
        self.epoch, self.skipped, self.opened = epoch, skipped, False
        self.lengths = {}
        self._drawn = None

    @property
    def samplers(self) -> list[Any]:
        """The sampler, and those that it wraps."""
        return _samplers_of(self._inner)

    def sampler_states(self) -> dict[str, list[Any]] | None:
        """Return the states of samplers that have one: at the epoch's start, and now."""
        now = self._states_now()
        if not self._states and not any(now) and not any(self._at_start):
            return None
        return {"start": self._at_start, "now": now}

    def resume_samplers(self, states: dict[str, list[Any]] | None) -> None:
        """Have the samplers repeat this epoch's order, and restore their states after that.

        Holds until the next epoch, which begins with None.
        """
        self._resumed = states
        if states is not None and not states["start"]:
            self._set(states["now"])
            self._resumed = None

    def __iter__(self) -> Iterator[Any]:
        self.opened = True
        entries = self._repeated() if self._resumed is not None else self._new()
        if self._part.size > 1:
            entries = self._split(entries)
        if self.tagged:
            entries = self._tag(entries, self.epoch)
        return itertools.islice(entries, self.skipped, None)

    def _new(self) -> Iterator[Any]:
        """Draw the order; a DataLoader with workers does so twice."""
        self._at_start = copy.deepcopy(self._states_now())
        return self._draw(known_length(self._inner))

    def _repeated(self) -> Iterator[Any]:
        """Draw the order of a resumed epoch, once, and set the states of samplers after that."""
        assert self._resumed is not None
        if self._drawn is not None:
            return iter(self._drawn)
        self._set(self._resumed["start"])
        entries = self._new()
        if known_length(self._inner) is None:
            return entries
        self._set(self._resumed["now"])
        self._drawn = [*entries]
        return iter(self._drawn)

    def _states_now(self) -> list[Any]:
        return [it.state_dict() for it in (*self._states, self._attributes)]

    def _set(self, states: list[Any]) -> None:
        for each, state in zip((*self._states, self._attributes), states, strict=True):
            each.load_state_dict(copy.deepcopy(state))

    def _draw(self, length: int | None) -> Iterator[Any]:
        with isolated(derive(self._seed, Domain.ORDER, self.epoch)):
            self._reseed(derive(self._seed, Domain.ORDER, self.epoch))
            entries: Iterator[Any] = iter(self._inner)
            if length is None:
                return SeparateDraws(entries, capture())
            drawn = list(itertools.islice(entries, length))
            if next(entries, None) is not None and not self._told:  # so that it reaches its end
                self._told = True
                _log.warning(
                    "the sampler goes on beyond its length; each epoch ends there",
                    sampler=type(self._inner).__name__,
                    length=length,
                )
            return iter(drawn)

    def __len__(self) -> int:
        return len(self._inner)

    def _tag(self, entries: Iterator[Any], epoch: int) -> Iterator[Drawn]:
        own = [self._part.rank] if self._part.rank else []
        for number, entry in enumerate(entries):
            yield Drawn(derive(self._seed, Domain.BATCH, epoch, number, *own), entry)

    def _split(self, entries: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's part of each batch; one record where that is empty."""
        for number, entry in enumerate(entries):
            records = list(entry)
            self.lengths[number] = len(records)
            yield records[self._part.given(len(records))]

    def _reseed(self, seed: int) -> None:
        """Seed the samplers' own generators, and set their epoch."""
        for sampler in self.samplers:
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.epoch)


class ChangedAttributes:
    """The attributes of samplers that training changes, as a state."""

    def __init__(self, sampler: Any, aside: Iterable[Any]) -> None:
        """Note what the script has made.

        Args:
            sampler: also what it wraps is looked at.
            aside: samplers that tell their state.
        """
        self._sampler = sampler
        self._aside = [*aside]
        self._changes = Changes(self._look(None), torch.device("cpu"))

    def state_dict(self) -> dict[str, Any]:
        """Return what has changed; nothing if nothing has.

        Raises:
            NotResumable: a change cannot be stored; the message names it and says what to do.
        """
        found = self._changes.compare(self._look(self._changes.before))
        refuse([*found.lost.values()])
        return {"changed": found.entries} if found.entries else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what has changed."""
        self._changes.set(state.get("changed", ()))

    def _look(self, before: World | None) -> World:
        world = World((), (), before, within=(Sampler, list, tuple, dict))
        for index, each in enumerate(self._aside):
            world.name(f"samplers[{index}]", each)
        if not isinstance(self._sampler, list | tuple) and self._sampler not in self._aside:
            world.add("sampler", self._sampler)
        return world


class SeparateDraws(Iterator[Any]):
    """Entries that are drawn one after the other, from separate generators."""

    def __init__(self, entries: Iterator[Any], generators: Generators) -> None:
        self._entries = entries
        self.generators = generators
        """Their states after the last entry."""

    def __next__(self) -> Any:
        with preserved():
            restore(self.generators)
            entry = next(self._entries)
            self.generators = capture()
        return entry


def known_length(entries: Any) -> int | None:
    """Return how many entries there are; None where that is not known.

    A BatchSampler has a length only if its sampler has one.
    """
    try:
        return len(entries)
    except (TypeError, NotImplementedError):
        return None


class SeededDataset(Forwarding, Dataset[Any]):
    """A data set whose generators are seeded for each entry of the sampler."""

    def __init__(self, inner: Any) -> None:
        self.rung_inner = inner

    def __len__(self) -> int:
        return len(self.rung_inner)

    def __getitem__(self, drawn: Drawn) -> Any:
        """Fetch a single sample."""
        seed_worker(drawn.seed)
        return self.rung_inner[drawn.entry]

    def __getitems__(self, drawn: Drawn) -> list[Any]:
        """Fetch a batch of samples."""
        seed_worker(drawn.seed)
        fetch = getattr(self.rung_inner, "__getitems__", None)
        if fetch is not None:
            fetched: list[Any] = fetch(drawn.entry)
            return fetched
        return [self.rung_inner[index] for index in drawn.entry]
