"""Downloads: whole and verified, or not at all."""

import asyncio
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from client import recorded
from client.scripted import TOKEN, Answer, Scripted, json_answer
from rung.client import AsyncClient, ClientError

TAR = {"Content-Type": "application/x-tar"}
FILES = {"model.pt": b"weights", "sub/optimizer.pt": b"moments"}


def archive(files: dict[str, bytes], top: str = "c1/") -> bytes:
    """Return a tar as the gateway sends it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        for name, data in files.items():
            info = tarfile.TarInfo(top + name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def detail(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the checkpoint that has these files."""
    entries = [
        {"name": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    ]
    return recorded.checkpoint("c1") | {"files": entries, "metadata": {}}


async def fetched(server: Scripted, folder: Path) -> None:
    """Download the checkpoint."""
    async with AsyncClient(server.url, TOKEN) as client:
        await client.download("c1", folder)


async def test_it_arrives(server: Scripted, tmp_path: Path) -> None:
    """The files lie in the folder itself, and nothing is left beside it."""
    server.on("/checkpoints/c1", json_answer(detail(FILES)))
    server.on("/checkpoints/c1/archive", Answer(200, archive(FILES), TAR))
    await fetched(server, tmp_path / "deep" / "best")
    found = {
        str(path.relative_to(tmp_path / "deep" / "best")): path.read_bytes()
        for path in (tmp_path / "deep" / "best").rglob("*")
        if path.is_file()
    }
    assert found == FILES
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["best"]


async def test_a_broken_connection_is_tried_again(server: Scripted, tmp_path: Path) -> None:
    """Half of an archive is thrown away and fetched again, into an empty folder as well."""
    whole = archive(FILES)
    server.on("/checkpoints/c1", json_answer(detail(FILES)))
    length = {**TAR, "Content-Length": str(len(whole))}
    server.on(
        "/checkpoints/c1/archive",
        Answer(200, whole[:1000], length, drop=True),
        Answer(200, whole, TAR),
    )
    (tmp_path / "best").mkdir()
    await fetched(server, tmp_path / "best")
    assert (tmp_path / "best" / "model.pt").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (archive({"model.pt": b"weights"}), "sub/optimizer.pt is missing"),
        (archive(FILES | {"model.pt": b"wEights"}), r"model\.pt is damaged"),
        (archive({"../../x": b"1"}, top=""), "did not arrive whole"),
        (b"no tar at all", "did not arrive whole"),
    ],
)
def test_what_is_refused(server: Scripted, tmp_path: Path, sent: bytes, words: str) -> None:
    """Damage is named; nothing of it stays."""
    server.on("/checkpoints/c1", json_answer(detail(FILES)))
    server.on("/checkpoints/c1/archive", Answer(200, sent, TAR))
    with pytest.raises(ClientError, match=words):
        asyncio.run(fetched(server, tmp_path / "best"))
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_in_use(server: Scripted, tmp_path: Path) -> None:
    """Files that are there already are left alone."""
    (tmp_path / "x").write_text("mine")
    server.on("/checkpoints/c1", json_answer(detail(FILES)))
    with pytest.raises(ClientError, match="not empty"):
        await fetched(server, tmp_path)
    assert (tmp_path / "x").read_text() == "mine"
