"""What an experiment file means."""

import json
import subprocess
import sys

import pytest

from rung.config import ExperimentConfig, InvalidExperimentFile, load
from rung.methods.adaptive_asha import AdaptiveAsha
from rung.methods.asha import StoppingAsha
from rung.methods.table import read_options

PLAIN = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
RANDOM = "entrypoint: python3 train.py\nsearcher: {name: random, metric: loss, max_trials: 2}\n"


def given(text: str) -> ExperimentConfig:
    """Load a file, with a seed."""
    return load(text, today_seed=7)


def refused(text: str) -> dict[str, str]:
    """Return the problems of a file: path → message."""
    with pytest.raises(InvalidExperimentFile) as caught:
        given(text)
    return {problem.path: problem.message for problem in caught.value.details}


def test_a_file_that_says_only_what_it_must() -> None:
    """Everything else has its default, and the configuration is complete."""
    config = given(PLAIN).expanded()
    assert config["workspace"] == config["project"] == "Uncategorized"
    assert config["reproducibility"] == {
        "experiment_seed": 7,
        "first_trial": 0,
        "continue_source": False,
        "deterministic": False,
        "exact": True,
    }
    assert config["resources"]["resource_pool"] == "default"
    assert config["resources"]["priority"] == 42
    assert config["max_restarts"] == 5
    assert config["searcher"] == {
        "name": "single",
        "metric": "loss",
        "smaller_is_better": True,
        "time_metric": "batches",
        "max_time": None,
        "max_length": None,
        "source_trial_id": None,
        "source_checkpoint_uuid": None,
    }
    assert isinstance(config["name"], str)
    json.dumps(config, allow_nan=False)


def test_the_seed_of_the_file_comes_first() -> None:
    """A seed that the file gives is kept; a drawn one is brought into range."""
    assert given(PLAIN + "reproducibility: {experiment_seed: 0}").seed == 0
    assert load(PLAIN, today_seed=2**40 + 3).seed == 3


def test_null_means_not_given() -> None:
    """A field that is null has its default, at any depth; a hyperparameter may be null."""
    text = PLAIN + "max_restarts: null\nresources: {priority: null}\nslurm: ~\nname:\n"
    assert given(text).expanded() == given(PLAIN).expanded()
    config = given(PLAIN + "hyperparameters: {a: null, b: {type: const, val: null}}")
    null = {"type": "const", "val": None}
    assert config.expanded()["hyperparameters"] == {"a": null, "b": null}


def test_hyperparameters_of_every_kind() -> None:
    """Bare values are constants, maps without type are groups, empty groups stay."""
    text = """
hyperparameters:
  bare: 1e-3
  listed: [1, {type: int}]
  nested: {deeper: {lr: {type: log, base: 10, minval: -4, maxval: -1, count: 3}}, none: {}}
  width: {type: int, minval: 1e1, maxval: 20}
  act: {type: categorical, vals: [relu, no, {a: 1}, null]}
"""
    assert given(RANDOM + text).expanded()["hyperparameters"] == {
        "bare": {"type": "const", "val": 0.001},
        "listed": {"type": "const", "val": [1, {"type": "int"}]},
        "nested": {
            "deeper": {
                "lr": {"type": "log", "minval": -4.0, "maxval": -1.0, "base": 10.0, "count": 3}
            },
            "none": {},
        },
        "width": {"type": "int", "minval": 10, "maxval": 20, "count": None},
        "act": {"type": "categorical", "vals": ["relu", "no", {"a": 1}, None]},
    }


@pytest.mark.parametrize(
    ("searcher", "unit", "time"),
    [
        ("{name: single, metric: m, max_length: {epochs: 5}}", "epochs", 5),
        ("{name: single, metric: m, max_length: 100}", "batches", 100),
        ("{name: random, metric: m, max_trials: 1}", "batches", None),
        ("{name: grid, metric: m, max_length: {records: 9}, max_time: 9}", "records", 9),
        (
            (
                "{name: async_halving, metric: m, num_rungs: 2, max_trials: 4,"
                " max_length: {batches: 64}}"
            ),
            "batches",
            64,
        ),
        (
            "{name: adaptive_asha, metric: m, max_trials: 4, time_metric: tokens, max_time: 1e6}",
            "tokens",
            1_000_000,
        ),
        ("{name: hyperband, metric: m, time_metric: epochs, max_time: 81}", "epochs", 81),
    ],
)
def test_how_long_a_trial_trains(searcher: str, unit: str, time: int | None) -> None:
    """However it is said, time_metric and max_time say it in the end."""
    config = given(f"entrypoint: t\nsearcher: {searcher}\n").expanded()["searcher"]
    assert (config["time_metric"], config["max_time"]) == (unit, time)


