"""Server-sent events: parsing, and following across broken connections."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from rung.client import AsyncClient, Invalid, ServerEvent
from rung.client import _sse as sse
from support.scripted_server import TOKEN, Answer, Scripted, problem

HEADERS = {"Content-Type": "text/event-stream"}


async def lines(*texts: str) -> AsyncIterator[str]:
    """Yield lines."""
    for text in texts:
        yield text


@pytest.mark.parametrize(
    ("given", "events"),
    [
        (["event: a", "id: 1", 'data: {"x": 1}', ""], [("a", "1", {"x": 1})]),
        (["data: [1,", "data: 2]", ""], [("message", "", [1, 2])]),
        ([": still here", "", "retry: 5", ""], []),
        (["id: 1", "data: 1", "", "data: 2", ""], [("message", "1", 1), ("message", "1", 2)]),
        (["data:x", ""], [("message", "", "x")]),
        (["event: a", "data: cut short"], []),
        (["unknown: x", "data", "data: 1", ""], [("message", "", 1)]),
    ],
)
async def test_parse(given: list[str], events: list[tuple[str, str, object]]) -> None:
    """Lines are read as the HTML standard says."""
    found = [event async for _, event in sse.parse(lines(*given)) if event is not None]
    assert [(event.event, event.id, event.data) for event in found] == events


async def test_it_is_taken_up_where_it_broke(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a broken connection, the last id goes along; an unfinished event is not given."""
    monkeypatch.setattr(sse, "_RETRY_S", 0.0)
    server.on(
        "/experiments/x/events",
        Answer(200, b"id: 3.1\r\ndata: 1\r\n\r\nid: 4.1\r\ndata: 2", HEADERS, drop=True),
        Answer(drop=True, body=b""),
        Answer(200, b"id: 4.1\ndata: 2\n\n", HEADERS),
    )
    async with AsyncClient(server.url, TOKEN) as client:
        events = client.follow_events("x", begin="now")
        async with contextlib.aclosing(events):
            found = [await anext(events), await anext(events)]
    assert found == [
        ServerEvent(event="message", id="3.1", data=1),
        ServerEvent(event="message", id="4.1", data=2),
    ]
    assert [request.headers.get("Last-Event-ID") for request in server.requests] == [
        None,
        "3.1",
        "3.1",
    ]
    assert server.requests[0].query == {"from": "now"}


async def test_an_id_alone_is_kept(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server passed over is not asked for again, though no event was given."""
    monkeypatch.setattr(sse, "_RETRY_S", 0.0)
    server.on(
        "/experiments/x/events",
        Answer(200, b"id: 7.1\n: still here\n\nid: 8.1\n", HEADERS, drop=True),
        Answer(200, b"id: 9.1\ndata: 2\n\n", HEADERS),
    )
    async with AsyncClient(server.url, TOKEN) as client:
        events = client.follow_events("x")
        async with contextlib.aclosing(events):
            assert await anext(events) == ServerEvent(event="message", id="9.1", data=2)
    resumed = [request.headers.get("Last-Event-ID") for request in server.requests]
    assert resumed == [None, "7.1"]


async def test_a_refusal_ends_it(server: Scripted) -> None:
    """A stream that is refused is not asked for again."""
    server.on("/experiments/x/events", problem(400, "Last-Event-ID: is ahead"))
    async with AsyncClient(server.url, TOKEN) as client:
        events = client.follow_events("x", after="9.9")
        with pytest.raises(Invalid, match="is ahead"):
            await anext(events)
    assert len(server.requests) == 1
