"""Packing a code folder."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from rung.config.code_archive import CodeArchive
from rung.config.code_folder import InvalidCode, LeftOut, check_archive, pack


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
    """Version control, byte code, environments and what runs by hand leave are left out."""
    fill(tmp_path, "a.py", ".git/x", "p/__pycache__/a.pyc", "p/b.py", ".venv/lib/z.py", "b.pyc")
    fill(tmp_path, "rung-local/checkpoints/x/model.pt", "rung-tensorboard/k3v9x2ab/events")
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


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("*.log\ndata/\n", ["a.py", "sub/c.py"]),
        ("/sub\n", ["a.py", "b.log", "data/d.py", "data/x.log"]),
        ("*.log\n!b.log\n", ["a.py", "b.log", "data/d.py", "sub/c.py"]),
        ("*\n!*/\n!*.py\n", ["a.py", "data/d.py", "sub/c.py"]),
        ("data/**\n!data/x.log\n", ["a.py", "b.log", "data/x.log", "sub/c.py", "sub/e.log"]),
        ("data/\n!data/x.log\n", ["a.py", "b.log", "sub/c.py", "sub/e.log"]),
        ("!\n[z-a]\n# note\n\n*.log\n", ["a.py", "data/d.py", "sub/c.py"]),
    ],
)
def test_gitignore(tmp_path: Path, patterns: str, kept: list[str]) -> None:
    """What git leaves out is left out; lines that git skips are skipped."""
    fill(tmp_path, "a.py", "b.log", "data/d.py", "data/x.log", "sub/c.py", "sub/e.log", ".git/x")
    (tmp_path / ".gitignore").write_text(patterns)
    assert [name for name in names(pack(tmp_path)) if name != ".gitignore"] == kept


def test_gitignore_files_of_subfolders(tmp_path: Path) -> None:
    """The deepest file decides, for what lies in its folder; `.rungignore` decides before all."""
    fill(tmp_path, "a.log", "b.log", "sub/a.log", "sub/deep/a.log", "sub/x.py", "sub/deep/x.py")
    (tmp_path / ".gitignore").write_text("*.log\n")
    (tmp_path / "sub" / ".gitignore").write_text("!*.log\n/x.py\n")
    (tmp_path / ".rungignore").write_text("!b.log\n/sub/deep/a.log\n")
    left: list[LeftOut] = []
    kept = names(pack(tmp_path, left_out=left))
    assert kept == [
        ".gitignore",
        ".rungignore",
        "b.log",
        "sub/.gitignore",
        "sub/a.log",
        "sub/deep/x.py",
    ]
    assert left == [
        LeftOut("a.log", ".gitignore"),
        LeftOut("sub/deep/a.log", ".rungignore"),
        LeftOut("sub/x.py", "sub/.gitignore"),
    ]


def test_gitignore_of_the_repository(tmp_path: Path) -> None:
    """The files above a folder count up to the repository's root, unless they leave it out."""
    fill(tmp_path, ".git/HEAD", "src/model/a.py", "src/model/b.log", "src/model/c.txt")
    (tmp_path.parent / ".gitignore").write_text("*.py\n")
    (tmp_path / ".gitignore").write_text("*.log\n/c.txt\n")
    (tmp_path / "src" / ".gitignore").write_text("/model/c.txt\n")
    assert names(pack(tmp_path / "src" / "model")) == ["a.py"]
    (tmp_path / "src" / ".gitignore").write_text("model\n")
    assert names(pack(tmp_path / "src" / "model")) == ["a.py", "b.log", "c.txt"]


def test_virtual_environments(tmp_path: Path) -> None:
    """They are left out whatever their name, and said, unless .rungignore has that name."""
    fill(tmp_path, "a.py", "env/pyvenv.cfg", "env/lib/x.py", "tools/my venv/pyvenv.cfg")
    fill(tmp_path, ".venv/pyvenv.cfg", ".venv/lib/x.py")
    (tmp_path / ".rungignore").write_text("*\n!*/\n!*.py\n")
    left: list[LeftOut] = []
    assert names(pack(tmp_path, left_out=left)) == ["a.py"]
    assert left == [
        LeftOut(".rungignore", ".rungignore"),
        LeftOut("env/", "a virtual environment"),
        LeftOut("tools/my venv/", "a virtual environment"),
    ]
    (tmp_path / ".rungignore").write_text("!env\n")
    assert names(pack(tmp_path)) == [".rungignore", "a.py", "env/lib/x.py", "env/pyvenv.cfg"]


