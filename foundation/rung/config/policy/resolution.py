"""Resolution: an experiment file with template and policies, and where each value came from.

From the lowest to the highest: defaults of the installation, the pool, the workspace (its default
pool, then its policies), the project; the template; the file; then invariants of the project, the
workspace, the pool, the installation. Constraints are checked last, all of them on what came out.
What a file leaves open, and whose built-in default is beyond a bound, gets the bound.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rung.config.policy.layer import (
    SCOPES,
    DefaultPool,
    Layer,
    Origin,
    Path,
    Policy,
    Scope,
    ScopeKind,
    Template,
)
from rung.config.policy.merging import layer_of, leaves, merged
from rung.config.policy.policy_file import Rule, policy_layer, rules_in
from rung.config.problem import InvalidExperimentFile, Problem, dotted, shown
from rung.config.secret_name import for_message
from rung.config.sections.experiment import Experiment
from rung.config.sections.resources import POOL
from rung.config.sections.searcher import SECTIONS
from rung.config.yaml import document
from rung.methods.table import canonical

POOL_PATH: Final[Path] = ("resources", "resource_pool")
_ENDLESS: Final[dict[Path, int | None]] = {
    ("resources", "max_slots"): None,
    ("resources", "max_slot_hours"): None,
    ("searcher", "max_time"): None,
    ("searcher", "max_trials"): None,
    ("searcher", "max_concurrent_trials"): 0,
    ("hang_timeout",): 0,
}
"""Fields → their value that is no limit, and so more than any bound."""


class Resolved(NamedTuple):
    """A file with everything that it was merged with."""

    tree: dict[str, Any]
    origins: dict[Path, Origin]
    """Of each single value; what is not there has its built-in default."""
    warnings: list[str]
    """What an invariant replaced, one sentence each."""

    def text(self) -> str:
        """Return the file, as JSON."""
        return json.dumps(self.tree, indent=2, ensure_ascii=False)

    def lines(self) -> dict[str, int | None]:
        """Return the lines of the values that come from the file, by dotted path."""
        return {
            dotted(path): origin.line
            for path, origin in self.origins.items()
            if origin.kind == "file"
        }

    def origin(self, path: Path) -> Origin:
        """Return where the value at a path comes from."""
        return self.origins.get(path, Origin("built-in"))


def resolve(
    text: str | bytes,
    *,
    template: Template | None = None,
    policies: Sequence[Policy] = (),
    default_pool: DefaultPool | None = None,
) -> Resolved:
    """Merge a file with a template and with the policies of where it is submitted to.

    Args:
        text: of the file.
        template: that it is merged with.
        policies: of the installation, of its workspace and project, and of all pools.
        default_pool: of its workspace.

    Raises:
        InvalidExperimentFile: it cannot be read, or exceeds a constraint. The message has the
            field, the value, the policy, its scope, and who set it.
    """
    found = document.read(text)
    if found.problems:
        raise InvalidExperimentFile(found.problems)
    file = layer_of(found.tree, found.lines, Origin("file"))
    if template is not None:
        read = document.read(template.document)
        origin = Origin("template", template.name, author=template.author)
        file = merged(layer_of(read.tree, read.lines, origin), file)
    rest = [policy for policy in policies if policy.scope.kind != "pool"]
    own = str(_at(_with(file, rest, default_pool).tree, POOL_PATH) or POOL)
    held = [
        policy for policy in policies if policy.scope.kind != "pool" or policy.scope.name == own
    ]
    whole = _with(file, held, default_pool)
    whole, problems = _constrained(whole, held)
    if problems:
        raise InvalidExperimentFile(problems)
    return Resolved(whole.tree, whole.origins, _replaced(file, whole))


def check_values(
    values: dict[Path, Any], *, policies: Sequence[Policy], pool: str
) -> list[Problem]:
    """Return what of single values a policy does not allow, of an experiment that is there.

    Args:
        values: path → value that it shall have; None: no limit.
        policies: of the installation, of its workspace and project, and of all pools.
        pool: where it runs then.
    """
    held = [it for it in policies if it.scope.kind != "pool" or it.scope.name == pool]
    problems = [
        _problem(rule, values[rule.path], policy, None)
        for policy in _ordered(held, "constraints", SCOPES)
        for rule in rules_in(policy.document)
        if rule.path in values and not _holds(values[rule.path], rule)
    ]
    fixing = [it for it in held if it.kind == "invariants"]
    invariant = _with(Layer({}, {(): Origin("file")}), fixing, None)
    for path, value in values.items():
        origin, fixed = invariant.origins.get(path), _at(invariant.tree, path)
        if origin is not None and origin.kind == "invariant" and fixed != value:
            message = f"{_as(value, path)}; it is {shown(fixed)} by {origin}"
            problems.append(Problem(dotted(path), message, shown(value)))
    return problems


def _with(file: Layer, policies: Sequence[Policy], default_pool: DefaultPool | None) -> Layer:
    """Return a file above the defaults and below the invariants."""
    found = Layer({}, {(): Origin("built-in")})
    wide, narrow = SCOPES[: SCOPES.index("workspace")], SCOPES[SCOPES.index("workspace") :]
    for policy in _ordered(policies, "defaults", wide):
        found = merged(found, policy_layer(policy))
    pool = None if default_pool is None else _pool_layer(default_pool)
    if pool is not None:
        found = merged(found, pool)
    for policy in _ordered(policies, "defaults", narrow):
        found = merged(found, policy_layer(policy))
    found = merged(found, file)
    if pool is not None and _at(found.tree, POOL_PATH) == "":
        found = merged(found, pool)
    for policy in _ordered(policies, "invariants", tuple(reversed(SCOPES))):
        found = merged(found, policy_layer(policy))
    return found


def _pool_layer(default_pool: DefaultPool) -> Layer:
    scope = str(Scope("workspace", default_pool.workspace))
    tree = {"resources": {"resource_pool": default_pool.pool}}
    return Layer(tree, {POOL_PATH: Origin("default pool", scope=scope)})


def _ordered(policies: Iterable[Policy], kind: str, scopes: tuple[ScopeKind, ...]) -> list[Policy]:
    """Return the policies of a kind in these scopes, by scope, and by name in each."""
    chosen = [each for each in policies if each.kind == kind and each.scope.kind in scopes]
    return sorted(chosen, key=lambda policy: (scopes.index(policy.scope.kind), policy.name))


def _constrained(whole: Layer, policies: Sequence[Policy]) -> tuple[Layer, list[Problem]]:
    """Fill in bounds where a field is open; return what exceeds one, also by another's bound."""
    rules = [
        (policy, rule)
        for policy in _ordered(policies, "constraints", SCOPES)
        for rule in rules_in(policy.document)
        if rule.path[0] != "searcher" or _method(whole.tree) in SECTIONS
    ]
    for policy, rule in rules:
        origin = whole.origins.get(rule.path)
        is_open = _given(whole.tree, rule.path) is None or (
            origin is not None and origin.kind == "constraint"
        )
        bounds = rule.kind != "one_of" and _has_field(whole.tree, rule.path)
        if is_open and bounds and not _holds(_value(whole.tree, rule.path), rule):
            whole = _filled(whole, rule, policy)
    problems = []
    for policy, rule in rules:
        value = _value(whole.tree, rule.path)
        if not _holds(value, rule):
            origin = whole.origins.get(rule.path)
            problems.append(_problem(rule, value, policy, origin))
    return whole, problems


