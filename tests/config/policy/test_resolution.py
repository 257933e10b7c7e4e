"""Files with templates and policies: who wins, where each value came from, what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.config import InvalidExperimentFile, load
from rung.config.policy import (
    POOL_PATH,
    DefaultPool,
    Origin,
    Policy,
    Scope,
    Template,
    check_policy,
    check_template,
    resolve,
)
from rung.config.policy.layer import Layer
from rung.config.policy.merging import layer_of, leaves, merged

FILE = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
VISION = Scope("workspace", "vision")
DIGITS = Scope("project", "digits")
GPUS = Scope("pool", "gpus")
EVERYWHERE = Scope()


def defaults(document: str, scope: Scope = VISION, name: str = "d") -> Policy:
    """Return a policy with defaults."""
    return Policy(name, "defaults", scope, document, "anna")


def constraints(document: str, scope: Scope = VISION, name: str = "c") -> Policy:
    """Return a policy with constraints."""
    return Policy(name, "constraints", scope, document, "bert")


def invariants(document: str, scope: Scope = VISION, name: str = "i") -> Policy:
    """Return a policy with invariants."""
    return Policy(name, "invariants", scope, document, "cleo")


def refusal(text: str, *policies: Policy) -> str:
    """Return why a file is refused."""
    with pytest.raises(InvalidExperimentFile) as caught:
        resolve(text, policies=policies)
    return str(caught.value)


def test_a_file_alone_stays_as_it_is() -> None:
    """It loads to the same configuration, and each value comes from a line of it."""
    found = resolve(FILE)
    assert load(found.text(), today_seed=1).expanded() == load(FILE, today_seed=1).expanded()
    assert found.origin(("searcher", "metric")) == Origin("file", line=2)
    assert str(found.origin(("max_restarts",))) == "built-in default"
    assert found.warnings == []


def test_the_narrowest_default_wins_and_the_file_above_all() -> None:
    """Installation, pool, workspace, project, template, file: each below the next one."""
    layers = [
        defaults("{max_restarts: 1, hang_timeout: 1, scheduling_unit: 1}", EVERYWHERE),
        defaults("{hang_timeout: 2, scheduling_unit: 2, debug: true}", GPUS),
        defaults("{scheduling_unit: 3, resources: {resource_pool: gpus}}", VISION),
        defaults("{records_per_epoch: 4}", DIGITS),
    ]
    template = Template("small", "records_per_epoch: 5\nlabels: [t]\n", "dora")
    found = resolve(FILE + "labels: [mine]\n", template=template, policies=layers[::-1])
    values = {name: found.tree[name] for name in ("max_restarts", "hang_timeout", "debug")}
    assert values == {"max_restarts": 1, "hang_timeout": 2, "debug": True}
    assert (found.tree["scheduling_unit"], found.tree["records_per_epoch"]) == (3, 5)
    assert found.tree["labels"] == ["mine"]
    assert str(found.origin(("records_per_epoch",))) == "template small line 1"
    assert str(found.origin(("hang_timeout",))) == (
        "default of policy d of pool gpus, set by anna"
    )
    other = resolve(FILE + "resources: {resource_pool: cpus}\n", policies=layers)
    assert (other.tree["hang_timeout"], "debug" in other.tree) == (1, False)


def test_the_widest_invariant_wins_and_is_told() -> None:
    """Also against another invariant; the author learns which of the file's values is replaced."""
    found = resolve(
        FILE + "max_restarts: 9\n",
        policies=[
            invariants("max_restarts: 2", EVERYWHERE, "wide"),
            invariants("{max_restarts: 3, debug: true}", DIGITS, "narrow"),
        ],
    )
    assert (found.tree["max_restarts"], found.tree["debug"]) == (2, True)
    assert found.warnings == [
        "max_restarts is 2, not 9: invariant of policy wide of the installation, set by cleo"
    ]


