"""The experiment file's JSON Schema, for editors."""

from typing import Any, Final

from rung.config.sections.experiment import Experiment

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12).

    It knows fields, types, limits, defaults and descriptions. What only `load` can tell (one
    field against another, the size of a grid) it lets pass.
    """
    schema = Experiment.model_json_schema()
    return {
        "$schema": DIALECT,
        "title": "Rung experiment file",
        **{key: value for key, value in schema.items() if key != "title"},
    }
