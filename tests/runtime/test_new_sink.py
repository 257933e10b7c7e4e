"""A sink service is one new module and one line of the table of services.

The module is `toy/webhook.py`; the line is `_LINE`, which a process adds before it runs the
command line as it is. Nothing else knows of the service.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rung.events import Event, decision, encode
from rung.events.experiment import ExperimentEnded
from rung.ledger import Draft
from rung.ledger.sqlite.ledger import SqliteLedger
from runtime.tally import pause

_LINE = 'SERVICES["webhook"] = Listed("Post the ends of experiments.", "webhook:SERVICE")'
_ROOT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent / "toy")!r})
from rung.cli.operations.service import SERVICES, Listed
{_LINE}
"""


class _Receiver(HTTPServer):
    """Takes posts; answers with a status of its own for each, or with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[int] = []
        self.seen: list[tuple[str, str]] = []
        """The key and the experiment of each post."""
        self.changed = threading.Condition()

    def wait_for(self, count: int) -> None:
        """Wait until so many posts came."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, 60), self.seen


class _Handler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        """Take a post."""
        data = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.changed:
            answer = self.server.answers.pop(0) if self.server.answers else 200
            self.server.seen.append((self.headers["Idempotency-Key"], data["experiment_id"]))
            self.server.changed.notify_all()
        self.send_response(answer)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Print nothing."""


@pytest.fixture
def receiver() -> Iterator[_Receiver]:
    """A receiver of webhooks."""
    with _Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _program(code: str, receiver: _Receiver, *arguments: str) -> subprocess.Popen[str]:
    url = f"http://127.0.0.1:{receiver.server_port}/"
    return subprocess.Popen(
        [sys.executable, "-c", _ROOT + code, *arguments],
        env={**os.environ, "TOY_WEBHOOK_URL": url},
        stdout=subprocess.PIPE,
        text=True,
    )


def _command(receiver: _Receiver, *arguments: str) -> subprocess.Popen[str]:
    """Run the command line with the line in the table."""
    code = "from rung.cli.__main__ import main\nsys.argv[0] = 'rung'\nmain()"
    return _program(code, receiver, *arguments)


def _ended(key: str, position: int) -> Event:
    data = ExperimentEnded(experiment_id=key, state="completed", reason="")
    cause = pause(position, key)
    return decision(data, source="/rung/searcher", cause=cause, position=position, index=0)


async def _append(folder: Path, *events: Event | bytes) -> None:
    ledger = await SqliteLedger.open(folder)
    await ledger.append(
        [Draft("searches", "a", it if isinstance(it, bytes) else encode(it)) for it in events]
    )
    await ledger.close()


def test_the_service_delivers_as_a_process_of_its_own(tmp_path: Path, receiver: _Receiver) -> None:
    """What is busy is asked again under the same key; what is refused is a dead letter."""
    receiver.answers = [503, 200, 410, 410, 410, 200]
    asyncio.run(_append(tmp_path, _ended("a", 1), b"{", _ended("a", 2), _ended("a", 3)))
    process = _command(receiver, "service", "webhook", "--ledger", str(tmp_path))
    try:
        receiver.wait_for(6)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    keys = [key for key, _ in receiver.seen]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3] == keys[4]
    assert len(set(keys)) == 3

    show = _command(
        receiver, "ledger", "show", "--ledger", str(tmp_path), "--topic", "deadletter", "--full"
    )
    told, _ = show.communicate(timeout=60)
    assert "not an event" in told
    assert "the receiver answered 410" in told


def test_the_other_compositions_read_the_same_table(tmp_path: Path, receiver: _Receiver) -> None:
    """Help, what `rung up` runs, retries of dead letters, imports, and rights on Kafka."""
    helped, _ = _command(receiver, "service", "--help").communicate(timeout=60)
    assert "webhook        Post the ends of experiments." in helped

    code = """
from rung.cli.operations.components import CONSUMERS, READERS
from rung.cli.operations.cluster.replicas import SHARED
from rung.cli.operations.cluster.acls import COMPONENTS
assert ("webhook", "searches") in CONSUMERS
assert READERS["webhook", "searches"] == "sink"
assert "webhook" in SHARED
access = COMPONENTS["webhook"]
assert access.appends == {"deadletter"}, access
assert access.reads == {"searches", "deadletter", "imports"}, access
assert {"webhook", "replicas.webhook"} <= access.groups, access
print("all")
"""
    told, _ = _program(code, receiver).communicate(timeout=60)
    assert told == "all\n"


@pytest.mark.e2e
def test_rung_up_runs_it(tmp_path: Path, receiver: _Receiver) -> None:
    """The whole of one machine, with the line in the table, delivers what its ledger holds."""
    process = _command(receiver, "up", "--data", str(tmp_path), "--port", "0", "--slots", "1")
    try:
        ledger = tmp_path / "ledger"
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                break
        asyncio.run(_append(ledger, _ended("a", 1)))
        receiver.wait_for(1)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert [experiment for _, experiment in receiver.seen] == ["a"]
