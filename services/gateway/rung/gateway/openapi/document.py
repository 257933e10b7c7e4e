"""The OpenAPI 3.1 document, made from the routes and the records that they answer with."""

import functools
import re
from importlib.metadata import version
from typing import Any, Final

import msgspec

from rung.api import Health, ProblemDocument
from rung.gateway.openapi.example import example_of
from rung.gateway.problem import MEDIA_TYPE
from rung.gateway.requests.writes import HEADER, LENGTH_MAX
from rung.gateway.route import About, Route
from rung.gateway.routes import API, ROUTES

_REFERENCE: Final = "#/components/schemas/{name}"
_PARAMETERS: Final = {
    "experiment_id": "id of an experiment, or an unambiguous beginning of it",
    "trial_id": "EXPERIMENT.INDEX, such as k3f9x2ma.17",
    "checkpoint_id": "id of a checkpoint, or an unambiguous beginning of it",
    "pool": "name of a resource pool",
    "user": "id or name of a user",
    "account": "id or name of a service account",
    "group": "id or name of a group",
    "secret": "its id or its name",
    "template": "its id or its name",
    "search": "its id or its name",
    "policy": "its id or its name",
    "workspace": "id or name of a workspace",
    "project": "id of a project, or WORKSPACE/PROJECT with the slash as %2F",
    "assignment": "id of an assignment",
    "reader": "which component could not take a message",
    "topic": "where the message lies",
    "partition": "of the topic",
    "position": "in the partition",
    "token": "id of a token, or the name of one of your own",
    "webhook": "id or name of a webhook, or WORKSPACE/NAME with the slash as %2F",
    "delivery": "id of a delivery",
    "model": "id or name of a model, or WORKSPACE/NAME with the slash as %2F",
    "version": "number of a version, or `newest`",
}
_PLACES: Final[dict[About, str]] = {
    "cluster": "in the cluster",
    "workspace": "in the workspace that it is about",
    "experiment": "in the workspace of the experiment",
}
_REFUSED: Final = 400
_EXAMPLES: Final = {
    "text/event-stream": "event: logs\nid: 17\ndata: {}\n\n",
    "application/yaml": "name: digits\nentrypoint: python3 -m train\n",
    "application/x-tar": "(the bytes of a tar)",
    "application/gzip": "(the bytes of a tar.gz)",
    "application/octet-stream": "(the bytes of the file)",
    "text/plain": "(nothing: the address is in the header Location)",
}
"""Of what has no schema."""
_ALWAYS: Final = (400, 405, 408, 421, 431, 500, 503)
_MEANINGS: Final = {
    400: "A parameter, header or body that cannot be read; `errors` names it",
    401: "No token, or a wrong one",
    403: "A permission is lacking; the answer names it and the roles that have it",
    404: "There is no such thing",
    405: "The path takes other methods",
    408: "The request came too slowly, or not whole",
    409: "The state of things does not allow it, or an id is ambiguous",
    410: "It is deleted",
    412: "It was changed meanwhile",
    413: "Too large",
    415: "Another media type is expected",
    416: "The range lies outside of the file",
    421: "This server does not go by the name in the Host header",
    422: "Understood and refused; `errors` says where and why",
    429: "Too many requests of this token, or attempts; try again after Retry-After seconds",
    431: "The headers are too large in all",
    500: "A fault of the server; `incident` is in its log",
    503: "Not now; try again after the seconds in Retry-After",
}


def encode_openapi() -> bytes:
    """Return the document as JSON; it is made at the first call, which takes some 50 ms."""
    return _encoded()


@functools.cache
def _encoded() -> bytes:
    return msgspec.json.encode(make_openapi())


def make_openapi() -> dict[str, Any]:
    """Return the document."""
    answers = [route.answer for route in ROUTES if route.answer is not None]
    bodies = [route.body.record for route in ROUTES if route.body and route.body.record]
    records = list(dict.fromkeys([*answers, *bodies, ProblemDocument, Health]))
    _, schemas = msgspec.json.schema_components(records, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(API + route.path, {})[route.method.lower()] = _operation(route)
    _add_examples(paths, schemas)
    paths["/healthz"] = {"get": _health("show_health", "Whether it is well")}
    paths["/readyz"] = {"get": _health("show_readiness", "Whether it can be relied on now")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Rung",
            "version": version("rung"),
            "description": "A deep-learning training platform on a ledger of events. Errors are "
            "problem documents (RFC 9457); lists go on by `next_cursor`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token that `rung up` prints, that of `rung login`, or one "
                    "of `rung token create`; the page has a cookie in its place",
                }
            },
        },
    }


