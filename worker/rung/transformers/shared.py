"""A `transformers.Trainer` whose batches, losses and evaluations are those of all ranks together.

The trainer's own way over several processes multiplies the batch by their number, fills up the
last one with records seen before, and averages losses over processes, not records. Here the batch
is the one that a single process takes, in the same order, and each rank trains its part of it; a
loss that is a mean counts by the part's labels, or records where there are no labels to count; one
that is a sum over the batch's items is left as it is.
"""

from collections.abc import Callable
from typing import Any, Final

import structlog
import torch
from accelerate.data_loader import prepare_data_loader
from torch.nn.parallel import DistributedDataParallel

from rung import core
from rung.loop import Course
from rung.loop.errors import CannotFollow
from rung.loop.sharing import Entries, is_indexed
from rung.torch.buckets import settle
from rung.torch.order import Part
from rung.torch.sharing import with_batches
from rung.transformers import labels
from rung.transformers.evaluation import EvaluationTurns
from rung.transformers.parts import Parts

_log = structlog.get_logger("rung")


class Noticed(torch.Tensor):
    """A number of items that knows whether a loss looked at it."""

    used = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as if it were any tensor."""
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if name == "to":  # on its way through DistributedDataParallel
            return result.as_subclass(cls)
        if name != "__get__":
            Noticed.used = True
        return result


class SharedTrainer:
    """Stands between a trainer and its data, loss and evaluation."""

    def __init__(self, trainer: Any, course: Course) -> None:
        """Take over what depends on the number of processes.

        Args:
            trainer: whose training data are seeded already.
            course: of the run.

        Raises:
            CannotFollow: the trainer is not set up for these ranks.
        """
        ranks = course.run.distributed
        self._trainer = trainer
        self._course = course
        self._part: Final = Part(ranks.rank, ranks.size)
        self._seeded: Final = trainer.get_train_dataloader
        self._parts: Parts | None = None
        self._next = 0
        self._share = 1.0
        self._by_labels: dict[int, float] = {}
        """This rank's part of the labels that count, by the number of a batch that was fetched."""
        self._counts_items: bool | None = None
        self._fetching = False
        _check(trainer, ranks)
        self.batch_size: Final = _whole(trainer, course.run)
        trainer.args.average_tokens_across_devices = False  # done here, empty parts included
        trainer.get_train_dataloader = self._train_dataloader
        trainer.get_eval_dataloader = self._eval_dataloader
        trainer.training_step = self._training_step
        trainer.compute_loss = self._compute_loss
        trainer._get_num_items_in_batch = self._items

    def batch_samples(self, *arguments: Any) -> Any:
        """Return the batches of a step, and how many items all ranks' parts of them have."""
        self._fetching = True
        try:
            return type(self._trainer).get_batch_samples(self._trainer, *arguments)
        finally:
            self._fetching = False

    def settle(self) -> None:
        """Have gradients added up in the order of every run; the trainer has wrapped its model."""
        for module in self._trainer.model_wrapped.modules():
            if isinstance(module, DistributedDataParallel):
                settle(module)

    def begin(self, batch: int) -> None:
        """Begin an epoch, or go on in it at a batch."""
        self._next = batch

    def _train_dataloader(self) -> Any:
        trainer = self._trainer
        own, trainer._train_batch_size = trainer._train_batch_size, self.batch_size
        try:
            loader = self._unprepared(self._seeded)
        finally:
            trainer._train_batch_size = own
        if not is_indexed(loader):
            raise CannotFollow(
                "the training data have no length or no index, so their batches cannot be shared "
                "between slots: give a train_dataset with __len__ and __getitem__, or "
                "resources.slots_per_trial: 1"
            )
        in_order = self._prepared(loader).batch_sampler
        self._parts = Parts(in_order, self._part, self._course)
        shared = with_batches(loader, self._parts)
        shared.generator = loader.generator
        return shared

    def _eval_dataloader(self, eval_dataset: Any = None) -> Any:
        trainer = self._trainer
        loader = self._unprepared(type(trainer).get_eval_dataloader, trainer, eval_dataset)
        if not is_indexed(loader):
            return trainer.accelerator.prepare(loader)
        entries = Entries(loader, self._course.run.seed, lambda: self._course.progress.batches)
        turns = EvaluationTurns(entries.draw(), self._part)
        turns.share_buffers(trainer.model)
        turns.loader = self._prepared(with_batches(loader, turns.own))
        trainer.gather_function = turns.gather
        return turns

    def _unprepared(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Return the loader that the trainer makes, before Accelerate shares it in its own way."""
        accelerator = self._trainer.accelerator
        accelerator.prepare = _as_it_is
        try:
            return make(*arguments)
        finally:
            del accelerator.prepare

    def _prepared(self, loader: Any) -> Any:
        """Return a loader as Accelerate gives it to a single process."""
        accelerator = self._trainer.accelerator
        return prepare_data_loader(
            loader,
            device=accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=accelerator.device_placement,
            use_seedable_sampler=True,
            data_seed=accelerator.dataloader_config.data_seed,
        )

    def _training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        assert self._parts is not None
        self._share = self._by_labels.pop(self._next, self._parts.share(self._next))
        self._next += 1
        if not self._share:
            inputs = labels.with_an_item(inputs)
        trainer = self._trainer
        return type(trainer).training_step(trainer, model, inputs, num_items_in_batch)

    def _compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        trainer = self._trainer
        items = named.get("num_items_in_batch")
        watched = self._counts_items is None and model.training and torch.is_tensor(items)
        if watched and items is not None:
            Noticed.used = False
            named["num_items_in_batch"] = items.as_subclass(Noticed)
        found = type(trainer).compute_loss(trainer, model, inputs, *arguments, **named)
        if not model.training:
            return found
        if watched:
            self._counts_items = Noticed.used
        factor = self._part.size * self._weight(counted=items is not None)
        if isinstance(found, tuple):
            return (found[0] * factor, *found[1:])
        return found * factor

    def _weight(self, *, counted: bool) -> float:
        if counted and self._counts_items:
            return 1.0 if self._share else 0.0
        return self._share

    def _items(self, batch_samples: list[Any], device: Any) -> Any:
        """Return how many items the batches of all ranks have; stand-ins have none."""
        trainer, parts = self._trainer, self._parts
        if not self._fetching or parts is None:
            return type(trainer)._get_num_items_in_batch(trainer, batch_samples, device)
        known = [
            batch if parts.share(self._next + index) else labels.without_items(batch)
            for index, batch in enumerate(batch_samples)
        ]
        items = type(trainer)._get_num_items_in_batch(trainer, known, device)
        if torch.is_tensor(items):
            items = items.clone()
            torch.distributed.all_reduce(items)
        self._weigh(known, device)
        return items

    def _weigh(self, batches: list[Any], device: Any) -> None:
        """Find out which part of each batch's labels is this rank's; all ranks call this."""
        shifted = bool(getattr(self._trainer, "_loss_shifts_labels", False))
        found = [labels.counted(batch, shifted=shifted) for batch in batches]
        counts = [count for count in found if count is not None]
        self._by_labels = {}
        if not counts or len(counts) < len(found):
            return
        own = torch.stack(counts).to(device)
        every = own.clone()
        torch.distributed.all_reduce(every)
        for index, (mine, all_of_them) in enumerate(
            zip(own.tolist(), every.tolist(), strict=True)
        ):
            if all_of_them:
                self._by_labels[self._next + index] = mine / all_of_them


def _check(trainer: Any, ranks: core.DistributedContext) -> None:
    args = trainer.args
    if args.world_size != ranks.size:
        raise CannotFollow(
            f"the trainer sees {args.world_size} process(es) of {ranks.size}: make "
            "TrainingArguments inside `with rt.init()`"
        )
    for name in ("fsdp", "deepspeed", "eval_use_gather_object"):
        if getattr(args, name, None):
            raise CannotFollow(
                f"TrainingArguments({name}=…) does not go with resources.slots_per_trial: "
                f"{ranks.size} here; leave it out"
            )


def _whole(trainer: Any, run: core.Context) -> int:
    """Return the batch of all ranks: what one process would take."""
    size, slots = int(trainer._train_batch_size), run.distributed.size
    wanted = run.hparams.get("global_batch_size")
    if wanted is not None and size == max(1, int(wanted) // slots):
        size = int(wanted)
    if size < slots:
        raise CannotFollow(
            f"per_device_train_batch_size: a batch of {size} cannot be shared between {slots} "
            "slots: raise it, or lower resources.slots_per_trial"
        )
    if run.distributed.is_chief:
        _log.info(f"a batch of {size} records is shared between {slots} slots")
    return size


def _as_it_is(loader: Any) -> Any:
    return loader