def test_what_exceeds_a_constraint_is_refused_with_its_author() -> None:
    """Field, value, policy, scope and author; the line of the file, or where it came from else."""
    text = refusal(
        FILE + "max_restarts: 9\nresources:\n  resource_pool: big\n  priority: 3\n",
        constraints("max_restarts: {at_most: 3}", name="few"),
        constraints(
            "resources.resource_pool: {one_of: [default, gpus]}\n"
            "resources.priority: {at_least: 40}",
            EVERYWHERE,
        ),
        constraints("max_restarts: {at_most: 1}", GPUS),
    )
    by, few = "policy c of the installation, set by bert", "policy few of workspace vision"
    assert text.splitlines() == [
        f'resources.resource_pool (line 5): is "big"; {by} allows one of default, gpus',
        f"resources.priority (line 6): is 3; {by} allows at least 40",
        f"max_restarts (line 3): is 9; {few}, set by bert allows at most 3",
    ]
    came = refusal(FILE, defaults("max_restarts: 5"), constraints("max_restarts: {at_most: 3}"))
    assert "is 5 (from default of policy d of workspace vision, set by anna)" in came


def test_what_is_open_gets_the_tightest_bound() -> None:
    """No limit is more than any limit."""
    found = resolve(
        FILE,
        policies=[
            constraints("resources.max_slots: {at_most: 8}", EVERYWHERE),
            constraints("resources.max_slots: {at_most: 4}\nlogs.keep_days: {at_least: 30}"),
            constraints("resources.max_slot_hours: {at_most: 200}", name="budget"),
        ],
    )
    assert found.tree["resources"] == {"max_slots": 4, "max_slot_hours": 200}
    assert found.tree["logs"] == {"keep_days": 30}
    assert found.origin(("resources", "max_slots")).kind == "constraint"


def test_a_bound_does_not_lift_another_one() -> None:
    """What one fills in is checked by the others: a workspace stays within the installation's."""
    text = refusal(
        FILE,
        constraints(
            "resources.max_slots: {at_most: 2}\nresources.priority: {at_least: 50}", EVERYWHERE
        ),
        constraints(
            "resources.max_slots: {at_least: 64}\nresources.priority: {at_most: 1}", name="wide"
        ),
    )
    wide = "constraint of policy wide of workspace vision, set by bert"
    by = "policy c of the installation, set by bert"
    assert text.splitlines() == [
        f"resources.max_slots: is 64 (from {wide}); {by} allows at most 2",
        f"resources.priority: is 1 (from {wide}); {by} allows at least 50",
    ]


def test_a_built_in_default_within_a_bound_stays() -> None:
    """A bound takes away, it gives nothing: no slots, weight or restarts beyond the default."""
    found = resolve(
        FILE,
        policies=[
            constraints(
                "resources.slots_per_trial: {at_most: 8}\n"
                "resources.weight: {at_most: 9}\n"
                "resources.priority: {at_least: 40}\n"
                "max_restarts: {at_most: 3}"
            )
        ],
    )
    assert "resources" not in found.tree
    assert found.tree["max_restarts"] == 3


def test_a_built_in_default_that_is_not_among_the_allowed_is_refused() -> None:
    """The pool of a file that names none, too; nothing to choose from is nothing to refuse."""
    bound = constraints(
        "resources.resource_pool: {one_of: [gpus]}\nenvironment.image.cpu: {one_of: [a]}"
    )
    said = (
        'resources.resource_pool: is "default"; policy c of workspace vision, set by bert allows'
    )
    assert refusal(FILE, bound) == f"{said} one of gpus"
    resolve(FILE + "resources: {resource_pool: gpus}\n", policies=[bound])


@pytest.mark.parametrize(
    ("searcher", "bound", "words"),
    [
        ("{name: single, metric: m}", "searcher.max_trials: {at_most: 3}", ""),
        ("{name: single, metric: m}", "searcher.max_concurrent_trials: {at_most: 3}", ""),
        ("{name: single, metric: m}", "searcher.max_trials: {at_least: 3}", "is 1"),
        ("{name: grid, metric: m}", "searcher.max_trials: {at_most: 3}", "has no limit"),
        ("{name: random, metric: m, max_trials: 4}", "searcher.max_trials: {at_most: 3}", "is 4"),
        (
            "{name: grid, metric: m, max_concurrent_trials: 0}",
            "searcher.max_concurrent_trials: {at_most: 3}",
            "has no limit",
        ),
        (
            "{name: single, metric: m, max_length: {epochs: 9}}",
            "searcher.max_time: {at_most: 8}",
            "is 9",
        ),
    ],
)
def test_bounds_of_searches(searcher: str, bound: str, words: str) -> None:
    """A single trial is one; without the field, or with 0 where it is all, there is no limit."""
    text = f"entrypoint: x\nsearcher: {searcher}\n"
    if words:
        assert f"{words}; policy c of workspace vision" in refusal(text, constraints(bound))
    else:
        found = resolve(text, policies=[constraints(bound)])
        load(found.text(), today_seed=1)


