"""Observers of a hosted processor, for metrics that only its folds can give."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic

from rung.events import Event
from rung.ledger import Record
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.processor import S


class Observer(Generic[S]):
    """Sees what happens from the start on, not history, and changes nothing.

    By itself it does nothing; subclasses override what they need.
    """

    def measured(self) -> AbstractContextManager[None]:
        """Return a context in which its metrics are exposed."""
        return nullcontext()

    def begin(self, partition: int, fold: PartitionFold[S]) -> None:
        """See that a partition is folded, and decided from now on."""

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """See facts of one partition, and the decisions that were appended after them."""

    def end(self, partition: int) -> None:
        """See that a partition is not decided here any more."""
