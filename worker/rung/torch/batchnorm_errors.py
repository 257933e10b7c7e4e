"""Batch normalisation errors: a rank's part of a batch needs two records to have a variance."""

from collections.abc import Iterator
from contextlib import contextmanager

from rung.training.units import InvalidPlan

_SAID_BY_TORCH = "Expected more than 1 value per channel"


@contextmanager
def too_few_named(records: int, slots: int) -> Iterator[None]:
    """Replace torch's error for a batch that is too small for several slots by one with the fix.

    Args:
        records: of the batch, on all slots together.
        slots: of the run.

    Raises:
        InvalidPlan: it was too small.
    """
    try:
        yield
    except ValueError as error:
        if slots == 1 or _SAID_BY_TORCH not in str(error):
            raise
        raise InvalidPlan(
            f"a batch of {records} leaves some of {slots} slots fewer than two records, and batch "
            "normalisation needs two on each: give the training data loader drop_last=True, if it "
            "is an epoch's last batch, or a larger batch size; on GPUs `distributed: "
            "{sync_batch_norm: true}` does it, too"
        ) from error
