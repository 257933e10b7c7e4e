"""Copies of a script's DataLoader with other data or batches.

Class and options of the loader stay: a subclass may change each batch in its `__iter__`. The
loader itself is not changed; the script may iterate over it for purposes of its own.
"""

import copy
import inspect
import warnings
from typing import Any, Final

from torch.utils.data import DataLoader, Sampler, SequentialSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from rung.torch.determinism import is_kept

_ENTRIES: Final = {
    "batch_sampler",
    "batch_size",
    "dataset",
    "drop_last",
    "sampler",
    "shuffle",
    "snapshot_every_n_steps",
}
"""Arguments that are not passed on as they are."""
_OPTIONS: Final = inspect.signature(StatefulDataLoader).parameters.keys() - _ENTRIES


def copied(loader: Any, **changes: Any) -> Any:
    """Return a copy of a loader in which some attributes have other values."""
    made = copy.copy(loader)
    for name, value in {"_iterator": None, **changes}.items():
        object.__setattr__(made, name, value)  # torch's own refuses what its constructor took
    return made


def with_batches(loader: Any, batches: Any, **changes: Any) -> Any:
    """Return a copy of a loader over a data set with an index, which yields other batches.

    Args:
        loader: of torch, or of a subclass.
        batches: a batch sampler.
        changes: other attributes to change.
    """
    return copied(
        loader,
        batch_sampler=batches,
        batch_size=None,
        drop_last=False,
        sampler=SequentialSampler(loader.dataset),
        **changes,
    )


def with_position(loader: Any) -> Any:
    """Return a copy of a loader that has a state, a StatefulDataLoader where its class has none.

    A class with an `__iter__` of its own is left as it is.
    """
    if is_kept(loader) or has_own_iter(loader):
        return copied(loader)
    options = {name: getattr(loader, name) for name in _OPTIONS if hasattr(loader, name)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="'set_vital'")  # torchdata's call, not ours
        made: Any = StatefulDataLoader(loader.dataset, batch_size=None, **options)
    return copied(
        made,
        batch_sampler=loader.batch_sampler,
        batch_size=loader.batch_size,
        drop_last=loader.drop_last,
        sampler=loader.sampler,
    )


def with_workers(loader: Any, number: int) -> Any:
    """Return a copy of a loader with another number of workers."""
    changes: dict[str, Any] = {"num_workers": number}
    if number == 0:
        changes |= {"timeout": 0, "persistent_workers": False}
    elif loader.prefetch_factor is None:
        changes["prefetch_factor"] = 2
    return copied(loader, **changes)


def has_own_iter(loader: Any) -> bool:
    """Return whether the loader's class has an `__iter__` that is not torch's."""
    return type(loader).__iter__ not in {DataLoader.__iter__, StatefulDataLoader.__iter__}


class Listed(Sampler[Any]):
    """A fixed list of batches."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries
        self.opened = False
        """Whether it was read."""

    def __iter__(self) -> Any:
        self.opened = True
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