def _given(tree: dict[str, Any], path: Path) -> Any:
    """Return what is given at a path, None if nothing is."""
    value = _at(tree, path)
    if value is None and path == ("searcher", "max_time"):
        length = _at(tree, ("searcher", "max_length"))  # the older way to say it
        value = next(iter(length.values()), None) if isinstance(length, dict) else length
    return value


def _value(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return what is given at a path, or else the built-in default."""
    value = _given(tree, path)
    if value is not None:
        return value
    first, *rest = path
    if first == "searcher":
        if not _has_field(tree, path):
            return 1 if _method(tree) == "single" else None  # it has one trial
        field = SECTIONS[_method(tree)].model_fields[path[1]]
        return None if field.is_required() else field.default
    found = Experiment.model_fields[first].get_default(call_default_factory=True)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _has_field(tree: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Return whether the file may have a field that can be bounded; not all methods have all."""
    if path[0] != "searcher":
        return True
    return path[1] in SECTIONS[_method(tree)].model_fields


def _method(tree: dict[str, Any]) -> str:
    name = _at(tree, ("searcher", "name"))
    return canonical(name) if isinstance(name, str) else ""


def _filled(whole: Layer, rule: Rule, policy: Policy) -> Layer:
    tree: Any = rule.bound
    for name in reversed(rule.path):
        tree = {name: tree}
    origin = Origin("constraint", policy.name, str(policy.scope), policy.author, rule.line)
    return merged(whole, Layer(tree, dict.fromkeys(leaves(tree), origin)))


def _holds(value: Any, rule: Rule) -> bool:
    endless = _is_endless(value, rule.path)
    if rule.kind == "one_of":
        return value in rule.bound or (value is None and not endless)
    if endless:
        return rule.kind == "at_least"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return bool(value <= rule.bound if rule.kind == "at_most" else value >= rule.bound)


def _problem(rule: Rule, value: Any, policy: Policy, origin: Origin | None) -> Problem:
    allowed = {
        "at_most": f"at most {shown(rule.bound)}",
        "at_least": f"at least {shown(rule.bound)}",
        "one_of": f"one of {', '.join(map(str, rule.bound))}" if rule.kind == "one_of" else "",
    }[rule.kind]
    came = "" if origin is None or origin.kind == "file" else f" (from {origin})"
    line = origin.line if origin is not None and origin.kind == "file" else None
    message = f"{_as(value, rule.path)}{came}; {policy} allows {allowed}"
    return Problem(dotted(rule.path), message, shown(value), line)


def _as(value: Any, path: Path) -> str:
    return "has no limit" if _is_endless(value, path) else f"is {shown(value)}"


def _is_endless(value: Any, path: Path) -> bool:
    return path in _ENDLESS and value == _ENDLESS[path]


def _replaced(file: Layer, whole: Layer) -> list[str]:
    """Return a sentence for each value of the file that an invariant replaced."""
    found = []
    for path in file.origins:
        new = whole.origins.get(path)
        if new is None or new.kind != "invariant":
            continue
        before, after = _at(file.tree, path), _at(whole.tree, path)
        if before != after:
            given, kept = (shown(for_message(each, path)) for each in (before, after))
            found.append(f"{dotted(path)} is {kept}, not {given}: {new}")
    return found


def _at(tree: Any, path: Path) -> Any:
    for part in path:
        if isinstance(tree, dict):
            tree = tree.get(part)
        elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        else:
            return None
    return tree
