"""After `rung up` was killed, another user's process listens on its port: it gets no token."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.conftest import Rung
from rung.cli.connection_options import experiment_ids
from rung.cli.group import rung as group
from rung.cli.local.data_folder import DataFolder
from rung.client import AsyncClient, Client, Unreachable

KILLED = """
import sys
from pathlib import Path
from rung.cli.local.data_folder import DataFolder
folder = DataFolder.open(Path(sys.argv[1]))
listener = folder.listen()
folder.announce(sys.argv[2], ready=True)
print(flush=True)
sys.stdin.read()
"""
"""Holds a data folder as `rung up` does, and is killed."""

LOCAL = {
    "verify",
    "ledger archive",
    "ledger export",
    "ledger import",
    "ledger show",
    "ledger tail",
}
"""Commands that read the data folder itself."""
SERVED = {"preview", "service gateway"}
"""Commands that start or need no server."""
MORE = {
    "extend": "--trials 9",
    **dict.fromkeys(("archive", "unarchive", "pause", "resume", "cancel", "kill"), "--where x"),
    **dict.fromkeys(("delete", "restore"), "--where x"),
    "edit": "x",
    "set": "x",
    "retention": "x",
    "move": "--project x",
    **dict.fromkeys(("user edit", "group edit", "workspace edit", "project edit"), "--name x"),
    **dict.fromkeys(("webhook edit", "model edit"), "--name x"),
    **dict.fromkeys(("role assign", "role remove"), "--user x"),
}
"""Options that a command needs besides those that are required."""
WHOLE = {
    "config show": "config show -",
    "template set": "template set x -",
    "policy set": "policy set x - --kind=defaults",
}
"""Commands that read a file: from standard input, where there is nothing."""


class Foreign:
    """Listens on a port and keeps every byte that it gets."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection:
                    self.heard += connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 404 x\r\nConnection: close\r\n\r\n")


@pytest.fixture(scope="module")
def listener() -> Iterator[Foreign]:
    """Return a listener that is not Rung's."""
    found = Foreign()
    yield found
    found.close()


@pytest.fixture
def foreign(listener: Foreign) -> Foreign:
    """Return that listener, which has heard nothing yet."""
    listener.heard.clear()
    listener.connections = 0
    return listener


