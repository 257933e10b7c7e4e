"""Structure of models and optimizers: what is trained, in which groups, the shapes, and the hooks.

States hold the values of tensors only. Whether a parameter is trained, the groups of an optimizer
and buffers of another shape are set again before the states are; a parameter of another shape
cannot be, nor a hook that was registered, or removed, in training.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rung.torch.torch_compile import plain_name

_MORE: Final = 3
_OF_MODULE: Final = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_OF_TENSOR: Final = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_OPTIMIZER: Final = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OF_FRAMEWORKS: Final = ("torch.", "rung.", "accelerate.", "lightning.", "transformers.")
"""Hooks of these packages' own functions are registered again by what registered them."""


class Shape(NamedTuple):
    """The form of a tensor in a state."""

    size: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} of {self.size}"


class Structure:
    """The structure of models and optimizers, as a script has made it."""

    def __init__(
        self, models: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Note what there is.

        Args:
            models: by the names that they have in checkpoints.
            optimizers: all of them.
        """
        self._models = models
        self._optimizers = optimizers
        self._trained = {name: it.requires_grad for name, it in self._parameters()}
        self._groups = self._groups_now()
        self._shapes = self._shapes_now()
        self._buffers = self._buffers_now()
        self._hooks = self._hooks_now()

    def changes(self) -> tuple[dict[str, Any], list[str]]:
        """Return what has changed, for a checkpoint, and what of it cannot be set again."""
        lost = [*self._lost_shapes(), *self._lost_hooks()]
        found: dict[str, Any] = {}
        trained = {
            name: [self._trained[name], it.requires_grad]
            for name, it in self._parameters()
            if name in self._trained and it.requires_grad != self._trained[name]
        }
        if trained:
            found["trained"] = trained
        buffers = {
            name: _plain_shape(shape)
            for name, shape in self._buffers_now().items()
            if self._buffers.get(name, _ABSENT) != shape
        }
        if buffers:
            found["buffers"] = buffers
        if lost:
            return found, lost
        groups = []
        for index, (before, now) in enumerate(zip(self._groups, self._groups_now(), strict=True)):
            if before != now:
                groups.append([index, before, now])
                lost += self._lost_groups(index, now)
        if groups:
            found["groups"] = groups
        return found, lost

    def apply(self, kept: Mapping[str, Any]) -> None:
        """Set again what has changed, where this run's script has made what that of then made."""
        parameters = dict(self._parameters())
        for name, (before, now) in kept.get("trained", {}).items():
            if self._trained.get(name) == before:
                parameters[name].requires_grad_(now)
        for name, shape in kept.get("buffers", {}).items():
            self._set_buffer(name, shape)
        for index, before, now in kept.get("groups", ()):
            if index < len(self._groups) and self._groups[index] == before:
                _regroup(self._optimizers[index], now, parameters)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter once, with the name that it has in checkpoints."""
        seen = set()
        for place, module in self._models.items():
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{place}.{plain_name(name)}", parameter

    def _groups_now(self) -> list[list[list[str]]]:
        """Return the names of the parameters in each group of each optimizer; "" is nameless."""
        names = {id(parameter): name for name, parameter in self._parameters()}
        return [
            [[names.get(id(it), "") for it in group["params"]] for group in optimizer.param_groups]
            for optimizer in self._optimizers
        ]

    def _shapes_now(self) -> dict[str, Shape]:
        """Return the shapes of all parameters that have one by now."""
        return {
            name: Shape(tuple(it.shape), it.dtype)
            for name, it in self._parameters()
            if not is_lazy(it)
        }

    def _buffers_now(self) -> dict[str, Shape | None]:
        """Return the shapes of all buffers in states; None where a buffer is None."""
        found: dict[str, Shape | None] = {}
        for place, module in self._models.items():
            for name, each in module.named_modules():
                for key, buffer in each._buffers.items():  # noqa: SLF001 - torch has no other way
                    if key not in each._non_persistent_buffers_set and not is_lazy(buffer):  # noqa: SLF001 - as above
                        shape = (
                            Shape(tuple(buffer.shape), buffer.dtype)
                            if buffer is not None
                            else None
                        )
                        found[".".join(filter(None, (place, plain_name(name), key)))] = shape
        return found

    def _hooks_now(self) -> dict[str, list[str]]:
        """Return the names of the hooks of layers, parameters and optimizers, by place."""
        found: dict[str, list[str]] = {}

        def look(place: str, thing: Any, kinds: Sequence[str]) -> None:
            for kind in kinds:
                hooks = (getattr(thing, kind, None) or {}).values()
                if names := [name for name in map(_hook_name, hooks) if name]:
                    found[f"{place}.{kind.removeprefix('_')}"] = names

        for place, module in self._models.items():
            for name, each in module.named_modules():
                look(".".join(filter(None, (place, plain_name(name)))), each, _OF_MODULE)
        for name, parameter in self._parameters():
            look(name, parameter, _OF_TENSOR)
        for index, optimizer in enumerate(self._optimizers):
            look(f"optimizers[{index}]", optimizer, _OF_OPTIMIZER)
        return found

    def _lost_hooks(self) -> Iterator[str]:
        now = self._hooks_now()
        for place in sorted(self._hooks.keys() | now.keys()):
            before, after = self._hooks.get(place, []), now.get(place, [])
            if before != after:
                yield (
                    f"{place} are {', '.join(after) or 'none'} now, and were"
                    f" {', '.join(before) or 'none'}: register hooks in __init__, and switch them"
                    " by an attribute, which is kept"
                )

    def _lost_shapes(self) -> Iterator[str]:
        now = self._shapes_now()
        lazy = {name for name, it in self._trained.items() if name not in self._shapes}
        changed = [
            f"{name} is {now.get(name, 'gone')}, and was {self._shapes.get(name, 'not there')}"
            for name in sorted((self._shapes.keys() | now.keys()) - lazy)
            if self._shapes.get(name) != now.get(name)
        ]
        if changed:
            more = f", and {len(changed) - _MORE} more" if len(changed) > _MORE else ""
            yield (
                f"layers are others than __init__ made: {'; '.join(changed[:_MORE])}{more} (make"
                " them in __init__ as they are to be, or replace their values, not the layers)"
            )

    def _lost_groups(self, index: int, now: list[list[str]]) -> Iterator[str]:
        optimizer = self._optimizers[index]
        name = f"optimizer {index}, a {type(optimizer).__name__},"
        if any(not each for group in now for each in group):
            yield (
                f"{name} has other groups now, with a parameter of no wrapped model (give its"
                " module to context.wrap_model or context.keep in __init__)"
            )
        grouped = {id(it) for group in optimizer.param_groups for it in group["params"]}
        if any(id(it) not in grouped for it in optimizer.state):
            yield (
                f"{name} has a state of a parameter that is in none of its groups any more"
                " (delete it from optimizer.state)"
            )

    def _set_buffer(self, name: str, kept: list[Any] | None) -> None:
        """Make a buffer as large as the one that is kept; its values come with the state."""
        for place, module in self._models.items():
            for inner, each in module.named_modules():
                prefix = ".".join(filter(None, (place, plain_name(inner)))) + "."
                key = name.removeprefix(prefix)
                if key == name or "." in key:
                    continue
                if kept is None:
                    each.register_buffer(key, None)
                    continue
                size, dtype = kept
                near = next(iter(each.parameters()), next(iter(each.buffers()), None))
                device = near.device if near is not None else None
                each.register_buffer(
                    key, torch.zeros(size, dtype=getattr(torch, dtype), device=device)
                )


_ABSENT: Final = Shape((-1,), torch.bool)


def _hook_name(hook: Any) -> str:
    """Return the name of a hook's function; "" for one of a framework's own."""
    while isinstance(hook, functools.partial) or hasattr(hook, "hook"):
        hook = hook.func if isinstance(hook, functools.partial) else hook.hook
    function = hook if hasattr(hook, "__qualname__") else type(hook)
    where = getattr(function, "__module__", None) or ""
    return "" if f"{where}.".startswith(_OF_FRAMEWORKS) else str(function.__qualname__)


def _plain_shape(shape: Shape | None) -> list[Any] | None:
    return None if shape is None else [list(shape.size), str(shape.dtype).removeprefix("torch.")]


def _regroup(
    optimizer: torch.optim.Optimizer,
    names: list[list[str]],
    parameters: Mapping[str, nn.Parameter],
) -> None:
    """Give an optimizer the groups of a checkpoint; the options come with its state."""
    groups = optimizer.param_groups
    for group, held in zip(groups, names, strict=False):
        group["params"] = [parameters[name] for name in held]
    del groups[len(names) :]
    for held in names[len(groups) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in held]})


def tensors_of(modules: Iterable[nn.Module]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the states of modules hold."""
    for module in modules:
        yield from module.parameters()
        for each in module.modules():
            for name, buffer in each._buffers.items():  # noqa: SLF001 - torch has no other way
                if buffer is not None and name not in each._non_persistent_buffers_set:  # noqa: SLF001 - as above
                    yield buffer
