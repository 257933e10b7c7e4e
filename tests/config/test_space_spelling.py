"""Search spaces as other tools write them."""

import re
from typing import Final

import pytest

from rung.config import InvalidExperimentFile, load
from rung.config.problem import PROBLEMS_MAX, Problem

HEAD: Final = "entrypoint: t\nsearcher: {name: random, metric: loss, max_trials: 2}\n"

SPELLINGS: Final = [
    # the values of a log
    (
        "{type: log, minval: 1e-4, maxval: 1e-1}",
        (
            "minval and maxval of `log` are exponents: this would search 1.0002 to 1.2589; for "
            "values from 0.0001 to 0.1 write `{type: log, base: 10, minval: -4, maxval: -1}`, "
            "for 1.0002 to 1.2589 `{type: double, minval: 1.0002, maxval: 1.2589}`"
        ),
    ),
    (
        "{type: log, base: 10, minval: 1e-4, maxval: 1e-1, count: 3}",
        (
            "minval and maxval of `log` are exponents: this would search 1.0002 to 1.2589; for "
            "values from 0.0001 to 0.1 write `{type: log, base: 10, minval: -4, maxval: -1, "
            "count: 3}`, for 1.0002 to 1.2589 `{type: double, minval: 1.0002, maxval: 1.2589, "
            "count: 3}`"
        ),
    ),
    (
        "{type: log, base: 10, minval: 1e-5, maxval: 10}",
        (
            "minval and maxval of `log` are exponents: this would search 1 to 1e+10; for values "
            "from 1e-05 to 10 write `{type: log, base: 10, minval: -5, maxval: 1}`, for 1 to "
            "1e+10 `{type: log, base: 10, minval: 0, maxval: 10}`"
        ),
    ),
    (
        "{type: log, base: 2, minval: 16, maxval: 512}",
        (
            "minval and maxval of `log` are exponents; for values from 16 to 512 write `{type: "
            "log, base: 2, minval: 4, maxval: 9}`"
        ),
    ),
    (
        "{type: log, base: 10, minval: 1, maxval: 400}",
        (
            "minval and maxval of `log` are exponents; for values from 1 to 400 write `{type: "
            "log, base: 10, minval: 0, maxval: 2.602}`"
        ),
    ),
    # Optuna
    (
        "{low: 1e-4, high: 1e-1, log: true}",
        (
            "looks like a range; write `{type: log, base: 10, minval: -4, maxval: -1}`; for a "
            "constant map write `{type: const, val: {low: 0.0001, high: 0.1, log: true}}`"
        ),
    ),
    (
        "{low: 1, high: 64}",
        (
            "looks like a range; write `{type: int, minval: 1, maxval: 64}`; for a constant map "
            "write `{type: const, val: {low: 1, high: 64}}`"
        ),
    ),
    (
        "{low: 1, high: 64, log: true}",
        (
            "looks like a range; write `{type: log, base: 2, minval: 0, maxval: 6}`, and round "
            "it in the script; for a constant map write `{type: const, val: {low: 1, high: 64, "
            "log: true}}`"
        ),
    ),
    (
        "{low: 0.0, high: 1.0, step: 0.25}",
        (
            "looks like a range; write `{type: categorical, vals: [0.0, 0.25, 0.5, 0.75, 1.0]}`; "
            "for a constant map write `{type: const, val: {low: 0.0, high: 1.0, step: 0.25}}`"
        ),
    ),
    (
        "{low: 1, high: 64, step: 2}",
        (
            "looks like a range; write `{type: int, minval: 1, maxval: 64}`, and round it to "
            "steps in the script; for a constant map write `{type: const, val: {low: 1, high: "
            "64, step: 2}}`"
        ),
    ),
    (
        "{type: float, low: 1.e-5, high: 1.e-1, log: true}",
        "looks like a range; write `{type: log, base: 10, minval: -5, maxval: -1}`",
    ),
    (
        "{choices: [a, b]}",
        (
            "looks like a choice; write `{type: categorical, vals: [a, b]}`; for a constant map "
            "write `{type: const, val: {choices: [a, b]}}`"
        ),
    ),
    (
        'trial.suggest_float("lr", 1e-4, 1e-1, log=True)',
        (
            "looks like a call of another tool; write `{type: log, base: 10, minval: -4, maxval: "
            "-1}`"
        ),
    ),
    # Weights & Biases
    (
        "{min: .1, max: .2}",
        (
            "looks like a range; write `{type: double, minval: 0.1, maxval: 0.2}`; for a "
            "constant map write `{type: const, val: {min: 0.1, max: 0.2}}`"
        ),
    ),
    (
        "{min: 1, max: 5}",
        (
            "looks like a range; write `{type: int, minval: 1, maxval: 5}`; for a constant map "
            "write `{type: const, val: {min: 1, max: 5}}`"
        ),
    ),
    (
        "{values: [1, 2, a]}",
        (
            "looks like a choice; write `{type: categorical, vals: [1, 2, a]}`; for a constant "
            "map write `{type: const, val: {values: [1, 2, a]}}`"
        ),
    ),
    (
        "{value: 3}",
        (
            "looks like a constant; write `3`; for a constant map write `{type: const, val: "
            "{value: 3}}`"
        ),
    ),
    (
        "{value: [3, x]}",
        (
            "looks like a constant; write `[3, x]`; for a constant map write `{type: const, val: "
            "{value: [3, x]}}`"
        ),
    ),
    (
        "{distribution: log_uniform_values, min: 1e-4, max: 1e-1}",
        (
            "looks like a range; write `{type: log, base: 10, minval: -4, maxval: -1}`; for a "
            "constant map write `{type: const, val: {distribution: log_uniform_values, min: "
            "0.0001, max: 0.1}}`"
        ),
    ),
    (
        "{distribution: log_uniform, min: -9, max: -2}",
        (
            "looks like a range; write `{type: log, base: 2.71828, minval: -9, maxval: -2}`; for "
            "a constant map write `{type: const, val: {distribution: log_uniform, min: -9, max: "
            "-2}}`"
        ),
    ),
    (
        "{distribution: q_uniform, min: 0, max: 100, q: 5}",
        (
            "looks like a range; write `{type: double, minval: 0, maxval: 100}`, and round it to "
            "steps in the script; for a constant map write `{type: const, val: {distribution: "
            "q_uniform, min: 0, max: 100, q: 5}}`"
        ),
    ),
    (
        "{distribution: normal, mu: 0, sigma: 1}",
        (
            "looks like a range; write `{type: double, minval: -2, maxval: 2}`; for a constant "
            "map write `{type: const, val: {distribution: normal, mu: 0, sigma: 1}}`"
        ),
    ),
    (
        "{distribution: constant, value: 4}",
        (
            "looks like a constant; write `4`; for a constant map write `{type: const, val: "
            "{distribution: constant, value: 4}}`"
        ),
    ),
    (
        "{distribution: categorical, values: [1, 2]}",
        (
            "looks like a choice; write `{type: categorical, vals: [1, 2]}`; for a constant map "
            "write `{type: const, val: {distribution: categorical, values: [1, 2]}}`"
        ),
    ),
    # Ray Tune
    (
        "{lower: 0.1, upper: 0.5}",
        (
            "looks like a range; write `{type: double, minval: 0.1, maxval: 0.5}`; for a "
            "constant map write `{type: const, val: {lower: 0.1, upper: 0.5}}`"
        ),
    ),
    (
        "{grid_search: [1, 2]}",
        (
            "looks like a choice; write `{type: categorical, vals: [1, 2]}`; for a constant map "
            "write `{type: const, val: {grid_search: [1, 2]}}`"
        ),
    ),
    (
        "tune.loguniform(1e-4, 1e-1)",
        (
            "looks like a call of another tool; write `{type: log, base: 10, minval: -4, maxval: "
            "-1}`"
        ),
    ),
    (
        "tune.choice([16, 32])",
        "looks like a call of another tool; write `{type: categorical, vals: [16, 32]}`",
    ),
    (
        "tune.lograndint(16, 1024)",
        (
            "looks like a call of another tool; write `{type: log, base: 2, minval: 4, maxval: "
            "10}`, and round it in the script"
        ),
    ),
    # NNI, Hyperopt, Ax, Keras Tuner
    (
        "{_type: choice, _value: [16, 32]}",
        (
            "looks like a choice; write `{type: categorical, vals: [16, 32]}`; for a constant "
            "map write `{type: const, val: {_type: choice, _value: [16, 32]}}`"
        ),
    ),
    (
        "{_type: loguniform, _value: [0.0001, 0.1]}",
        (
            "looks like a range; write `{type: log, base: 10, minval: -4, maxval: -1}`; for a "
            "constant map write `{type: const, val: {_type: loguniform, _value: [0.0001, 0.1]}}`"
        ),
    ),
    (
        "hp.uniform('x', 0, 1)",
        "looks like a call of another tool; write `{type: double, minval: 0, maxval: 1}`",
    ),
    (
        "{type: range, bounds: [1, 5]}",
        "looks like a range; write `{type: double, minval: 1, maxval: 5}`",
    ),
    (
        "{min_value: 32, max_value: 512, step: 32}",
        (
            "looks like a range; write `{type: categorical, vals: [32, 64, 96, 128, 160, 192, "
            "224, 256, 288, 320, 352, 384, 416, 448, 480, 512]}`; for a constant map write "
            "`{type: const, val: {min_value: 32, max_value: 512, step: 32}}`"
        ),
    ),
    (
        "{minValue: 1, maxValue: 2}",
        (
            "looks like a range; write `{type: int, minval: 1, maxval: 2}`; for a constant map "
            "write `{type: const, val: {minValue: 1, maxValue: 2}}`"
        ),
    ),
    # halves of our own
    (
        "{minval: 1, maxval: 3}",
        (
            "looks like a range; write `{type: int, minval: 1, maxval: 3}`; for a constant map "
            "write `{type: const, val: {minval: 1, maxval: 3}}`"
        ),
    ),
    (
        "{vals: [1, 2]}",
        (
            "looks like a choice; write `{type: categorical, vals: [1, 2]}`; for a constant map "
            "write `{type: const, val: {vals: [1, 2]}}`"
        ),
    ),
    (
        "{type: uniform, minval: 1, maxval: 2}",
        "looks like a range; write `{type: double, minval: 1, maxval: 2}`",
    ),
    (
        "{type: categorical, values: [a, b]}",
        "looks like a choice; write `{type: categorical, vals: [a, b]}`",
    ),
    (
        "{type: choice, values: [a, b]}",
        "looks like a choice; write `{type: categorical, vals: [a, b]}`",
    ),
    (
        "{type: int, min: 1, max: 3, count: 2}",
        "looks like a range; write `{type: int, minval: 1, maxval: 3, count: 2}`",
    ),
    (
        "{type: int, minval: 2, maxval: 8, step: 2}",
        "looks like a range; write `{type: categorical, vals: [2, 4, 6, 8]}`",
    ),
    (
        "{type: double, minval: 1e-5, maxval: 1e-1, log: true}",
        "looks like a range; write `{type: log, base: 10, minval: -5, maxval: -1}`",
    ),
]


