"""Rate limits: what a token may send, and what it is told."""

import asyncio
import math
import re
import socket
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conftest import World, patient
from rung.gateway import serve
from rung.gateway.requests.rate import Bucket, Rate, Rates, take
from rung.runtime.metrics.catalog import METER
from support.gateway.client import TOKEN, Client


def _limited() -> float:
    """Return how many reads were refused in this process."""
    exposed = METER.expose().decode()
    return sum(map(float, re.findall(r'rung_http_limited_total{kind="read"} (.*)', exposed)))


_rates = st.builds(
    Rate, st.floats(0.01, 1_000.0, allow_nan=False), st.integers(min_value=1, max_value=500)
)
_gaps = st.lists(st.floats(0.0, 5.0, allow_nan=False), min_size=1, max_size=60)


@given(_rates, _gaps)
def test_no_window_has_more_than_the_rate(rate: Rate, gaps: list[float]) -> None:
    """Between any two allowed requests are at most a full bucket and what came in meanwhile."""
    bucket, now = None, 0.0
    allowed: list[float] = []
    for gap in gaps:
        now += gap
        taken = take(bucket, rate, now)
        bucket = taken.bucket
        allowed += [now] if taken.is_allowed else []
        assert 0 <= taken.remaining < rate.size
        assert 0.0 <= bucket.tickets <= rate.size
    for first, start in enumerate(allowed):
        for last, end in enumerate(allowed[first:], first):
            assert last - first + 1 <= rate.size + rate.per_s * (end - start) + 1e-6


@given(_rates, st.floats(0.0, 0.999))
def test_what_is_refused_is_allowed_when_it_says(rate: Rate, tickets: float) -> None:
    """Behind Retry-After there is a ticket, and not much earlier."""
    refused = take(Bucket(tickets, 0.0), rate, 0.0)
    assert not refused.is_allowed
    later = refused.retry_in_s

    assert take(refused.bucket, rate, later * (1 + 1e-9) + 1e-9).is_allowed
    assert not take(refused.bucket, rate, later * 0.9 - 1e-9).is_allowed


@given(_rates)
def test_a_full_bucket_is_as_a_new_one(rate: Rate) -> None:
    """After `full_in_s` nothing is left of what was taken, so that it may be dropped."""
    once = take(None, rate, 0.0)
    again = take(once.bucket, rate, once.full_in_s + 1e-9)

    assert math.isclose(again.bucket.tickets, once.bucket.tickets, rel_tol=1e-6, abs_tol=1e-6)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    """Neither tickets nor an exception."""
    rate = Rate(1.0, 2)
    bucket = take(Bucket(0.5, 10.0), rate, 3.0)

    assert (bucket.is_allowed, bucket.bucket) == (False, Bucket(0.5, 10.0))


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", ["reads_per_s", "writes_per_s", "burst_s"])
def test_rates_are_checked(name: str, value: float) -> None:
    """A value that cannot be is named."""
    with pytest.raises(ValueError, match=name):
        Rates(**{name: value})


async def test_too_many_requests(world: World) -> None:
    """429 with the wait; reads and writes are counted apart, and what is open to all is not."""
    world.settings = patient(rates=Rates(reads_per_s=0.1, writes_per_s=0.2, burst_s=20.0))
    before = _limited()
    async with world.gateway() as client:
        first = await client.call("GET", "/status")
        second = await client.call("GET", "/nothing")
        third = await client.call("GET", "/status")
        assert [it.status for it in (first, second, third)] == [200, 404, 429]
        limits = [
            {name: it.headers[f"ratelimit-{name}"] for name in ("limit", "remaining", "reset")}
            for it in (first, second, third)
        ]
        assert limits[0] == {"limit": "2", "remaining": "1", "reset": "10"}
        assert [it["remaining"] for it in limits] == ["1", "0", "0"]
        assert third.kind == "too-many-requests"
        assert 5 <= int(third.headers["retry-after"]) <= 10
        assert "0.1 reads a second" in third.json["detail"]
        body = b"name: x"
        writes = [
            (await client.call("POST", "/experiments/validate", data=body)).status
            for _ in range(5)
        ]
        assert writes == [422] * 4 + [429]
        open_to_all = await client.call("GET", "/openapi.json")
        assert open_to_all.status == 200
        assert "ratelimit-limit" not in open_to_all.headers
        unknown = await client.call("GET", "/status", headers={"Authorization": "Bearer x"})
        assert unknown.status == 401

    assert _limited() - before == 1


async def test_a_stream_counts_once(world: World) -> None:
    """However long it lasts; its head says what is left."""
    world.settings = patient(rates=Rates(reads_per_s=0.1, burst_s=20.0), heartbeat=0.01)
    async with world.gateway() as client:
        url, headers = f"{client.url}/api/v1/log/stream", {"Authorization": f"Bearer {TOKEN}"}
        async with client.session.get(url, headers=headers) as response, asyncio.timeout(20):
            assert response.headers["RateLimit-Remaining"] == "1"
            for _ in range(20):
                await response.content.readline()
        assert (await client.call("GET", "/status")).status == 200


async def test_no_limit_by_default(client: Client) -> None:
    """Nothing is counted, and nothing said of it."""
    answer = await client.call("GET", "/status")

    assert not {name for name in answer.headers if name.startswith("ratelimit")}


async def test_the_servers_own_socket_is_not_limited(world: World, tmp_path: Path) -> None:
    """A client of the data folder on this machine sends as much as it likes."""
    path = str(tmp_path / "s")
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen()
    started = asyncio.Event()
    serving = asyncio.create_task(
        serve(
            world.ledger,
            world.store,
            listener=socket.create_server(("127.0.0.1", 0)),
            local=local,
            token=TOKEN,
            settings=patient(rates=Rates(reads_per_s=0.001, burst_s=0.0)),
            started=started.set,
        )
    )
    await started.wait()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
        for _ in range(3):
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with session.get("http://localhost/api/v1/status", headers=headers) as response:
                assert response.status == 200
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
