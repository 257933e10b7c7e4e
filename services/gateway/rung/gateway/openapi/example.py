"""Examples of the OpenAPI document: a value for each parameter, body and answer, by its schema.

What a field is called says what it looks like (`_VALUES`); the rest follows from its type and its
limits. So a new operation has an example as soon as it is in the table of routes.
"""

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

_TIME: Final = "2026-01-31T12:00:00.000Z"
_ID: Final = "k3f9x2ma"
_TRIAL: Final = f"{_ID}.17"
_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_FILE: Final = """\
name: digits
entrypoint: python3 -m train
searcher: {name: single, metric: error, max_length: {epochs: 4}}
"""
_VALUES: Final[dict[str, Any]] = {
    "Idempotency-Key": "5f0c2b1e-7a55-4a4b-9d0e-2f6a6c1b7d11",
    "Last-Event-ID": "4.0.17.2",
    "actor": "admin",
    "agent": "gpu-node-1",
    "agent_id": "gpu-node-1",
    "allocation_id": f"{_TRIAL}.1",
    "before": "2026-01-31T12:00:00Z",
    "checkpoint_id": f"{_TRIAL}.1.1600",
    "code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
    "code_digest": _DIGEST,
    "code_verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "config": _FILE,
    "cursor": "WyJrM2Y5eDJtYSJd",
    "detail": "experiment k3f9x2ma has ended (completed); it cannot be paused",
    "did": f"killed trial {_TRIAL}",
    "digest": _DIGEST,
    "error": "error",
    "experiment": _ID,
    "experiment_id": _ID,
    "filter": "state:errored older:30d",
    "hostname": "gpu-node-1",
    "id": _ID,
    "index": "3,17",
    "instance": f"/api/v1/experiments/{_ID}/pause",
    "key": _ID,
    "last_event_id": "4.0.17.2",
    "ledger_id": "0d3c0d0e-5d6b-4b0e-8a52-3c0f6f0b9c55",
    "message": "must be at least 1",
    "method": "adaptive_asha",
    "metric": "error",
    "name": "digits",
    "label": "vision",
    "on_behalf_of": "u7k2m9xq",
    "project": "digits",
    "reason": "trained to its length",
    "time_metric": "epochs",
    "url": "http://127.0.0.1:8080",
    "nonce": "n-0S6_WzA2Mj-kd92hYw1Qxz",
    "state": "af0ifjsldkj-7Yp2qLw0VbRt",
    "next_cursor": "WyJrM2Y5eDJtYSJd",
    "parent": "h7w2pq4c",
    "partition": 0,
    "path": "searcher.max_trials",
    "policy": "priority",
    "pool": "default",
    "position": 17,
    "q": "resnet 0.1",
    "reader": "gateway",
    "since": "7d",
    "source": _FILE,
    "status": 409,
    "subject": _TRIAL,
    "text": "epoch 3: error 0.125",
    "title": "Conflict",
    "to": "gpu-node-2",
    "topic": "experiments",
    "trial_id": _TRIAL,
    "type": "rung.trial.kill_requested.v1",
    "until": "2026-01-31T12:00:00Z",
    "version": "1.0",
    "what": "trial.kill",
    "who": "admin",
    "workspace": "default",
}
"""By the name of a field or parameter; where its schema takes no such value, it goes by that."""


def example_of(
    schema: Schema, schemas: Mapping[str, Schema], name: str = "", within: tuple[str, ...] = ()
) -> Any:
    """Return a value of a schema.

    Args:
        schema: of JSON Schema as msgspec makes it.
        schemas: what it refers to, by name.
        name: of the field or parameter.
        within: the records that it is a part of.
    """
    if "$ref" in schema:
        record = str(schema["$ref"]).rpartition("/")[2]
        if record in within:
            return None
        return example_of(schemas[record], schemas, name, (*within, record))
    choices = schema.get("anyOf")
    if choices is not None:
        found = [it for it in choices if it != {"type": "null"}]
        values = [example_of(it, schemas, name, within) for it in found]
        return next((it for it in values if it is not None), None)
    if "enum" in schema:
        given = _VALUES.get(name)
        return given if given in schema["enum"] else schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    return _of_type(schema, schemas, name, within)


def _of_type(  # noqa: PLR0911 - a case for each type
    schema: Schema, schemas: Mapping[str, Schema], name: str, within: tuple[str, ...]
) -> Any:
    match schema.get("type"):
        case "object":
            return _object(schema, schemas, within)
        case "array":
            return _array(schema, schemas, name, within)
        case "string":
            return _text(schema, name)
        case "integer":
            given = _VALUES.get(name)
            return given if type(given) is int else _number(schema, 1)
        case "number":
            return _number(schema, 0.125)
        case "boolean":
            return bool(schema.get("default", True))
        case _:
            return _VALUES.get(name)


def _object(schema: Schema, schemas: Mapping[str, Schema], within: tuple[str, ...]) -> Any:
    found = {
        name: example_of(part, schemas, name, within)
        for name, part in schema.get("properties", {}).items()
    }
    if found:
        return found
    more = schema.get("additionalProperties")
    return {"error": example_of(more, schemas, "error", within)} if more else {}


def _array(
    schema: Schema, schemas: Mapping[str, Schema], name: str, within: tuple[str, ...]
) -> Any:
    if "prefixItems" in schema:
        return [example_of(part, schemas, name, within) for part in schema["prefixItems"]]
    part = schema.get("items") or {}
    item = example_of(part, schemas, name.removesuffix("s"), within) if part else None
    least = int(schema.get("minItems", 1))
    return [] if item is None else [item] * max(1, least)


def _text(schema: Schema, name: str) -> str:
    given = _VALUES.get(name)
    if name in {"at", "since", "until"} or name.endswith("_at"):
        given = given or _TIME
    if name.endswith(("digest", "sha256")):
        given = _DIGEST
    text = given if isinstance(given, str) else str(schema.get("default") or name or "text")
    return text[: int(schema.get("maxLength", len(text)))]


def _number(schema: Schema, usual: float) -> float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", usual - 1))
    most = schema.get("maximum", usual)
    given = schema.get("default")
    return given if isinstance(given, int | float) else min(max(usual, least), most)
