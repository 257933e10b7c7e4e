"""Unpacking code, and refusing what should not be unpacked."""

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rung.agent import source_folder
from rung.agent.source_folder import CodeUnusable, SourceFolder
from rung.objects import FolderStore


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _file(name: str, content: bytes = b"x = 1\n") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def _special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = target
    return member, b""


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """Give an object store."""
    return FolderStore(tmp_path / "objects")


@pytest.fixture
def sources(tmp_path: Path, store: FolderStore) -> SourceFolder:
    """Give an open source folder."""
    folder = SourceFolder(tmp_path / "agent", store)
    folder.open()
    return folder


@pytest.fixture
def put(store: FolderStore) -> Callable[[bytes], str]:
    """Give a function that stores an archive under its digest."""

    def store_it(data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        store.put_bytes(f"code/{digest}.tar.gz", data)
        return digest

    return store_it


def test_copies_are_separate(sources: SourceFolder, put: Callable[[bytes], str]) -> None:
    """Each run has the files for itself, links and modes included."""
    script = _file("bin/run.sh")
    script[0].mode = 0o755
    digest = put(_archive(script, _special("link", tarfile.SYMTYPE, "bin/run.sh")))
    first, second = (sources.prepare(name, digest).folder for name in ("a", "b"))
    (first / "bin/run.sh").write_bytes(b"changed")
    assert (second / "bin/run.sh").read_bytes() == b"x = 1\n"
    assert os.access(second / "bin/run.sh", os.X_OK)
    assert (second / "link").resolve() == second / "bin/run.sh"


def test_discarded(sources: SourceFolder, put: Callable[[bytes], str]) -> None:
    """A run's folder goes; the unpacked code stays for the next."""
    digest = put(_archive(_file("train.py")))
    folder = sources.prepare("a", digest).folder
    sources.discard("a")
    assert not folder.exists()
    assert (sources.prepare("a", digest).folder / "train.py").exists()


def test_opening_clears_what_was_left(
    tmp_path: Path, store: FolderStore, sources: SourceFolder, put: Callable[[bytes], str]
) -> None:
    """Work folders and half-unpacked code of an earlier life go; whole code stays."""
    digest = put(_archive(_file("train.py")))
    left = sources.prepare("a", digest).folder
    half = tmp_path / "agent/code/abc.unpacking"
    half.mkdir()
    SourceFolder(tmp_path / "agent", store).open()
    assert not left.exists()
    assert not half.exists()
    assert (tmp_path / "agent/code" / digest / "train.py").exists()


@pytest.mark.parametrize(
    "member",
    [
        _file("../outside.py"),
        _file("/../../outside.py"),
        _file("a/../../outside.py"),
        _special("link", tarfile.SYMTYPE, "../../outside"),
        _special("link", tarfile.SYMTYPE, "/etc/passwd"),
        _special("hard", tarfile.LNKTYPE, "../../outside"),
        _special("pipe", tarfile.FIFOTYPE),
        _special("device", tarfile.CHRTYPE),
    ],
)
def test_members_that_climb_out(
    tmp_path: Path,
    sources: SourceFolder,
    put: Callable[[bytes], str],
    member: tuple[tarfile.TarInfo, bytes],
) -> None:
    """An archive with a member that leaves its folder, or is no file, is refused whole."""
    with pytest.raises(CodeUnusable, match="cannot be unpacked"):
        sources.prepare("a", put(_archive(_file("train.py"), member)))
    assert not list((tmp_path / "agent/code").iterdir())
    assert not list(tmp_path.rglob("outside*"))


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", gzip.compress(b"no tar"), _archive(_file("a"))[:-20]],
    ids=["empty", "text", "no tar", "cut"],
)
def test_broken_archives(sources: SourceFolder, put: Callable[[bytes], str], data: bytes) -> None:
    """What is no whole archive is refused."""
    with pytest.raises(CodeUnusable, match="cannot be unpacked"):
        sources.prepare("a", put(data))


def test_too_large(
    sources: SourceFolder, put: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that swells beyond the bound is refused."""
    monkeypatch.setattr(source_folder, "UNPACKED_BYTES_MAX", 1000)
    with pytest.raises(CodeUnusable, match="holds more than"):
        sources.prepare("a", put(_archive(_file("a", b"0" * 2000))))


def test_missing_and_damaged(sources: SourceFolder, store: FolderStore) -> None:
    """An archive that is not there, or not the one asked for, is refused by name."""
    with pytest.raises(CodeUnusable, match="is missing"):
        sources.prepare("a", "1" * 64)
    store.put_bytes(f"code/{'2' * 64}.tar.gz", _archive(_file("a")))
    with pytest.raises(CodeUnusable, match="is damaged: its digest is"):
        sources.prepare("b", "2" * 64)
