"""Data parallel training of a `transformers.Trainer`: one curve on any number of slots.

The trainer's own data parallelism fills up the last batch with records seen before, and averages
losses over processes, not records. Here a batch is what one process would train with that batch
size, in the same order, and each rank trains its part of it; a loss that is a mean counts by the
part's labels, or records where there are no labels to count; one that is a sum over the batch's
items is left as it is.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from accelerate.data_loader import prepare_data_loader
from torch.nn.parallel import DistributedDataParallel

from rung.torch.data.sampler import refuse_shared
from rung.torch.data.validation_sharding import Entries, is_indexed, with_batches
from rung.torch.ddp_buckets import settle
from rung.training import ProgressTracker
from rung.training.errors import NotResumable
from rung.training.shares import Part
from rung.transformers.exact import token_weights
from rung.transformers.exact.batch_sampler import Parts, merged
from rung.transformers.exact.sharded_evaluation import EvaluationTurns


class Noticed(torch.Tensor):
    """A number of items that knows whether a loss looked at it."""

    used = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute as if it were any tensor."""
        result: Any = super().__torch_function__(  # type: ignore[no-untyped-call]  # torch's own
            func, types, args, kwargs or {}
        )
        name = getattr(func, "__name__", "")
        if name == "to":  # on its way through DistributedDataParallel
            return result
        if name != "__get__":
            Noticed.used = True
        return result.as_subclass(torch.Tensor) if isinstance(result, Noticed) else result


class DataParallel:
    """Stands between a trainer and its data, loss and evaluation."""

    def __init__(self, trainer: Any, tracker: ProgressTracker) -> None:
        """Take over what depends on the number of processes.

        Args:
            trainer: whose training data are seeded already.
            tracker: of the run.

        Raises:
            NotResumable: the trainer is not set up for these ranks.
        """
        ranks = tracker.run.distributed
        if trainer.args.eval_use_gather_object:
            raise NotResumable(
                "TrainingArguments(eval_use_gather_object=…) does not go with resources."
                f"slots_per_trial: {ranks.size}; leave it out"
            )
        self._trainer = trainer
        self._tracker = tracker
        self._part: Final = Part(ranks.rank, ranks.size)
        self._parts: Parts | None = None
        self._next = 0
        self._share = 1.0
        self._by_labels: dict[int, float] = {}
        """This rank's part of the labels that count, by the number of a batch that was fetched."""
        self._counts_items: bool | None = None
        trainer.args.average_tokens_across_devices = False  # done here, empty parts included
        self._train_data: Final = trainer.get_train_dataloader
        self._evaluation_data: Final = trainer.get_eval_dataloader
        self._fetch: Final = trainer.get_batch_samples
        self._step: Final = trainer.training_step
        self._loss: Final = trainer.compute_loss
        trainer.get_train_dataloader = self._train_dataloader
        trainer.get_eval_dataloader = self._eval_dataloader
        trainer.get_batch_samples = self._batch_samples
        trainer.training_step = self._training_step
        trainer.compute_loss = self._compute_loss

    def settle(self) -> None:
        """Have gradients added up in the order of every run; the trainer has wrapped its model."""
        for module in self._trainer.model_wrapped.modules():
            if isinstance(module, DistributedDataParallel):
                settle(module)

    def begin(self, batch: int) -> None:
        """Begin an epoch, or go on in it at a batch."""
        self._next = batch

    def _train_dataloader(self) -> Any:
        loader = self._unprepared(self._train_data)
        if not is_indexed(loader):
            raise NotResumable(
                "the training data have no length or no index, so their batches cannot be shared "
                "between slots: give a train_dataset with __len__ and __getitem__, or "
                "resources.slots_per_trial: 1"
            )
        refuse_shared(loader.batch_sampler, "training")
        batches = merged(loader.batch_sampler, self._part.size)
        of_all = with_batches(loader, batches)
        of_all.generator = loader.generator
        in_order = self._prepared(of_all).batch_sampler
        self._parts = Parts(in_order, self._part, self._tracker)
        shared = with_batches(loader, self._parts)
        shared.generator = loader.generator
        return shared

    def _eval_dataloader(self, eval_dataset: Any = None) -> Any:
        trainer = self._trainer
        loader = self._unprepared(self._evaluation_data, eval_dataset)
        if not is_indexed(loader):
            return trainer.accelerator.prepare(loader)
        entries = Entries(loader, self._tracker.run.seed, lambda: self._tracker.progress.batches)
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

    def _batch_samples(self, batches: Iterator[Any], number: int, device: Any) -> Any:
        """Return the batches of a step, and how many items all ranks' parts of them have."""
        fetched, items = self._fetch(batches, number, device)
        parts = self._parts
        assert parts is not None
        present = [parts.share(self._next + index) > 0 for index in range(len(fetched))]
        known = [
            batch if there else token_weights.without_items(batch)
            for batch, there in zip(fetched, present, strict=True)
        ]
        if not all(present):  # stand-ins have no items
            _, items = self._fetch(iter(known), len(known), device)
        if torch.is_tensor(items):
            items = items.clone()
            torch.distributed.all_reduce(items)
        self._weigh(known, device)
        return fetched, items

    def _training_step(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        assert self._parts is not None
        self._share = self._by_labels.pop(self._next, self._parts.share(self._next))
        self._next += 1
        if not self._share:
            inputs = token_weights.with_an_item(inputs)
        return self._step(model, inputs, *arguments, **named)

    def _compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        items = named.get("num_items_in_batch")
        trains = torch.is_grad_enabled()  # whatever the mode of the model
        watched = self._counts_items is None and trains and torch.is_tensor(items)
        if watched and items is not None:
            Noticed.used = False
            named["num_items_in_batch"] = items.as_subclass(Noticed)
        found = self._loss(model, inputs, *arguments, **named)
        if not trains:
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

    def _weigh(self, batches: list[Any], device: Any) -> None:
        """Find out which part of each batch's labels is this rank's; all ranks call this."""
        shifted = token_weights.shifts(self._trainer.model)
        found = [token_weights.counted(batch, shifted=shifted) for batch in batches]
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


def _as_it_is(loader: Any) -> Any:
    return loader
