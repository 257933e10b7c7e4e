"""The OpenAPI document is valid, and says what the code does: no route more, none less."""

import re
from pathlib import Path

from aiohttp import web
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from rung.gateway import make_app
from rung.gateway.routes import ROUTES
from rung.ledger import MemoryLedger
from rung.storage import FolderStore
from support.gateway.client import TOKEN, Client, document


def test_document_is_valid() -> None:
    """It is OpenAPI 3.1."""
    validate(document(), cls=OpenAPIV31SpecValidator)


async def test_document_has_every_route_and_no_other(tmp_path: Path) -> None:
    """What the router knows below /api, /healthz and /readyz is what the document lists."""
    app = make_app(MemoryLedger(), FolderStore(tmp_path), token=TOKEN)
    served = {
        (route.method, resource.canonical)
        for resource in app.router.resources()
        if isinstance(resource, web.Resource) and "path:" not in str(resource.get_info())
        for route in resource
        if resource.canonical.startswith(("/api/", "/healthz", "/readyz"))
    }
    described = {
        (method.upper(), path) for path, item in document()["paths"].items() for method in item
    }

    assert described == served


def test_operations_are_named_once() -> None:
    """Every operation has an id of its own, which clients are generated from."""
    names = [route.name for route in ROUTES]

    assert sorted(set(names)) == sorted(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


def test_parameters_carry_their_limits() -> None:
    """A query parameter's schema has no null, and keeps limits and choices."""
    operation = document()["paths"]["/api/v1/experiments"]["get"]
    schemas = {it["name"]: it["schema"] for it in operation["parameters"]}

    assert schemas["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}
    assert schemas["label"]["type"] == "string"
    assert "paused" in schemas["state"]["enum"]
    assert all(it["description"] for it in operation["parameters"])


async def test_documents_want_no_token(client: Client) -> None:
    """The OpenAPI document and the schema of the experiment file are open to all."""
    for path in ("/openapi.json", "/schema/experiment.json"):
        answer = await client.call("GET", path, headers={"Authorization": ""})
        assert answer.status == 200

    assert (await client.get("/openapi.json")) == document()
    assert "searcher" in (await client.get("/schema/experiment.json"))["properties"]
