"""Packing a code folder."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from rung.config.code_archive import CodeArchive
from rung.config.code_folder import InvalidCode, check_archive, pack


def names(archive: CodeArchive) -> list[str]:
    """Return the names of what an archive holds, folders left out."""
    with tarfile.open(fileobj=io.BytesIO(archive.data), mode="r:gz") as opened:
        return [info.name for info in opened if not info.isdir()]


def fill(folder: Path, *files: str) -> None:
    """Make files, with their names as content."""
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_equal_folders_have_an_equal_digest(tmp_path: Path) -> None:
    """Dates and the order of making do not matter; the gateway's check gives the same bytes."""
    fill(tmp_path / "a", "x.py", "pkg/y.py")
    fill(tmp_path / "b", "pkg/y.py", "x.py")
    os.utime(tmp_path / "b" / "x.py", (1, 1))
    archive = pack(tmp_path / "a")
    assert archive == pack(tmp_path / "b")
    assert check_archive(archive.data) == archive
    fill(tmp_path / "b", "z.py")
    assert pack(tmp_path / "b").digest != archive.digest


def test_what_always_stays_at_home(tmp_path: Path) -> None:
    """Version control, byte code and environments are left out."""
    fill(tmp_path, "a.py", ".git/x", "p/__pycache__/a.pyc", "p/b.py", ".venv/lib/z.py", "b.pyc")
    assert names(pack(tmp_path)) == ["a.py", "p/b.py"]


def test_rungignore(tmp_path: Path) -> None:
    """Its patterns are those of .gitignore; what is left out may be brought back."""
    fill(tmp_path, "a.py", "data/big.bin", "keep/data/x", "notes.md", "sub/notes.md", ".venv/x")
    (tmp_path / ".rungignore").write_text("# data\n/data/\n*.md\n!/notes.md\n!.venv\n")
    (tmp_path / ".detignore").write_text("*\n")
    assert names(pack(tmp_path)) == [
        ".detignore",
        ".rungignore",
        ".venv/x",
        "a.py",
        "keep/data/x",
        "notes.md",
    ]


def test_detignore(tmp_path: Path) -> None:
    """Determined's file counts as long as there is no .rungignore."""
    fill(tmp_path, "a.py", "data/big.bin")
    (tmp_path / ".detignore").write_text("data\n")
    assert names(pack(tmp_path)) == [".detignore", "a.py"]


def test_links_within_are_kept(tmp_path: Path) -> None:
    """A link within the folder is kept; an absolute one becomes relative."""
    fill(tmp_path, "sub/a.py")
    (tmp_path / "one").symlink_to("sub/a.py")
    (tmp_path / "sub" / "two").symlink_to(tmp_path / "one")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path).data), mode="r:gz") as opened:
        assert {info.name: info.linkname for info in opened if info.issym()} == {
            "one": "sub/a.py",
            "sub/two": "../one",
        }


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "sub/../../x", "loop"])
def test_links_that_leave_are_refused(tmp_path: Path, target: str) -> None:
    """A link out of the folder, or in a circle, is refused by name; an ignored one is not."""
    folder = tmp_path / "code"
    fill(folder, "sub/a.py")
    (folder / "loop").symlink_to(target)
    with pytest.raises(InvalidCode, match="loop is a link that leaves"):
        pack(folder)
    (folder / ".rungignore").write_text("loop\n")
    pack(folder)


def test_special_files_are_refused(tmp_path: Path) -> None:
    """A pipe is named in the refusal, and not read."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidCode, match="pipe is a device, pipe or socket"):
        pack(tmp_path)


def test_too_much(tmp_path: Path) -> None:
    """A folder above the limit is refused, its largest files named, largest first."""
    for name, size in [("model.bin", 900_000), ("a.py", 10), ("data/x.csv", 300_000)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    with pytest.raises(InvalidCode, match=r"model\.bin \(0\.9 MiB\), data/x\.csv") as refused:
        pack(tmp_path, max_bytes=1024 * 1024)
    assert "a.py" not in str(refused.value)
    assert ".rungignore" in str(refused.value)
    (tmp_path / ".rungignore").write_text("*.bin\n")
    pack(tmp_path, max_bytes=1024 * 1024)


def test_the_limit_by_default(tmp_path: Path) -> None:
    """Without a word, 95 MiB go along; sparse files show it without writing them."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(95 * 1024 * 1024 + 1)
    with pytest.raises(InvalidCode, match=r"at most 95\.0 MiB"):
        pack(tmp_path)


def test_what_is_no_folder(tmp_path: Path) -> None:
    """A file or nothing is refused."""
    (tmp_path / "x").write_text("")
    for path in (tmp_path / "x", tmp_path / "nothing"):
        with pytest.raises(InvalidCode, match="is not a folder"):
            pack(path)


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is refused in printable words."""
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("")
    with pytest.raises(InvalidCode, match="not UTF-8") as refused:
        pack(tmp_path)
    assert str(refused.value).isprintable()


def test_bad_patterns(tmp_path: Path) -> None:
    """A .rungignore that cannot be read is refused."""
    (tmp_path / ".rungignore").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidCode, match="rungignore"):
        pack(tmp_path)


@pytest.mark.parametrize(
    ("target", "words"), [(b"a/\xff", "not UTF-8"), (b"a/" * 513, "empty or too long")]
)
def test_a_link_that_would_be_refused(tmp_path: Path, target: bytes, words: str) -> None:
    """A link's target is held to what the gateway holds it to, before anything is sent."""
    (tmp_path / "link").symlink_to(os.fsdecode(target))
    with pytest.raises(InvalidCode, match=f"link: the link's target is {words}") as refused:
        pack(tmp_path)
    assert str(refused.value).isprintable()