def test_lists_kinds_and_hyperparameters() -> None:
    """Appended by key; kinds never mix; hyperparameters are values, groups of them merge."""
    template = Template(
        "t",
        """
bind_mounts: [{host_path: /a, container_path: a}, {host_path: /b, container_path: b}]
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}, net: {depth: 3, width: 4}}
searcher: {name: random, metric: loss, max_trials: 7, max_time: 4, time_metric: epochs}
environment: {environment_variables: [A=1], image: x}
""",
    )
    file = """
entrypoint: python3 train.py
bind_mounts: [{host_path: /c, container_path: b}]
hyperparameters: {lr: {type: const, val: 1}, net: {depth: 5}}
searcher: {name: single}
environment: {environment_variables: {cuda: [B=2]}}
"""
    found = resolve(file, template=template)
    assert [item["host_path"] for item in found.tree["bind_mounts"]] == ["/c", "/a"]
    assert str(found.origin(("bind_mounts", 1, "host_path"))) == "template t line 2"
    assert found.tree["hyperparameters"] == {
        "lr": {"type": "const", "val": 1},
        "net": {"depth": 5, "width": 4},
    }
    assert found.tree["searcher"] == {
        "name": "single",
        "metric": "loss",
        "max_time": 4,
        "time_metric": "epochs",
    }
    variables = found.tree["environment"]["environment_variables"]
    assert variables == {"cpu": ["A=1"], "cuda": ["B=2"], "rocm": ["A=1"]}


@pytest.mark.parametrize(
    ("kind", "document", "path"),
    [
        ("constraints", "max_restart: {at_most: 3}", "max_restart"),
        ("constraints", "max_restarts: 3", "max_restarts"),
        ("constraints", "max_restarts: {most: 3}", "max_restarts.most"),
        ("constraints", "max_restarts: {at_most: x}", "max_restarts.at_most"),
        (
            "constraints",
            "resources.resource_pool: {at_most: 3}",
            "resources.resource_pool.at_most",
        ),
        ("constraints", "max_restarts: {at_most: -1}", "max_restarts.at_most"),
        ("constraints", "resources.max_slots: {at_most: 1.5}", "resources.max_slots.at_most"),
        ("constraints", "checkpoint_policy: {one_of: [best, x]}", "checkpoint_policy.one_of"),
        ("constraints", "searcher.max_trials: {at_most: 0}", "searcher.max_trials.at_most"),
        ("defaults", "max_restart: 3", "max_restart"),
        ("defaults", "resources: {priority: 0}", "resources.priority"),
        ("invariants", "workspace: other", "workspace"),
        ("invariants", "max_restarts: [", ""),
    ],
)
def test_documents_are_checked_when_they_are_set(kind: Any, document: str, path: str) -> None:
    """With the path of what is wrong, as an experiment file is."""
    with pytest.raises(InvalidExperimentFile) as caught:
        check_policy(kind, document)
    assert caught.value.details[0].path == path


def test_good_documents() -> None:
    """Parts of a file need not be whole ones; a pool's policy cannot choose the pool."""
    check_template("searcher: {max_time: 3}\nhyperparameters: {lr: 1}\n")
    check_policy("defaults", "resources: {resource_pool: a}", "workspace")
    with pytest.raises(InvalidExperimentFile, match="cannot choose the pool"):
        check_policy("defaults", "resources: {resource_pool: a}", "pool")


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2))
TREES = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.one_of(VALUES), min_size=1, max_size=3), max_size=3
)
MOUNTS = st.lists(
    st.builds(lambda key, host: {"container_path": key, "host_path": host}, NAMES, NAMES),
    max_size=3,
    unique_by=lambda item: item["container_path"],
)
DOCUMENTS = st.builds(
    lambda data, mounts: {"data": data} | ({"bind_mounts": mounts} if mounts else {}),
    TREES,
    MOUNTS,
)


