"""The receiver of the guide, as its reader runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rung.subscription.address import AddressRule
from rung.subscription.cloud_event import cloud_event
from rung.subscription.document import Receiver
from rung.webhooks.transport import Transport
from webhooks.installation import KEY, LOCAL

pytestmark = pytest.mark.processes
_GUIDE = Path(__file__).parents[2] / "docs" / "WEBHOOKS.md"


async def test_the_example_verifies_and_drops_repetitions() -> None:
    """What we sign it takes, once; what is signed with another key it refuses."""
    (code,) = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    process = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [sys.executable, "-c", code, "0"],
        env={**os.environ, "WEBHOOK_KEY": KEY},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split()[-1])
        event = cloud_event(
            "dlv_1", "/rung", "rung.experiment.ended.v1", "e1", "2026-01-01T00:00:00Z", {}
        )
        transport = Transport(rule=AddressRule(LOCAL, plain=True))
        url = f"http://127.0.0.1:{port}/"
        other = "whsec_" + KEY[6:][::-1].replace("=", "") + "=="
        for key, status in ((KEY, 204), (KEY, 204), (other, 401)):
            found = await transport.deliver("cloudevents", Receiver(url=url, key=key), event)
            assert found.status == status, found
    finally:
        process.kill()
        out, _ = process.communicate()
    assert out == "rung.experiment.ended.v1 e1\n"
