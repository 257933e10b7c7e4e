"""The moments of Lightning's loops at which everything else is done.

Lightning calls the hooks of callbacks one after another, those of the module before or after
them, and callbacks that monitor a metric last. A checkpoint must hold what all of them did, so it
is stored behind the methods of the loops that call them. There a run can leave, too, without
anybody being told of the end of an epoch that has not ended.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rung.training import ProgressTracker


class Calls(NamedTuple):
    """What is called at the moments."""

    begun: Callable[[], None]
    """All hooks of the start of training have run."""
    trained: Callable[[], None]
    """All hooks of a batch have run."""
    store: Callable[[], None]
    """Stores a checkpoint."""


class LoopHooks:
    """Stands around the methods of a trainer's loops for a run."""

    def __init__(
        self,
        trainer: Any,
        tracker: ProgressTracker,
        owner: Any,
        calls: Calls,
    ) -> None:
        """Take the place of the loops' methods.

        Args:
            trainer: before it fits.
            tracker: of the run.
            owner: the callback that this serves. While the trainer has others in its place, as
                when a tuner tries learning rates, the loops are as they were.
            calls: what to call.
        """
        self._trainer: Final = trainer
        self._tracker: Final = tracker
        self._owner: Final = owner
        self._calls: Final = calls
        self._fit: Final = trainer.fit_loop
        self._batches: Final = trainer.fit_loop.epoch_loop
        self.left = False
        """Whether the run leaves, or left; not where the script ends by itself."""
        self._places: Final[list[tuple[Any, str, Callable[..., Any]]]] = [
            (self._fit, "run", self._run),
            (self._fit, "on_run_start", self._run_start),
            (self._fit, "advance", self._epoch),
            (self._fit, "on_advance_end", self._epoch_end),
            (self._batches, "advance", self._batch),
            (self._batches, "on_advance_end", self._batch_end),
            (self._batches, "_should_check_val_fx", self._validates),
        ]
        for loop, name, method in self._places:
            original = functools.partial(getattr(type(loop), name), loop)
            setattr(loop, name, functools.partial(self._for_its_owner, method, original))

    def give_back(self) -> None:
        """Leave the loops as they were."""
        for loop, name, _ in self._places:
            vars(loop).pop(name, None)

    def _for_its_owner(
        self, method: Callable[..., Any], original: Callable[..., Any], *arguments: Any
    ) -> Any:
        if any(each is self._owner for each in self._trainer.callbacks):
            return method(original, *arguments)
        return original(*arguments)

    def _run(self, original: Callable[[], None]) -> None:
        if self._tracker.complete:
            self._tracker.report_validation_again()
            self.left = self._trainer.should_stop = True
            return
        progress = self._tracker.progress
        if progress.batches and not progress.batch_in_epoch:
            self._arrived()
        original()

    def _run_start(self, original: Callable[[], None]) -> None:
        original()
        self._calls.begun()

    def _arrived(self) -> None:
        """Let the loops go on as if there had been no restart.

        Between epochs they have nothing to take up. Within one they have done so before its next
        batch; then they would see to what is done already, a validation or a schedule.
        """
        self._fit._restarting = False  # its setter does not take a no where steps are counted
        self._batches.restarting = False

    def _epoch(self, original: Callable[[], None]) -> None:
        original()
        if self.left:
            raise StopIteration

    def _epoch_end(self, original: Callable[[], None]) -> None:
        original()
        if self._tracker.progress.batch_in_epoch:  # a hook has cut the epoch off
            self._tracker.epoch_done()
        self._keep_and_leave()

    def _batch(self, original: Callable[[Any], None], fetcher: Any) -> None:
        self._arrived()
        original(fetcher)
        self._calls.trained()
        if self._is_last():
            self._tracker.epoch_done()

    def _batch_end(self, original: Callable[[Any], None], fetcher: Any) -> None:
        original(fetcher)
        if self._is_last():
            return
        if self._tracker.complete or not self._batches._should_accumulate():
            self._keep_and_leave()  # gradients that no step has taken up would be lost

    def _validates(self, original: Callable[[Any], bool], fetcher: Any) -> bool:
        due = self._trainer.enable_validation and self._tracker.validation_due
        return bool(due or original(fetcher))

    def _is_last(self) -> bool:
        return bool(self._batches.batch_progress.is_last_batch)

    def _keep_and_leave(self) -> None:
        leaving = self._tracker.leaving
        if leaving or self._tracker.checkpoint_due:
            self._calls.store()
        if leaving:
            self.left = self._trainer.should_stop = True
            raise StopIteration
