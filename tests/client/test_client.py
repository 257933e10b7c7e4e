"""The client, against a server that misbehaves as told."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from rung import client as client_package
from rung.client import (
    AsyncClient,
    Client,
    ClientError,
    Conflict,
    Forbidden,
    Invalid,
    Location,
    NotFound,
    ServerFailed,
    Unauthorized,
    Unreachable,
)
from rung.client import (
    _transport as transport,
)
from rung.config.code_folder import InvalidCode
from rung.gateway.requests.after import token_of
from support import recorded_answers
from support.scripted_server import TOKEN, Answer, Scripted, json_answer, problem

DROPPED = Answer(drop=True, body=b"")
SUBMITTED = {"experiment_id": "k3v9x2ab", "url": "/api/v1/experiments/k3v9x2ab", "warnings": []}


@contextlib.asynccontextmanager
async def connected(server: Scripted, patience_s: float = 5.0) -> AsyncIterator[AsyncClient]:
    """Return a client of the server."""
    async with AsyncClient(server.url, TOKEN, patience_s=patience_s) as client:
        yield client


async def test_a_broken_connection_is_tried_again(server: Scripted) -> None:
    """A request whose connection breaks is sent again, with the same key and body."""
    server.on("POST /experiments", DROPPED, DROPPED, json_answer(SUBMITTED, 201))
    async with connected(server) as client:
        submitted = await client.submit("name: x", b"code")
    assert submitted.experiment_id == "k3v9x2ab"
    requests = server.requested("/experiments")
    assert len(requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in requests}) == 1
    assert all(b"name: x" in request.body and b"code" in request.body for request in requests)


async def test_a_folder_is_packed(server: Scripted, tmp_path: Path) -> None:
    """The warnings list what is left out; links that leave it are followed if asked."""
    code = tmp_path / "code"
    code.mkdir()
    (tmp_path / "train.py").write_text("print()")
    (code / "train.py").symlink_to("../train.py")
    (code / "x.log").write_text("")
    (code / ".gitignore").write_text("*.log\n")
    answer = SUBMITTED | {"warnings": ["slurm has no effect here"]}
    server.on("POST /experiments", json_answer(answer, 201))
    async with connected(server) as client:
        with pytest.raises(InvalidCode, match=r"train\.py is a link that leaves the folder"):
            await client.submit("name: x", code)
        submitted = await client.submit("name: x", code, follow_links=True)
    assert submitted.warnings == ["slurm has no effect here", "not sent: x.log (.gitignore)"]
    (request,) = server.requested("/experiments")
    assert b"\x1f\x8b" in request.body


async def test_what_was_written_is_read(server: Scripted) -> None:
    """The header of the answer to a write goes along with all that is asked later."""
    written = json_answer(SUBMITTED, 201, **{"Rung-After": "token"})
    server.on("POST /experiments", written)
    server.on("/status", problem(404, "gone"))
    async with connected(server) as client:
        for _ in range(2):
            with pytest.raises(NotFound):
                await client.status()
            await client.submit("name: x")
        with pytest.raises(NotFound):
            await client.status()
    sent = [request.headers.get("Rung-After") for request in server.requested("/status")]
    assert sent == [None, "token", "token"]


async def test_writes_at_the_same_time_are_all_read(server: Scripted) -> None:
    """Neither one's token includes the other's: what is sent stands for both."""
    tokens = [
        token_of("l1", {("experiments", 0): 7, ("experiments", 1): 3}),
        token_of("l1", {("experiments", 0): 5, ("pools", 0): 2}),
        token_of("l2", {("experiments", 0): 0}),
    ]
    server.on("POST /experiments", *(_written(token) for token in tokens))
    server.on("/status", problem(404, "gone"))
    async with connected(server) as client:
        await asyncio.gather(client.submit("name: x"), client.submit("name: x"))
        with pytest.raises(NotFound):
            await client.status()
        await client.submit("name: x")
        with pytest.raises(NotFound):
            await client.status()
    sent = [request.headers["Rung-After"] for request in server.requested("/status")]
    both = {("experiments", 0): 7, ("experiments", 1): 3, ("pools", 0): 2}
    assert sent == [token_of("l1", both), tokens[2]]


def _written(token: str) -> Answer:
    return json_answer(SUBMITTED, 201, **{"Rung-After": token})


async def test_later_means_later(server: Scripted) -> None:
    """503 is tried again, no sooner than it says."""
    later = Answer(503, b"{}", {"Retry-After": "0.3", "Content-Type": "application/json"})
    server.on("/status", later, later, problem(404, "gone"))
    async with connected(server) as client:
        started = time.monotonic()
        with pytest.raises(NotFound):
            await client.status()
    assert time.monotonic() - started >= 0.3
    assert len(server.requested("/status")) == 3


async def test_a_limited_token_waits(server: Scripted) -> None:
    """429 is tried again when it says, however little patience there is with a server's faults."""
    limited = Answer(429, b"{}", {"Retry-After": "3", "Content-Type": "application/json"})
    server.on("/status", limited, problem(404, "gone"))
    async with connected(server, patience_s=0.1) as client:
        started = time.monotonic()
        with pytest.raises(NotFound):
            await client.status()
    assert time.monotonic() - started >= 3.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, NotFound),
        (413, Invalid),
        (422, Invalid),
        (418, ClientError),
        (500, ServerFailed),
    ],
)
async def test_a_refusal_is_final(server: Scripted, status: int, kind: type[ClientError]) -> None:
    """Any other error is raised at once, with the problem's words and items."""
    errors = [{"path": "searcher.name", "message": "is required", "line": 3}]
    server.on("/experiments/x/pause", problem(status, "not so", errors=errors))
    async with connected(server) as client:
        with pytest.raises(ClientError, match="not so") as refused:
            await client.ask("pause", "x")
    assert type(refused.value) is kind
    assert refused.value.status == status
    assert [(item.path, item.line) for item in refused.value.errors] == [("searcher.name", 3)]
    assert len(server.requests) == 1


