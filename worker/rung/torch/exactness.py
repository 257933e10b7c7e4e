"""What a resumed trial may not have exactly as it was: named to the user, not hidden.

On a CPU a trial goes on bit for bit. That ends where a generator is of the user's own and nobody
keeps it, where a GPU computes by what is fastest, and where another machine goes on. Each of these
is told in the trial's log, with what would make it exact.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

import numpy as np
import structlog
import torch
from torch.utils.data import IterableDataset

from rung.events import RungError
from rung.torch.rng import cuda_in_use

_NAMED_BY_TORCH: Final = "does not have a deterministic implementation"
_GENERATORS: Final = (random.Random, np.random.Generator, np.random.RandomState)

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
    """Return whether something has a state that it gives and takes."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def demand() -> None:
    """Have torch refuse every operation that is not deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
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
        if _NAMED_BY_TORCH not in text:
            raise
        operator = text.partition(_NAMED_BY_TORCH)[0].strip()
        raise NotDeterministic(
            f"{operator} gives other results each time on this device, and the experiment file"
            " says `reproducibility: {deterministic: true}`; use another operation, or take that"
            " line out: then resumed runs may differ in the last bits"
        ) from error


def tell(trial: Any, device: torch.device, data: Sequence[Any]) -> None:
    """Say in the log what of a trial cannot be resumed exactly.

    Args:
        trial: the user's.
        device: on which it trains.
        data: its data set and samplers.
    """
    for text in caveats(trial, device, data):
        _log.warning(text)


def caveats(trial: Any, device: torch.device, data: Sequence[Any]) -> list[str]:
    """Return what of a trial cannot be resumed exactly, one sentence each."""
    found = []
    if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        found.append(
            "on a GPU, results differ in the last bits from run to run, resumed or not;"
            " `reproducibility: {deterministic: true}` in the experiment file makes them equal"
        )
    found += [
        f"the data set {_name(thing)} is an IterableDataset without state_dict and"
        " load_state_dict: a resumed run reads past what was read, but what the data set draws by"
        " itself is not set back; give it the two methods"
        for thing in data
        if isinstance(thing, IterableDataset) and not is_kept(thing)
    ]
    for thing in (trial, *data):
        if not is_kept(thing):
            found += [
                f"{_name(thing)}.{name} is a generator of its own that no checkpoint holds: a"
                f" resumed run draws other numbers from it; give {_name(thing)} state_dict and"
                " load_state_dict, or draw from Python's, NumPy's or torch's global ones"
                for name, value in sorted(getattr(thing, "__dict__", {}).items())
                if isinstance(value, _GENERATORS)
            ]
    return found


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


def tell_differences(before: Mapping[str, str] | None) -> None:
    """Say in the log in what this machine differs from the one that stored a checkpoint.

    Args:
        before: what `machine` was there; None where it was not yet noted.
    """
    now = machine()
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


def note_scaler(kept: Any, used: Any) -> None:
    """Say in the log, once, that a gradient scaler is in use that no checkpoint holds."""
    if used is not kept and id(used) not in _noted:
        _noted.add(id(used))
        _log.warning(
            "the gradient scaler is in no checkpoint, so a resumed run begins with its first"
            " scale; make it by context.wrap_scaler(torch.amp.GradScaler(…))"
        )


_noted: Final[set[int]] = set()


def _name(thing: Any) -> str:
    return type(thing).__name__
