"""`rung up` delivers, without a service or a key beside it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from rung.client import AsyncClient
from webhooks.receiver import receiving

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


async def _rung(folder: Path, *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rung.cli", *arguments),
        env={**os.environ, "RUNG_DATA": str(folder)},
    )
    assert await process.wait() == 0, arguments


async def test_rung_up_delivers_what_is_subscribed_to(tmp_path: Path) -> None:
    """After a start without encryption to this machine, as its options allow."""
    folder = tmp_path / "data"
    allowed = ("--webhooks-allow-network", "127.0.0.0/8", "--webhooks-allow-http")
    await _rung(folder, "up", "--port", "0", "--slots", "1", "--detach", *allowed)
    try:
        async with receiving() as receiver, AsyncClient(data=folder) as client:
            hook = await client.webhooks.create(
                name="ops", url=receiver.url, events=["rung.experiment.ended.v1"]
            )
            await client.webhooks.test("ops")
            await receiver.until(lambda got: len(got) == 1)
            assert hook.key is not None
            event = Webhook(hook.key).verify(receiver.got[0].body, receiver.got[0].headers)
            assert event["type"] == "rung.webhook.test.v1"
    finally:
        await _rung(folder, "down")