async def test_an_error_that_is_no_problem_document(server: Scripted) -> None:
    """Whatever stands between may answer HTML; that is shown as it is, shortened."""
    server.on("/status", Answer(500, b"<html>Bad" + b"x" * 1000, {"Content-Type": "text/html"}))
    async with connected(server) as client:
        with pytest.raises(ServerFailed, match="answered 500: <html>Bad") as failed:
            await client.status()
    assert len(str(failed.value)) < 300


async def test_an_answer_that_is_not_understood(server: Scripted) -> None:
    """A 200 that is no such record is said to be of another version."""
    server.on("/status", json_answer({"version": 7}))
    async with connected(server) as client:
        with pytest.raises(ServerFailed, match="another version"):
            await client.status()


async def test_fields_of_newer_gateways_are_ignored(server: Scripted) -> None:
    """A gateway may answer more than this client knows."""
    server.on("/experiments/k3v9x2ab", json_answer(recorded_answers.experiment(novelty={"a": 1})))
    async with connected(server) as client:
        experiment = await client.experiment("k3v9x2ab")
    assert experiment.trials[0].validations[0].metrics["x"] == "NaN"


async def test_nobody_there() -> None:
    """A port where nobody listens is given up at once, whatever the patience, with what to do."""
    async with AsyncClient("http://127.0.0.1:9", patience_s=60) as client:
        started = time.monotonic()
        with pytest.raises(Unreachable, match="rung up"):
            await client.status()
    assert time.monotonic() - started < 2


async def test_a_server_that_went_away_is_waited_for(server: Scripted) -> None:
    """One that answered before, and refuses connections now, may be started anew just then."""
    server.on("/experiments/x/pause", json_answer({"experiment_id": "x", "requested": "pause"}))
    nowhere = Location("http://127.0.0.1:9", TOKEN)
    places = iter([Location(server.url, TOKEN), nowhere, nowhere, Location(server.url, TOKEN)])
    async with AsyncClient(locate=lambda: next(places), patience_s=60) as client:
        await client.ask("pause", "x")
        server.on(
            "/experiments/y/pause",
            DROPPED,
            json_answer({"experiment_id": "y", "requested": "pause"}),
        )
        assert (await client.ask("pause", "y")).requested == "pause"
    assert next(places, None) is None


async def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and answers nothing is not waited for as a long answer is."""
    monkeypatch.setattr(transport, "_QUIET_S", 0.1)
    monkeypatch.setattr(transport, "_HEALTH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        url = f"http://127.0.0.1:{stopped.getsockname()[1]}"
        async with AsyncClient(url, patience_s=0.2) as client:
            started = time.monotonic()
            with pytest.raises(Unreachable, match="stopped, or hangs"):
                await client.status()
    assert time.monotonic() - started < 10


async def test_a_long_answer_is_waited_for(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes, as long as the server answers for its health meanwhile."""
    monkeypatch.setattr(transport, "_QUIET_S", 0.05)
    asked = server.hold("/experiments/x/pause", until="/healthz", times=3)
    server.on("/experiments/x/pause", json_answer({"experiment_id": "x", "requested": "pause"}))
    async with connected(server, patience_s=0) as client:
        assert (await client.ask("pause", "x")).requested == "pause"
    assert asked.is_set()
    assert all("Authorization" not in probe.headers for probe in server.requested("/healthz"))