def test_asha_is_async_halving() -> None:
    """The short name means the long one, and stops once unless told otherwise."""
    text = (
        "entrypoint: t\nsearcher: {name: asha, metric: m, num_rungs: 2, max_trials: 4,"
        " max_time: 9, time_metric: epochs}\n"
    )
    config = given(text).expanded()["searcher"]
    assert (config["name"], config["stop_once"], config["divisor"]) == ("async_halving", True, 4)


@pytest.mark.parametrize(
    ("told", "path"),
    [
        ("max_time: 5, max_length: {epochs: 6}", "searcher.max_time"),
        ("time_metric: batches, max_length: {epochs: 6}", "searcher.time_metric"),
        ("max_time: 5", "searcher.time_metric"),
        ("time_metric: epochs", "searcher.max_time"),
        ("max_length: {epochs: 0}", "searcher.max_length"),
        ("max_length: {epochs: 1, batches: 1}", "searcher.max_length"),
        ("max_length: {minutes: 1}", "searcher.max_length"),
    ],
)
def test_a_length_that_contradicts_itself(told: str, path: str) -> None:
    """Two lengths that differ, or half of one, are refused."""
    searcher = f"{{name: adaptive_asha, metric: m, max_trials: 4, {told}}}"
    assert path in refused(f"entrypoint: t\nsearcher: {searcher}\n")


def test_every_problem_at_once() -> None:
    """One refusal names all that is wrong, each with path, line and value."""
    text = """
name: 5
max_restart: 2
searcher: {name: grid, metirc: x, source_trial_id: a, source_checkpoint_uuid: b}
hyperparameters:
  a: {type: int, minval: 1, maxval: 0}
  b: {type: double, minval: 0, maxval: 1}
resources: {slots_per_trial: -1, priority: high}
workspace: w
data: !secret x
"""
    with pytest.raises(InvalidExperimentFile) as caught:
        given(text)
    assert [(problem.path, problem.line) for problem in caught.value.details] == [
        ("name", 2),
        ("max_restart", 3),
        ("searcher.metric", 4),
        ("searcher.metirc", 4),
        ("searcher.source_checkpoint_uuid", 4),
        ("hyperparameters.a", 6),
        ("hyperparameters.a.count", 6),
        ("hyperparameters.b.count", 7),
        ("resources.slots_per_trial", 8),
        ("resources.priority", 8),
        ("data", 10),
        ("entrypoint", None),
        ("project", None),
    ]
    assert caught.value.details[0].value == "5"
    assert dict(caught.value.problems)["max_restart"].endswith("did you mean `max_restarts`?")


def test_words_of_older_yaml() -> None:
    """`yes` and `off` are truths where a truth is wanted, and words elsewhere."""
    text = PLAIN + "perform_initial_validation: yes\nname: off\nhyperparameters: {norm: no}\n"
    config = given(text).expanded()
    assert config["perform_initial_validation"] is True
    assert config["name"] == "off"
    assert config["hyperparameters"]["norm"]["val"] == "no"


def test_variables_for_all_slots() -> None:
    """One list of variables holds for every kind of slot; `gpu` is read as `cuda`."""
    config = given(PLAIN + "environment: {environment_variables: [A=1, 'B=c=d', C]}").expanded()
    assert config["environment"]["environment_variables"] == {
        "cpu": ["A=1", "B=c=d", "C"],
        "cuda": ["A=1", "B=c=d", "C"],
        "rocm": ["A=1", "B=c=d", "C"],
    }
    config = given(PLAIN + "environment: {environment_variables: {gpu: [A=1]}}").expanded()
    assert config["environment"]["environment_variables"]["cuda"] == ["A=1"]


