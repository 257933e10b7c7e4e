"""`/api/v1` does not break: the served document against the recorded one."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.gateway.client import document
from support.gateway.compatibility import breaks

_RECORDED = Path(__file__).parents[2] / "docs" / "openapi-v1.json"


def test_nothing_that_was_promised_is_broken() -> None:
    """What a client of the recorded document sends is taken, and what it reads is there."""
    assert breaks(json.loads(_RECORDED.read_text()), document()) == []


def _small() -> Any:
    name, thing = {"type": "string", "maxLength": 9}, {"$ref": "#/c/s/Thing"}
    return {
        "paths": {
            "/things": {
                "post": {
                    "operationId": "make_thing",
                    "parameters": [
                        {"name": "limit", "in": "query", "required": False,
                         "schema": {"type": "integer", "minimum": 1, "maximum": 9}},
                        {"name": "order", "in": "query", "required": False,
                         "schema": {"enum": ["up", "down"]}},
                    ],
                    "requestBody": {
                        "required": False,
                        "content": {"application/json": {"schema": {"$ref": "#/c/s/Wanted"}}},
                    },
                    "responses": {
                        "201": {"content": {"application/json": {"schema": thing}}},
                        "404": {"content": {}},
                    },
                }
            }
        },
        "components": {
            "schemas": {
                "Wanted": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": name,
                        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    },
                },
                "Thing": {
                    "type": "object",
                    "required": ["id", "parts"],
                    "properties": {
                        "id": {"type": "string"},
                        "parts": {"type": "array", "items": {"$ref": "#/c/s/Thing"}},
                        "note": {"type": "string"},
                        "state": {"enum": ["on"]},
                    },
                },
            }
        },
    }  # fmt: skip


def _post(it: Any) -> Any:
    return it["paths"]["/things"]["post"]


def _schema(it: Any, name: str) -> Any:
    return it["components"]["schemas"][name]


def _new_parameter(it: Any) -> None:
    parameter = {"name": "new", "in": "query", "required": True, "schema": {"type": "string"}}
    _post(it)["parameters"].append(parameter)


def _removed_status(it: Any) -> None:
    _post(it)["responses"]["202"] = _post(it)["responses"].pop("201")


BREAKS: list[tuple[str, Callable[[Any], object]]] = [
    ("is removed", lambda it: it["paths"].clear()),
    ("is called create", lambda it: _post(it).update(operationId="create")),
    ("answers no 201", _removed_status),
    ("is no application/json", lambda it: _post(it)["responses"]["201"]["content"].clear()),
    ("201.note is removed", lambda it: _schema(it, "Thing")["properties"].pop("note")),
    ("201.id is removed", lambda it: _schema(it, "Thing")["properties"].pop("id")),
    ("201.id may be missing", lambda it: _schema(it, "Thing")["required"].remove("id")),
    (
        "201.id: integer is new",
        lambda it: _schema(it, "Thing")["properties"].update(id={"type": "integer"}),
    ),
    (
        "201.id: null is new",
        lambda it: _schema(it, "Thing")["properties"].update(
            id={"anyOf": [{"type": "string"}, {"type": "null"}]}
        ),
    ),
    (
        "201.parts[]: string is new",
        lambda it: _schema(it, "Thing")["properties"]["parts"].update(items={"type": "string"}),
    ),
    ("limit is removed", lambda it: _post(it)["parameters"].pop(0)),
    ("limit is required", lambda it: _post(it)["parameters"][0].update(required=True)),
    ("new is new and required", _new_parameter),
    ("maximum is 5", lambda it: _post(it)["parameters"][0]["schema"].update(maximum=5)),
    ("minimum is 2", lambda it: _post(it)["parameters"][0]["schema"].update(minimum=2)),
    ("integer is refused", lambda it: _post(it)["parameters"][0].update(schema={"type": "null"})),
    ("'down' is refused", lambda it: _post(it)["parameters"][1]["schema"]["enum"].remove("down")),
    ("the body is required", lambda it: _post(it)["requestBody"].update(required=True)),
    ("takes no body", lambda it: _post(it).pop("requestBody")),
    ("takes no application/json", lambda it: _post(it)["requestBody"]["content"].clear()),
    ("body.size is required", lambda it: _schema(it, "Wanted")["required"].append("size")),
    ("body.size is removed", lambda it: _schema(it, "Wanted")["properties"].pop("size")),
    (
        "body.size: null is refused",
        lambda it: _schema(it, "Wanted")["properties"].update(size={"type": "integer"}),
    ),
    (
        "maxLength is 3",
        lambda it: _schema(it, "Wanted")["properties"]["name"].update(maxLength=3),
    ),
    (
        "must match ^a",
        lambda it: _schema(it, "Wanted")["properties"]["name"].update(pattern="^a"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "change"), BREAKS, ids=[said for said, _ in BREAKS])
def test_a_break_is_found(said: str, change: Callable[[Any], object]) -> None:
    """Each kind of change that a client notices is named, with its place."""
    new = _small()
    change(new)
    found = breaks(_small(), new)

    assert any(said in each for each in found), found


def test_a_new_body_that_is_required_is_found() -> None:
    """Where none was sent, none may be needed."""
    old = _small()
    del _post(old)["requestBody"]
    new = _small()
    _post(new)["requestBody"]["required"] = True

    assert breaks(old, new) == ["POST /things: a body is new and required"]


def test_additions_break_nothing() -> None:
    """New operations, answer fields, optional inputs, wider limits and further states may come."""
    new = _small()
    new["paths"]["/others"] = copy.deepcopy(new["paths"]["/things"])
    _schema(new, "Thing")["properties"]["more"] = {"type": "string"}
    _schema(new, "Thing")["required"].append("note")
    _schema(new, "Thing")["properties"]["state"]["enum"].append("off")
    _schema(new, "Wanted")["properties"]["more"] = {"type": "string"}
    _schema(new, "Wanted")["properties"]["name"]["maxLength"] = 99
    _post(new)["parameters"][0]["schema"] = {"type": "integer"}
    more = {"name": "more", "in": "query", "required": False, "schema": {"type": "string"}}
    _post(new)["parameters"].append(more)

    assert breaks(_small(), new) == []


def _examples() -> list[Any]:
    found = []
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            name = f"{method} {path}"
            contents = [
                operation.get("requestBody", {"content": {}})["content"],
                *(it["content"] for at, it in operation["responses"].items() if int(at) < 400),
            ]
            if path.startswith("/api/"):
                found += [
                    pytest.param(it, id=f"{name} {it['name']}") for it in operation["parameters"]
                ]
                found += [
                    pytest.param(it, id=f"{name} {kind}")
                    for content in contents
                    for kind, it in content.items()
                ]
    return found  # fmt: skip


@pytest.mark.parametrize("part", _examples())
def test_every_part_of_an_operation_has_a_valid_example(part: Any) -> None:
    """Each parameter, body and answer has one, and it is a value of its schema."""
    assert part["example"] is not None
    schema = {**part["schema"], "components": document()["components"]}
    Draft202012Validator(schema).validate(part["example"])