@pytest.mark.parametrize("url", ["", "foo", "http://", "http://[", "ftp://x", "localhost:8080"])
async def test_addresses_that_are_none(url: str) -> None:
    """What is no address is refused in words."""
    async with AsyncClient(url, patience_s=0) as client:
        with pytest.raises(Unreachable, match=r"no address|does not answer"):
            await client.status()


async def test_the_server_is_located_anew(server: Scripted) -> None:
    """A server that comes back on another port is found there."""
    places = iter(["http://127.0.0.1:9", server.url])
    server.on("/experiments/x/pause", json_answer({"experiment_id": "x", "requested": "pause"}))
    async with AsyncClient(locate=lambda: Location(next(places), TOKEN)) as client:
        assert (await client.ask("pause", "x")).requested == "pause"


async def test_a_server_that_is_started_anew_is_waited_for(server: Scripted) -> None:
    """While it is not there nobody says where it is; one that was never met is not waited for."""
    here, away = Location(server.url, TOKEN), Unreachable("no Rung runs")
    places: list[Location | Unreachable] = [away, here, away, away, here]

    def locate() -> Location:
        place = places.pop(0)
        if isinstance(place, Unreachable):
            raise place
        return place

    answer = json_answer({"experiment_id": "x", "requested": "pause"})
    server.on("/experiments/x/pause", answer, DROPPED, answer)
    async with AsyncClient(locate=locate) as client:
        with pytest.raises(Unreachable, match="no Rung runs"):
            await client.ask("pause", "x")
        assert len(places) == 4
        for _ in range(2):
            assert (await client.ask("pause", "x")).requested == "pause"
    assert not places


async def test_a_server_that_stays_away_is_given_up(server: Scripted) -> None:
    """Once patience has run out, with the words of who looks for it."""
    places = iter([Location(server.url, TOKEN)])

    def locate() -> Location:
        for place in places:
            return place
        raise Unreachable("no Rung runs")

    server.on("/experiments/x/pause", DROPPED)
    server.on("/experiments/y/pause", json_answer({"experiment_id": "y", "requested": "pause"}))
    async with AsyncClient(locate=locate, patience_s=0.2) as client:
        await client.ask("pause", "y")
        with pytest.raises(Unreachable, match="no Rung runs"):
            await client.ask("pause", "x")


async def test_pages_are_put_together(server: Scripted) -> None:
    """A list in pages comes whole, each cursor given back unchanged."""
    server.on(
        "/experiments/x/checkpoints",
        json_answer({"items": [recorded_answers.checkpoint("a")], "next_cursor": "c&1"}),
        json_answer({"items": [recorded_answers.checkpoint("b")], "next_cursor": None}),
    )
    async with connected(server) as client:
        assert [item.id for item in await client.checkpoints("x")] == ["a", "b"]
    assert server.requests[1].query["cursor"] == "c&1"


async def test_ids_are_quoted(server: Scripted) -> None:
    """An id from the command line cannot reach another path."""
    async with connected(server) as client:
        with pytest.raises(NotFound):
            await client.experiment("../agents?x#y")
    assert server.requests[0].path == "/experiments/../agents?x#y"


def test_without_an_event_loop(server: Scripted, tmp_path: Path) -> None:
    """The plain client answers the same, and lets go of its thread."""
    server.on(
        "/experiments", json_answer({"items": [recorded_answers.summary()], "next_cursor": None})
    )
    server.on("/experiments/k3v9x2ab/best", json_answer(recorded_answers.best()))
    server.on("/trials/k3v9x2ab.0", json_answer(recorded_answers.trial() | {"checkpoints": []}))
    with Client(server.url, TOKEN) as client:
        assert client.experiments(state="active").items[0].best is not None
        assert [it.name for it in client.experiments()] == ["digits [red]"]
        assert client.best("k3v9x2ab").checkpoint is not None
        assert client.trial("k3v9x2ab.0").checkpoints == []
        with pytest.raises(NotFound):
            client.download("x", tmp_path / "x")
    client.close()


def test_following_without_an_event_loop(server: Scripted) -> None:
    """A stream is a plain iterator, which can be left at any time."""
    stream = b"id: 1\nevent: a\ndata: {}\n\nid: 2\nevent: b\ndata: [1]\n\n"
    server.on("/experiments/x/events", Answer(200, stream, {"Content-Type": "text/event-stream"}))
    with Client(server.url, TOKEN) as client:
        events: Iterator[client_package.ServerEvent] = client.follow_events("x")
        assert [next(events).event, next(events).data] == ["a", [1]]


async def test_many_at_once(server: Scripted) -> None:
    """One client serves many tasks."""
    server.on("/experiments/x", json_answer(recorded_answers.experiment()))
    async with connected(server) as client:
        found = await asyncio.gather(*(client.experiment("x") for _ in range(20)))
    assert {msgspec.json.encode(item) for item in found} == {msgspec.json.encode(found[0])}
