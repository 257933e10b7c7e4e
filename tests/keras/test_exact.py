"""The add-on for exact resuming with Keras: its private interfaces, and its parts."""

import importlib
import random
from types import SimpleNamespace
from typing import Any

import pytest

from rung.training.errors import NotResumable
from rung.training.introspection.seams import AddOn
from support.framework_trials import needs
from support.seams import assert_bounded, assert_refused_without_each

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.versions]


def _add_on() -> AddOn:
    # Not at the top: one process cannot hold TensorFlow and what torch compiles with.
    found: AddOn = importlib.import_module("rung.keras.exact").ADD_ON
    return found


def test_each_private_interface_that_is_missing_is_one_sentence() -> None:
    """Said at start, before anything is trained."""
    assert_refused_without_each(_add_on())


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older or newer; and the extras ask for those that were."""
    assert_bounded(_add_on(), monkeypatch)


def _part(name: str) -> Any:
    return importlib.import_module(f"rung.keras.exact.{name}")


def _fit(steps: int | None, batches: int | None) -> Any:
    """Return what Keras has of the data of a `fit`."""
    return SimpleNamespace(
        steps_per_epoch=steps, data_adapter=SimpleNamespace(num_batches=batches)
    )


def test_an_epoch_that_is_all_of_the_data_may_be_counted() -> None:
    """Keras then makes each epoch's iterator in that epoch."""
    data = _fit(3, 3)
    _part("steps_per_epoch").refuse_pieces(data, tensorflow=False)
    assert data.steps_per_epoch is None


@pytest.mark.parametrize(("batches", "said"), [(6, "of 6 batches"), (None, "of unknown length")])
def test_an_epoch_that_is_a_piece_of_the_data_is_refused(batches: int | None, said: str) -> None:
    """A run that goes on would not find its place."""
    with pytest.raises(NotResumable, match=said):
        _part("steps_per_epoch").refuse_pieces(_fit(3, batches), tensorflow=False)


class _Own:
    """A data set."""


class _Slotted:
    """A data set without attributes of its own."""

    __slots__ = ()


def test_what_of_data_may_have_a_state() -> None:
    """What a DataLoader reads, where a script's own class may have given it attributes."""
    found = _part("dataset_hooks").with_attributes
    for dataset, held in ((_Own(), True), (_Slotted(), False), ([1], False)):
        assert (found(SimpleNamespace(dataset=dataset)) is dataset) == held
    assert found([1]) is None


def test_batches_that_were_trained_go_by() -> None:
    """The position is reached behind the last of them, once."""
    trained: list[int] = []
    happened: list[str] = []

    def train(batch: int) -> str:
        trained.append(batch)
        return "trained"

    feed = _part("data_position").Feed(train, 1)
    feed.begin(1, 2, lambda: happened.append("arrived"), lambda: "passed")
    answers = []
    for batch in range(4):
        answers.append(feed(batch))
        happened.append("skipped" if feed.skipping else "trained")
    assert answers == ["passed", "passed", "trained", "trained"]
    assert trained == [2, 3]
    assert happened == ["skipped", "arrived", "skipped", "trained", "trained"]


def test_a_data_set_draws_between_epochs_as_it_did_before() -> None:
    """In another process, which has it do the same for the epochs that are over."""
    keras: Any = importlib.import_module("keras")
    adapters: Any = importlib.import_module("keras.src.trainers.data_adapters.py_dataset_adapter")

    class Shuffled(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
        """Changes its order at the end of an epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.order = list(range(20))

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            return keras.ops.zeros((1, 1))

        def on_epoch_end(self) -> None:
            """Shuffle."""
            random.shuffle(self.order)

    def hooked() -> tuple[Any, Any, Any]:
        data = Shuffled()
        adapter = adapters.PyDatasetAdapter(data, None)
        return data, adapter, _part("dataset_hooks").DatasetHooks(adapter, data, seed=7)

    before, adapter, hooks = hooked()
    for hooks.epoch in range(3):
        adapter.on_epoch_end()
    random.seed(1)
    state = random.getstate()
    after, _, hooks = hooked()
    hooks.repeat(3)
    assert after.order == before.order != list(range(20))
    assert random.getstate() == state


def test_a_hook_that_fit_does_not_call_is_refused() -> None:
    """Its position in the training data is nowhere."""
    fit = _part("fit").ExactFit(SimpleNamespace(seed=3))
    with pytest.raises(NotResumable, match="was not called by fit"):
        fit.begin(None, None)


def test_draws_without_a_seed_begin_by_the_trials() -> None:
    """Whatever Python's own generator is at, and in the same place for all who ask."""
    keras: Any = importlib.import_module("keras")
    run = SimpleNamespace(seed=3)

    def begun() -> list[int]:
        keras.utils.clear_session(free_memory=False)
        random.seed()
        return [int(each) for each in _part("fit").ExactFit.shared_seeds(run).numpy()]

    assert begun() == begun()
    exact = _part("fit").ExactFit
    assert exact.shared_seeds(run) is exact.shared_seeds(run)
