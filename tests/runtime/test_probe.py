"""Probes: real requests to a real port of this process."""

import asyncio
import contextlib
import http.client
import json
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from rung.ledger import MemoryLedger, SqliteLedger
from rung.runtime.health import checks
from rung.runtime.health.checks import ProcessHealth
from rung.runtime.health.probe import ProbeRefused, probe
from rung.runtime.metrics.observed_ledger import ObservedLedger
from servers.process import free_port


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> ProcessHealth:
    """The signs of life of this test's process; nothing is fresh for long."""
    monkeypatch.setattr(checks, "_FRESH_S", 0.0)
    return ProcessHealth()


@pytest.fixture
async def url(health: ProcessHealth) -> AsyncIterator[str]:
    """Where this test's process is probed."""
    address = f"127.0.0.1:{free_port()}"
    async with probe(address, service="searcher", health=health, stalled_after_s=60):
        yield f"http://{address}"


async def _get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith("{") else text


async def test_a_process_that_lives_says_so(url: str) -> None:
    """Alive, and not ready as long as it has not begun."""
    assert await _get(f"{url}/healthz") == (200, {"status": "ok"})
    assert await _get(f"{url}/readyz") == (
        503,
        {"status": "failing", "reasons": ["the ledger is not open yet"]},
    )


async def test_a_process_whose_ledger_goes_away_is_not_ready(
    url: str, health: ProcessHealth, tmp_path: Path
) -> None:
    """A real file, really closed; the process itself is well."""
    ledger = await SqliteLedger.open(tmp_path)
    observed = ObservedLedger(ledger, health)
    with health.loop("searcher/0") as loop:
        follow = observed.follow("experiments", 0, 0)
        waiting = asyncio.ensure_future(anext(aiter(follow)))
        await asyncio.sleep(0)
        assert loop.partitions
        assert await _get(f"{url}/readyz") == (200, {"status": "ok"})
        await ledger.close()

        status, said = await _get(f"{url}/readyz")
        assert status == 503
        assert said["reasons"][0].startswith("the ledger: ")
        assert await _get(f"{url}/healthz") == (200, {"status": "ok"})
        await asyncio.gather(waiting, return_exceptions=True)


async def test_metrics_are_told(url: str, health: ProcessHealth) -> None:
    """In Prometheus' text format, with which service this is."""
    ObservedLedger(MemoryLedger(), health)
    status, told = await _get(f"{url}/metrics")

    assert status == 200
    assert 'rung_build_info{service="searcher",version="' in told
    assert "# TYPE rung_trial_restarts_total counter" in told


async def test_an_event_loop_that_stands_still_is_found_out(health: ProcessHealth) -> None:
    """A blocked loop cannot answer; its probe does, and says where it is blocked."""
    port = free_port()
    here, there = socket.socketpair()

    def ask() -> tuple[int, dict[str, Any]]:
        there.recv(1)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    address = f"127.0.0.1:{port}"
    async with probe(address, service="x", health=health, stalled_after_s=0.1):
        with structlog.testing.capture_logs() as lines, ThreadPoolExecutor(1) as another:
            asking = another.submit(ask)
            asking.add_done_callback(lambda _: there.close())
            here.recv(here.send(b"."))  # the blocked event loop that is to be found
            here.close()
            status, said = asking.result()
        async with asyncio.timeout(30):
            while (await _get(f"http://{address}/healthz"))[0] != 200:
                pass

    assert status == 503
    assert "has not turned" in said["reasons"][0]
    assert "test_probe.py" in said["reasons"][0]
    assert [line["event"] for line in lines] == ["the event loop stands still"]
    assert "here.recv" in lines[0]["stack"]


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:99999"]
)
async def test_an_address_that_is_none_is_refused(address: str, health: ProcessHealth) -> None:
    """With the option's name."""
    with pytest.raises(ProbeRefused, match=f"--probe {address}"):
        async with probe(address, service="searcher", health=health):
            pass


async def test_a_port_in_use_is_refused(url: str, health: ProcessHealth) -> None:
    """As above."""
    address = url.removeprefix("http://")
    with pytest.raises(ProbeRefused, match="in use"):
        async with probe(address, service="searcher", health=health):
            pass


async def test_nobody_need_be_answered(health: ProcessHealth) -> None:
    """Without an address no port is opened."""
    async with probe(None, service="searcher", health=health):
        pass