def _add_examples(paths: dict[str, dict[str, Any]], schemas: dict[str, Any]) -> None:
    """Add an example to each parameter, body and answer that says what it is."""
    for operation in (each for item in paths.values() for each in item.values()):
        for parameter in operation["parameters"]:
            parameter["example"] = example_of(parameter["schema"], schemas, parameter["name"])
        body = operation.get("requestBody", {"content": {}})["content"]
        answers = [
            answer["content"]
            for status, answer in operation["responses"].items()
            if int(status) < _REFUSED
        ]
        for media_type, content in (pair for it in (body, *answers) for pair in it.items()):
            given = _EXAMPLES.get(media_type)
            content["example"] = given or example_of(content["schema"], schemas)


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [route.path.split("/")[1]],
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_headers(route)],
        "responses": {str(route.status): _answer(route), **_also(route), **_problems(route)},
    }
    if route.body is not None:
        operation["requestBody"] = _body(route)
    if route.open:
        operation["security"] = []
    else:
        operation["x-rung-about"] = route.about
    if route.needs:
        operation["x-rung-permission"] = route.needs
        operation["description"] = (
            f"Needs the permission `{route.needs}` ({_PLACES[route.about]})."
        )
    return operation


def _health(name: str, summary: str) -> dict[str, Any]:
    schema = {"schema": {"$ref": _REFERENCE.format(name=Health.__name__)}}
    content = {"content": {"application/json": schema}}
    return {
        "operationId": name,
        "summary": summary,
        "tags": ["healthz"],
        "security": [],
        "responses": {
            "200": {"description": "OK", **content},
            "503": {"description": "Service Unavailable", **content},
        },
    }


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PARAMETERS[name],
            "schema": {"type": "string"},
        }
        for name in re.findall(r"{(\w+)}", route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    (_,), schemas = msgspec.json.schema_components([route.query], ref_template=_REFERENCE)
    fields: dict[str, Any] = schemas[route.query.__name__].get("properties", {})
    needed: list[str] = schemas[route.query.__name__].get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in needed,
            "description": _description(schema),
            "schema": _without_null(schema),
        }
        for name, schema in fields.items()
    ]


def _description(schema: dict[str, Any]) -> str:
    for part in (schema, *schema.get("anyOf", [])):
        if "description" in part:
            return str(part["description"])
    return ""


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that is absent rather than null."""
    kept = [part for part in schema.get("anyOf", []) if part != {"type": "null"}]
    if len(kept) == 1:
        return {name: value for name, value in kept[0].items() if name != "description"}
    cleaned = {name: value for name, value in schema.items() if name != "description"}
    if None in cleaned.get("enum", []):
        cleaned["enum"] = [value for value in cleaned["enum"] if value is not None]
        if cleaned.get("default", ...) is None:
            del cleaned["default"]
    return cleaned


def _headers(route: Route) -> list[dict[str, Any]]:
    headers = []
    if route.idempotent:
        headers.append(
            _header(
                HEADER,
                "sent again with the same key, the request is done once",
                LENGTH_MAX,
                "^[!-~]+$",
            )
        )
    if route.media_type == "text/event-stream":
        position = "^[0-9]+([.][0-9]+)*$"
        headers.append(
            _header("Last-Event-ID", "go on behind the event with this id", 2_000, position)
        )
    return headers


def _header(name: str, description: str, most: int, pattern: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": most, "pattern": pattern}
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": schema,
    }


def _body(route: Route) -> dict[str, Any]:
    assert route.body is not None, route
    if route.body.record is not None:
        reference = {"$ref": _REFERENCE.format(name=route.body.record.__name__)}
        return {"required": True, "content": {route.body.media_type: {"schema": reference}}}
    if not route.body.parts:
        return {"required": True, "content": {route.body.media_type: {"schema": {}}}}
    schema = {
        "type": "object",
        "required": list(route.body.required),
        "additionalProperties": False,
        "properties": {
            name: {"description": text, "type": "string", "contentMediaType": "application/gzip"}
            if name == "code"
            else {"description": text, "type": "string"}
            for name, text in route.body.parts.items()
        },
    }
    return {"required": True, "content": {route.body.media_type: {"schema": schema}}}


def _answer(route: Route) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if route.answer is not None:
        schema = {"$ref": _REFERENCE.format(name=route.answer.__name__)}
    elif route.media_type == "application/json":
        schema = {"type": "object"}
    return {"description": route.summary, "content": {route.media_type: {"schema": schema}}}


def _also(route: Route) -> dict[str, Any]:
    schema = {"type": "object"} if route.media_type == "application/json" else {}
    content: dict[str, Any] = {route.media_type: {"schema": schema}}
    return {
        str(status): {"description": text, "content": content}
        for status, text in route.also.items()
    }


def _problems(route: Route) -> dict[str, Any]:
    statuses = {*_ALWAYS, *route.problems, *(() if route.open else (401, 403, 429))}
    if "_id}" in route.path:
        statuses.add(410)
    reference = {"$ref": _REFERENCE.format(name=ProblemDocument.__name__)}
    return {
        str(status): {
            "description": _MEANINGS[status],
            "content": {MEDIA_TYPE: {"schema": reference}},
        }
        for status in sorted(statuses)
    }
