"""Holds the models to the facts about Determined's experiment configuration, field by field."""

import functools
import json
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rung.config import unsupported
from rung.config.sections import environment, experiment, hyperparameter, log_policy, storage
from rung.config.sections.resources import Device, Resources
from rung.config.sections.searcher import SECTIONS
from rung.config.sections.section import Section

FACTS: Final[dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "expconf_v0.json").read_text()
)["schemas"]

MODELS: Final[dict[str, type[Section]]] = {
    "azure": storage.Azure,
    "bind-mount": unsupported.BindMount,
    "device": Device,
    "directory": storage.Directory,
    "environment": environment.Environment,
    "environment-image-map": environment.EnvironmentImage,
    "environment-variables-map": environment.EnvironmentVariables,
    "experiment": experiment.Experiment,
    "gcs": storage.Gcs,
    "hpc-cluster-pbs": unsupported.Pbs,
    "hpc-cluster-slurm": unsupported.Slurm,
    "hyperparameter-categorical": hyperparameter.Categorical,
    "hyperparameter-const": hyperparameter.Const,
    "hyperparameter-double": hyperparameter.Double,
    "hyperparameter-int": hyperparameter.Int,
    "hyperparameter-log": hyperparameter.Log,
    "integrations": unsupported.Integrations,
    "kerberos": unsupported.Kerberos,
    "log-legacy-action-cancel-retries": log_policy.LegacyLogAction,
    "log-legacy-action-exclude-node": log_policy.LegacyLogAction,
    "log-policy": log_policy.LogPolicy,
    "optimizations": unsupported.Optimizations,
    "pachyderm": unsupported.Pachyderm,
    "pachyderm-dataset": unsupported.PachydermDataset,
    "pachyderm-pachd": unsupported.PachydermPachd,
    "pachyderm-proxy": unsupported.PachydermProxy,
    "profiling": unsupported.Profiling,
    "proxy-port": environment.ProxyPort,
    "registry-auth": environment.RegistryAuth,
    "reproducibility": experiment.Reproducibility,
    "resources": Resources,
    "retention-policy": unsupported.RetentionPolicy,
    "s3": storage.S3,
    "searcher-adaptive-asha": SECTIONS["adaptive_asha"],
    "searcher-async-halving": SECTIONS["async_halving"],
    "searcher-grid": SECTIONS["grid"],
    "searcher-random": SECTIONS["random"],
    "searcher-single": SECTIONS["single"],
    "security": unsupported.Security,
    "shared-fs": storage.SharedFs,
    "webhooks": unsupported.Webhooks,
}

OUR_FIELDS: Final = {
    # What Determined has a launcher's command line for, and what it has nothing for.
    "experiment": {"distributed", "hang_timeout", "logs", "secrets"},
    # A budget.
    "resources": {"max_slot_hours"},
    # Bit for bit on GPUs, too; and without the private interfaces of frameworks.
    "reproducibility": {"deterministic", "exact", "first_trial", "continue_source"},
    # How long a trial trains is said in one way by every method.
    "searcher-grid": {"max_time", "time_metric"},
    "searcher-random": {"max_time", "time_metric"},
    "searcher-single": {"max_time", "time_metric"},
}
RENAMED: Final = {
    # `gpu` is read as `cuda`, its newer name, before the model sees it.
    ("environment-image-map", "gpu"),
    ("environment-variables-map", "gpu"),
}
OUR_DEFAULTS: Final[dict[tuple[str, str], Any]] = {
    # Determined's cluster fills these in later; here the platform is the cluster.
    ("experiment", "checkpoint_storage"): {
        "type": "default",
        "save_experiment_best": 0,
        "save_trial_best": 1,
        "save_trial_latest": 1,
    },
    # Determined validates and checkpoints only where the search asks for it.
    ("experiment", "min_validation_period"): None,
    ("experiment", "min_checkpoint_period"): None,
    ("resources", "priority"): 42,
    ("resources", "resource_pool"): "default",
    # Determined 0.38 has stopping ASHA only.
    ("searcher-adaptive-asha", "stop_once"): True,
    ("searcher-async-halving", "stop_once"): True,
}
OUR_LIMITS: Final = {
    # Enough for anybody, and small enough to be a slip's end.
    ("searcher-adaptive-asha", "max_trials"): {"maximum": 1_000_000},
    ("searcher-async-halving", "max_trials"): {"maximum": 1_000_000},
    ("searcher-random", "max_trials"): {"maximum": 1_000_000},
    ("searcher-async-halving", "num_rungs"): {"maximum": 100},
    ("searcher-adaptive-asha", "max_rungs"): {"maximum": 100},
    ("searcher-adaptive-asha", "divisor"): {"maximum": 1_000_000},
    ("searcher-async-halving", "divisor"): {"maximum": 1_000_000},
    # Documented by Determined, unchecked in its schema.
    ("reproducibility", "experiment_seed"): {"maximum": 2**31 - 1},
    ("searcher-adaptive-asha", "max_time"): {"minimum": 1},
    ("searcher-async-halving", "max_time"): {"minimum": 1},
    # Of no use below these.
    ("resources", "max_slots"): {"minimum": 1},
    ("experiment", "preemption_timeout"): {"minimum": 0},
}
LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum")

