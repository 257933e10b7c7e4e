"""A client that holds every answer to the OpenAPI document."""

import functools
import io
import json
import re
from typing import Any, NamedTuple

import aiohttp
from jsonschema import Draft202012Validator

from rung.gateway.openapi.document import encode_openapi

TOKEN = "the-token-of-the-tests"  # noqa: S105 - not a secret
SECRETS_KEY = "a-secret-of-the-tests-that-is-long-enough"


@functools.cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document as a client gets it."""
    found: dict[str, Any] = json.loads(encode_openapi())
    return found


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def kind(self) -> str:
        """The problem's type, without what all types begin with."""
        return str(self.json["type"]).removeprefix("urn:rung:problem:")


class Client:
    """Speaks to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        """Send a request to a path below /api/v1, and check the answer against the document."""
        options.setdefault("headers", {}).setdefault("Authorization", f"Bearer {TOKEN}")
        url = self.url + (path if path in {"/healthz", "/readyz"} else "/api/v1" + path)
        async with self.session.request(method, url, **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            answer = Answer(response.status, headers, await response.read())
            check(method, response.url.raw_path, answer)
        return answer

    async def get(self, path: str, **options: Any) -> Any:
        """Return the JSON that a GET is answered with."""
        answer = await self.call("GET", path, **options)
        assert answer.status == 200, answer
        return answer.json

    async def submit(
        self, text: str, *, code: bytes | None = None, key: str | None = None, query: str = ""
    ) -> Answer:
        """Submit an experiment file."""
        form = aiohttp.FormData()
        form.add_field("config", text, filename="experiment.yaml")
        if code is not None:
            form.add_field("code", io.BytesIO(code), filename="code.tar.gz")
        headers = {"Idempotency-Key": key} if key else {}
        return await self.call("POST", f"/experiments{query}", data=form, headers=headers)


def check(method: str, path: str, answer: Answer) -> None:
    """Hold an answer to the document.

    Raises:
        AssertionError: the document does not promise it.
    """
    operation = _operation(method, path)
    media_type = answer.headers["content-type"].split(";")[0]
    if operation is None:
        assert answer.status in {401, 404, 405, 421}, (method, path, answer)
        content = {"application/problem+json": _problem_schema()}
    else:
        assert str(answer.status) in operation["responses"], (method, path, answer)
        found = operation["responses"][str(answer.status)]["content"]
        content = {name: value["schema"] for name, value in found.items()}
    assert media_type in content, (method, path, answer)
    assert answer.headers["x-content-type-options"] == "nosniff"
    if media_type.endswith("json"):
        _validator(json.dumps(content[media_type])).validate(answer.json)
    if media_type == "application/problem+json":
        assert answer.json["status"] == answer.status
        assert "Traceback" not in answer.json["detail"]


def _operation(method: str, path: str) -> dict[str, Any] | None:
    matching = [
        (template.count("{"), item[method.lower()])
        for template, item in document()["paths"].items()
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path) and method.lower() in item
    ]
    return min(matching, key=lambda pair: pair[0])[1] if matching else None


def _problem_schema() -> dict[str, Any]:
    return {"$ref": "#/components/schemas/ProblemDocument"}


@functools.cache
def _validator(schema: str) -> Draft202012Validator:
    whole = {**json.loads(schema), "components": document()["components"]}
    return Draft202012Validator(whole)
