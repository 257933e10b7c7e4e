"""The command line as a user runs it, against a scripted server or a real one."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from rung.cli.__main__ import run
from rung.cli.local.data_folder import DataFolder
from support.scripted_server import TOKEN, Answer, Scripted

EXPERIMENT = "/experiments/k3v9x2ab"
"""Path of the recorded experiment."""


def stream(*events: Any) -> Answer:
    """Return a stream of events that then ends."""
    body = b"".join(
        b"id: %d\ndata: %s\n\n" % (number, msgspec.json.encode(event))
        for number, event in enumerate(events)
    )
    return Answer(200, body, {"Content-Type": "text/event-stream"})


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return msgspec.json.decode(self.out)


Rung = Callable[..., Result]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    """Return a server that the data folder in RUNG_DATA leads to."""
    data = tmp_path / "data"
    monkeypatch.setenv("RUNG_DATA", str(data))
    for name in ("RUNG_URL", "RUNG_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Scripted() as scripted, contextlib.closing(DataFolder.open(data)) as folder:
        (data / "token").write_text(f"{TOKEN}\n")
        scripted.listen(folder.listen())
        folder.announce(scripted.url, ready=True)
        yield scripted


@pytest.fixture
def rung() -> Rung:
    """Return what runs a command in this process."""

    def command(*arguments: str) -> Result:
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
            out.flush()
        buffer = out.detach()
        assert isinstance(buffer, io.BytesIO)
        return Result(code, buffer.getvalue().decode(), err.getvalue())

    return command
