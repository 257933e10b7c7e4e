"""The service as a process, killed at any moment, while its receiver comes and goes."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from pathlib import Path

import pytest
from aiohttp import web
from standardwebhooks import Webhook

from rung.client import AsyncClient, ClientError
from rung.events.trial import TrialClosed
from rung.ledger.sqlite.ledger import SqliteLedger
from servers.process import free_port
from support.gateway.client import SECRETS_KEY
from webhooks.installation import Installation
from webhooks.receiver import receiving

pytestmark = pytest.mark.processes

_ALLOWED = ("--allow-network=127.0.0.0/8", "--allow-http")
_FAST = ("--retry-max=0.2", "--attempt-seconds=2")
EACH = 10


async def _start(folder: Path) -> Process:
    command = ("-m", "rung.webhooks", "--ledger", str(folder))
    objects = f"--objects={(folder / 'objects').as_uri()}"
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        objects,
        *_ALLOWED,
        *_FAST,
        env={**os.environ, "RUNG_SECRETS_KEY": SECRETS_KEY},
        stdout=DEVNULL,
    )


async def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def test_every_event_comes_in_order_whatever_is_killed(tmp_path: Path) -> None:
    """Service and receiver are killed between; what comes twice comes under one id."""
    names = ("e1", "e2", "e3")
    ledger = await SqliteLedger.open(tmp_path)
    installation = Installation(ledger, tmp_path / "objects")
    async with receiving() as first:
        url, port = first.url, first.port
        await installation.submit(*names)
        await installation.hook("w1", url, events=["rung.trial.closed.v1"])
        process = await _start(tmp_path)
        await installation.tell(*_closed(names, range(EACH)))
        await first.until(lambda got: len(got) >= 5)
        await _kill(process)
        process = await _start(tmp_path)  # which finds nobody
    await installation.tell(*_closed(names, range(EACH, 2 * EACH)))
    await installation.until_recorded(1, "failed")
    await _kill(process)

    busy = 5

    async def sometimes(_request: web.Request) -> web.Response:
        nonlocal busy
        busy -= 1
        return web.Response(status=500 if busy >= 0 else 200)

    async with receiving(port) as second:
        second.answer = sometimes
        process = await _start(tmp_path)
        every = len(names) * 2 * EACH

        def ids() -> dict[str, str]:
            return {
                got.headers["webhook-id"]: got.event["subject"]
                for got in (*first.got, *second.got)
            }

        await second.until(lambda _: len(ids()) == every)
        await installation.until_recorded(every, "delivered")
        await _kill(process)
    await ledger.close()

    assert len(set(ids().values())) == every
    subjects = [got.event["subject"] for got in (*first.got, *second.got)]
    for name in names:
        told = dict.fromkeys(each for each in subjects if each.startswith(f"{name}."))
        assert list(told) == [f"{name}.{index}" for index in range(2 * EACH)]


async def test_a_subscription_over_http_survives_kills(tmp_path: Path) -> None:
    """Of gateway and service; what was asked for meanwhile is delivered once they are back."""
    port = free_port()
    ledger = await SqliteLedger.open(tmp_path)
    installation = Installation(ledger, tmp_path / "objects")
    gateway = await _start_gateway(tmp_path, port)
    service = await _start(tmp_path)
    try:
        async with (
            receiving() as receiver,
            AsyncClient(f"http://127.0.0.1:{port}", "a-token") as client,
        ):
            await until_answered(client)
            hook = await client.webhooks.create(
                name="ops", url=receiver.url, events=["rung.trial.closed.v1"]
            )
            assert hook.key is not None
            await client.webhooks.test("ops")
            await receiver.until(lambda got: len(got) == 1)
            Webhook(hook.key).verify(receiver.got[0].body, receiver.got[0].headers)
            for process in (service, gateway):
                await _kill(process)
            await installation.submit("e1")
            await installation.tell(*_closed(("e1",), range(EACH)))
            gateway = await _start_gateway(tmp_path, port)
            await until_answered(client)
            await client.webhooks.test("default/ops")
            service = await _start(tmp_path)
            every = EACH + 2
            await receiver.until(
                lambda got: len({each.headers["webhook-id"] for each in got}) == every
            )
            await installation.until_recorded(every, "delivered")
            listed = await client.webhooks.deliveries("ops")
            async with asyncio.timeout(60):
                while any(each.state != "delivered" for each in listed) or len(listed) < every:
                    await asyncio.sleep(0.05)
                    listed = await client.webhooks.deliveries("ops")
            assert len(listed) == every
            await client.webhooks.redeliver("ops", listed[0].id)
            await receiver.until(
                lambda got: sum(g.headers["webhook-id"] == listed[0].id for g in got) == 2
            )
    finally:
        for process in (service, gateway):
            await _kill(process)
        await ledger.close()
    record = _read(tmp_path)
    assert hook.key.encode() not in record
    assert receiver.url.encode() not in record


def _read(folder: Path) -> bytes:
    """Return what lies in the ledger's files."""
    return b"".join(file.read_bytes() for file in folder.glob("ledger.db*"))


async def until_answered(client: AsyncClient) -> None:
    """Wait until a gateway answers."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(ClientError):
                await client.webhooks.list()
                return
            await asyncio.sleep(0.05)


async def _start_gateway(folder: Path, port: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.gateway", "--ledger", str(folder)),
        f"--objects={(folder / 'objects').as_uri()}",
        f"--bind=127.0.0.1:{port}",
        *("--webhooks-allow-network=127.0.0.0/8", "--webhooks-allow-http"),
        env={**os.environ, "RUNG_SECRETS_KEY": SECRETS_KEY, "RUNG_TOKEN": "a-token"},
        stdout=DEVNULL,
    )


def _closed(names: tuple[str, ...], indices: range) -> list[TrialClosed]:
    return [
        TrialClosed(
            experiment_id=name,
            trial_id=f"{name}.{index}",
            state="completed",
            reason="",
            restarts=0,
        )
        for index in indices
        for name in names
    ]
