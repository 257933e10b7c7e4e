"""What Lightning has summed up of what a module logs.

Its checkpoints lack the sums of an epoch that is under way; and over several ranks it adds up
only what was logged with `sync_dist=True`. Here every mean of an epoch becomes the mean over the
records of all ranks, before anybody (a schedule of patience, an early stop, the report) sees it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torchmetrics
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection

from rung import core

_BY_EPOCH: Final = "epoch"
"""In the names of hooks that log no batch, whose records Lightning would count."""


def logged(trainer: Any) -> dict[str, Any]:
    """Return what callbacks find among the metrics now."""
    found: dict[str, Any] = trainer._logger_connector.metrics["callback"]
    return found


def sums(trainer: Any) -> dict[str, Any]:
    """Return what was summed up for the metrics of the epoch so far."""
    found: dict[str, Any] = {}
    for name, metric in _of_epoch(trainer):
        found[name] = {"value": metric.value}
        if metric.meta.is_mean_reduction:
            found[name]["size"] = metric.cumulated_batch_size
    return found


def add_sums(trainer: Any, kept: Mapping[str, Any]) -> None:
    """Put back what was summed up before a checkpoint.

    A sum is there to add to once its name was logged again.
    """
    for name, before in kept.items():
        metric = trainer.fit_loop._results.get(name)
        if metric is None:
            continue
        reduce = torch.maximum if metric.meta.is_max_reduction else torch.add
        reduce = torch.minimum if metric.meta.is_min_reduction else reduce
        metric.value = reduce(metric.value, before["value"].to(metric.value.device))
        if "size" in before:
            size = before["size"].to(metric.value.device)
            metric.cumulated_batch_size = metric.cumulated_batch_size + size


def measured(trainer: Any) -> dict[str, Any]:
    """Return what the module's torchmetrics objects have seen so far, by their names."""
    return {
        name: {
            "state": _copied(metric.metric_state),
            "count": metric._update_count,
        }
        for name, metric in _metrics(trainer)
        if metric._update_count
    }


def _copied(value: Any) -> Any:
    """Return a state that does not change; lists of what is no tensor are among them."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value


def measure(trainer: Any, kept: Sequence[Mapping[str, Any]]) -> None:
    """Have the module's torchmetrics objects go on from what `measured` returned, on each rank."""
    for name, metric in _metrics(trainer):
        metric.reset()
        for found in (each[name] for each in kept if name in each):
            state = move_data_to_device(found["state"], metric.device)
            earlier = metric._update_count
            metric._update_count = earlier + found["count"]
            metric._computed = None
            if earlier:
                metric._reduce_states(state)
            else:
                for attribute, value in state.items():
                    setattr(metric, attribute, value)


def not_counting(trainer: Any) -> Callable[[], None]:
    """Return what undoes what is logged from now on: a record only stands in for none.

    What is logged for the first time is there after it, empty: the ranks settle it together.
    """
    before = sums(trainer)
    seen = measured(trainer)

    def undo() -> None:
        measure(trainer, [seen])
        for name, metric in _of_epoch(trainer):
            if name not in before:
                metric.reset()
                metric.has_reset = False
                continue
            metric.value = before[name]["value"]
            if "size" in before[name]:
                metric.cumulated_batch_size = before[name]["size"]

    return undo


def _metrics(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the module's torchmetrics objects, but those of a validation that is over.

    Lightning resets these before the next validation, where it knows of them.
    """
    results = trainer.fit_loop.epoch_loop.val_loop._results.values()
    over = {
        id(part) for metric in results if not metric.is_tensor for part in metric.value.modules()
    }
    for name, module in trainer.lightning_module.named_modules():
        if isinstance(module, torchmetrics.Metric) and id(module) not in over:
            yield name, module


def _of_epoch(trainer: Any) -> Iterator[tuple[str, Any]]:
    for name, metric in trainer.fit_loop.epoch_loop._results.items():
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset:
            yield name, metric


class SharedResults(_ResultCollection):  # type: ignore[misc]  # Lightning may not be installed
    """Lightning's collection of what is logged, whose epoch metrics are those of all ranks.

    A metric that the module syncs itself (`sync_dist=True`, a torchmetrics object) is left to
    Lightning, and one that only the chief logs (`rank_zero_only=True`) to the chief.
    """

    def __init__(self, ranks: core.DistributedContext, *, training: bool) -> None:
        super().__init__(training=training)
        self._ranks = ranks
        self.records = 0
        """How many records this rank has seen; what is logged at an epoch's end counts by it."""
        self.whole: list[bool] = []
        """Of each loader, whether every rank reads all of it: the chief's sums are everybody's."""

    def metrics(self, on_step: bool) -> Any:  # noqa: FBT001 - Lightning's signature
        """Return the metrics of a step of this rank, or of the epoch of all ranks."""
        if not on_step:
            self._settle()
        return super().metrics(on_step)

    def _settle(self) -> None:
        """Compute the metrics that were not computed since they were logged."""
        waiting = {
            name: metric
            for name, metric in self.valid_items()
            if metric.is_tensor
            and metric.meta.on_epoch
            and metric._computed is None
            and not metric.meta.sync.should
            and not metric.meta.sync.rank_zero_only
        }
        if not waiting:
            return
        own = {name: self._counted(metric) for name, metric in waiting.items()}
        everything = self._ranks.allgather(own)
        for name, metric in waiting.items():
            said = [each[name] for each in everything if name in each]
            if metric.meta.is_sum_reduction and self._is_whole(metric.meta.dataloader_idx):
                said = said[:1]
            metric._computed = metric.value.new_tensor(_reduced(metric.meta, said))

    def _is_whole(self, loader: int | None) -> bool:
        """Return whether all ranks read the same of a loader; None: of all that there are."""
        if loader is not None and loader < len(self.whole):
            return self.whole[loader]
        return bool(self.whole) and all(self.whole)

    def _counted(self, metric: Any) -> tuple[float, float]:
        """Return a metric's value and how many records it counts for."""
        value = float(metric.value)
        if not metric.meta.is_mean_reduction:
            return value, 1.0
        size = float(metric.cumulated_batch_size)
        by_epoch = _BY_EPOCH in metric.meta.fx and self.records and size
        factor = self.records / size if by_epoch else 1.0
        return value * factor, size * factor


def _reduced(meta: Any, said: list[tuple[float, float]]) -> float:
    values = [value for value, _ in said]
    if meta.is_max_reduction:
        return max(values)
    if meta.is_min_reduction:
        return min(values)
    if meta.is_sum_reduction:
        return sum(values)
    size = sum(count for _, count in said)
    return sum(values) / size if size else float("nan")
