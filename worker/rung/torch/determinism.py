"""Determinism with torch: logs the reasons for which a resumed trial may differ.

On a CPU a trial resumes bit for bit, except where it uses its own generators, which are in no
checkpoint, where a GPU uses non-deterministic operations, and where another machine resumes. Each
of these is written into the trial's log, with the fix.
"""

import inspect
import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import structlog
import torch
from torch.utils.data import IterableDataset, Sampler

from rung.events import RungError

_NAMED_BY_TORCH: Final = "does not have a deterministic implementation"
_NAMED_BY_CUBLAS: Final = "because it uses CuBLAS"
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_GENERATORS: Final = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    torch.Generator,
)
_METHODS: Final = ("state_dict", "load_state_dict")
_DEPTH_MAX: Final = 4
_PARTS_MAX: Final = 20

_log = structlog.get_logger("rung")


class NotDeterministic(RungError):
    """An operation is not deterministic, which the experiment file forbids."""


class Kept(Protocol):
    """An object whose state checkpoints can contain."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors and plain values."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restore a state of `state_dict`."""
        ...


def is_kept(thing: Any) -> bool:
    """Return whether an object has `state_dict` and `load_state_dict`.

    Without calling its `__getattr__`, which may raise any error.
    """
    found = (inspect.getattr_static(thing, name, None) for name in _METHODS)
    return all(method is not None for method in found)


def demand() -> None:
    """Have torch refuse non-deterministic operations."""
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False


@contextmanager
def operators_named() -> Iterator[None]:
    """Replace torch's error for a non-deterministic operation by one with the fix.

    Raises:
        NotDeterministic: there was one.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _NAMED_BY_CUBLAS in text:
            raise NotDeterministic(
                f"cuBLAS is not deterministic with {_CUBLAS}={os.environ.get(_CUBLAS)},"
                " and the experiment file says `reproducibility: {deterministic: true}`; take that"
                " variable out of the environment, or set it to :4096:8"
            ) from error
        if _NAMED_BY_TORCH not in text:
            raise
        operator = text.partition(_NAMED_BY_TORCH)[0].strip()
        raise NotDeterministic(
            f"{operator} is not deterministic on this device, and the experiment file"
            " says `reproducibility: {deterministic: true}`; use another operation, or remove that"
            " line: then resumed runs may differ in the last bits"
        ) from error


class Circumstances(NamedTuple):
    """The device, settings and ranks of a trial, on which determinism depends."""

    device: torch.device
    demanded: bool = False
    """Whether `demand` was called."""
    ranks: int = 1


def tell(trial: Any, where: Circumstances, data: Sequence[Any]) -> None:
    """Log what of a trial cannot be resumed exactly.

    Args:
        trial: the user's.
        where: its device and ranks.
        data: its data set and samplers.
    """
    for text in caveats(trial, where, data):
        _log.warning(text)


def caveats(trial: Any, where: Circumstances, data: Sequence[Any]) -> list[str]:
    """Return what of a trial cannot be resumed exactly, one sentence each."""
    found = of_device(where)
    found += [
        f"the data set {_name(thing)} is an IterableDataset without state_dict and"
        " load_state_dict: a resumed run reads past what was read, but what the data set draws by"
        " itself is not set back; give it the two methods"
        for thing in data
        if isinstance(thing, IterableDataset) and not is_kept(thing)
    ]
    places = [*_generators_in(trial, _name(trial), _DEPTH_MAX)]
    for thing in data:
        places += _generators_in(thing, _name(thing), 1)
    found += [
        f"{place} is a generator of its own that no checkpoint holds: a"
        f" resumed run draws other numbers from it; give {place.partition('.')[0]} state_dict and"
        " load_state_dict, or draw from Python's, NumPy's or torch's global ones"
        for place in places
    ]
    return found


def of_device(where: Circumstances) -> list[str]:
    """Return what cannot be exact because of the device."""
    on = torch.are_deterministic_algorithms_enabled()
    found = []
    if where.demanded and not on:
        found.append(
            "the experiment file says `reproducibility: {deterministic: true}`, but the script has"
            " switched torch.use_deterministic_algorithms off: non-deterministic operations"
            " are not refused"
        )
    if where.device.type != "cuda":
        return found
    if not on and not where.demanded:
        found.append(
            "on a GPU, results differ in the last bits from run to run, resumed or not;"
            " `reproducibility: {deterministic: true}` in the experiment file makes them equal"
        )
    if on and torch.backends.cudnn.benchmark:
        found.append(
            "torch.backends.cudnn.benchmark is on, so cuDNN chooses algorithms by their speed, and"
            " another run may choose others; leave it off"
        )
    if on and where.ranks > 1:
        found.append(
            "gradients of several GPUs are added in an order that depends on how they are"
            " connected: moved to other machines, this trial may differ in the last bits"
        )
    return found


def _generators_in(thing: Any, place: str, depth: int) -> Iterator[str]:
    """Yield the expressions by which generators are reached from an object."""
    if is_kept(thing):
        return
    for name, each in parts_of(thing, place):
        if isinstance(each, _GENERATORS):
            seeded = isinstance(thing, Sampler) and name == f"{place}.generator"
            if not (seeded and isinstance(each, torch.Generator)):
                yield name
        elif depth < _DEPTH_MAX:
            yield from _generators_in(each, name, depth + 1)


def parts_of(thing: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries or attributes of an object, each with the expression that reaches it."""
    match thing:
        case list() | tuple():
            for index, each in enumerate(thing[:_PARTS_MAX]):
                yield f"{place}[{index}]", each
        case dict():
            for key, each in itertools.islice(thing.items(), _PARTS_MAX):
                yield f"{place}[{key!r}]", each
        case _:
            for name, each in sorted(_attributes(thing).items()):
                yield f"{place}.{name}", each


