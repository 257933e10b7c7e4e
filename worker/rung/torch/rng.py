"""The random generators of a training process: Python's, NumPy's, torch's on CPU and GPU."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch


class Generators(NamedTuple):
    """The state of every global generator at one moment."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: torch.Tensor
    cuda: list[torch.Tensor]
    """Of each GPU, by its number; of a rank among several, of its own alone."""


def derive(*numbers: int) -> int:
    """Return a seed of 63 bits that follows from the numbers, and from their order."""
    sequence = np.random.SeedSequence([number & 0xFFFFFFFFFFFFFFFF for number in numbers])
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


def seed_everything(seed: int) -> None:
    """Seed every global generator, the GPUs' included."""
    _seed_cpu(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def capture() -> Generators:
    """Return the state of every global generator."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one that scripts use
    assert isinstance(state, dict)
    return Generators(random.getstate(), state, torch.get_rng_state(), _of_gpus())


def restore(generators: Generators) -> None:
    """Set every global generator to a state that `capture` returned."""
    random.setstate(generators.python)
    np.random.set_state(generators.numpy)  # noqa: NPY002 - the global one that scripts use
    torch.set_rng_state(generators.torch)
    if len(generators.cuda) == 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators.cuda[0])  # the process's, whatever its number was
        return
    for index, state in enumerate(generators.cuda[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, index)


def from_seed(seed: int) -> Generators:
    """Return what every global generator's state would be after seeding."""
    with preserved():
        seed_everything(seed)
        return capture()


@contextmanager
def preserved() -> Iterator[None]:
    """Run a block that may draw as it likes without anybody noticing afterwards."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Run a block whose draws follow from a seed alone and are not noticed afterwards."""
    with preserved():
        _seed_cpu(seed)
        yield


def seed_worker(seed: int) -> None:
    """Seed the generators of a DataLoader's worker, which has no GPU."""
    _seed_cpu(seed)


def to_json(generators: Generators) -> dict[str, Any]:
    """Return Python's and NumPy's states as JSON values; torch's are tensors and stay so."""
    version, numbers, gauss = generators.python
    state = dict(generators.numpy)
    inner = dict(state["state"])
    inner["key"] = [int(number) for number in inner["key"]]
    state["state"] = inner
    return {"python": [version, list(numbers), gauss], "numpy": state}


def from_json(
    data: dict[str, Any], torch_state: torch.Tensor, cuda: list[torch.Tensor]
) -> Generators:
    """Return what `to_json` was given."""
    version, numbers, gauss = data["python"]
    state = dict(data["numpy"])
    state["state"] = dict(state["state"], key=np.array(state["state"]["key"], dtype=np.uint32))
    return Generators((version, tuple(numbers), gauss), state, torch_state, cuda)


def cuda_in_use() -> bool:
    """Return whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


def _of_gpus() -> list[torch.Tensor]:
    if not cuda_in_use():
        return []
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return [torch.cuda.get_rng_state()]
    return torch.cuda.get_rng_state_all()


def _seed_cpu(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global one that scripts use
    torch.default_generator.manual_seed(seed)