def problems(space: str) -> list[Problem]:
    """Return what is wrong with a space; nothing: it is accepted."""
    try:
        load(f"{HEAD}hyperparameters:\n  {space}\n", today_seed=1)
    except InvalidExperimentFile as error:
        return error.details
    return []


@pytest.mark.parametrize(("spelling", "message"), SPELLINGS)
def test_other_spellings_are_refused(spelling: str, message: str) -> None:
    """Each is refused, once, with what to write; what is to be written is accepted."""
    [problem] = problems(f"net:\n    lr: {spelling}")
    assert (problem.path, problem.message) == ("hyperparameters.net.lr", message)
    assert problem.line == 5
    written = re.findall(r"`([^`]*)`", message.removeprefix("minval and maxval of `log`"))
    assert written
    assert [problems(f"net: {{lr: {text}}}") for text in written] == [[]] * len(written)


@pytest.mark.parametrize(
    "spelling",
    [
        "{type: log, base: 10, minval: -5, maxval: 1}",
        "{type: log, base: 10, minval: -5.0, maxval: 1.0}",
        "{type: log, base: 3.14, minval: 1, maxval: 10}",
        "{type: log, base: 2, minval: 4, maxval: 10}",
        "{type: log, base: 10, minval: 0, maxval: 0.5}",
        "{type: log, base: 10, minval: 0.5, maxval: 1}",
        "{type: const, val: {min: 0.1, max: 0.2}}",
        "{type: const, val: [{type: int, minval: 1, maxval: 2}]}",
        "{red: fish, blue: fish}",
        "{min: 0.1, max: 0.2, mode: clip}",
        "{low: {type: int, minval: 1, maxval: 2}, high: 3}",
        "{value: {a: 1}}",
        "{values: all}",
        "{distribution: normal, mean: 0, std: 1}",
        "{min: 0.1}",
        "[{name: a, type: int}, {name: b, type: double}]",
        "[{type: crop, size: 3}, {type: flip, min: 1}]",
        "{type: categorical, vals: [{min: 1, max: 2}, {type: adam}]}",
        "uniform(-0.1, 0.1)",
        "tune.py",
    ],
)
def test_what_means_what_it_says_is_accepted(spelling: str) -> None:
    """Constants, groups and Determined's own ranges stay what they are."""
    assert problems(f"net: {{x: {spelling}}}") == []