def _attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes; none of arrays, mappings, classes and modules."""
    if isinstance(thing, type | ModuleType | torch.Tensor | np.ndarray | Mapping):
        return {}
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def cuda_in_use() -> bool:
    """Return whether this process has used a GPU."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


def machine() -> dict[str, str]:
    """Return the properties of this machine on which the last bits of results depend."""
    found = {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "CPU": torch.backends.cpu.get_cpu_capability(),
    }
    if cuda_in_use():
        found["GPU"] = torch.cuda.get_device_name()
        cudnn: Any = torch.backends.cudnn
        found["cuDNN"] = str(cudnn.version())
    return found


def learning_rates(optimizers: Iterable[torch.optim.Optimizer]) -> list[list[float]]:
    """Return the learning rate of each group of each optimizer, before any schedule."""
    return [
        [float(group.get("initial_lr", group.get("lr", 0.0))) for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def log_rates(built: Sequence[list[float]], restored: Sequence[list[float]]) -> None:
    """Log which optimizers resume with another learning rate than they were built with.

    Args:
        built: `learning_rates` before a checkpoint was restored.
        restored: `learning_rates` after that.
    """
    for number, (before, after) in enumerate(zip(built, restored, strict=True)):
        if before != after:
            _log.warning(
                f"optimizer {number} goes on at the checkpoint's learning rate, {_rates(after)},"
                f" and not at {_rates(before)}, with which the script built it; where a"
                " hyperparameter gives the rate, set it in the callback on_training_start"
            )


def _rates(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in dict.fromkeys(rates))


def log_unsaved_scaler(kept: Any, used: Any) -> None:
    """Log once that a gradient scaler is in use that is not in checkpoints."""
    if used is not kept and id(used) not in _noted:
        _noted.add(id(used))
        _log.warning(
            "the gradient scaler is in no checkpoint, so a resumed run begins with the initial"
            " scale; create it by context.wrap_scaler(torch.amp.GradScaler(…))"
        )


def log_stateless_reducer(reducer: Any) -> None:
    """Log that the values collected by a reducer are in no checkpoint."""
    _log.warning(
        f"{_name(reducer)} has no state_dict and load_state_dict, so in the next training report"
        " of a resumed run its metric lacks earlier batches; give it the two methods"
    )


def log_fewer_ranks(reducer: Any, before: int, now: int) -> None:
    """Log that a reducer's states of some slots are lost, because there are fewer slots now."""
    _log.warning(
        f"{_name(reducer)} was on {before} slots and is on {now} now, each of which restores its"
        " own state: in the next training report its metric lacks the earlier batches of the"
        " other slots"
    )


_noted: Final[set[int]] = set()


def _name(thing: Any) -> str:
    return type(thing).__name__
