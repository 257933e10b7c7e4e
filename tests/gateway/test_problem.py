"""Errors: always a problem document, never the server's insides."""

import pytest
from structlog.testing import capture_logs

from gateway.conftest import EXPERIMENT_FILE, World
from rung.events import EventTooLarge, LedgerUnavailable
from rung.gateway.projections.read_models import ReadModels
from support.gateway.client import TOKEN, Client, check
from support.gateway.client import Answer as ClientAnswer
from support.gateway.scenario import submitted


async def test_unknown_path(client: Client) -> None:
    """404, in words."""
    for path in ("/nope", "/experiments/x/y/z", "/"):
        answer = await client.call("GET", path)
        assert (answer.status, answer.kind) == (404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/experiments", "GET, POST"),
        ("DELETE", "/experiments/x", "GET"),
        ("GET", "/experiments/x/pause", "POST"),
        ("POST", "/status", "GET"),
        ("HEAD", "/status", "GET"),
    ],
)
async def test_other_method(client: Client, method: str, path: str, allowed: str) -> None:
    """405, with the methods that the path takes."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{client.url}/api/v1{path}"
    async with client.session.request(method, url, headers=headers) as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, allowed)
        assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("query", "name", "words"),
    [
        ("limit=0", "limit", ">= 1"),
        ("limit=1001", "limit", "<= 1000"),
        ("limit=ten", "limit", "int"),
        ("limit=99999999999999999999999999", "limit", "int"),
        ("limit=1&limit=2", "limit", "twice"),
        ("limt=1", "limt", "did you mean limit?"),
        ("zzz=1", "zzz", "there are cursor, limit, state, label, name, actor"),
        ("state=gone", "state", "enum"),
        ("state=null", "state", "null"),
        ("cursor=%00", "cursor", "next_cursor"),
        ("cursor=abc", "cursor", "next_cursor"),
        ("cursor=W10", "cursor", "next_cursor"),
        ("cursor=MQ", "cursor", "next_cursor"),
        ("cursor=%C3%BC", "cursor", "next_cursor"),
        (f"cursor={'A' * 3000}", "cursor", "length"),
    ],
)
async def test_bad_parameter(world: World, query: str, name: str, words: str) -> None:
    """400, naming the parameter and what would be right."""
    await world.write(submitted())
    async with world.gateway() as client:
        answer = await client.call("GET", f"/experiments?{query}")

    assert (answer.status, answer.kind) == (400, "bad-parameter")
    assert answer.json["errors"][0]["path"] == name
    assert words in answer.json["detail"]


async def test_fault_is_answered_without_internals(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 says an incident number, under which the log has the traceback."""

    async def fail(models: ReadModels, selection: object) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(ReadModels, "experiments", fail)
    with capture_logs() as logs:
        answer = await client.call("GET", "/experiments")

    assert answer.status == 500
    assert b"secret" not in answer.body
    (entry,) = [it for it in logs if it["event"] == "failed"]
    assert entry["incident"] == answer.json["incident"]
    assert entry["exc_info"]


async def test_ledger_that_does_not_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of Rung's own that may pass is a 503 with Retry-After."""

    async def fail(models: ReadModels, selection: object) -> None:
        raise LedgerUnavailable("the ledger does not answer")

    monkeypatch.setattr(ReadModels, "experiments", fail)
    answer = await client.call("GET", "/experiments")

    assert (answer.status, answer.kind) == (503, "unavailable")
    assert answer.headers["retry-after"] == "2"


async def test_event_that_the_ledger_never_takes(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too large for a record is a 413 that nobody is told to send again."""

    async def refuse(drafts: object) -> list[int]:
        raise EventTooLarge("larger than the topic takes: raise its max.message.bytes")

    monkeypatch.setattr(world.ledger, "append", refuse)
    answer = await client.submit(EXPERIMENT_FILE)

    assert (answer.status, answer.kind) == (413, "too-large")
    assert "retry-after" not in answer.headers
    assert "max.message.bytes" in answer.json["detail"]


def test_client_of_these_tests_notices() -> None:
    """The check that all these tests go through fails on an answer that is not promised."""
    headers = {"content-type": "application/json", "x-content-type-options": "nosniff"}
    for status, body in ((204, b"{}"), (200, b'{"status": "bad"}')):
        with pytest.raises(Exception, match=r"healthz|bad"):
            check("GET", "/healthz", ClientAnswer(status, headers, body))