def layer(tree: dict[str, Any], name: str) -> Layer:
    """Return a tree as a layer of a template."""
    return layer_of(tree, {}, Origin("template", name))


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_merging_is_associative(one: Any, two: Any, three: Any) -> None:
    """For layers that agree in what is a map; values and origins alike."""
    a, b, c = layer(one, "a"), layer(two, "b"), layer(three, "c")
    assert merged(merged(a, b), c) == merged(a, merged(b, c))


@given(DOCUMENTS, DOCUMENTS)
def test_each_value_has_one_origin(one: Any, two: Any) -> None:
    """The origins are those of the leaves, no more and no less; and it is idempotent."""
    both = merged(layer(one, "a"), layer(two, "b"))
    assert set(both.origins) == set(leaves(both.tree))
    assert merged(both, both).tree == both.tree


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "max_restarts": st.integers(0, 5),
        "hang_timeout": st.integers(0, 5),
        "resources": st.fixed_dictionaries(
            {}, optional={"priority": st.integers(1, 9), "max_slots": st.integers(1, 9)}
        ),
        "labels": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    },
)
SCOPES = st.sampled_from([EVERYWHERE, VISION, DIGITS, Scope("pool", "default")])


@given(FIELDS, st.lists(st.tuples(SCOPES, FIELDS), max_size=3), SCOPES, FIELDS)
def test_an_invariant_always_wins_and_a_second_resolution_changes_nothing(
    file: Any, layers: Any, scope: Scope, fixed: Any
) -> None:
    """Whatever file, template and defaults say; unless another invariant does."""
    policies = [
        defaults(json.dumps(tree), scope, f"d{index}")
        for index, (scope, tree) in enumerate(layers)
    ]
    policies.append(invariants(json.dumps(fixed), scope))
    text = json.dumps(
        {"entrypoint": "x", "searcher": {"name": "single", "metric": "loss"}, **file}
    )
    found = resolve(text, policies=policies)
    for path in leaves(layer(fixed, "i").tree):
        value: Any = found.tree
        wanted: Any = fixed
        for part in path:
            value, wanted = value[part], wanted[part]
        if wanted != {}:
            assert value == wanted
    again = resolve(found.text(), policies=policies)
    assert again.tree == found.tree
    assert again.warnings == []


def test_the_default_pool_is_a_default_of_the_workspace() -> None:
    """Above those of the installation, below the workspace's policies; an empty name is none."""
    wide = defaults("{resources: {resource_pool: cpus}, max_restarts: 1}", EVERYWHERE)
    of_pool = defaults("{hang_timeout: 2}", GPUS)
    own = DefaultPool("gpus", "vision")
    for text in (FILE, FILE + "resources: {resource_pool: ''}\n"):
        found = resolve(text, policies=[wide, of_pool], default_pool=own)
        assert found.tree["resources"]["resource_pool"] == "gpus"
        assert str(found.origin(POOL_PATH)) == "default pool of workspace vision"
        assert (found.tree["hang_timeout"], found.tree["max_restarts"]) == (2, 1)
    narrow = defaults("resources: {resource_pool: a100}", VISION)
    found = resolve(FILE, policies=[narrow, wide, of_pool], default_pool=own)
    assert str(found.origin(POOL_PATH)) == "default of policy d of workspace vision, set by anna"
    named = resolve(FILE + "resources: {resource_pool: mine}\n", default_pool=own)
    assert (named.tree["resources"], named.origin(POOL_PATH).kind) == (
        {"resource_pool": "mine"},
        "file",
    )
    bound = constraints("resources.resource_pool: {one_of: [cpus]}")
    with pytest.raises(InvalidExperimentFile, match=r"\(from default pool of workspace vision\)"):
        resolve(FILE, policies=[bound], default_pool=own)
