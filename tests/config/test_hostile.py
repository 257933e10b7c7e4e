"""Experiment files that nobody should send, each refused cleanly and at the right place."""

import time
from typing import Final

import pytest

from rung.config import InvalidExperimentFile, load
from rung.config.problem import shortened

HEAD: Final = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
RANDOM: Final = (
    "entrypoint: python3 train.py\nsearcher: {name: random, metric: loss, max_trials: 2}\n"
)
LAUGHS: Final = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)

HOSTILE: Final[dict[str, tuple[str | bytes, str, str]]] = {
    # name: (file, path of a problem, words of its message)
    "empty": ("", "", "empty"),
    "only a comment": ("# hello\n", "", "empty"),
    "a list": ("- 1\n- 2\n", "", "not a map"),
    "a word": ("hello", "", "not a map"),
    "a number": ("42", "", "not a map"),
    "no YAML": ("name: [1, 2\n", "", "not YAML"),
    "no YAML, with quotes": ('name: "unfinished\n', "", "not YAML"),
    "tabs": ("searcher:\n\tname: single\n", "", "tab"),
    "binary": (bytes(range(256)), "", "not UTF-8"),
    "latin-1": ("name: Grün".encode("latin-1"), "", "not UTF-8"),
    "utf-16": ("name: x".encode("utf-16"), "", "not UTF-8"),
    "control characters": ("name: \x07", "", "not YAML"),
    "two documents": (f"{HEAD}---\n{HEAD}", "", "several documents"),
    "too large": (b"name: " + b"x" * (1024 * 1024), "", "1,048,576"),
    "billion laughs": (LAUGHS + HEAD, "a4[7]", "more than"),
    "quadratic text": (
        f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1000)}]\n{HEAD}", "b[40]", "letters"
    ),
    "many values": (f"data: [{'1,' * 200_000}]", "data[99997]", "100,000 values"),
    "alias of itself": ("data: &x {y: *x}\n" + HEAD, "data.y", "contains itself"),
    "alias of nothing": ("data: *nobody\n" + HEAD, "data", "no anchor"),
    "deep lists": (f"data: {'[' * 500}{']' * 500}", "data" + "[0]" * 49, "50 levels"),
    "deeper lists": ("data: " + "[" * 100_000, "data" + "[0]" * 49, "50 levels"),
    "deep maps": ("data: " + "{a: " * 60 + "1" + "}" * 60, "data" + ".a" * 49, "50 levels"),
    "python object": (
        "data: !!python/object/apply:os.system [echo hi]\n" + HEAD, "data", "!!python/object"
    ),
    "python name": ("name: !!python/name:os.system\n" + HEAD, "name", "not allowed"),
    "foreign tag": ("name: !secret abc\n" + HEAD, "name", "not allowed"),
    "binary tag": ("name: !!binary aGVsbG8=\n" + HEAD, "name", "not allowed"),
    "set tag": ("data: !!set {a, b}\n" + HEAD, "data", "not allowed"),
    "duplicate key": ("name: a\nname: b\n" + HEAD, "name", "first on line 1"),
    "deep duplicate key": ("data: {a: {b: 1, b: 2}}\n" + HEAD, "data.a.b", "given twice"),
    "number as key": ("data: {1: x}\n" + HEAD, "data.1", "in quotes"),
    "null as key": ("data: {~: x}\n" + HEAD, "data.~", "in quotes"),
    "list as key": ("data: {[1, 2]: x}\n" + HEAD, "data", "not a map or a list"),
    "alias as key": ("data: {a: &a b, *a : x}\n" + HEAD, "data", "not an alias"),
    "merging a list": ("data: {<<: [1]}\n" + HEAD, "data.<<", "merges maps"),
    "infinity": ("hyperparameters: {lr: .inf}\n" + HEAD, "hyperparameters.lr", "finite"),
    "not a number": ("hyperparameters: {lr: .nan}\n" + HEAD, "hyperparameters.lr", "finite"),
    "a float beyond floats": (
        "hyperparameters: {lr: 1e999}\n" + HEAD, "hyperparameters.lr", "64-bit float"
    ),
    "an integer beyond 64 bits": (f"max_restarts: {2**63}\n" + HEAD, "max_restarts", "64 bits"),
    "an integer of a million digits": (
        f"max_restarts: {'9' * 1_000_000}\n" + HEAD, "max_restarts", "64 bits"
    ),
    "NUL": ('name: "a\\0b"\n' + HEAD, "name", "NUL"),
    "half a surrogate": ('name: "\\ud800"\n' + HEAD, "", ""),
    "text for a number": ("max_restarts: '5'\n" + HEAD, "max_restarts", "whole number"),
    "a fraction for a number": ("max_restarts: 1.5\n" + HEAD, "max_restarts", "whole number"),
    "a truth for a number": ("max_restarts: true\n" + HEAD, "max_restarts", "whole number"),
    "a map for a number": ("max_restarts: {a: 1}\n" + HEAD, "max_restarts", "whole number"),
    "negative": ("max_restarts: -1\n" + HEAD, "max_restarts", "at least 0"),
    "a number for text": ("name: 2024\n" + HEAD, "name", '"2024"'),
    "a list for a section": ("resources: []\n" + HEAD, "resources", "must be a map"),
    "a word for a section": ("hyperparameters: fast\n" + HEAD, "hyperparameters", "must be a map"),
    "unknown field": ("serch: {}\n" + HEAD, "serch", "`searcher`"),
    "unknown inner field": (
        "resources: {slot_per_trial: 1}\n" + HEAD, "resources.slot_per_trial", "slots_per_trial"
    ),
    "unknown hyperparameter type": (
        "hyperparameters: {lr: {type: normal, mean: 0}}\n" + RANDOM, "hyperparameters.lr", "double"
    ),
    "type of another type": (
        "hyperparameters: {lr: {type: [int]}}\n" + RANDOM, "hyperparameters.lr", "double"
    ),
    "empty range": (
        "hyperparameters: {n: {type: int, minval: 3, maxval: 3}}\n" + RANDOM,
        "hyperparameters.n",
        "less than",
    ),
    "range beyond floats": (
        "hyperparameters: {x: {type: double, minval: -1.7e308, maxval: 1.7e308}}\n" + RANDOM,
        "hyperparameters.x",
        "64-bit float",
    ),
    "exponents beyond floats": (
        "hyperparameters: {x: {type: log, base: 10, minval: 0, maxval: 400}}\n" + RANDOM,
        "hyperparameters.x",
        "exponents",
    ),
    "log without base": (
        "hyperparameters: {x: {type: log, base: 0, minval: -4, maxval: -1}}\n" + RANDOM,
        "hyperparameters.x.base",
        "greater than 0",
    ),
    "nothing to choose from": (
        "hyperparameters: {x: {type: categorical, vals: []}}\n" + RANDOM,
        "hyperparameters.x.vals",
        "at least 1 item",
    ),
    "groups too deep": (
        f"hyperparameters: {'{a: ' * 30}1{'}' * 30}\n" + RANDOM,
        "hyperparameters" + ".a" * 21,
        "20 levels",
    ),
    "an endless grid": (
        "entrypoint: t\nsearcher: {name: grid, metric: x}\nhyperparameters:\n"
        + "".join(
            f"  p{i}: {{type: double, minval: 0, maxval: 1, count: 1000000000000}}\n"
            for i in range(50)
        ),
        "hyperparameters",
        "more than 40 digits",
    ),
    "a grid without counts": (
        ("entrypoint: t\nsearcher: {name: grid, metric: x}\n"
        "hyperparameters: {a: {b: {type: double, minval: 0, maxval: 1}}}\n"),
        "hyperparameters.a.b.count",
        "required",
    ),
    "an endless hyperband": (
        ("entrypoint: t\n"
        "searcher: {name: hyperband, metric: x, max_time: 1000000000000, time_metric: batches}\n"),
        "searcher",
        "trials",
    ),
    "endless rungs": (
        ("entrypoint: t\nsearcher: {name: asha, metric: x, max_time: 9, time_metric: epochs,"
        " max_trials: 4, num_rungs: 1000000000}\n"),
        "searcher.num_rungs",
        "at most 100",
    ),
    "endless rungs of the largest bracket": (
        ("entrypoint: t\nsearcher: {name: adaptive_asha, metric: x, max_time: 9,"
        " time_metric: epochs, max_trials: 4, max_rungs: 101}\n"),
        "searcher.max_rungs",
        "at most 100",
    ),
    "a hyperband of too many rungs": (
        ("entrypoint: t\nsearcher: {name: hyperband, metric: x, max_time: 100,"
        " time_metric: epochs, divisor: 1.02}\n"),
        "searcher",
        "raise divisor",
    ),
    "all trials at once": (
        ("entrypoint: t\nsearcher: {name: random, metric: x, max_trials: 10001,"
        " max_concurrent_trials: 0}\n"),
        "searcher.max_concurrent_trials",
        "10,001 trials",
    ),
    "all points of a grid at once": (
        ("entrypoint: t\nsearcher: {name: grid, metric: x, max_concurrent_trials: 30000}\n"
        "hyperparameters: {n: {type: int, minval: 1, maxval: 20000, count: 20000}}\n"),
        "searcher.max_concurrent_trials",
        "20,000 trials",
    ),
    "all of a hyperband at once": (
        ("entrypoint: t\nsearcher: {name: hyperband, metric: x, max_time: 6561,"
        " time_metric: batches, max_concurrent_trials: 0}\n"),
        "searcher.max_concurrent_trials",
        "10,582 trials",
    ),
    "retired searcher": (
        "entrypoint: t\nsearcher: {name: adaptive, metric: x}\n", "searcher", "adaptive_asha"
    ),
    "misspelt searcher": (
        "entrypoint: t\nsearcher: {name: adaptive_ahsa, metric: x}\n", "searcher", "adaptive_asha"
    ),
    "searcher of another type": ("searcher: {name: [random]}\n", "searcher", "one of"),
    "ASHA without time": (
        "entrypoint: t\nsearcher: {name: adaptive_asha, metric: x, max_trials: 3}\n",
        "searcher.max_time",
        "required",
    ),
    "two sources": (
        ("entrypoint: t\nsearcher: {name: single, metric: x, source_trial_id: a.1,"
        " source_checkpoint_uuid: b}\n"),
        "searcher.source_checkpoint_uuid",
        "not both",
    ),
    "legacy entrypoint": (
        "entrypoint: model_def:MyTrial\nsearcher: {name: single, metric: x}\n",
        "entrypoint",
        "python3 train.py",
    ),
    "climbing prefix": (
        "checkpoint_storage: {type: s3, bucket: b, prefix: a/../../b}\n" + HEAD,
        "checkpoint_storage.prefix",
        "..",
    ),
    "climbing storage": (
        "checkpoint_storage: {type: shared_fs, host_path: /data, storage_path: ../etc}\n" + HEAD,
        "checkpoint_storage",
        "relative folder",
    ),
    "outside storage": (
        "checkpoint_storage: {type: shared_fs, host_path: /data, storage_path: /etc}\n" + HEAD,
        "checkpoint_storage",
        "relative folder",
    ),
    "the platform's variables": (
        "environment: {environment_variables: [RUNG_SOCKET=/tmp/x]}\n" + HEAD,
        "environment.environment_variables[0]",
        "belong to the platform",
    ),
    "workspace alone": ("workspace: ours\n" + HEAD, "project", "both or neither"),
    "priority": ("resources: {priority: 100}\n" + HEAD, "resources.priority", "at most 99"),
    "slots that never come": (
        "resources: {slots_per_trial: 4, max_slots: 2}\n" + HEAD, "resources.max_slots", "at least"
    ),
    "the platform's field": ("internal: {x: 1}\n" + HEAD, "internal", "absent"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_refused(name: str) -> None:
    """Each file is refused with a problem at the right path, in few and printable words."""
    text, path, words = HOSTILE[name]
    with pytest.raises(InvalidExperimentFile) as refused:
        load(text, today_seed=1)
    found = [problem for problem in refused.value.details if problem.path == shortened(path, 120)]
    assert found, str(refused.value)
    assert any(words in problem.message for problem in found)
    assert all(len(line) < 700 for line in str(refused.value).splitlines())
    assert str(refused.value).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"unknown{number}: 1\n" for number in range(40_000)),
        HEAD + f"labels: [{','.join(map(str, range(90_000)))}]",
        HEAD + "a: 1\n" * 90_000,
    ],
    ids=["unknown", "wrong", "duplicate"],
)
def test_problems_without_end(text: str) -> None:
    """A file with thousands of problems is refused in seconds, with the first hundred of them."""
    started = time.monotonic()
    with pytest.raises(InvalidExperimentFile) as refused:
        load(text, today_seed=1)
    assert time.monotonic() - started < 10
    assert len(refused.value.details) == 101
    assert "more problems" in refused.value.details[-1].message


def test_there_are_enough() -> None:
    """At least thirty hostile files are refused."""
    assert len(HOSTILE) >= 30
