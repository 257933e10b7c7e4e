"""Who looks on while a process is hosted, to tell Prometheus what its folds alone know."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rung.events import Event
from rung.ledger import Record
from rung.runtime.processor.fold import PartitionFold
from rung.runtime.processor.processor import S


class Observer(Protocol[S]):
    """Looks on, and changes nothing.

    What was decided before the start is not shown: an observer sees what happens, not history.
    """

    def measured(self) -> AbstractContextManager[None]:
        """Return a context in which what it knows can be measured."""
        ...

    def begin(self, partition: int, fold: PartitionFold[S]) -> None:
        """See that a partition is folded, and decided from now on."""
        ...

    def see(self, records: Sequence[Record], decisions: Sequence[Event]) -> None:
        """See facts of one partition, and the decisions that were appended after them."""
        ...

    def end(self, partition: int) -> None:
        """See that a partition is not decided here any more."""
        ...