@pytest.fixture(scope="module")
def left(listener: Foreign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder whose server was killed, and whose port the listener has."""
    data = tmp_path_factory.mktemp("left") / "data"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(data), listener.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        process.kill()
    assert (data / "server.json").exists()
    return data


@pytest.fixture
def token(left: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the token of that data folder, which is in RUNG_DATA."""
    monkeypatch.setenv("RUNG_DATA", str(left))
    for name in ("RUNG_URL", "RUNG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return (left / "token").read_text().strip()


def _commands() -> list[str]:
    """Return the commands that speak to a server, as they are typed."""
    found: list[str] = []

    def walk(command: click.Command, context: click.Context, name: str) -> None:
        if isinstance(command, click.Group):
            for part in command.list_commands(context):
                below = command.get_command(context, part)
                assert below is not None
                walk(below, context, f"{name} {part}".strip())
        elif any("--token" in option.opts for option in command.params):
            if name in LOCAL | SERVED:
                return
            taken = [p for p in command.params if isinstance(p, click.Argument)]
            needed = [p for p in taken if p.required or name == "gc logs"]
            options = [p for p in command.params if isinstance(p, click.Option) and p.required]
            typed = [f"{option.opts[0]}=priority" for option in options]
            value = "searcher/experiments/0/7" if "deadletter" in name else "k3v9x2ab.0"
            value = "k3v9x2ab" if name == "delete" else value
            value = "default/digits" if name == "project create" else value
            typed += MORE.get(name, "").split()
            typed = [name, *(value for _ in needed), *typed]
            found.append(WHOLE.get(name, " ".join(typed)))

    walk(group, click.Context(group), "")
    return [*found, "logs k3v9x2ab -f", "down"]


@pytest.mark.parametrize("command", _commands())
def test_no_command_sends_it_anything(
    command: str, foreign: Foreign, token: str, rung: Rung, tmp_path: Path
) -> None:
    """What a killed server left says nothing about who listens there now."""
    arguments = command.split()
    if arguments[0] == "submit":
        (tmp_path / "x.yaml").write_text("name: x\n")
        arguments[1] = str(tmp_path / "x.yaml")
    result = rung(*arguments)
    assert foreign.connections == 0
    assert token not in result.out + result.err
    if arguments[0] not in {"down", "audit"}:
        assert result.code == 3
        assert "no Rung runs on" in result.err


@pytest.mark.parametrize("command", ["status", "list", "show k3v9x2ab", "logs k3v9x2ab -f"])
def test_the_token_of_a_folder_is_not_for_every_address(
    command: str, foreign: Foreign, token: str, rung: Rung
) -> None:
    """An address that is named is asked, without what the data folder's own server lets in."""
    assert rung(*command.split(), "--url", foreign.url).code != 0
    assert foreign.connections > 0
    assert token.encode() not in foreign.heard
    assert b"Authorization" not in foreign.heard
    rung(*command.split(), "--url", foreign.url, "--token", "given")
    assert b"Bearer given" in foreign.heard


@pytest.mark.usefixtures("token")
def test_the_client_and_completion_send_it_nothing(foreign: Foreign) -> None:
    """The Python client with a data folder is the command line's."""
    data = Path(os.environ["RUNG_DATA"])
    with Client(data=str(data)) as client, pytest.raises(Unreachable, match="no Rung runs on"):
        client.status()
    context = click.Context(group)
    assert experiment_ids(context, click.Argument(["x"]), "") == []
    assert foreign.connections == 0


async def test_a_client_goes_on_with_the_next_server_alone(
    foreign: Foreign, tmp_path: Path
) -> None:
    """One that follows comes back to a server with another token and port, and to no other."""
    data = tmp_path / "data"
    tokens: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        right = tokens[-1].encode() in await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 %d X\r\nContent-Type: text/event-stream\r\n" % (200 if right else 401)
        )
        writer.write(b"Connection: close\r\n\r\nid: %d\ndata: {}\n\n" % len(tokens))
        writer.close()

    async with AsyncClient(data=data, patience_s=30) as client:
        events = client.follow_events("k3v9x2ab")
        for number in range(1, 3):
            folder = await asyncio.to_thread(DataFolder.open, data)
            tokens.append(folder.token)
            server = await asyncio.start_unix_server(answer, sock=folder.listen())
            folder.announce(f"http://127.0.0.1:{number}", ready=True)
            assert (await anext(events)).id == str(number)
            server.close()
            folder.close()
            (data / "server.json").write_text(f'{{"url": "{foreign.url}", "pid": 1}}')
        await events.aclose()
    assert tokens[0] != tokens[1]
    assert foreign.connections == 0


def test_a_process_of_another_user_gets_nothing(
    rung: Rung, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it listens on the folder's own socket: the kernel says whose it is."""
    data = tmp_path / "data"
    monkeypatch.setenv("RUNG_DATA", str(data))
    for name in ("RUNG_URL", "RUNG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    own = os.geteuid()
    with contextlib.closing(DataFolder.open(data)) as folder, folder.listen() as listener:
        folder.announce("http://127.0.0.1:9", ready=True)
        os.chown(data, own + 1, -1) if own == 0 else None
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
        result = rung("list")
        listener.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(0)
                assert connection.recv(1) == b""
    assert result.code == 3
    assert "belongs to" in result.err


def test_a_stopped_server_is_not_waited_for(rung: Rung, tmp_path: Path) -> None:
    """It is named at once, with what to do; `rung down` ends it all the same."""
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(data), "http://127.0.0.1:9"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        result = rung("list", "--data", str(data))
        assert result.code == 3
        assert f"kill -CONT {process.pid}" in result.err
        assert rung("down", "--data", str(data)).code == 0
    assert process.returncode == -signal.SIGTERM
