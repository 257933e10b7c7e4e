"""What exact resuming adds to Lightning's loops, and to each checkpoint.

A moment's order is: train the batch, report, validate, checkpoint. What is kept, and when a run
ends, is decided behind all hooks. A checkpoint holds, of each rank, what was summed up of the
epoch so far; and on several slots what is logged for an epoch is that of all ranks.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from rung.lightning.exact import metric_sync
from rung.lightning.exact.loop_hooks import Calls, LoopHooks
from rung.lightning.sharded_validation import ShardedValidation
from rung.torch import external_loop
from rung.torch.data.training_data import records_of
from rung.training import ProgressTracker


class ExactTraining:
    """The exact part of a callback."""

    def __init__(self, tracker: ProgressTracker) -> None:
        """Begin at the trial's beginning.

        Args:
            tracker: of the run.
        """
        self._tracker: Final = tracker
        self._ranks: Final = tracker.run.distributed
        self._results: list[metric_sync.SharedResults] = []
        self._hooks: LoopHooks | None = None
        self._undo: Callable[[], None] | None = None
        self._sums: dict[str, Any] = {}
        self._to_add: list[dict[str, Any]] = []
        self._measured: dict[str, Any] = {}
        self._to_measure: list[dict[str, Any]] | None = None

    @property
    def left(self) -> bool:
        """Whether the run ends before the script's own training does."""
        return self._hooks is not None and self._hooks.left

    def take_over(
        self,
        trainer: Any,
        callback: Any,
        begun: Callable[[], None],
        store: Callable[[], None],
    ) -> None:
        """Stand around the loops of a trainer, before it fits.

        Args:
            trainer: that has the callback.
            callback: that this is a part of.
            begun: is called when all hooks of the start of training have run.
            store: stores a checkpoint.
        """
        external_loop.tell(self._tracker.run, trainer.strategy.root_device)
        if self._ranks.size > 1:
            self._results = [
                metric_sync.SharedResults(self._ranks, training=True),
                metric_sync.SharedResults(self._ranks, training=False),
            ]
            loop = trainer.fit_loop.epoch_loop
            loop._results, loop.val_loop._results = self._results

        def begin() -> None:
            begun()
            self._measure(trainer)

        calls = Calls(
            begun=begin,
            trained=functools.partial(self._trained, trainer),
            store=functools.partial(self.store, trainer, store),
        )
        self._hooks = LoopHooks(trainer, self._tracker, callback, calls)

    def give_back(self) -> None:
        """Leave the loops as they were."""
        if self._hooks is not None:
            self._hooks.give_back()

    def batch_began(self, trainer: Any, batch: Any, share: float) -> None:
        """Count this rank's records; those of a stand-in for an empty part do not."""
        if not self._results:
            return
        if self._tracker.progress.batch_in_epoch == 0:
            self._results[0].records = 0
        if share:
            self._results[0].records += records_of(batch) or 0
        else:
            self._undo = metric_sync.not_counting(trainer)

    def validation_began(self, trainer: Any, validation: ShardedValidation | None) -> None:
        """Begin to count."""
        if self._results and validation is not None:
            self._results[1].records = 0
            self._results[1].whole = validation.whole(trainer)

    def validated(self, batch: Any) -> None:
        """Count records, by which ranks count."""
        if self._results:
            self._results[1].records += records_of(batch) or 0

    def logged(self, trainer: Any) -> dict[str, Any]:
        """Return what callbacks find among the metrics now."""
        return metric_sync.logged(trainer)

    def state(self) -> dict[str, Any]:
        """Return what belongs to the moment."""
        own: dict[str, Any] = {"sums": self._sums, "measured": self._measured}
        if self._ranks.size > 1:
            own["records"] = self._results[0].records if self._results else 0
        return own

    def load(self, own: dict[str, Any] | None, to_add: Sequence[dict[str, Any]]) -> None:
        """Take back what `state` returned.

        Args:
            own: of this rank, if it has any.
            to_add: of all whose sums this rank goes on with.
        """
        if own is not None and self._results:
            self._results[0].records = own.get("records", 0)
        self._to_add = [each["sums"] for each in to_add if "sums" in each]
        self._to_measure = [each.get("measured", {}) for each in to_add]

    def _measure(self, trainer: Any) -> None:
        """Have torchmetrics objects go on, before the start of an epoch may reset them."""
        if self._to_measure is not None:
            metric_sync.measure(trainer, self._to_measure)
            self._to_measure = None

    def _trained(self, trainer: Any) -> None:
        """Set right what the hooks of a batch have logged, those of the module among them."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        to_add, self._to_add = self._to_add, []
        for sums in to_add:
            metric_sync.add_sums(trainer, sums)

    def store(self, trainer: Any, store: Callable[[], None]) -> None:
        """Store a checkpoint with what was summed up."""
        within = self._tracker.progress.batch_in_epoch
        self._sums = metric_sync.sums(trainer) if within else {}
        self._measured = metric_sync.measured(trainer)
        try:
            store()
        finally:
            self._sums, self._measured = {}, {}
