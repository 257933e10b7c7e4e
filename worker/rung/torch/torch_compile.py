"""Compiled models: the same names in checkpoints, and errors that name a missing compiler.

`torch.compile` wraps a model, so that its parameters have `_orig_mod.` in their names. Checkpoints
have the names without it, so that a model may be compiled in one run and not in the next.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from rung.events import RungError

_WRAPPED: Final = "_orig_mod"
_VERSIONS: Final = "_metadata"
_NO_COMPILER: Final = ("InvalidCxxCompiler", "No working C++ compiler found")
_NO_TRITON: Final = ("TritonMissing", "Cannot find a working triton installation")


class NotCompiled(RungError):
    """A model cannot be compiled on this machine; the message says what is missing."""


def original(model: nn.Module) -> nn.Module:
    """Return the original of a compiled model; any other model itself."""
    return dict(model.named_children()).get(_WRAPPED, model)


def plain_name(name: str) -> str:
    """Return the name of a parameter or module in the uncompiled model."""
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def with_plain_names(state: Any) -> Any:
    """Return a state with the names of the uncompiled model."""
    return _renamed(state, {name: plain_name(name) for name in _names(state)})


def with_own_names(owner: Any, state: Any) -> Any:
    """Return a state with the names of its owner, parts of which may be compiled.

    Parts of the model from which the state is may have been compiled as well.
    """
    if not isinstance(owner, nn.Module):
        return state
    state = with_plain_names(state)
    return _renamed(state, {plain_name(name): name for name in _names(owner.state_dict())})


def _names(state: Any) -> list[str]:
    """Return the names of compiled parameters, and of modules in the state's metadata."""
    found = [*state, *vars(state).get(_VERSIONS, {})] if hasattr(state, "__dict__") else [*state]
    return [name for name in found if isinstance(name, str) and _WRAPPED in name.split(".")]


def _renamed(state: Any, names: dict[str, str]) -> Any:
    if not names:
        return state
    renamed = type(state)((names.get(name, name), value) for name, value in state.items())
    if hasattr(state, "__dict__") and _VERSIONS in vars(state):
        versions = vars(state)[_VERSIONS].items()
        vars(renamed)[_VERSIONS] = OrderedDict(
            (names.get(it, it), value) for it, value in versions
        )
    return renamed


@contextmanager
def obstacles_named() -> Iterator[None]:
    """Replace the error of a failed compilation by one that names what is missing.

    Raises:
        NotCompiled: a compiler or Triton is missing.
    """
    try:
        yield
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        for signs, missing, remedy in (
            (_NO_COMPILER, "a C++ compiler", "install g++, or name one in the variable CXX"),
            (_NO_TRITON, "Triton", "install the package triton"),
        ):
            if any(sign in words for sign in signs):
                raise NotCompiled(
                    f"torch.compile needs {missing}, and this machine has none that works:"
                    f" {remedy}; or do not compile the model: the checkpoints are the same"
                ) from error
        raise
