"""The global random generators of a training process: Python's, NumPy's, and torch's.

Torch's, on the CPU and on GPUs, are included where the process has imported torch, for a model or
a DataLoader. This module imports it only to restore a state that contains them. The adapters of
TensorFlow and Keras store those of their frameworks.
"""

import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

_TORCH = "torch"


class Generators(NamedTuple):
    """The state of every global generator at one moment."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Any
    """A tensor; None: the process had not imported torch."""
    cuda: list[Any]
    """Of each GPU, by its index; of a rank among several, of its own GPU alone."""


def seed_everything(seed: int) -> None:
    """Seed every global generator, the GPUs' included."""
    _seed_cpu(seed)
    torch = _torch()
    if torch is not None and torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def capture() -> Generators:
    """Return the state of every global generator."""
    state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one that scripts use
    assert isinstance(state, dict)
    torch = _torch()
    of_torch = None if torch is None else torch.get_rng_state()
    return Generators(random.getstate(), state, of_torch, _of_gpus(torch))


def restore(generators: Generators) -> None:
    """Set every global generator to a state that `capture` returned."""
    random.setstate(generators.python)
    np.random.set_state(generators.numpy)  # noqa: NPY002 - the global one that scripts use
    torch = _torch()
    if torch is None or generators.torch is None:
        return
    torch.set_rng_state(generators.torch)
    if len(generators.cuda) == 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators.cuda[0])  # of this process's GPU, whatever its index
        return
    for index, state in enumerate(generators.cuda[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, index)


def from_seed(seed: int) -> Generators:
    """Return the states that all global generators would have after seeding."""
    with preserved():
        seed_everything(seed)
        return capture()


@contextmanager
def preserved() -> Iterator[None]:
    """Restore every global generator after the block."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the generators for the block, and restore them after it."""
    with preserved():
        _seed_cpu(seed)
        yield


def seed_worker(seed: int) -> None:
    """Seed the generators of a DataLoader's worker, which has no GPU."""
    _seed_cpu(seed)


def to_json(generators: Generators) -> dict[str, Any]:
    """Return the states of all global generators as JSON values."""
    found = arrays_to_json(generators)
    if generators.torch is not None:
        found["torch"] = bytes(generators.torch.numpy()).hex()
        found["cuda"] = [bytes(state.numpy()).hex() for state in generators.cuda]
    return found


def from_json(data: Mapping[str, Any]) -> Generators:
    """Return the states from the result of `to_json`."""
    if "torch" not in data:
        return arrays_from_json(data, None, [])
    try:
        torch: Any = importlib.import_module(_TORCH)  # the process that wrote it had it, too
    except ImportError:
        return arrays_from_json(data, None, [])

    def tensor(text: str) -> Any:
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)

    return arrays_from_json(data, tensor(data["torch"]), [tensor(text) for text in data["cuda"]])


def arrays_to_json(generators: Generators) -> dict[str, Any]:
    """Return Python's and NumPy's states as JSON values; tensors are stored separately."""
    version, numbers, gauss = generators.python
    state = dict(generators.numpy)
    inner = dict(state["state"])
    inner["key"] = [int(number) for number in inner["key"]]
    state["state"] = inner
    return {"python": [version, list(numbers), gauss], "numpy": state}


def arrays_from_json(data: Mapping[str, Any], of_torch: Any, cuda: list[Any]) -> Generators:
    """Return the states from the result of `arrays_to_json` and the tensors stored separately."""
    version, numbers, gauss = data["python"]
    state = dict(data["numpy"])
    state["state"] = dict(state["state"], key=np.array(state["state"]["key"], dtype=np.uint32))
    return Generators((version, tuple(numbers), gauss), state, of_torch, cuda)


def _torch() -> Any:
    """Return torch, if this process has imported it."""
    return sys.modules.get(_TORCH)


def _of_gpus(torch: Any) -> list[Any]:
    if torch is None or not torch.cuda.is_initialized():
        return []
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return [torch.cuda.get_rng_state()]
    return list(torch.cuda.get_rng_state_all())


def _seed_cpu(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the global one that scripts use
    torch = _torch()
    if torch is not None:
        torch.default_generator.manual_seed(seed)