def test_names_of_the_outermost_group_are_free() -> None:
    """`min` and `max` may be two hyperparameters."""
    assert problems("min: 1\n  max: 5") == []


@pytest.mark.parametrize(
    ("space", "path", "item"),
    [
        ("[{type: int, minval: 1, maxval: 4}, 32]", "[0]", "{type: int, …}"),
        ("[3, [{width: {type: log, minval: -3, maxval: 1}}]]", "[1][0].width", "{type: log, …}"),
        ("[{type: categorical, vals: [1, 2]}]", "[0]", "{type: categorical, …}"),
        ("[{min: 1, max: 2}]", "[0]", "{type: …}"),
        ("[{a: {distribution: uniform, min: 0, max: 1}}]", "[0].a", "{type: …}"),
        ("[{type: int, minval: 1}]", "[0]", "{type: int, …}"),
        ("[{type: double, minval: 1, maxval: 4, step: 1}]", "[0]", "{type: double, …}"),
        ("[8, ['tune.randint(1, 8)']]", "[1][0]", "{type: …}"),
    ],
)
def test_nothing_is_drawn_inside_a_list(space: str, path: str, item: str) -> None:
    """A list is a constant: what looks like a hyperparameter in it is refused by name."""
    [problem] = problems(f"net: {{layers: {space}}}")
    assert problem.path == f"hyperparameters.net.layers{path}"
    assert problem.message == (
        f"nothing is drawn inside a list: name each item (`layers: {{a: {item}, b: …}}`), or"
        " choose among whole lists (`layers: {type: categorical, vals: [[…], […]]}`); a list that"
        " is a constant is `{type: const, val: […]}`"
    )


