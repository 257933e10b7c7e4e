"""What the gateway notes of requests: numbers, traces, and how it does."""

import re
from collections.abc import AsyncIterator

import pytest
import structlog

from gateway.conftest import EXPERIMENT_FILE, World, until
from rung.events import decode, partition_of
from rung.events.allocation import AgentJoined, AgentLeft, AgentLost, DrainRequested, Slot
from rung.ledger import Ledger, Record
from rung.runtime.health import checks
from rung.runtime.health.checks import ProcessHealth
from rung.runtime.metrics.observed_ledger import ObservedLedger
from support.gateway.client import Client

_TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
_CALLER = f"00-{_TRACE_ID}-00f067aa0ba902b7-01"


@pytest.fixture
async def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client of a gateway whose ledger is observed, as in a process of its own."""
    health = ProcessHealth()
    monkeypatch.setattr(checks, "_FRESH_S", 0.0)
    for module in ("rung.gateway.app", "rung.runtime.retry", "rung.runtime.health.probe"):
        monkeypatch.setattr(f"{module}.HEALTH", health)
    world.ledger = ObservedLedger(world.ledger, health)
    async with world.gateway() as client:
        yield client


async def _facts(ledger: Ledger, experiment_id: str) -> list[Record]:
    partition = partition_of(experiment_id, ledger.partitions("experiments"))
    return await ledger.read("experiments", partition, 0, 100)


async def _metrics(client: Client) -> str:
    url = f"{client.url}/metrics"
    headers = {"Authorization": "Bearer the-token-of-the-tests"}
    async with client.session.get(url, headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return await answer.text()


async def test_what_a_request_writes_carries_its_trace(client: Client, world: World) -> None:
    """The caller's trace goes on in the answer, in the fact, and in the log."""
    with structlog.testing.capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        answer = await client.call(
            "POST",
            "/experiments/validate",
            data=EXPERIMENT_FILE,
            headers={"traceparent": _CALLER},
        )
    assert re.fullmatch(rf"00-{_TRACE_ID}-[0-9a-f]{{16}}-01", answer.headers["traceparent"])
    assert answer.headers["traceparent"] != _CALLER
    assert [line["trace"] for line in lines if line["event"] == "request"] == [_TRACE_ID]


async def test_a_submission_is_traced_to_the_decisions_it_causes(
    client: Client, world: World
) -> None:
    """Without a caller's trace, the gateway begins one."""
    submitted = await client.submit(EXPERIMENT_FILE)
    [fact] = [
        decode(it.value) for it in await _facts(world.ledger, submitted.json["experiment_id"])
    ]

    assert fact.traceparent == submitted.headers["traceparent"]
    async with world.searcher():
        partition = partition_of(fact.key, world.ledger.partitions("searches"))
        async for records in world.ledger.follow("searches", partition, 0):
            decided = [decode(record.value) for record in records]
            break
    assert {event.traceparent for event in decided} == {fact.traceparent}


async def test_a_stream_says_its_trace(client: Client) -> None:
    """Its head is sent long before it ends."""
    url = f"{client.url}/api/v1/events"
    headers = {"Authorization": "Bearer the-token-of-the-tests", "traceparent": _CALLER}
    async with client.session.get(url, headers=headers) as answer:
        assert _TRACE_ID in answer.headers["traceparent"]


async def test_requests_are_counted_by_their_patterns(watched: Client) -> None:
    """Whatever is asked for, the number of series stays bounded."""
    await watched.call("GET", "/experiments/nosuch")
    await watched.call("GET", "/experiments/another")
    async with watched.session.request("PROPFIND", f"{watched.url}/api/v1/tea"):
        pass
    told = await _metrics(watched)

    pattern = r'rung_http_requests_total{method="GET",route="/api/v1/experiments/{experiment_id}",'
    assert pattern + 'status="404"}' in told
    assert "nosuch" not in told
    assert "PROPFIND" not in told
    assert 'method="other"' in told


async def test_searches_are_counted_by_state(watched: Client, world: World) -> None:
    """From the read models, when somebody asks."""
    await watched.submit(EXPERIMENT_FILE)
    await watched.submit(EXPERIMENT_FILE)

    assert 'rung_experiments{state="active"} 2.0' in await _metrics(watched)


async def test_agents_are_counted_by_state(watched: Client, world: World) -> None:
    """Those there, those that are drained, those lost a moment ago; who left is none of them."""
    slots: list[Slot] = []
    for name in ("a", "b", "c", "d"):
        await world.writer.write(
            AgentJoined(pool="default", agent_id=name, incarnation=1, hostname=name, slots=slots)
        )
    await world.writer.write(AgentLeft(pool="default", agent_id="b", incarnation=1))
    await world.writer.write(
        AgentLost(pool="default", agent_id="c", incarnation=1, silent_ms=31_000)
    )

    await world.writer.write(
        DrainRequested(pool="default", agent_id="d", incarnation=1, reason="spot")
    )

    async def told() -> str:
        return await _metrics(watched)

    await until(told, lambda text: 'rung_agents{pool="default",state="draining"} 1.0' in text)
    await until(told, lambda text: 'rung_agents{pool="default",state="lost"} 1.0' in text)
    assert 'rung_agents{pool="default",state="alive"} 1.0' in await told()


async def test_metrics_want_the_token(client: Client) -> None:
    """They tell what an installation does."""
    async with client.session.get(f"{client.url}/metrics") as answer:
        assert answer.status == 401


async def test_health_and_readiness_are_open_and_tell_no_reasons(
    watched: Client, world: World
) -> None:
    """A load balancer has no token; what it learns is a word."""

    async def ask(path: str) -> tuple[int, dict[str, str]]:
        async with watched.session.get(watched.url + path) as answer:
            return answer.status, await answer.json()

    assert await ask("/healthz") == (200, {"status": "ok"})
    await until(lambda: ask("/readyz"), lambda said: said == (200, {"status": "ok"}))
    await world.ledger.close()
    assert await ask("/readyz") == (503, {"status": "failing"})