def test_aliases_and_merges() -> None:
    """Anchors, aliases and merge keys work; what is written out wins over what is merged."""
    text = RANDOM + (
        "data: {common: &c {type: log, base: 10, minval: -3, maxval: 0}}\n"
        "hyperparameters: {a: *c, b: {<<: *c, maxval: 2}}\n"
    )
    space = given(text).expanded()["hyperparameters"]
    assert (space["a"]["maxval"], space["b"]["minval"], space["b"]["maxval"]) == (0, -3, 2)


def test_what_has_no_effect_is_told() -> None:
    """A foreign field is accepted with a warning that names it; a default is not worth one."""
    text = PLAIN + (
        "slurm: {sbatch_args: [--x]}\nbind_mounts: [{host_path: /a, container_path: b}]\n"
        "environment: {pod_spec: {spec: {}}, image: x}\npbs: {}\ndebug: false\n"
        "checkpoint_storage: {type: s3, bucket: b, secret_key: hush, save_trial_best: 2}\n"
    )
    warnings = given(text).warnings
    assert sorted(warning.split(" ")[0] for warning in warnings) == [
        "bind_mounts",
        "checkpoint_storage.type",
        "environment.image",
        "environment.pod_spec",
        "slurm",
    ]
    assert given(PLAIN).warnings == []


def test_secrets_are_kept_and_worth_no_word() -> None:
    """They are taken out before anything is stored, so there is nothing to warn of."""
    config = given(PLAIN + "data: {secrets: {token: hush}}\n")
    assert config.warnings == []
    assert config.expanded()["data"] == {"secrets": {"token": "hush"}}
    assert given(PLAIN + "data: {secrets: {}}\n").warnings == []


def test_what_stands_for_a_secret_is_refused() -> None:
    """Who hands a shown configuration in again is told, and no trial gets asterisks."""
    text = PLAIN + "data: {secrets: {a: '********', b: [x, {c: '********'}]}, d: '********'}\n"
    assert set(refused(text)) == {"data.secrets.a", "data.secrets.b[1].c"}


def test_what_has_an_effect_is_not_told() -> None:
    """Accumulation is the trainer's; of the switches beside it each is named by itself."""
    text = (
        PLAIN + "optimizations: {aggregation_frequency: 2, average_aggregated_gradients: false}\n"
    )
    assert given(text).warnings == []
    text = PLAIN + "optimizations: {aggregation_frequency: 2, mixed_precision: O1}\n"
    [warning] = given(text).warnings
    assert warning.startswith("optimizations.mixed_precision has no effect here")
    assert "context.use_amp()" in warning


def test_a_weight_is_told_where_it_counts() -> None:
    """It is the pool's policy that says whether a weight has an effect."""
    [warning] = given(PLAIN + "resources: {weight: 2}\n").warnings
    assert warning == (
        "resources.weight has an effect only in a pool whose scheduling policy uses it"
        " (`rung pool configure`); the default policy, `priority`, does not"
    )
    assert given(PLAIN + "resources: {weight: 1}\n").warnings == []
    assert given(PLAIN + "resources: {weight: 2}\n").expanded()["resources"]["weight"] == 2.0


@pytest.mark.parametrize("weight", ["0", "-1", ".nan", ".inf"])
def test_a_weight_is_a_share(weight: str) -> None:
    """A policy divides by it."""
    assert set(refused(PLAIN + f"resources: {{weight: {weight}}}\n")) == {"resources.weight"}


def test_values_in_place_of_exponents_are_told() -> None:
    """A `log` whose ends may be either gets a warning with the exponents."""
    text = RANDOM + "hyperparameters: {lr: {type: log, base: 10, minval: 0.2, maxval: 0.9}}\n"
    [warning] = given(text).warnings
    assert warning == (
        "hyperparameters.lr: minval and maxval of `log` are exponents, so this searches 1.585 to"
        " 7.943; for 0.2 to 0.9 write -0.699 and -0.04576"
    )


def test_single_draws_once() -> None:
    """Ranges under `single` are accepted, as in Determined, with a warning that names them."""
    text = PLAIN + (
        "hyperparameters: {lr: {type: log, base: 10, minval: -4, maxval: -1}, c: 3,\n"
        "  net: {width: {type: int, minval: 1, maxval: 3}}}\n"
    )
    config = given(text)
    assert config.warnings == [
        (
            "the searcher `single` draws lr, net.width once, for its one trial; for a search write"
            " `random`, `grid` or `adaptive_asha`"
        )
    ]
    assert config.expanded()["hyperparameters"]["net"]["width"]["maxval"] == 3


