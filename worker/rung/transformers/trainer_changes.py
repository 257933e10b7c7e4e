"""Trainer changes: what training changes around the model, in a trainer and what it was given.

    trainer     the attributes that a script adds to it, and of the library's own `LOOKED_AT`
    args        its arguments
    data        the training data set, or stream

The trainer fetches batches ahead. So what makes them, the data set and the collator, may change
only where an epoch begins. What a stream changes in itself as it is read is another matter; see
`stream_changes`.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from torch.utils.data import IterableDataset

from rung import core
from rung.torch.checkpoint.changes import copied, fingerprints
from rung.torch.checkpoint.object_changes import DataChanges, ObjectChanges, demand_same, refuse
from rung.torch.checkpoint.own_generators import OwnGenerators
from rung.torch.checkpoint.reachable import is_below, is_items_only
from rung.training.introspection.library_code import library_names
from rung.transformers.stream_changes import StreamChanges

LOOKED_AT: Final = ("compute_loss_func", "data_collator", "eval_dataset", "label_smoother")
"""What a trainer was given, and is looked at."""
_LIBRARY: Final = frozenset({"transformers"})
_COLLATOR: Final = "trainer.data_collator"
_BY_ITSELF: Final = frozenset({"deprecation_warnings"})
"""An attribute in which tokenizers note that they have warned."""


class TrainerChanges:
    """Compares what is around a model with what it was before the first hook."""

    def __init__(self, trainer: Any, run: core.Context) -> None:
        """Note what there is.

        Args:
            trainer: which is about to train.
            run: that it trains in.
        """
        self._trainer = trainer
        self._made = _parts_of(trainer)
        self._bare = _Bare(trainer)
        model, data, collator = trainer.model, trainer.train_dataset, trainer.data_collator

        def of_run() -> list[Any]:
            parts = [trainer.accelerator, trainer.state, trainer.control, trainer.lr_scheduler]
            return [run, *trainer.callback_handler.callbacks, *parts, trainer.optimizer]

        def aside(*others: Any) -> list[Any]:
            return [trainer, *others, *of_run(), *trainer.model.modules()]

        given = [trainer.args, data, trainer.processing_class]
        roots = {"trainer": self._bare.trainer}
        if collator is not data:
            roots[_COLLATOR] = collator
        self._own = ObjectChanges(
            roots, functools.partial(aside, *given), model=model, without=_BY_ITSELF
        )
        self._args = ObjectChanges({"args": trainer.args}, aside, model=model)
        around = functools.partial(aside, trainer.args, collator)
        self._data: DataChanges | StreamChanges | None = None
        if isinstance(data, IterableDataset):
            self._data = StreamChanges(data, around, model=model)
        elif data is not None:
            self._data = DataChanges(data, around, model=model, told=False)
        self.generators: Final = OwnGenerators(
            lambda: {"model": trainer.model, "trainer": self._bare.trainer},
            lambda: [trainer, *given, collator, *of_run()],
            without=frozenset(),
        )
        """Those of the model, the loss and validation data, which draw where the loop does."""
        ahead = {type(data).__name__: data, _COLLATOR: collator}
        self.generators.begin({n: it for n, it in ahead.items() if not is_items_only(it)})
        self._begins = False
        self._at_start: list[Mapping[str, Any]] = []
        """What had changed in the trainer when the epoch began."""

    def begin_epoch(self) -> None:
        """Compare with the moment before the next batch from now on."""
        self._begins = True

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the trainer fetches batches."""
        if self._begins:
            self._begins = False
            self._at_start = [copied(it) for it in self._capture_own()]
            if self._data is not None:
                self._data.begin_epoch()
        if isinstance(self._data, StreamChanges):
            return self._data.reading()
        return contextlib.nullcontext()

    def capture(self, *, within: bool) -> dict[str, Any]:
        """Return what has changed.

        Args:
            within: whether this is the middle of an epoch.

        Raises:
            NotResumable: a change cannot be stored, or not be set again.
        """
        demand_same(self._made, _parts_of(self._trainer))
        own = self._capture_own()
        if within:
            refuse(_changed_collator(self._at_start, own))
        found = {
            "trainer": own,
            "args": self._args.capture(),
            "data": self._capture_data(within=within),
        }
        return {name: entries for name, entries in found.items() if entries}

    def set(self, kept: Mapping[str, Any]) -> None:
        """Set again what `capture` has returned."""
        with self._bare.given_back():
            self._own.set(kept.get("trainer", ()))
        self._args.set(kept.get("args", ()))
        if self._data is not None:
            self._data.set(kept.get("data", ()))

    def _capture_own(self) -> list[dict[str, Any]]:
        self._bare.take()
        return self._own.capture()

    def _capture_data(self, *, within: bool) -> Sequence[Mapping[str, Any]]:
        match self._data:
            case StreamChanges():
                return self._data.kept(within=within)
            case DataChanges():
                entries = self._data.capture()
                if within:
                    refuse(self._data.changed_in_epoch(entries))
                return entries
            case None:
                return ()


class _Bare:
    """A trainer of the same class that has only those attributes which are looked at."""

    def __init__(self, trainer: Any) -> None:
        self._from = trainer
        self._library = library_names(type(trainer), _LIBRARY) - {*LOOKED_AT}
        self.trainer: Any = object.__new__(type(trainer))
        self.take()

    def take(self) -> None:
        """Give it what the trainer has now."""
        own = {name: it for name, it in vars(self._from).items() if name not in self._library}
        vars(self.trainer).clear()
        vars(self.trainer).update(own)

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """Give the trainer what is set, within the block, in the attributes of this one."""
        self.take()
        before = dict(vars(self.trainer))
        yield
        now = vars(self.trainer)
        for name in before.keys() - now.keys():
            del vars(self._from)[name]
        vars(self._from).update({n: it for n, it in now.items() if before.get(n, self) is not it})


def _changed_collator(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return sentences about what has changed in the collator since the epoch began."""
    then, texts = fingerprints(before), fingerprints(now)
    return [
        f"{place} has changed within an epoch, whose batches are collated ahead: change it as an"
        " epoch begins; what can be rebuilt may have `cache` in its name"
        for place in sorted({*then, *texts})
        if is_below(place, [_COLLATOR]) and then.get(place) != texts.get(place)
    ]


def _parts_of(trainer: Any) -> dict[str, list[Any]]:
    """Return what a trainer cannot have in another one's place."""
    measuring = ("compute_metrics", "preprocess_logits_for_metrics")
    return {
        "callbacks": [*trainer.callback_handler.callbacks],
        "optimizer": [trainer.optimizer],
        "lr_scheduler": [trainer.lr_scheduler],
        **{name: [getattr(trainer, name)] for name in measuring},
    }
