"""The generators of GPUs: whose state is kept, and who takes it up."""

import pytest
import torch

from rung.torch import rng
from training.gpu import Gpus


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process be one of two."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)


@pytest.mark.usefixtures("ranks")
def test_a_rank_takes_its_generator_to_a_gpu_of_another_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of a machine's two draws on where it is its machine's only one, and back."""
    here, there = Gpus(1, 2), Gpus(9)
    here.current = 1
    monkeypatch.setattr(torch, "cuda", here)
    before = rng.capture()
    monkeypatch.setattr(torch, "cuda", there)
    rng.restore(before)
    assert there.numbers == [2]
    there.states[0] += 5
    before = rng.capture()
    monkeypatch.setattr(torch, "cuda", here)
    rng.restore(before)
    assert here.numbers == [1, 7]


@pytest.mark.parametrize(("now", "restored"), [([7, 8], [1, 2]), ([7], [1]), ([], [])])
def test_one_process_keeps_those_of_all_its_gpus(
    monkeypatch: pytest.MonkeyPatch, now: list[int], restored: list[int]
) -> None:
    """Each by its number, as far as they are there."""
    monkeypatch.setattr(torch, "cuda", Gpus(1, 2))
    before = rng.capture()
    gpus = Gpus(*now)
    monkeypatch.setattr(torch, "cuda", gpus)
    rng.restore(before)
    assert gpus.numbers == restored


def test_without_a_gpu_the_rest_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was drawn on a machine with one goes on elsewhere."""
    monkeypatch.setattr(torch, "cuda", Gpus(1))
    before = rng.capture()
    drawn = torch.rand(1)
    monkeypatch.setattr(torch, "cuda", Gpus())
    rng.restore(before)
    assert torch.equal(torch.rand(1), drawn)
