"""What a PyDataset does between epochs, such as to shuffle, in a run that goes on.

A checkpoint does not hold the training data. What they do in `on_epoch_begin` and `on_epoch_end`
draws from generators that are seeded for the epoch, and a run that goes on has its own data set do
the same for all epochs that are over. What changes their attributes at another time would be lost,
and is refused.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from rung.keras.layer_settings import Settings, changes, settings_of
from rung.training.errors import NotResumable
from rung.training.introspection.script_code import is_of_script
from rung.training.rng import isolated
from rung.training.seeds import Domain, derive

_HOOKS: Final = ("on_epoch_begin", "on_epoch_end")


class DatasetHooks:
    """Stands before the hooks of the data that a `fit` reads, where these have their own."""

    def __init__(self, adapter: Any, given: Any, seed: int) -> None:
        """Take the place of what calls the hooks.

        Args:
            adapter: what Keras made of the data given to `fit`.
            given: these data.
            seed: of the trial.
        """
        self._seed: Final = seed
        self._hooks: Final[list[tuple[int, Callable[[], None]]]] = []
        self.epoch = 0
        """The one that begins or goes on."""
        self.data: Any = None
        """The data, if they may have a state."""
        self._settings: Settings = {}
        data = self.data = with_attributes(given)
        if data is None:
            return
        self._settings = settings_of(data, [])
        if not isinstance(adapter, PyDatasetAdapter):
            return
        for number, name in enumerate(_HOOKS):
            if getattr(type(data), name) is getattr(keras.utils.PyDataset, name):
                continue
            self._hooks.append((number, getattr(data, name)))
            called = functools.partial(self._seeded, number, getattr(adapter, name))
            setattr(adapter, name, called)

    def demand_unchanged(self) -> None:
        """Check that no attribute of the data has changed but in its own hooks.

        Raises:
            NotResumable: one has; the message names it, and says what to do.
        """
        if self.data is None:
            return
        if found := changes(self._settings, settings_of(self.data, [])):
            raise NotResumable(
                "a run that resumes would lose what has changed in the data during fit(): "
                f"{'; '.join(found)}. Change it in on_epoch_begin() or on_epoch_end() of a "
                "keras.utils.PyDataset, which such a run repeats"
            )

    def repeat(self, epochs: int) -> None:
        """Have done what was done in so many epochs."""
        for self.epoch in range(epochs):
            for number, hook in self._hooks:
                self._seeded(number, hook)
        self.epoch = epochs

    def _seeded(self, number: int, hook: Callable[[], None]) -> None:
        self.demand_unchanged()
        with isolated(derive(self._seed, Domain.DATASET_HOOKS, self.epoch, number)):
            hook()
        self._settings = settings_of(self.data, [])


def with_attributes(data: Any) -> Any:
    """Return what of data may have a state: a PyDataset, or a script's own in a DataLoader."""
    if isinstance(data, keras.utils.PyDataset):
        return data
    dataset = getattr(data, "dataset", None)  # of torch, which need not be there
    own = is_of_script(type(dataset).__module__) and hasattr(dataset, "__dict__")
    return dataset if own else None
