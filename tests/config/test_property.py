"""Whatever comes, `load` answers with a configuration or with InvalidConfig."""

import json
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.config import Experiment, json_schema, load
from rung.events.errors import InvalidConfig

NAMES: Final = sorted(
    {
        *Experiment.model_fields,
        *(name for part in json_schema()["$defs"].values() for name in part.get("properties", {})),
        "gpu", "type", "batches", "epochs", "records", "<<", "", "<int>",
    }
)  # fmt: skip
WORDS: Final = [
    "single", "grid", "random", "asha", "async_halving", "adaptive_asha", "hyperband", "custom",
    "int", "double", "log", "const", "categorical", "s3", "gcs", "azure", "directory", "yes",
]  # fmt: skip

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 100)
    | st.floats()
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=40,
)
files = st.dictionaries(st.sampled_from(NAMES), trees, max_size=8)
spaces = st.recursive(
    st.integers(-5, 5)
    | st.text(max_size=3)
    | st.fixed_dictionaries({"type": st.just("categorical"), "vals": st.lists(leaves, min_size=1)})
    | st.fixed_dictionaries(
        {
            "type": st.sampled_from(["int", "double"]),
            "minval": st.integers(-9, 0),
            "maxval": st.integers(1, 9),
        }
    ),
    lambda inner: st.dictionaries(
        st.text(min_size=1, max_size=4).filter(lambda name: name != "type"), inner, max_size=3
    ),
    max_leaves=12,
)  # fmt: skip


def loads(text: str | bytes) -> dict[str, Any] | None:
    """Return the expanded file, None if it was refused."""
    try:
        return load(text, today_seed=1).expanded()
    except InvalidConfig as error:
        return None if str(error) and error.problems else {"refused": "without a reason"}


@given(files)
@settings(max_examples=150, deadline=None)
def test_any_tree(tree: dict[str, Any]) -> None:
    """No tree of JSON-like values makes anything but InvalidConfig, as YAML or as JSON."""
    loads(yaml.safe_dump(tree, allow_unicode=True))
    loads(json.dumps(tree))


@given(st.sampled_from(sorted(Experiment.model_fields)), trees)
@settings(max_examples=200, deadline=None)
def test_any_value_in_a_good_file(name: str, value: Any) -> None:
    """A field of an otherwise good file may hold anything; what is accepted is complete."""
    good = {"entrypoint": "t", "searcher": {"name": "random", "metric": "m", "max_trials": 3}}
    expanded = loads(json.dumps(good | {name: value}))
    if expanded is not None:
        assert loads(json.dumps(expanded)) == expanded


@given(st.text(max_size=200) | st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text(text: str | bytes) -> None:
    """No text and no bytes make anything but InvalidConfig."""
    loads(text)


@given(st.dictionaries(st.text(min_size=1, max_size=4), spaces, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_space(space: dict[str, Any]) -> None:
    """A search space that is accepted expands to one that expands to itself."""
    good = {"entrypoint": "t", "searcher": {"name": "random", "metric": "m", "max_trials": 3}}
    expanded = loads(json.dumps(good | {"hyperparameters": space}))
    if expanded is not None:
        assert loads(json.dumps(expanded)) == expanded


def test_every_limit_holds_for_json_as_well() -> None:
    """JSON is YAML: it is read by the same reader, within the same limits."""
    with pytest.raises(InvalidConfig, match="50 levels"):
        load("[" * 60, today_seed=1)
