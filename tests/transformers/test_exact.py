"""The add-on for exact resuming with Transformers: its private interfaces, and its parts."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rung.training.introspection.seams import AddOn
from support.framework_trials import needs
from support.seams import assert_bounded, assert_refused_without_each

pytestmark = [needs("transformers", "accelerate"), pytest.mark.e2e, pytest.mark.versions]


def _add_on() -> AddOn:
    # Not at the top: one process cannot hold TensorFlow and what torch compiles with.
    found: AddOn = importlib.import_module("rung.transformers.exact").ADD_ON
    return found


def test_each_private_interface_that_is_missing_is_one_sentence() -> None:
    """Said at start, before anything is trained."""
    assert_refused_without_each(_add_on())


def test_a_version_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older or newer; and the extras ask for those that were."""
    assert_bounded(_add_on(), monkeypatch)


def _part(name: str) -> Any:
    return importlib.import_module(f"rung.transformers.{name}")


def test_batches_of_all_slots_are_those_of_each_put_together() -> None:
    """By torch's sampler, with its records left out at the end; by another kind, as they come."""
    data: Any = importlib.import_module("torch.utils.data")
    merged = _part("exact.batch_sampler").merged
    of_torch = merged(data.BatchSampler(range(7), 2, drop_last=True), 3)
    assert list(of_torch) == [[0, 1, 2, 3, 4, 5]]
    other = merged([[0], [1, 2], [3]], 2)
    assert list(other) == [[0, 1, 2], [3]]
    assert len(other) == 2


def test_labels_count_as_in_the_models_loss() -> None:
    """A causal model's first label is none; a stand-in's labels are none at all."""
    torch: Any = importlib.import_module("torch")
    weights = _part("exact.token_weights")
    batch = {"labels": torch.tensor([[1, 2, -100]])}
    assert weights.counted(batch, shifted=False) == 2
    assert weights.counted(batch, shifted=True) == 1
    assert weights.counted(weights.without_items(batch), shifted=False) == 0
    assert weights.shifts(SimpleNamespace(loss_type="ForCausalLM", config=None))
    assert not weights.shifts(
        SimpleNamespace(loss_type="ForCausalLM", config=SimpleNamespace(is_encoder_decoder=True))
    )
    assert not weights.shifts(object())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_alone_are_loaded(tmp_path: Path, name: str) -> None:
    """From each kind of file that a trainer saves."""
    torch: Any = importlib.import_module("torch")
    saved, model = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    if name.endswith(".bin"):
        torch.save(saved.state_dict(), tmp_path / name)
    else:
        files: Any = importlib.import_module("safetensors.torch")
        files.save_file(saved.state_dict(), tmp_path / name)
    _part("weights").load_weights(model, tmp_path)
    assert torch.equal(model.weight, saved.weight)


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    """The message names the files that could have been there."""
    torch: Any = importlib.import_module("torch")
    with pytest.raises(_part("callback").NotResumable, match=r"model\.safetensors"):
        _part("weights").load_weights(torch.nn.Linear(2, 1), tmp_path)
