"""Downloads: whole and verified, or not at all."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from rung.client import AsyncClient, ClientError, Conflict, NotFound, Unreachable
from support import recorded_answers
from support.scripted_server import TOKEN, Answer, Scripted, json_answer, problem

FILES = {"model.pt": b"weights", "sub/optimizer.pt": b"moments", "empty": b""}
FILE = "/checkpoints/c1/file"


def detail(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the checkpoint that has these files."""
    entries = [
        {"name": name, "size_bytes": len(data), "blake3": blake3(data).hexdigest()}
        for name, data in files.items()
    ]
    listed = {"files": entries, "metadata": {}}
    return recorded_answers.checkpoint("c1", file_count=len(entries)) | listed


async def fetched(server: Scripted, folder: Path) -> None:
    """Download the checkpoint."""
    async with AsyncClient(server.url, TOKEN) as client:
        await client.download("c1", folder)


def names(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(path.name for path in folder.iterdir())


def only(name: str) -> dict[str, Any]:
    """Return the checkpoint with one of the files."""
    return detail({name: FILES[name]})


def in_parts(data: bytes, *cuts: int) -> list[Answer]:
    """Return answers that each break off, so far into the file, until the last."""
    answers = []
    for begin, end in itertools.pairwise([0, *cuts, len(data)]):
        length = {"Content-Length": str(len(data) - begin)}
        status = 206 if begin else 200
        answers.append(Answer(status, data[begin:end], length, drop=end < len(data)))
    return answers


async def test_it_arrives(server: Scripted, tmp_path: Path) -> None:
    """The files lie in the folder itself, and nothing is left beside it."""
    for name, data in (("model.pt", b"weights"), ("sub/optimizer.pt", b"moments")):
        folder = tmp_path / name.replace("/", "_")
        server.on("/checkpoints/c1", json_answer(only(name)))
        server.on(FILE, Answer(200, data))
        await fetched(server, folder)
        assert (folder / name).read_bytes() == data
    assert names(tmp_path) == ["model.pt", "sub_optimizer.pt"]
    assert [request.query["name"] for request in server.requested(FILE)] == [
        "model.pt",
        "sub/optimizer.pt",
    ]


async def test_an_empty_file_is_not_asked_for(server: Scripted, tmp_path: Path) -> None:
    """There is nothing to send, but the file is there."""
    server.on("/checkpoints/c1", json_answer(only("empty")))
    await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "empty").read_bytes() == b""
    assert server.requested(FILE) == []


async def test_a_cut_transfer_goes_on_where_it_was(server: Scripted, tmp_path: Path) -> None:
    """Only what is missing is asked for again, into an empty folder as well."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    server.on(FILE, *in_parts(b"weights", 2, 3, 5))
    (tmp_path / "best").mkdir()
    await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"
    ranges = [request.headers.get("Range") for request in server.requested(FILE)]
    assert ranges == [None, "bytes=2-", "bytes=3-", "bytes=5-"]


async def test_an_answer_without_ranges_begins_anew(server: Scripted, tmp_path: Path) -> None:
    """A server that sends everything again is taken at its word."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    server.on(FILE, in_parts(b"weights", 3)[0], Answer(200, b"weights"))
    await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"


async def test_what_came_is_of_use_to_the_next_attempt(server: Scripted, tmp_path: Path) -> None:
    """A connection that stays away ends the command; the same command goes on from there."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    cut = in_parts(b"weights", 4)
    server.on(FILE, cut[0], Answer(206, b""))
    with pytest.raises(Unreachable, match=r"broke 4 times in the middle of model\.pt"):
        await fetched(server, tmp_path / "best")
    server.on(FILE, cut[1])
    await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"
    assert server.requested(FILE)[-1].headers["Range"] == "bytes=4-"
    assert names(tmp_path) == ["best"]


async def test_the_object_store_is_followed_without_the_token(
    server: Scripted, tmp_path: Path
) -> None:
    """A redirection is followed, with the range; who answers there does not learn the token."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    with Scripted() as elsewhere:
        server.on(FILE, Answer(307, b"", {"Location": f"{elsewhere.url}/bucket/x%20y?s=a%2Fb"}))
        elsewhere.token = None
        elsewhere.on("/bucket/x y", *in_parts(b"weights", 4))
        await fetched(server, tmp_path / "best")
        first, second = elsewhere.requests
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"
    assert "Authorization" not in first.headers
    assert first.query == {"s": "a/b"}
    assert second.headers["Range"] == "bytes=4-"


@pytest.mark.parametrize("status", [None, 403, 500])
async def test_an_object_store_that_does_not_answer_is_gone_around(
    server: Scripted, tmp_path: Path, status: int | None
) -> None:
    """Then the gateway is asked for the bytes themselves."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    with Scripted() as elsewhere:
        elsewhere.token = None
        elsewhere.on("/x", Answer(status or 200, b"no"))
        there = elsewhere.url if status else "http://127.0.0.1:1"
        server.on(FILE, Answer(307, b"", {"Location": f"{there}/x"}), Answer(200, b"weights"))
        await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"
    asked = [request.query["redirect"] for request in server.requested(FILE)]
    assert asked == ["true", "false"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [(b"wEights", r"model\.pt is damaged"), (b"weights and more", r"model\.pt is damaged")],
)
def test_what_is_refused(server: Scripted, tmp_path: Path, sent: bytes, words: str) -> None:
    """Damage is named; nothing of it stays."""
    server.on("/checkpoints/c1", json_answer(only("model.pt")))
    server.on(FILE, Answer(200, sent))
    with pytest.raises(ClientError, match=words):
        asyncio.run(fetched(server, tmp_path / "best"))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("shown", "refusal", "error"),
    [
        ({"state": "deleted"}, problem(410, "retired"), (NotFound, "retired")),
        ({"state": "deleted", "file_count": 0}, problem(410, "retired"), (NotFound, "retired")),
        ({}, problem(409, "another one"), (Conflict, "another one")),
        ({}, Answer(200, b"tar"), (ClientError, "lists 0 of its 1 files")),
    ],
)
def test_a_checkpoint_whose_files_are_not_listed(
    server: Scripted,
    tmp_path: Path,
    shown: dict[str, Any],
    refusal: Answer,
    error: tuple[type[ClientError], str],
) -> None:
    """It is no empty folder: the reason why its archive is refused is the error."""
    server.on("/checkpoints/c1", json_answer(detail({}) | {"file_count": 1} | shown))
    server.on("/checkpoints/c1/archive", refusal)
    with pytest.raises(error[0], match=error[1]):
        asyncio.run(fetched(server, tmp_path / "best"))
    assert names(tmp_path) == []


def test_a_name_that_climbs_out_is_refused(server: Scripted, tmp_path: Path) -> None:
    """A server cannot write beside the folder."""
    server.on("/checkpoints/c1", json_answer(detail({"../../x": b"1"})))
    with pytest.raises(ClientError, match="is no file's name"):
        asyncio.run(fetched(server, tmp_path / "best"))
    assert names(tmp_path) == []


async def test_a_folder_in_use(server: Scripted, tmp_path: Path) -> None:
    """Files that are there already are left alone."""
    (tmp_path / "x").write_text("mine")
    server.on("/checkpoints/c1", json_answer(detail(FILES)))
    with pytest.raises(ClientError, match="not empty"):
        await fetched(server, tmp_path)
    assert (tmp_path / "x").read_text() == "mine"
