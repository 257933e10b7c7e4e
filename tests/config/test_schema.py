"""The JSON Schema for editors, against files that `load` accepts and refuses."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator

from rung.config import InvalidExperimentFile, json_schema, load
from rung.config.yaml import document

FILES: Final = sorted((Path(__file__).parent / "files").glob("*.yaml"))
PLAIN: Final = {"entrypoint": "t", "searcher": {"name": "random", "metric": "m", "max_trials": 1}}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    """Return the schema, ready to validate."""
    return Draft202012Validator(json_schema())


def test_it_is_a_schema() -> None:
    """The document is valid JSON Schema 2020-12 and survives JSON."""
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_field_is_described() -> None:
    """An editor has something to say about each field."""
    schema = json_schema()
    for name, section in {"": schema, **schema["$defs"]}.items():
        for field, facts in section.get("properties", {}).items():
            described = "description" in facts or "$ref" in json.dumps(facts)
            assert described or field in {"type", "name"}, f"{name}.{field}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_as_users_bring_them(path: Path, validator: Draft202012Validator) -> None:
    """Each is accepted by `load` and by the schema, and so is what it expands to."""
    text = path.read_text()
    validator.validate(document.read(text).tree)
    expanded = load(text, today_seed=1).expanded()
    validator.validate(expanded)
    assert load(yaml.safe_dump(expanded), today_seed=2).expanded() == expanded


@pytest.mark.parametrize(
    "change",
    [
        {"serch": 1},
        {"max_restarts": "5"},
        {"max_restarts": -1},
        {"labels": [1]},
        {"searcher": {"name": "adaptive"}},
        {"searcher": {"name": "random", "metric": "m"}},
        {"searcher": {"name": "random", "metric": "m", "max_trials": 1, "mode": "standard"}},
        {"hyperparameters": {"x": {"type": "normal"}}},
        {"hyperparameters": {"x": {"type": "int", "minval": 1}}},
        {"hyperparameters": {"x": {"type": "categorical", "vals": []}}},
        {"resources": {"priority": 100}},
        {"min_validation_period": {"batches": 1, "epochs": 1}},
        {"checkpoint_storage": {"type": "s3"}},
        {"internal": {}},
    ],
    ids=json.dumps,
)
def test_both_refuse(change: dict[str, Any], validator: Draft202012Validator) -> None:
    """What a schema can tell, it tells as `load` does."""
    tree = PLAIN | change
    assert not validator.is_valid(tree)
    with pytest.raises(InvalidExperimentFile):
        load(json.dumps(tree), today_seed=1)


def test_null_is_fine_wherever_a_default_is(validator: Draft202012Validator) -> None:
    """Fields that may be absent may be null."""
    validator.validate(PLAIN | {"max_restarts": None, "resources": {"priority": None}})
