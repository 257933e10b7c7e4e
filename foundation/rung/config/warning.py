"""Warnings about an accepted file: fields without effect, secrets, mistaken exponents."""

import math
from typing import Any, Final

from rung.config import secret
from rung.config.problem import dotted
from rung.config.sections.hyperparameter import Group
from rung.methods.space import Log

_HERE: Final = "has no effect here"
_STORE: Final = "checkpoints go to the platform's own store"
_CONTAINERS: Final = "trials do not run in containers"

INERT: Final[dict[tuple[str, ...], str]] = {
    ("bind_mounts",): _CONTAINERS,
    ("checkpoint_storage", "type"): _STORE,
    ("data_layer",): "historical",
    ("debug",): "historical",
    ("environment", "add_capabilities"): _CONTAINERS,
    ("environment", "drop_capabilities"): _CONTAINERS,
    ("environment", "force_pull_image"): _CONTAINERS,
    ("environment", "image"): _CONTAINERS,
    ("environment", "pod_spec"): _CONTAINERS,
    ("environment", "ports"): _CONTAINERS,
    ("environment", "proxy_ports"): _CONTAINERS,
    ("environment", "registry_auth"): _CONTAINERS,
    ("integrations",): "there are no integrations yet",
    ("log_policies",): "there are no log policies yet",
    ("optimizations", "auto_tune_tensor_fusion"): "historical",
    ("optimizations", "average_training_metrics"): "metrics are always those of all slots",
    ("optimizations", "gradient_compression"): "historical",
    ("optimizations", "grad_updates_size_file"): "historical",
    ("optimizations", "mixed_precision"): "the trial calls `context.use_amp()`",
    ("optimizations", "tensor_fusion_cycle_time"): "historical",
    ("optimizations", "tensor_fusion_threshold"): "historical",
    ("pbs",): "there is no PBS adapter",
    (
        "profiling",
    ): "the machine is always measured; for traces the trial calls `context.set_profiler(…)`",
    ("resources", "agent_label"): "historical",
    ("resources", "devices"): _CONTAINERS,
    (
        "resources",
        "is_single_node",
    ): "a trial spans machines only where no single one has room",
    ("resources", "native_parallel"): "historical",
    ("resources", "shm_size"): _CONTAINERS,
    ("resources", "slots"): "historical",
    ("retention_policy",): "logs are kept",
    ("security",): "historical",
    ("slurm",): "there is no Slurm adapter",
    ("tensorboard_storage",): "historical",
}
"""Path → why it has no effect."""

CONDITIONAL: Final[dict[tuple[str, ...], str]] = {
    ("resources", "weight"): (
        "has an effect only in a pool whose scheduling policy uses it (`rung pool configure`);"
        " the default policy, `priority`, does not"
    ),
}
"""Path → where it has an effect, of fields whose effect depends on the installation."""


def warnings_of(tree: dict[str, Any], space: Group, plain: dict[str, Any]) -> list[str]:
    """Return the warnings about an accepted file, one sentence each.

    `plain` are the fields of a file with the required ones alone, defaults filled in.
    """
    found = [
        f"{dotted(path)} {_HERE}: {why}"
        for path, why in INERT.items()
        if _is_set(path, tree, plain)
    ]
    found += [
        f"{dotted(path)} {where}"
        for path, where in CONDITIONAL.items()
        if _is_set(path, tree, plain)
    ]
    found.extend(secret.warnings_of(tree))
    found.extend(_exponents(space))
    return found


def _exponents(space: Group) -> list[str]:
    """Return a warning for each `log` whose author probably gave values, not exponents."""
    found = []
    for leaf in space.leaves():
        it = leaf.parameter
        if not (isinstance(it, Log) and 0 < it.minval < it.maxval < 1 and it.base > 1):
            continue
        low, high = (math.log(end, it.base) for end in (it.minval, it.maxval))
        found.append(
            f"hyperparameters.{dotted(leaf.path)}: minval and maxval of `log` are exponents, so"
            f" this searches {it.base**it.minval:.4g} to {it.base**it.maxval:.4g};"
            f" for {it.minval:g} to {it.maxval:g} write {low:.4g} and {high:.4g}"
        )
    return found


def _is_set(path: tuple[str, ...], tree: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Return whether a file sets a field to another value than its default."""
    return _given(tree, path) not in (None, _given(plain, path), [], {})


def _given(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(name)
    return tree