def test_nothing_is_left(tmp_path: Path) -> None:
    """Patterns that leave out everything are no empty submission."""
    fill(tmp_path, "train.py", "sub/x.py")
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(InvalidCode) as refused:
        pack(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} holds nothing to pack: .gitignore leaves out .gitignore; name what the code"
        " needs in .rungignore, as `!train.py`"
    )
    (tmp_path / ".rungignore").write_text("!train.py\n")
    assert names(pack(tmp_path)) == ["train.py"]


def test_links_are_followed_if_asked(tmp_path: Path) -> None:
    """Links that leave become what they point to; links within stay links."""
    folder = tmp_path / "code"
    fill(folder, "a.py")
    fill(tmp_path, "shared/util.py", "shared/deep/z.py", "shared/skip.log", "one.py", "two.py")
    (tmp_path / "one.py").chmod(0o755)
    (folder / "lib").symlink_to(tmp_path / "shared")
    (folder / "one.py").symlink_to("../one.py")
    (folder / "again").symlink_to("lib/util.py")
    (folder / "b.py").symlink_to("a.py")
    (folder / "up").symlink_to("lib/../two.py")
    (tmp_path / "shared" / "link.py").symlink_to("deep/z.py")
    (folder / ".rungignore").write_text("*.log\n")
    with pytest.raises(InvalidCode, match="pack what it points to with --follow-links"):
        pack(folder)
    with tarfile.open(
        fileobj=io.BytesIO(pack(folder, follow_links=True).data), mode="r:gz"
    ) as opened:
        found = {info.name: info for info in opened}
    assert {name: info.linkname for name, info in found.items() if info.issym()} == {
        "again": "lib/util.py",
        "b.py": "a.py",
    }
    assert {name for name, info in found.items() if info.isreg()} == {
        ".rungignore",
        "a.py",
        "lib/deep/z.py",
        "lib/link.py",
        "lib/util.py",
        "one.py",
        "up",
    }
    assert (found["one.py"].mode, found["up"].mode) == (0o755, 0o644)


@pytest.mark.parametrize(
    ("link", "target", "words"),
    [
        ("gone", "../gone", "gone is a link to what is not there (../gone); remove it, or name"),
        ("null", "/dev/null", "null is a device, pipe or socket; remove it, or name"),
        ("loop", "loop", "loop is a link that leaves the folder"),
        ("out", "../out", "out/back is a link to a folder that it lies in; name it"),
        ("out", "../big", "holds 2.0 MiB; at most 1.0 MiB can be submitted"),
    ],
)
def test_links_that_cannot_be_followed(tmp_path: Path, link: str, target: str, words: str) -> None:
    """What is not there, no file, endless or too large is refused by name."""
    folder = tmp_path / "code"
    fill(folder, "a.py")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "back").symlink_to(folder)
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "file").write_bytes(bytes(2 * 1024 * 1024))
    (folder / link).symlink_to(target)
    with pytest.raises(InvalidCode) as refused:
        pack(folder, follow_links=True, max_bytes=1024 * 1024)
    assert words in str(refused.value)
    (folder / ".rungignore").write_text(f"{link}\n")
    pack(folder, follow_links=True)


def test_a_link_to_a_folder_is_one_for_patterns(tmp_path: Path) -> None:
    """`data/` leaves out a link to a folder, too, so that it need not be followed."""
    fill(tmp_path / "code", "a.py")
    (tmp_path / "code" / "data").symlink_to(tmp_path)
    (tmp_path / "code" / ".gitignore").write_text("data/\n")
    assert names(pack(tmp_path / "code")) == [".gitignore", "a.py"]


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
