"""The batch size of a run, by the first batches that it reads; nothing else tells it."""

from collections.abc import Callable
from typing import Final

from rung import core
from rung.training import batch_size as batch_sizes
from rung.training.batch_size import BatchSize, Given


class SeenBatchSize:
    """Logs how many records a step trains, and holds that to `global_batch_size`."""

    def __init__(self, run: core.Context) -> None:
        self._run: Final = run
        self._wanted: Final = batch_sizes.wanted_by(run.hparams)
        self._before: int | None = None
        self._known = False

    def see(self, records: int, batch: int, is_last: Callable[[], bool]) -> None:
        """Take a batch, before it is trained.

        An epoch's last batch may hold fewer than the others. So where a run goes on within an
        epoch, its second batch decides with the first.

        Args:
            records: how many it holds, of all slots together.
            batch: its number in the epoch, from 0.
            is_last: returns whether the epoch has no other.

        Raises:
            InvalidPlan: this is not `global_batch_size`.
        """
        if self._known:
            return
        if batch and self._before is None:
            self._before = records
            return
        self._known = True
        size = max(records, self._before or 0)
        if self._wanted is not None and size < self._wanted and not batch and is_last():
            batch_sizes.log(self._run, BatchSize(size, self._run.distributed.size))
        else:
            given = Given.TOGETHER
            batch_sizes.batch_size(self._run, size, "the size of a batch of the data", given)
