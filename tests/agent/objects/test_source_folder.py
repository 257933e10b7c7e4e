"""Unpacking code, and refusing what should not be unpacked."""

import asyncio
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from rung.agent.objects import source_folder
from rung.agent.objects.source_folder import CodeUnusable, SourceFolder
from rung.config import code_archive as rules
from rung.config.code_archive import InvalidCode, check_archive
from rung.config.run_config import run_config
from rung.events.trial import CODE_REFUSED
from rung.storage import FolderStore


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


def test_a_trial_finds_its_files_again(
    tmp_path: Path, store: FolderStore, sources: SourceFolder, put: Callable[[bytes], str]
) -> None:
    """What a run wrote is there, under the same path, for the next run; Rung's own is not."""
    digest = put(_archive(_file("train.py")))
    folder = sources.prepare("e.0.1", digest).folder
    (folder / "out").write_text("best")
    (folder / "train.py").write_text("changed")
    (folder / ".rung-scratch").mkdir()
    sources.discard("e.0.1")
    assert not folder.exists()
    assert not sources.prepare("e.1.1", digest).kept
    again = SourceFolder(tmp_path / "agent", store)
    again.open()
    source = again.prepare("e.0.2", digest)
    assert (source.folder, source.kept, source.frameworks) == (folder, True, False)
    assert sorted(entry.name for entry in folder.iterdir()) == ["__pycache__", "out", "train.py"]
    assert ((folder / "out").read_text(), (folder / "train.py").read_text()) == ("best", "changed")


def test_nothing_is_kept_of_a_trial_that_wrote_nothing(
    tmp_path: Path, sources: SourceFolder, put: Callable[[bytes], str]
) -> None:
    """Its code is copied again; that it was here is known."""
    digest = put(_archive(_file("train.py"), _file("a/b.py")))
    sources.prepare("e.0.1", digest)
    sources.discard("e.0.1")
    (kept,) = (tmp_path / "agent/kept").iterdir()
    assert (kept.name, kept.is_file()) == ("e.0", True)
    source = sources.prepare("e.0.2", digest)
    assert source.kept
    assert (source.folder / "a/b.py").is_file()