FIELDS: Final = [
    (name, field)
    for name, facts in FACTS.items()
    for field in facts["fields"]
    if (name, field) not in RENAMED
]


@functools.cache
def _whole(name: str) -> dict[str, Any]:
    return MODELS[name].model_json_schema()


def _schema_of(name: str, field: str) -> dict[str, Any]:
    schema = _whole(name)
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    found: dict[str, Any] = schema["properties"][field]
    return found


def _numbers(schema: dict[str, Any]) -> list[dict[str, Any]]:
    options = schema.get("anyOf", [schema])
    return [option for option in options if option.get("type") in ("integer", "number")]


def test_every_schema_has_a_model() -> None:
    """No section of Determined's file is left out."""
    assert set(FACTS) == set(MODELS)


@pytest.mark.parametrize("name", FACTS)
def test_the_fields_are_the_same(name: str) -> None:
    """Each section has exactly the fields that Determined's has, and ours that are listed."""
    theirs = {field for field in FACTS[name]["fields"] if (name, field) not in RENAMED}
    assert set(MODELS[name].model_fields) == theirs | OUR_FIELDS.get(name, set())


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_defaults_are_the_same(name: str, field: str) -> None:
    """A field that is not given has Determined's default, or ours that is listed."""
    facts = FACTS[name]
    ours = MODELS[name].model_fields[field]
    if ours.is_required():
        must = field in facts["required"] or (name, field) == ("experiment", "entrypoint")
        assert must, "required here and not there"
        return
    default = ours.get_default(call_default_factory=True, validated_data={})
    assert default is not PydanticUndefined
    plain = default.model_dump() if isinstance(default, BaseModel) else default
    if (name, field) in OUR_DEFAULTS:
        assert plain == OUR_DEFAULTS[name, field]
    elif facts["fields"][field].get("default") in ({}, []) and isinstance(default, BaseModel):
        assert default == type(default).model_validate({})
    else:
        assert plain == facts["fields"][field].get("default")


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_limits_are_the_same(name: str, field: str) -> None:
    """A number has Determined's limits, and ours that are listed."""
    facts = FACTS[name]["fields"][field]
    wanted = {limit: facts[limit] for limit in LIMITS if limit in facts}
    wanted |= OUR_LIMITS.get((name, field), {})
    for option in _numbers(_schema_of(name, field)):
        if field != "max_length":
            assert {limit: option[limit] for limit in LIMITS if limit in option} == wanted


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_choices_are_the_same(name: str, field: str) -> None:
    """A field with a closed list of values has Determined's."""
    facts = FACTS[name]["fields"][field]
    if "enum" in facts:
        [option] = [found for found in _schema_of(name, field)["anyOf"] if "enum" in found]
        assert sorted(option["enum"]) == sorted(value for value in facts["enum"] if value)
    elif "const" in facts:
        schema = _schema_of(name, field)
        assert facts["const"] in [schema.get("const"), *schema.get("enum", [])]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_types_are_the_same(name: str, field: str) -> None:
    """A field takes the JSON types that Determined's takes, except where only ids differ."""
    if (name, field) in {
        ("searcher-adaptive-asha", "source_trial_id"),
        ("searcher-async-halving", "source_trial_id"),
        ("searcher-grid", "source_trial_id"),
        ("searcher-random", "source_trial_id"),
        ("searcher-single", "source_trial_id"),
    }:
        return  # Determined numbers its trials; here they have names
    theirs = FACTS[name]["fields"][field].get("type", [])
    wanted = {theirs} if isinstance(theirs, str) else set(theirs)
    if not wanted:
        return
    whole = _whole(name)
    ours = _types(_schema_of(name, field), whole.get("$defs", {}))
    if field not in whole.get("required", []):
        ours |= {"null"}
    assert wanted - {"null"} <= ours


def _types(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _types(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    options = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])]
    if options:
        return set().union(*(_types(option, definitions) for option in options))
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)
