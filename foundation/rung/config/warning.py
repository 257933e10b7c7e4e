"""Warnings about an accepted file: fields without effect, secrets, what may be mistaken."""

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from rung.config import secret
from rung.config.problem import dotted, shortened
from rung.config.sections.hyperparameter import Group
from rung.methods.space import Const, Leaf, Log
from rung.methods.table import options_named

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

_LARGER: Final = frozenset(
    [
        *("acc", "auc", "auprc", "auroc", "bleu", "dice", "f1", "iou", "miou", "precision"),
        *("psnr", "recall", "reward", "ssim"),
    ]
)
"""Words in the names of metrics whose largest value is wanted; `accuracy` may be part of one."""
_UNITS: Final = {"batch": "batches", "epoch": "epochs", "record": "records", "step": "steps"}
"""Units of a time metric, by what may be meant for them."""
_SMALLER: Final = frozenset(["err", "error", "loss", "minus", "neg", "negative"])


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
    leaves = space.leaves()
    found.extend(_drawn_once(_given(tree, ("searcher", "name")), leaves))
    found.extend(_never_drawn(_given(tree, ("searcher", "name")), leaves))
    found.extend(_exponents(leaves))
    found.extend(_least(_given(tree, ("searcher",))))
    found.extend(_singular(_given(tree, ("searcher", "time_metric"))))
    return found


def _drawn_once(method: Any, leaves: Sequence[Leaf]) -> list[str]:
    """Return a warning if a method that trains one trial is given more than constants."""
    options = options_named(method)
    drawn = [dotted(leaf.path) for leaf in leaves if not isinstance(leaf.parameter, Const)]
    if options is None or options.SPACE != "constants" or not drawn:
        return []
    listed = shortened(", ".join(drawn), 120)
    return [
        (
            f"the searcher `{method}` draws {listed} once, for its one trial; for a search write"
            " `random`, `grid` or `adaptive_asha`"
        )
    ]


def _never_drawn(method: Any, leaves: Sequence[Leaf]) -> list[str]:
    """Return a warning if a method that compares trials is given constants alone.

    A range or a choice in a spelling that is not known is a constant, as is a plain list.
    """
    options = options_named(method)
    constants = [it.parameter.val for it in leaves if isinstance(it.parameter, Const)]
    if options is None or options.SPACE == "constants" or not 0 < len(leaves) == len(constants):
        return []
    warning = (
        f"the searcher `{method}` has nothing to search: all hyperparameters are constants; write"
        " a range as `{type: double, minval: …, maxval: …}`, a choice as"
        " `{type: categorical, vals: […]}` (for `rung.tune`: `rung.uniform(…)`,"
        " `rung.choice([…])`)"
    )
    lists = [
        dotted(leaf.path)
        for leaf, val in zip(leaves, constants, strict=True)
        if isinstance(val, list)
    ]
    if lists:
        listed = shortened(", ".join(lists), 120)
        warning += f"; a plain list is a constant here: {listed}"
    return [warning]


def _exponents(leaves: Sequence[Leaf]) -> list[str]:
    """Return a warning for each `log` whose author perhaps gave values, not exponents.

    Where that is certain, `space_spelling` refuses it.
    """
    found = []
    for leaf in leaves:
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


def _least(searcher: Any) -> list[str]:
    """Return a warning if the least of what looks like an accuracy is searched, and unasked."""
    metric = _given(searcher, ("metric",))
    if not isinstance(metric, str) or _given(searcher, ("smaller_is_better",)) is not None:
        return []
    words = set(re.findall(r"f1|[a-z]+", metric.lower()))
    high = _LARGER & words or "accuracy" in metric.lower()
    if not high or _SMALLER & words:
        return []
    return [
        (
            f"searcher.metric: the trial with the smallest `{shortened(metric, 60)}` is the best"
            " one; if the largest is meant, write `smaller_is_better: false` beside it (for"
            ' `rung.tune`: `mode="max"`), else `smaller_is_better: true`'
        )
    ]


def _singular(time_metric: Any) -> list[str]:
    """Return a warning if a unit is probably meant, and a metric of the script's named."""
    unit = _UNITS.get(time_metric) if isinstance(time_metric, str) else None
    if unit is None:
        return []
    return [
        (
            f"searcher.time_metric: `{time_metric}` is a metric that the script has to report with"
            f" its validations; for the unit write `{unit}`"
        )
    ]


def _is_set(path: tuple[str, ...], tree: dict[str, Any], plain: dict[str, Any]) -> bool:
    """Return whether a file sets a field to another value than its default."""
    return _given(tree, path) not in (None, _given(plain, path), [], {})


def _given(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(name)
    return tree