@pytest.mark.parametrize(
    "searcher",
    [
        "random, max_trials: 3",
        "grid",
        "adaptive_asha, max_trials: 3, max_time: 9, time_metric: epochs",
    ],
)
@pytest.mark.parametrize(
    ("space", "told"),
    [
        (
            "{lr: [0.1, 0.01], net: {widths: [8, 16], depth: 2}}",
            "; a plain list is a constant here: lr, net.widths",
        ),
        ("{lr: {bounds: [0.1, 0.2]}, c: 1}", "; a plain list is a constant here: lr.bounds"),
        ("{lr: {from: 0.1, to: 0.2}}", "`rung.choice([…])`)"),
        ("{lr: '[0.1:0.2]'}", "`rung.choice([…])`)"),
        ("{lr: {type: double, minval: 0.1, maxval: 0.2, count: 3}, widths: [8, 16]}", None),
        ("{}", None),
    ],
)
def test_a_search_over_constants_is_told(searcher: str, space: str, told: str | None) -> None:
    """Where nothing is drawn, because a range or a choice was not read as one, that is said."""
    text = (
        "entrypoint: python3 train.py\n"
        f"searcher: {{metric: loss, name: {searcher}}}\nhyperparameters: {space}\n"
    )
    warnings = given(text).warnings
    name = searcher.partition(",")[0]
    assert [it.startswith(f"the searcher `{name}` has nothing to search") for it in warnings] == (
        [] if told is None else [True]
    )
    assert all(it.endswith(told or "") for it in warnings)


@pytest.mark.parametrize(
    ("metric", "warned"),
    [
        ("accuracy", True),
        ("val/top1_acc", True),
        ("MulticlassAccuracy", True),
        ("macro-F1", True),
        ("loss", False),
        ("accuracy_loss", False),
        ("neg_f1", False),
        ("acceleration", False),
    ],
)
def test_the_least_of_an_accuracy(metric: str, *, warned: bool) -> None:
    """The default side of a metric whose largest is meant is warned of, unless it is written."""
    text = PLAIN.replace("loss", metric)
    found = given(text).warnings
    assert [metric in it and "smaller_is_better: false" in it for it in found] == [True] * warned
    for side in ("true", "false"):
        written = text.replace("metric:", f"smaller_is_better: {side}, metric:")
        assert given(written).warnings == []


@pytest.mark.parametrize(
    ("named", "unit"), [("epoch", "epochs"), ("batch", "batches"), ("epochs", None), ("it", None)]
)
def test_a_unit_in_the_singular(named: str, unit: str | None) -> None:
    """It is a metric of the script's, and probably not meant."""
    text = PLAIN.replace("metric: loss", f"metric: loss, time_metric: {named}, max_time: 4")
    found = given(text).warnings
    assert [it.endswith(f"for the unit write `{unit}`") for it in found] == [True] * bool(unit)


