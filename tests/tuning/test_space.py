"""The search space in plain Python, and what is refused with what to write."""

import json
from typing import Any

import numpy as np
import pytest

import rung
from rung.config import load
from rung.methods.space import flatten, sample
from rung.tuning.space import InvalidSpace, hyperparameters


def test_plain_values_become_the_maps_of_an_experiment_file() -> None:
    """Each spelling is accepted by the experiment file, and means what it says."""
    space = {
        "lr": rung.loguniform(1e-4, 1e-1),
        "momentum": rung.uniform(0, 0.9),
        "layers": rung.randint(2, 4),
        "width": [16, 32],
        "name": rung.choice(["adam", "sgd"]),
        "seed": 5,
        "shape": rung.choice([[1, 2], [3, 4]]),
        "optimizer": {"decay": np.float32(0.5), "own": {"type": "int", "minval": 1, "maxval": 2}},
        "none": None,
    }
    made = hyperparameters(space)
    config = {
        "entrypoint": "x",
        "hyperparameters": made,
        "searcher": {"name": "random", "metric": "loss", "max_trials": 2},
    }
    loaded = load(json.dumps(config), today_seed=1).expanded()
    leaves = flatten(loaded["hyperparameters"])
    draws = [sample(leaves, 1, index) for index in range(200)]
    assert all(1e-4 <= draw["lr"] <= 1e-1 for draw in draws)
    assert min(draw["lr"] for draw in draws) < 1e-3
    assert all(0 <= draw["momentum"] <= 0.9 for draw in draws)
    assert {draw["layers"] for draw in draws} == {2, 3, 4}
    assert {draw["width"] for draw in draws} == {16, 32}
    assert {tuple(draw["shape"]) for draw in draws} == {(1, 2), (3, 4)}
    assert draws[0]["optimizer"]["decay"] == 0.5
    assert {draw["optimizer"]["own"] for draw in draws} == {1, 2}
    assert (draws[0]["seed"], draws[0]["none"]) == (5, None)


def test_a_grid_has_counts() -> None:
    """A range of a grid says how many values to try."""
    assert rung.uniform(0, 1, count=3) == {
        "type": "double",
        "minval": 0.0,
        "maxval": 1.0,
        "count": 3,
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((1e-4, 1e-1), "write rung.uniform(0.0001, 0.1) or rung.loguniform(0.0001, 0.1)"),
        ((-1.0, 1.0), "write rung.uniform(-1.0, 1.0) for a range"),
        ((2, 8), "write rung.randint(2, 8) for a range, [2, 8] for a choice"),
        (range(2, 9), "write rung.randint(2, 8)"),
        ((1, 2, 3), "write [1, 2, 3] for a choice"),
        ({"a"}, "write ['a'] for a choice"),
        ([], "is an empty list"),
        ({"type": "loguniform", "low": 1}, "has the type 'loguniform'"),
        ({"values": [1, 2]}, "looks like a choice"),
        ({"min": 0, "max": 1}, "looks like a range"),
        ([print], "give a name for it, and look it up in the function"),
        (object, "give a name for it"),
    ],
    ids=str,
)
def test_what_may_be_meant_in_several_ways_is_refused(value: Any, says: str) -> None:
    """The message names the parameter, and what to write for each meaning."""
    with pytest.raises(InvalidSpace) as refused:
        hyperparameters({"group": {"lr": value}})
    assert "group.lr" in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rung.loguniform(-4, -1), "that is rung.loguniform(1e-4, 1e-1)"),
        (lambda: rung.uniform(1, 1), "give a smaller and a larger number"),
        (lambda: rung.uniform(2, 1), "give a smaller and a larger number"),
        (lambda: rung.uniform("a", "b"), "give two numbers"),  # type: ignore[arg-type]
        (lambda: rung.randint(1.5, 3), "give whole numbers"),  # type: ignore[arg-type]
        (lambda: rung.choice("adam"), "give a list"),
        (lambda: rung.choice([]), "at least one value"),
        (lambda: hyperparameters([1]), "give a dict of parameters"),  # type: ignore[arg-type]
    ],
)
def test_mistaken_parameters_are_refused(make: Any, says: str) -> None:
    """Exponents in place of values, ends in the wrong order, a text in place of a list."""
    with pytest.raises(InvalidSpace) as refused:
        make()
    assert says in str(refused.value)
