"""Chance is a function of names."""

import math

from rung.methods.rng import integer_below, power, trial_seed, uniform


def test_known_draws() -> None:
    """The construction never changes: recorded searches depend on it."""
    assert uniform(7, "hparam", 17, ["net", "lr"]) == 0.45154324183594907
    assert integer_below(1000, 7, "hparam", 17, ["width"]) == 829
    assert [trial_seed(7, index) for index in range(3)] == [1022790016, 735524967, 1793698917]


def test_a_draw_depends_on_each_of_its_names() -> None:
    """Seed, purpose, trial and path all count, and paths are not run together."""
    names = [
        (7, "hparam", 1, ["a", "b"]),
        (8, "hparam", 1, ["a", "b"]),
        (7, "trial", 1, ["a", "b"]),
        (7, "hparam", 2, ["a", "b"]),
        (7, "hparam", 1, ["a"]),
        (7, "hparam", 1, ["ab"]),
        (7, "hparam", 1, ["a.b"]),
        (7, "hparam", 1, ["b", "a"]),
    ]
    assert len({uniform(*name) for name in names}) == len(names)


def test_uniform_is_uniform() -> None:
    """Draws fill [0, 1) evenly: mean, variance and every tenth are as they should be."""
    draws = [uniform(3, "test", index, ()) for index in range(10_000)]
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.01
    assert abs(sum((draw - 0.5) ** 2 for draw in draws) / len(draws) - 1 / 12) < 0.003
    tenths = [sum(int(draw * 10) == tenth for draw in draws) for tenth in range(10)]
    assert all(850 < count < 1150 for count in tenths)


def test_integers_reach_both_ends() -> None:
    """Every number below the limit is drawn, about equally often, and none beyond."""
    draws = [integer_below(5, 3, "test", index, ()) for index in range(5_000)]
    counts = [draws.count(value) for value in range(5)]
    assert sum(counts) == len(draws)
    assert all(850 < count < 1150 for count in counts)


def test_seeds_fit_31_bits() -> None:
    """A trial's seed suits every framework's generator."""
    seeds = [trial_seed(7, index) for index in range(2_000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) > 1_990


def test_power_is_that_of_mathematics() -> None:
    """Powers are exact where floats can be, and never overflow."""
    assert [power(10.0, exponent) for exponent in (-4.0, -1.0, 0.0, 3.0)] == [1e-4, 0.1, 1.0, 1e3]
    assert power(2.0, 0.5) == math.sqrt(2)
    assert power(10.0, 1e9) < math.inf
    assert power(10.0, -1e9) == 0.0