@pytest.mark.parametrize(
    ("searcher", "bound"),
    [
        ("name: async_halving, num_rungs: 3, max_trials: 100", 16),
        ("name: async_halving, num_rungs: 3, max_trials: 10", 10),
        ("name: async_halving, num_rungs: 100, divisor: 1000000, max_trials: 10", 10),
        ("name: async_halving, num_rungs: 4, divisor: 2.5, max_trials: 100, stop_once: false", 15),
        ("name: adaptive_asha, max_trials: 100", 2 * 12),
        ("name: adaptive_asha, max_trials: 12, mode: conservative, divisor: 3", 3 * 3),
        ("name: adaptive_asha, max_trials: 90, bracket_rungs: [3, 3]", 2 * 45),
        ("name: random, max_trials: 100", 0),
        ("name: hyperband", 0),
    ],
)
def test_asha_bounds_how_many_trials_train_at_once(searcher: str, bound: int) -> None:
    """`max_concurrent_trials: 0` has the value by which Determined bounds the brackets."""
    fields = f"{searcher}, max_concurrent_trials: 0, metric: m, time_metric: epochs, max_time: 64"
    config = given(f"entrypoint: t\nsearcher: {{{fields}}}\n").expanded()["searcher"]
    assert config["max_concurrent_trials"] == bound
    plan = read_options(config).plan([])
    brackets = plan.members if isinstance(plan, AdaptiveAsha) else [plan]
    shares = {member.concurrent for member in brackets if isinstance(member, StoppingAsha)}
    assert shares <= {bound // len(brackets)}


def test_devices_as_docker_writes_them() -> None:
    """A device may be text, with or without its access mode."""
    text = PLAIN + (
        "resources: {devices: ['/dev/a:/dev/b', '/dev/c:/dev/d:r', {host_path: /h,"
        " container_path: /c}]}\n"
    )
    assert given(text).expanded()["resources"]["devices"] == [
        {"host_path": "/dev/a", "container_path": "/dev/b", "mode": "mrw"},
        {"host_path": "/dev/c", "container_path": "/dev/d", "mode": "r"},
        {"host_path": "/h", "container_path": "/c", "mode": "mrw"},
    ]


@pytest.mark.parametrize(
    ("field", "path", "message"),
    [
        (
            "resources: {devices: ['dev/a']}",
            "resources.devices[0]",
            (
                "must be like `/dev/host:/dev/container` or `/dev/host:/dev/container:rwm`, not"
                ' "dev/a"'
            ),
        ),
        (
            (
                "checkpoint_storage: {type: azure, container: c, connection_string: x,"
                " account_url: u}"
            ),
            "checkpoint_storage",
            (
                "connection_string and account_url must not both be set; give connection_string"
                " alone, or account_url with its credential"
            ),
        ),
        (
            "checkpoint_storage: {type: azure, container: k, connection_string: x, credential: y}",
            "checkpoint_storage",
            (
                "connection_string and credential must not both be set; give connection_string"
                " alone, or account_url with its credential"
            ),
        ),
        (
            "checkpoint_storage: {type: azure, container: k, credential: y}",
            "checkpoint_storage",
            "needs connection_string, or account_url with its credential",
        ),
        (
            "resources: {devices: ['/dev/a:/dev/b:']}",
            "resources.devices[0]",
            (
                "must be like `/dev/host:/dev/container` or `/dev/host:/dev/container:rwm`, not"
                ' "/dev/a:/dev/b:"'
            ),
        ),
        (
            "resources: {devices: [{host_path: dev/a, container_path: /dev/b}]}",
            "resources.devices[0].host_path",
            'must be an absolute path, such as `/dev/fuse`, not "dev/a"',
        ),
        (
            "resources: {devices: [{host_path: /dev/a, container_path: /dev/b, mode: rwx}]}",
            "resources.devices[0].mode",
            'must be some of the letters r, w and m, each once, not "rwx"',
        ),
        (
            "resources: {devices: ['/dev/a:/dev/b:rr']}",
            "resources.devices[0]",
            'must be some of the letters r, w and m, each once, not "rr"',
        ),
        (
            "searcher: {name: single, metric: loss, source_trial_id: 15}",
            "searcher.source_trial_id",
            (
                "trials have ids here, such as `k3v9x2ab.4` (`rung show ID` lists them), and a"
                " trial of Determined cannot be continued, only loaded by the script; must be such"
                " an id, not 15"
            ),
        ),
        (
            "searcher: {name: single, metric: loss, source_trial_id: '15'}",
            "searcher.source_trial_id",
            (
                "trials have ids here, such as `k3v9x2ab.4` (`rung show ID` lists them), and a"
                " trial of Determined cannot be continued, only loaded by the script; must be such"
                ' an id, not "15"'
            ),
        ),
    ],
)
def test_what_determined_means_otherwise(field: str, path: str, message: str) -> None:
    """Each is refused with what to write."""
    text = PLAIN.replace("searcher: {name: single, metric: loss}\n", "")
    rest = "" if field.startswith("searcher") else "searcher: {name: single, metric: loss}\n"
    assert refused(f"{text}{rest}{field}\n") == {path: message}


def test_a_grid_counts_its_points() -> None:
    """An int's count is clamped to its integers, so this grid has 100,000 trials and no more."""
    head = "entrypoint: t\nsearcher: {name: grid, metric: m}\nhyperparameters:\n"
    space = (
        "  a: {type: int, minval: 1, maxval: 10, count: 1000000}\n"
        "  b: {c: {type: double, minval: 0, maxval: 1, count: 1000}}\n"
        "  d: {type: categorical, vals: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n"
    )
    given(head + space)
    problems = refused(head + space + "  e: {type: categorical, vals: [1, 2]}\n")
    assert "200,000" in problems["hyperparameters"] or "200000" in problems["hyperparameters"]


@pytest.mark.parametrize(
    "searcher",
    [
        "name: random, max_trials: 10000, max_concurrent_trials: 0",
        "name: random, max_trials: 10000, max_concurrent_trials: 50000",
        "name: random, max_trials: 1000000, max_concurrent_trials: 10000",
        "name: adaptive_asha, max_trials: 10000, max_concurrent_trials: 0, max_rungs: 100",
    ],
)
def test_ten_thousand_trials_may_train_at_once(searcher: str) -> None:
    """What counts is how many are asked for at once, not how many there are or might be."""
    given(f"entrypoint: t\nsearcher: {{metric: m, max_length: {{epochs: 9}}, {searcher}}}\n")


def test_the_expanded_file_expands_to_itself() -> None:
    """Reading an expanded configuration gives the same one, without warnings of its own."""
    text = RANDOM + (
        "labels: [a, b, a]\nhyperparameters: {x: {y: {type: int, minval: 0, maxval: 3}}, z: {}}\n"
        "environment: {environment_variables: [A=1], proxy_ports: [{proxy_port: 80}]}\n"
        "checkpoint_storage: {save_trial_latest: 3}\nlog_policies: [{name: a, action: {type:"
        " cancel_retries}}]\n"
    )
    once = given(text).expanded()
    again = load(json.dumps(once), today_seed=99)
    assert again.expanded() == once
    assert once["labels"] == ["a", "b"]


def test_an_expanded_file_is_an_independent_copy() -> None:
    """Changing what `expanded` returned changes neither the settings nor the next copy."""
    config = given(PLAIN + "data: {a: [1]}")
    config.expanded()["data"]["a"].append(2)
    assert config.expanded()["data"] == {"a": [1]}


def test_packing_code_does_not_build_the_models() -> None:
    """`rung submit` packs without pydantic, which takes a third of a second to get ready."""
    program = "import sys, rung.config.code_folder; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "\N{GRINNING FACE}",
        "\\\N{GRINNING FACE}\\",
        '"\N{GRINNING FACE}\N{GRINNING FACE}\n',
        "\\ud83d\\ude00",
    ],
)
def test_json_is_read_as_json(text: str) -> None:
    """Also where it escapes a character as a pair, as JSON's writers do."""
    fields = given(PLAIN).expanded() | {"description": text}
    assert given(json.dumps(fields)).expanded()["description"] == text


