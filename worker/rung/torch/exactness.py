"""What a resumed trial may not have exactly as it was: named to the user, not hidden.

On a CPU a trial goes on bit for bit. That ends where a generator is of the user's own and nobody
keeps it, where a GPU computes by what is fastest, and where another machine goes on. Each of these
is told in the trial's log, with what would make it exact.
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
from rung.torch.rng import cuda_in_use

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
    """An operation gives other results each time, which the experiment file forbids."""


class Kept(Protocol):
    """Anything that a checkpoint can keep."""

    def state_dict(self) -> dict[str, Any]:
        """Return what to keep: tensors and plain values."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take back what `state_dict` returned."""
        ...


def is_kept(thing: Any) -> bool:
    """Return whether something has a state that it gives and takes.

    Its `__getattr__` is not asked: one that looks into a dict may raise anything.
    """
    found = (inspect.getattr_static(thing, name, None) for name in _METHODS)
    return all(method is not None for method in found)


def demand() -> None:
    """Have torch refuse every operation that is not deterministic."""
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False


@contextmanager
def operators_named() -> Iterator[None]:
    """Say of an operation that torch refuses what it is and what can be done.

    Raises:
        NotDeterministic: there was one.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if _NAMED_BY_CUBLAS in text:
            raise NotDeterministic(
                f"cuBLAS gives other results each time with {_CUBLAS}={os.environ.get(_CUBLAS)},"
                " and the experiment file says `reproducibility: {deterministic: true}`; take that"
                " variable out of the environment, or set it to :4096:8"
            ) from error
        if _NAMED_BY_TORCH not in text:
            raise
        operator = text.partition(_NAMED_BY_TORCH)[0].strip()
        raise NotDeterministic(
            f"{operator} gives other results each time on this device, and the experiment file"
            " says `reproducibility: {deterministic: true}`; use another operation, or take that"
            " line out: then resumed runs may differ in the last bits"
        ) from error


class Circumstances(NamedTuple):
    """Where a trial trains."""

    device: torch.device
    demanded: bool = False
    """Whether `demand` was called."""
    ranks: int = 1


def tell(trial: Any, where: Circumstances, data: Sequence[Any]) -> None:
    """Say in the log what of a trial cannot be resumed exactly.

    Args:
        trial: the user's.
        where: it trains.
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
    """Return what cannot be exact because of where it is computed."""
    on = torch.are_deterministic_algorithms_enabled()
    found = []
    if where.demanded and not on:
        found.append(
            "the experiment file says `reproducibility: {deterministic: true}`, but the script has"
            " switched torch.use_deterministic_algorithms off: operations that give other results"
            " each time are not refused"
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
            "torch.backends.cudnn.benchmark is on, so cuDNN chooses by speed how it computes, and"
            " another run may choose otherwise; leave it off"
        )
    if on and where.ranks > 1:
        found.append(
            "gradients of several GPUs are added in an order that depends on how they are"
            " connected: moved to other machines, this trial may differ in the last bits"
        )
    return found


def _generators_in(thing: Any, place: str, depth: int) -> Iterator[str]:
    """Yield where in an object, and how deep in what it is made of, generators lie."""
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
    """Yield the entries or attributes of a thing, each with the expression that reaches it."""
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
    """Return an object's attributes; nothing of what holds numbers or is a class or a module."""
    if isinstance(thing, type | ModuleType | torch.Tensor | np.ndarray | Mapping):
        return {}
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def machine() -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the program."""
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


def tell_differences(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None = None
) -> None:
    """Say in the log in what this machine differs from the one that stored a checkpoint.

    Args:
        before: what `machine` was there; None where it was not yet noted.
        now: what it is here, where that is not what `machine` returns.
    """
    now = machine() if now is None else now
    changed = [
        f"{what} {before[what]} then, {now.get(what, 'none')} now"
        for what in sorted(before or {})
        if before is not None and now.get(what) != before[what]
    ]
    if changed:
        _log.warning(
            "this run goes on where others than it is were at work, so its results may differ in"
            f" the last bits: {'; '.join(changed)}"
        )


def learning_rates(optimizers: Iterable[torch.optim.Optimizer]) -> list[list[float]]:
    """Return the learning rate of each group of each optimizer, before any schedule."""
    return [
        [float(group.get("initial_lr", group.get("lr", 0.0))) for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def tell_rates(built: Sequence[list[float]], restored: Sequence[list[float]]) -> None:
    """Say in the log which optimizers go on at another learning rate than they were built with.

    Args:
        built: what `learning_rates` was before a checkpoint was taken in.
        restored: what it is then.
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


def note_scaler(kept: Any, used: Any) -> None:
    """Say in the log, once, that a gradient scaler is in use that no checkpoint holds."""
    if used is not kept and id(used) not in _noted:
        _noted.add(id(used))
        _log.warning(
            "the gradient scaler is in no checkpoint, so a resumed run begins with its first"
            " scale; make it by context.wrap_scaler(torch.amp.GradScaler(…))"
        )


def note_reducer(reducer: Any) -> None:
    """Say in the log that what a reducer has collected is in no checkpoint."""
    _log.warning(
        f"{_name(reducer)} has no state_dict and load_state_dict, so a resumed run's next training"
        " report has none of the batches before it in that metric; give it the two methods"
    )


def note_fewer(reducer: Any, before: int, now: int) -> None:
    """Say in the log that fewer slots take up a reducer's state than there were."""
    _log.warning(
        f"{_name(reducer)} was on {before} slots and is on {now} now, each of which takes up its"
        " own state: the next training report has nothing of the others in that metric, from"
        " before this run"
    )


_noted: Final[set[int]] = set()


def _name(thing: Any) -> str:
    return type(thing).__name__
