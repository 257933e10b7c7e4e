"""The global generators: torch's where it is loaded, of GPUs those that are there."""

import json
import subprocess
import sys

import pytest
import torch

from rung.training import rng
from support.trials.gpu import Gpus


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


def _alone(code: str) -> str:
    """Return what a process prints that has loaded nothing but the module."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, random, sys\nfrom rung.training import rng\n{code}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_without_torch_its_generators_are_left_out() -> None:
    """Python's and NumPy's are seeded, captured and restored; torch stays out of the process."""
    printed = _alone("""
rng.seed_everything(3)
before = rng.from_json(json.loads(json.dumps(rng.to_json(rng.capture()))))
drawn = random.random()
rng.restore(before)
print(drawn == random.random(), before.torch, "torch" in sys.modules)
""")
    assert printed == "True None False"


def test_what_a_process_with_torch_captured_is_restored_with_torch() -> None:
    """Also where the resumed process has not loaded it yet: it is about to."""
    torch.manual_seed(5)
    state = json.dumps(rng.to_json(rng.capture()))
    drawn = float(torch.rand(1))
    printed = _alone(f"""
rng.restore(rng.from_json(json.loads({state!r})))
import torch
print(float(torch.rand(1)))
""")
    assert float(printed) == drawn


def test_torch_is_seeded_once_it_is_loaded() -> None:
    """Whichever module loaded it."""
    printed = _alone("""
import torch
rng.seed_everything(7)
first = float(torch.rand(1))
with rng.isolated(7):
    again = float(torch.rand(1))
print(first == again, rng.capture().torch is not None)
""")
    assert printed == "True True"
