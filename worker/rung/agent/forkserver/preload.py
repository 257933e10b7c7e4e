"""Preload: imports and a first training step, once in the fork server instead of in every run.

Importing torch is not enough: its first optimizer imports modules for another 2.4 seconds, so one
tiny training step is part of the preload. CUDA is never initialised: it cannot be used in forks of
a process that did so. Where runs are to use CUDA, the step omits `backward()`, because autograd
counts the devices once, at its first call, and refuses to work in forks of a process in which it
found any.
"""

import atexit
import codecs
import importlib
import logging
import multiprocessing.util
import os
import sys
import weakref
from typing import Any, Final

_LEAN: Final = ("rung.core",)
_WARM: Final = ("numpy", "torch", "rung.core", "rung.torch")


def warm_up(*, cuda: bool, frameworks: bool = True) -> list[str]:
    """Import what runs will need; return the names of the modules that are installed.

    Args:
        cuda: whether runs will use CUDA devices.
        frameworks: whether to import NumPy and torch as well as `rung.core`.
    """
    names = _WARM if frameworks else _LEAN
    found = []
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when NumPy is loaded; no threads before a fork
    for name in names:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "torch":
            _train_one_step(module, backward=not cuda)
        found.append(name)
    del os.environ["OPENBLAS_NUM_THREADS"]
    codecs.lookup("ascii")  # imported at its first use, which each process has
    _lighten_exits()
    return found


def _lighten_exits() -> None:
    """Remove exit handlers of imported modules that a run does not need.

    torch unloads 193 libraries (36 ms), compilers report leaks (4 ms). What a run needs at its
    end stays: flushing logs, removing temporary files, stopping worker processes.
    """
    finalize: Any = weakref.finalize
    processes: Any = multiprocessing.util
    finalize._registry.clear()  # noqa: SLF001 - no public way to drop all
    atexit._clear()  # noqa: SLF001 - no public way to drop all
    data = sys.modules.get("torch.utils.data._utils")
    finalize._registered_with_atexit = True  # noqa: SLF001 - it is, two lines below
    atexit.register(logging.shutdown)
    if data is not None:
        atexit.register(data._set_python_exit_flag)  # noqa: SLF001 - what torch registers itself
    atexit.register(processes._exit_function)  # noqa: SLF001 - as its module does
    atexit.register(finalize._exitfunc)  # noqa: SLF001 - as the first finalizer does


def _train_one_step(torch: Any, *, backward: bool) -> None:
    """Train a tiny network for one step, in one thread, without touching CUDA."""
    torch.set_num_threads(1)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    try:
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(72, 2)
        )
        parameters = list(model.parameters())
        for optimizer in (
            torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            torch.optim.Adam(parameters, lr=0.1),
        ):
            optimizer.zero_grad()
            output = model(torch.zeros(2, 1, 8, 8))
            loss = torch.nn.functional.cross_entropy(output, torch.tensor([0, 1]))
            if backward:
                loss.backward()
            else:
                for parameter in parameters:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        torch.utils.data.DataLoader([0, 1], batch_size=2)
    finally:
        del os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]
        if hidden is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    assert not torch.cuda.is_initialized(), "the fork server must not initialise CUDA"
