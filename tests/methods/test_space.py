"""Which hyperparameters a trial gets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.events.errors import InvalidConfig
from rung.methods.rng import power
from rung.methods.space import flatten, grid_point, grid_size, sample

NESTED: dict[str, Any] = {
    "optimizer": {
        "lr": {"type": "log", "minval": -5, "maxval": -1, "base": 10},
        "schedule": {"warmup": {"type": "int", "minval": 0, "maxval": 10}, "nothing": {}},
    },
    "dropout": {"type": "double", "minval": 0.1, "maxval": 0.5},
    "depth": {"type": "categorical", "vals": [1, "two", [3], None]},
    "batch": 32,
    "layers": {"type": "const", "val": [64, 64]},
    "flag": None,
}


def grid(space: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all points of a grid."""
    leaves = flatten(space)
    return [grid_point(leaves, index) for index in range(grid_size(leaves))]


def test_a_sample_has_the_shape_of_the_space() -> None:
    """Groups stay groups, the empty one too; constants stay what they are, also bare ones."""
    hparams = sample(flatten(NESTED), 7, 0)
    assert sorted(hparams) == ["batch", "depth", "dropout", "flag", "layers", "optimizer"]
    assert (hparams["batch"], hparams["layers"], hparams["flag"]) == (32, [64, 64], None)
    assert sorted(hparams["optimizer"]["schedule"]) == ["nothing", "warmup"]
    assert hparams["optimizer"]["schedule"]["nothing"] == {}


def test_trial_17_is_the_same_for_ever() -> None:
    """What trial 17 gets does not change between versions or machines."""
    assert sample(flatten(NESTED), 7, 17) == {
        "batch": 32,
        "depth": 1,
        "dropout": 0.4661100657295119,
        "flag": None,
        "layers": [64, 64],
        "optimizer": {"lr": 0.05354477375789665, "schedule": {"nothing": {}, "warmup": 9}},
    }


@given(st.integers(0, 2**31 - 1), st.integers(0, 10_000))
def test_a_new_parameter_changes_no_other(seed: int, index: int) -> None:
    """A parameter that joins a space, in a group or beside it, leaves the others' draws alone."""
    before = sample(flatten(NESTED), seed, index)
    more = NESTED | {
        "aaa": {"type": "int", "minval": 0, "maxval": 1},
        "optimizer": NESTED["optimizer"] | {"a": {"type": "double", "minval": 0, "maxval": 1}},
    }
    after = sample(flatten(more), seed, index)
    del after["aaa"], after["optimizer"]["a"]
    assert before == after


@given(st.integers(0, 2**31 - 1), st.integers(0, 10_000))
def test_samples_keep_their_bounds(seed: int, index: int) -> None:
    """No draw leaves its range."""
    hparams = sample(flatten(NESTED), seed, index)
    assert 0.1 <= hparams["dropout"] <= 0.5
    assert 1e-5 <= hparams["optimizer"]["lr"] <= 1e-1
    assert hparams["optimizer"]["schedule"]["warmup"] in range(11)
    assert hparams["depth"] in NESTED["depth"]["vals"]


def test_samples_reach_both_ends_of_an_int() -> None:
    """Both ends of an int are drawn, about as often as the rest."""
    leaves = flatten({"n": {"type": "int", "minval": -1, "maxval": 2}})
    draws = [sample(leaves, 7, index)["n"] for index in range(2_000)]
    assert all(400 < draws.count(value) < 600 for value in (-1, 0, 1, 2))


def test_a_log_is_uniform_in_its_exponent() -> None:
    """Each decade of a log parameter gets about the same share."""
    leaves = flatten({"lr": {"type": "log", "minval": -4, "maxval": 0, "base": 10}})
    draws = [sample(leaves, 7, index)["lr"] for index in range(2_000)]
    decades = [sum(10.0**k <= draw < 10.0 ** (k + 1) for draw in draws) for k in range(-4, 0)]
    assert all(400 < count < 600 for count in decades)


def test_a_grid_is_the_product_in_sorted_order() -> None:
    """Parameters are sorted by path, nested ones too; the last changes fastest."""
    space = {
        "b": {"z": {"type": "categorical", "vals": ["x", "y"]}, "a": [7]},
        "a": {"type": "int", "minval": 1, "maxval": 3, "count": 3},
        "c": {"type": "categorical", "vals": [True, False]},
    }
    expected = [
        {"a": a, "b": {"a": [7], "z": z}, "c": c}
        for a in (1, 2, 3)
        for z in ("x", "y")
        for c in (True, False)
    ]
    assert grid(space) == expected


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ({"type": "int", "minval": 0, "maxval": 10, "count": 3}, [0, 5, 10]),
        ({"type": "int", "minval": 1, "maxval": 3, "count": 9}, [1, 2, 3]),
        ({"type": "int", "minval": 1, "maxval": 4, "count": 1}, [3]),
        ({"type": "int", "minval": -4, "maxval": -1, "count": 1}, [-3]),
        ({"type": "int", "minval": 0, "maxval": 3, "count": 3}, [0, 2, 3]),
        ({"type": "double", "minval": 0.0, "maxval": 1.0, "count": 5}, [0, 0.25, 0.5, 0.75, 1]),
        ({"type": "double", "minval": 1.0, "maxval": 4.0, "count": 1}, [2.5]),
        ({"type": "log", "minval": -3, "maxval": -1, "base": 10, "count": 3}, [1e-3, 0.01, 0.1]),
        ({"type": "log", "minval": 0, "maxval": 4, "base": 2, "count": 1}, [4]),
        ({"type": "categorical", "vals": ["a", 2]}, ["a", 2]),
        ({"type": "const", "val": {"x": 1}}, [{"x": 1}]),
        ("bare", ["bare"]),
    ],
)
def test_grid_axes(parameter: Any, values: list[Any]) -> None:
    """Counts span a range with both ends; one stands for the middle; ints are not repeated."""
    assert [point["p"] for point in grid({"p": parameter})] == values


def test_a_point_costs_one_value_of_each_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the axes are."""
    powers: list[float] = []

    def counted(base: float, exponent: float) -> float:
        powers.append(exponent)
        return power(base, exponent)

    monkeypatch.setattr("rung.methods.space.power", counted)
    axis = {"type": "log", "minval": -4, "maxval": 0, "base": 10, "count": 1_000}
    leaves = flatten({"a": axis, "b": axis})
    assert grid_point(leaves, 999_999) == {"a": 1.0, "b": 1.0}
    assert powers == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["int", "double", "log"])
def test_a_grid_needs_counts(kind: str) -> None:
    """A range without a count is refused by its path."""
    space = {"a": {"b": {"type": kind, "minval": 0, "maxval": 1, "base": 10.0}}}
    with pytest.raises(InvalidConfig) as caught:
        grid(space)
    assert caught.value.problems[0][0] == "hyperparameters.a.b.count"


def test_a_parameter_of_the_wrong_shape_is_refused() -> None:
    """A parameter that lacks a bound is refused by its path."""
    with pytest.raises(InvalidConfig) as caught:
        flatten({"a": {"b": {"type": "int", "minval": 0}}})
    assert caught.value.problems == [
        ("hyperparameters.a.b", "Object missing required field `maxval`")
    ]
