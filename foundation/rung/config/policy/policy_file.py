"""Documents of policies and templates: read and checked when they are set.

Defaults, invariants and templates are parts of an experiment file. Constraints map fields:

    resources.max_slots: {at_most: 8}
    resources.max_slot_hours: {at_most: 200}
    resources.resource_pool: {one_of: [default, preemptible]}
    resources.priority: {at_least: 40}          # smaller numbers go first
    max_restarts: {at_most: 3}
    logs.keep_days: {at_least: 30}
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from rung.config.errors import at, problems_of
from rung.config.policy.layer import Layer, Origin, Path, Policy, PolicyKind, ScopeKind
from rung.config.policy.merging import layer_of, merged
from rung.config.problem import InvalidExperimentFile, Problem, shown
from rung.config.sections.experiment import Experiment
from rung.config.yaml import document

_RULES: Final = ("at_most", "at_least", "one_of")
_BOUNDED: Final = frozenset(
    {
        "hang_timeout", "logs.keep_days", "logs.max_bytes", "max_restarts", "preemption_timeout",
        "resources.max_slot_hours", "resources.max_slots", "resources.priority",
        "resources.slots_per_trial", "resources.weight", "searcher.max_concurrent_trials",
        "searcher.max_time", "searcher.max_trials", "checkpoint_storage.save_experiment_best",
        "checkpoint_storage.save_trial_best", "checkpoint_storage.save_trial_latest",
        "retention_policy.log_retention_days",
    }
)  # fmt: skip
"""Fields with numbers that a constraint may bound."""
_CHOSEN: Final = frozenset(
    {
        "resources.resource_pool", "searcher.name", "searcher.metric", "checkpoint_policy",
        "checkpoint_storage.type", "distributed.launcher", "distributed.strategy",
        "environment.image.cpu", "environment.image.cuda", "environment.image.rocm",
    }
)  # fmt: skip
"""Fields with words of which a constraint may leave some."""
_REQUIRED: Final = {"entrypoint": "-", "searcher": {"name": "single", "metric": "-"}}
_FULL: Final = {"searcher": {"name": "random", "metric": "-"}}
"""A method that has all fields of `_BOUNDED`."""
_NEVER: Final = ("workspace", "project", "internal")
"""Fields that say where an experiment is, which no document changes."""


class Rule(NamedTuple):
    """One bound of one field."""

    path: tuple[str, ...]
    kind: str
    bound: Any
    line: int | None


def check_policy(kind: PolicyKind, text: str, scope: ScopeKind = "installation") -> None:
    """Check a policy's document.

    Raises:
        InvalidExperimentFile: with all problems.
    """
    found = _read(text)
    if kind == "constraints":
        _check_bounds(rules_in(text), found)
        return
    if scope == "pool" and "resource_pool" in (found.tree.get("resources") or {}):
        path = ("resources", "resource_pool")
        message = "a policy of a pool cannot choose the pool; set one of the workspace"
        raise InvalidExperimentFile([at(path, message, found.lines)])
    _check_fields(found)


def check_template(text: str) -> None:
    """Check a template's document.

    Raises:
        InvalidExperimentFile: with all problems.
    """
    _check_fields(_read(text))


def policy_layer(policy: Policy) -> Layer:
    """Return defaults or invariants as a layer."""
    found = document.read(policy.document)
    origin = Origin(
        "default" if policy.kind == "defaults" else "invariant",
        policy.name,
        str(policy.scope),
        policy.author,
    )
    return layer_of(found.tree, found.lines, origin)


def rules_in(text: str) -> list[Rule]:
    """Return the rules of constraints.

    Raises:
        InvalidExperimentFile: with all problems.
    """
    found = _read(text)
    rules: list[Rule] = []
    problems: list[Problem] = []
    for field, bounds in found.tree.items():
        line = found.lines.get((field,))
        if field not in _BOUNDED | _CHOSEN:
            listed = ", ".join(sorted(_BOUNDED | _CHOSEN))
            problems.append(
                Problem(field, f"cannot be constrained; there are {listed}", None, line)
            )
            continue
        if not isinstance(bounds, dict) or not bounds:
            problems.append(Problem(field, "must be a map such as {at_most: 8}", None, line))
            continue
        for kind, bound in bounds.items():
            wrong = _wrong(field, kind, bound)
            if wrong:
                problems.append(Problem(f"{field}.{kind}", wrong, shown(bound), line))
            else:
                rules.append(Rule(tuple(field.split(".")), kind, bound, line))
    if problems:
        raise InvalidExperimentFile(problems)
    return rules


def _wrong(field: str, kind: str, bound: Any) -> str:
    """Return what is wrong with a bound, empty if nothing is."""
    if kind not in _RULES:
        return f"there are {', '.join(_RULES)}"
    if kind == "one_of":
        return "" if isinstance(bound, list) and bound else "must be a list of what is allowed"
    if field in _CHOSEN:
        return "has words, not numbers; use one_of"
    number = isinstance(bound, int | float) and not isinstance(bound, bool)
    return "" if number else "must be a number"


def _read(text: str) -> document.Document:
    found = document.read(text)
    if found.problems:
        raise InvalidExperimentFile(found.problems)
    return found


def _check_bounds(rules: list[Rule], found: document.Document) -> None:
    """Refuse a bound that the field could not have: no file would be within."""
    problems: list[Problem] = []
    for rule in rules:
        for bound in rule.bound if rule.kind == "one_of" else [rule.bound]:
            tree: Any = bound
            for name in reversed(rule.path):
                tree = {name: tree}
            needed = layer_of(_REQUIRED | _FULL, {}, Origin("built-in"))
            whole = merged(needed, layer_of(tree, {}, Origin("constraint"))).tree
            field = ".".join(rule.path)
            problems += [
                Problem(f"{field}.{rule.kind}", problem.message, shown(bound), rule.line)
                for problem in _problems(whole, found.lines)
                if problem.path == field
            ]
    if problems:
        raise InvalidExperimentFile(problems)


def _check_fields(found: document.Document) -> None:
    """Check fields as an experiment file's are, with what else one must have."""
    problems = [
        at((name,), "belongs to the experiment; leave it out", found.lines)
        for name in _NEVER
        if found.tree.get(name) is not None
    ]
    needed = layer_of(_REQUIRED, {}, Origin("built-in"))
    whole = merged(needed, layer_of(found.tree, {}, Origin("template"))).tree
    problems += _problems(whole, found.lines)
    if problems:
        raise InvalidExperimentFile(problems)


def _problems(whole: dict[str, Any], lines: Mapping[Path, int]) -> list[Problem]:
    """Return what is wrong with the fields that are there."""
    try:
        Experiment.model_validate(whole)
    except ValidationError as error:
        return [
            problem
            for problem in problems_of(error, whole, lines)
            if "is required" not in problem.message
        ]
    return []