@pytest.mark.parametrize("limit", ["_KEPT_PART", "_KEPT_S", "_ENTRIES_MAX", "_DEPTH_MAX"])
def test_kept_files_are_bounded(
    tmp_path: Path,
    sources: SourceFolder,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    """Files beyond the limits go, and the next run does not count on them."""
    folder = sources.prepare("e.0.1", None).folder
    (folder / "a").mkdir()
    (folder / "a/out").write_text("x" * 9999)
    monkeypatch.setattr(source_folder, limit, 0)
    sources.discard("e.0.1")
    assert not list((tmp_path / "agent/kept").iterdir())
    assert not sources.prepare("e.0.2", None).kept


def test_the_least_recently_used_goes_first(
    tmp_path: Path, sources: SourceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several kept folders the newest stay, as many as have room."""
    for number in (0, 1):
        folder = sources.prepare(f"e.{number}.1", None).folder
        (folder / "out").write_bytes(bytes(1 << 20))
        sources.discard(f"e.{number}.1")
        used_at = time.time() - 10 + number
        os.utime(tmp_path / f"agent/kept/e.{number}", (used_at, used_at))
    monkeypatch.setattr(source_folder, "_KEPT_PART", 0.6)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    sources._shrink()
    assert [entry.name for entry in (tmp_path / "agent/kept").iterdir()] == ["e.1"]


async def test_one_run_of_a_trial_at_a_time(sources: SourceFolder) -> None:
    """The next run waits until the one before has released the folder; others do not."""
    await sources.take("e.0.1")
    waiting = asyncio.create_task(sources.take("e.0.2"))
    await sources.take("e.1.1")
    await sources.release("e.0.2")  # it has not taken it
    assert not waiting.done()
    await sources.release("e.0.1")
    await waiting


def test_opening_clears_what_was_left(
    tmp_path: Path, store: FolderStore, sources: SourceFolder, put: Callable[[bytes], str]
) -> None:
    """Work folders and half-unpacked code of an earlier session go; whole code stays."""
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
    with pytest.raises(CodeUnusable, match="cannot be unpacked") as refused:
        sources.prepare("a", put(_archive(_file("train.py"), member)))
    assert refused.value.fault == CODE_REFUSED
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


def test_too_large(sources: SourceFolder, put: Callable[[bytes], str]) -> None:
    """An archive that swells beyond the bound is refused."""
    member = tarfile.TarInfo("a")
    member.size = rules.UNPACKED_MAX + 1
    with pytest.raises(CodeUnusable, match="unpacks to more than"):
        sources.prepare("a", put(gzip.compress(member.tobuf() + bytes(10 * 1024))))


def _deep(levels: int) -> bytes:
    return _archive(_file("train.py"), _file("a/" * levels + "b.py"))


def _crowded(members: int, levels: int) -> bytes:
    return _archive(*(_file(f"{n}/" + "a/" * (levels - 1) + "b") for n in range(members)))


AGREED: Final = {
    "levels that are too many": (_deep(500), False),
    "levels that are many": (_deep(99), True),
    "implied folders that are too many": (_crowded(600, 90), False),
    "implied folders that are many": (_crowded(3, 90), True),
    "a link that comes before the one on its way": (
        _archive(
            _special("p", tarfile.SYMTYPE, "q/../.."),
            _special("q", tarfile.SYMTYPE, "sub/deeper"),
            _file("sub/deeper/x"),
        ),
        True,
    ),
    "such a link that leaves": (
        _archive(
            _special("p", tarfile.SYMTYPE, "q/../../.."),
            _special("q", tarfile.SYMTYPE, "sub/deeper"),
            _file("sub/deeper/x"),
        ),
        False,
    ),
}
"""What gateway and agent once judged differently, and whether both accept it."""


@pytest.mark.parametrize("name", AGREED)
def test_what_the_gateway_accepts_is_unpacked(
    tmp_path: Path, sources: SourceFolder, put: Callable[[bytes], str], name: str
) -> None:
    """Gateway and agent judge an archive alike, as it was sent and in its canonical form."""
    data, accepted = AGREED[name]
    if accepted:
        canonical = check_archive(data)
        for form in (data, canonical.data):
            folder = sources.prepare(hashlib.sha256(form).hexdigest(), put(form)).folder
            assert all(os.path.lexists(folder / name) for name in canonical.names)
            assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))
    else:
        with pytest.raises(InvalidCode):
            check_archive(data)
        with pytest.raises(CodeUnusable) as refused:
            sources.prepare("a", put(data))
        assert refused.value.fault == CODE_REFUSED


@pytest.mark.parametrize(
    "source",
    [b"1+" * 90_000 + b"1", b"-" * 90_000 + b"1", b"\0", b"x = 1\n" * 300_000, b"\xff"],
    ids=["deep", "deep for the parser", "NUL", "large", "not UTF-8"],
)
def test_sources_that_cannot_be_compiled(
    sources: SourceFolder, put: Callable[[bytes], str], source: bytes
) -> None:
    """Byte code is made where that is possible; what does not compile is the script's affair."""
    digest = put(_archive(_file("train.py"), _file("other.py", source)))
    folder = sources.prepare("a", digest).folder
    assert (folder / "other.py").read_bytes() == source
    assert len(list(folder.glob("__pycache__/train.*.pyc"))) == 1


def test_folders_deeper_than_python_recurses_are_deleted(
    tmp_path: Path, store: FolderStore, sources: SourceFolder
) -> None:
    """A run that nests folders without end leaves nothing, and does not stop the next agent."""

    def discard() -> None:
        sources.discard("a")

    for delete in (discard, SourceFolder(tmp_path / "agent", store).open):
        folder = sources.prepare("a", None).folder
        here = os.open(folder, os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("deeper", dir_fd=here)
            inside = os.open("deeper", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inside
        os.close(here)
        delete()
        assert not folder.exists()


def test_missing_and_damaged(sources: SourceFolder, store: FolderStore) -> None:
    """An archive that is not there, or not the one asked for, is refused by name."""
    with pytest.raises(CodeUnusable, match="is missing"):
        sources.prepare("a", "1" * 64)
    store.put_bytes(f"code/{'2' * 64}.tar.gz", _archive(_file("a")))
    with pytest.raises(CodeUnusable, match="is damaged: its digest is"):
        sources.prepare("b", "2" * 64)


_CONFIG: Final = run_config({"entrypoint": "python3 train.py", "hyperparameters": {"lr": 1}})


def test_a_configuration_is_fetched_once(sources: SourceFolder, store: FolderStore) -> None:
    """It is what the experiment was submitted with, without its search space."""
    store.put_bytes(_CONFIG.name, _CONFIG.data)
    first = sources.configuration(_CONFIG.digest)
    store.delete(_CONFIG.name)
    sources.open()

    assert first == sources.configuration(_CONFIG.digest) == {"entrypoint": "python3 train.py"}


def test_a_configuration_that_was_damaged_here_is_fetched_again(
    sources: SourceFolder, store: FolderStore, tmp_path: Path
) -> None:
    """What the agent keeps of it is held against its digest each time."""
    store.put_bytes(_CONFIG.name, _CONFIG.data)
    sources.configuration(_CONFIG.digest)
    (tmp_path / "agent/configs" / f"{_CONFIG.digest}.json").write_text('{"entrypoint": "rm"}')

    assert sources.configuration(_CONFIG.digest) == {"entrypoint": "python3 train.py"}


def test_a_configuration_that_cannot_be_had_is_named(
    sources: SourceFolder, store: FolderStore
) -> None:
    """Missing or damaged, it may be there for the next run; nothing of it is kept."""
    with pytest.raises(CodeUnusable, match=f"{_CONFIG.digest} is missing") as missing:
        sources.configuration(_CONFIG.digest)
    store.put_bytes(_CONFIG.name, _CONFIG.data + b" ")
    with pytest.raises(CodeUnusable, match=f"{_CONFIG.digest} is damaged") as damaged:
        sources.configuration(_CONFIG.digest)
    store.put_bytes(_CONFIG.name, _CONFIG.data)

    assert (missing.value.fault, damaged.value.fault) == ("", "")
    assert sources.configuration(_CONFIG.digest) == {"entrypoint": "python3 train.py"}


def test_bytes_that_are_no_configuration_are_refused_for_ever(
    sources: SourceFolder, store: FolderStore
) -> None:
    """They have the digest that is on record, so no other agent would find others."""
    digest = hashlib.sha256(b"[]").hexdigest()
    store.put_bytes(f"configs/{digest}.json", b"[]")
    with pytest.raises(CodeUnusable, match="cannot be read") as refused:
        sources.configuration(digest)

    assert refused.value.fault == CODE_REFUSED