@pytest.mark.parametrize(
    "items",
    ["[{name: age, type: int}]", "[{type: int, field: age}]", "[uniform, 'see (1, 2)', {a: 1}]"],
)
def test_a_list_of_anything_else_is_a_constant(items: str) -> None:
    """A `type` alone makes no range."""
    assert problems(f"net: {{columns: {items}}}") == []


def test_nothing_is_drawn_inside_a_choice() -> None:
    """The values of a choice are constants, too."""
    vals = "[{name: sgd, momentum: {type: double, minval: 0, maxval: 1}}, {name: adam}]"
    [problem] = problems(f"optimizer: {{type: categorical, vals: {vals}}}")
    assert problem.path == "hyperparameters.optimizer.vals[0].momentum"
    assert problem.message == (
        "nothing is drawn inside a choice: make this a hyperparameter of its own, which the script"
        " reads where the choice asks for it"
    )


@pytest.mark.parametrize(
    "spelling",
    [
        "{low: 5, high: -1, log: true}",
        "{low: 0, high: 0}",
        "{low: -1.7e308, high: 1.7e308}",
        "{low: 1, high: 2, step: 1e-320}",
        "{low: 1, high: 9223372036854775807, step: 0}",
        "{mu: -1.7e308, sigma: 1.7e308}",
        "{type: log, base: 1.7e308, minval: 1e-320, maxval: 1.7e308}",
        "{type: log, base: 1.0000001, minval: 1e-320, maxval: 1}",
        "{type: range, bounds: [5, 1, 0, 3]}",
        "{values: []}",
        "tune.choice()",
        "tune.uniform(1)",
        "tune.uniform(1, 2, 3, 4)",
    ],
)
def test_odd_numbers(spelling: str) -> None:
    """Ends without order, without size or too large are no error of the check."""
    assert all(problem.message for problem in problems(f"net:\n    x: {spelling}"))


def test_there_may_be_very_many() -> None:
    """A refusal lists a hundred, and is made at once."""
    found = problems("\n  ".join(f"x{number}: {{low: 1, high: 2}}" for number in range(10_000)))
    assert len(found) == PROBLEMS_MAX + 1


def test_other_problems_stay() -> None:
    """A foreign spelling hides what pydantic says of the same map, and nothing else."""
    found = problems("a: {type: uniform, min: 1, max: 2}\n  ab: {type: int, minval: 1}")
    assert [problem.path for problem in found] == [
        "hyperparameters.a",
        "hyperparameters.ab.maxval",
    ]
