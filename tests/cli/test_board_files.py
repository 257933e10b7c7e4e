"""What trials wrote for TensorBoard is brought as it grows, and one failure is no other's."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import EXPERIMENT
from client import recorded
from client.scripted import TOKEN, Answer, Scripted, json_answer, problem
from rung.cli.commands.tensorboard.board_files import BoardFiles
from rung.client import AsyncClient

EVENTS = "tensorboard/events"
Offer = Callable[..., dict[str, Any]]


@pytest.fixture
def offer(server: Scripted) -> Offer:
    """Return what offers a checkpoint with one file, and lists those that it is given."""

    def offer(trial: int, steps: int, data: bytes, *others: dict[str, Any]) -> dict[str, Any]:
        trial_id = f"k3v9x2ab.{trial}"
        checkpoint = recorded.checkpoint(
            f"{trial_id}.1.{steps}", trial_id=trial_id, steps_completed=steps
        )
        digest = hashlib.sha256(data).hexdigest()
        file = {"name": EVENTS, "size_bytes": len(data), "sha256": digest}
        path = f"/checkpoints/{checkpoint['id']}"
        server.on(path, json_answer(checkpoint | {"files": [file], "metadata": {}}))
        server.on(f"{path}/file", Answer(200, data))
        items = {"items": [*others, checkpoint], "next_cursor": None}
        server.on(f"{EXPERIMENT}/checkpoints", json_answer(items))
        return checkpoint

    return offer


def client_of(server: Scripted) -> AsyncClient:
    """Return a client of the server."""
    return AsyncClient(server.url, TOKEN, patience_s=0.0)


async def test_a_file_that_grew_stays_the_same_file(
    server: Scripted, offer: Offer, tmp_path: Path
) -> None:
    """Who reads it sees what came; one that became another takes its place."""
    place = tmp_path / "k3v9x2ab.0" / "events"
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        offer(0, 1, b"one")
        await files.bring()
        with place.open("rb") as reader:
            assert reader.read() == b"one"
            offer(0, 2, b"one two")
            await files.bring()
            assert reader.read() == b" two"
        offer(0, 3, b"another")
        await files.bring()
        assert place.read_bytes() == b"another"
        offer(0, 4, b"less")
        await files.bring()
    assert place.read_bytes() == b"less"
    assert files.count == 1


async def test_an_older_checkpoint_replaces_nothing(
    server: Scripted, offer: Offer, tmp_path: Path
) -> None:
    """Neither one that is listed later, nor the last that is left."""
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        older = offer(0, 1, b"one")
        newer = offer(0, 2, b"one two")
        listed = {"items": [newer, older], "next_cursor": None}
        server.on(f"{EXPERIMENT}/checkpoints", json_answer(listed))
        await files.bring()
        offer(0, 1, b"one")
        await files.bring()
    assert (tmp_path / "k3v9x2ab.0" / "events").read_bytes() == b"one two"


async def test_what_fails_is_told_once_and_tried_again(
    server: Scripted, offer: Offer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of other trials come all the same."""
    async with client_of(server) as client:
        files = BoardFiles(client, "k3v9x2ab", tmp_path)
        first = offer(0, 1, b"one")
        offer(1, 1, b"other", first)
        server.on(f"/checkpoints/{first['id']}/file", problem(410, "it is gone"))
        await files.bring()
        await files.bring()
        assert (tmp_path / "k3v9x2ab.1" / "events").read_bytes() == b"other"
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1
        assert "k3v9x2ab.0" in told[0]
        assert "it is gone" in told[0]
        server.on(f"/checkpoints/{first['id']}/file", Answer(200, b"one"))
        await files.bring()
    assert (tmp_path / "k3v9x2ab.0" / "events").read_bytes() == b"one"