@pytest.mark.parametrize("lists", [47, 48])
def test_what_is_accepted_is_accepted_again_as_it_is_shown(lists: int) -> None:
    """A constant that was given without its type is nested a level deeper once it has one."""
    text = f"{PLAIN}hyperparameters: {{x: {'[' * lists}1{']' * lists}}}\n"
    if lists == 48:
        assert "nested more than 50 levels" in refused(text)["hyperparameters"]
        return
    once = given(text).expanded()
    assert given(json.dumps(once)).expanded() == once


@pytest.mark.parametrize(
    ("space", "path", "size"),
    [
        ("{a: 1, weights: %s}", "weights", "57,399"),
        ("{g: {a: 1, weights: {type: const, val: %s}}}", "g.weights", "57,399"),
        ("{weights: {type: categorical, vals: [1, %s]}}", "weights", "57,399"),
    ],
)
def test_hyperparameters_that_no_process_can_be_given(space: str, path: str, size: str) -> None:
    """They are refused at once, with the largest of them and its size."""
    values = json.dumps([number / 7 for number in range(1, 3400)], separators=(",", ":"))
    text = json.dumps("x" * 10_000)
    found = refused(PLAIN + f"hyperparameters: {{more: {text}, space: {space % values}}}")
    assert found == {
        f"hyperparameters.space.{path}": f"takes {size} bytes as JSON; all hyperparameters of a"
        " trial may take 65,536: put large values into a file beside the code"
    }


def test_many_choices_are_no_large_hyperparameter() -> None:
    """A trial gets one of them."""
    vals = json.dumps([str(number) * 20 for number in range(10_000)])
    given(RANDOM + f"hyperparameters: {{x: {{type: categorical, vals: {vals}}}}}")
