"""Code archives from anybody: refused when unpacking them could hurt, canonical otherwise."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rung.config.code_archive import CodeArchive, InvalidCode, check_archive


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **facts: object
) -> tarfile.TarInfo:
    """Return a tar header."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def packed(*members: tarfile.TarInfo | tuple[str, bytes]) -> bytes:
    """Return a tar.gz of headers without content, and of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for entry in members:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                archive.addfile(info, io.BytesIO(entry[1]))
    return buffer.getvalue()


def content(archive: CodeArchive) -> Iterator[tuple[str, int, str, bytes | None]]:
    """Yield name, mode, link target and bytes of what an archive holds."""
    with tarfile.open(fileobj=io.BytesIO(archive.data), mode="r:gz") as opened:
        for info in opened:
            file = opened.extractfile(info) if info.isreg() else None
            yield info.name, info.mode, info.linkname, file.read() if file else None


def test_equal_code_has_an_equal_digest() -> None:
    """Order, owners, dates, `./` and unimportant modes do not matter; content does."""
    one = packed(("b/x.py", b"1"), ("a.py", b"2"))
    owned = member("a.py", mtime=99, uid=7, mode=0o600, size=1)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member("./", tarfile.DIRTYPE))
        archive.addfile(owned, io.BytesIO(b"2"))
        archive.addfile(member("./b", tarfile.DIRTYPE, mode=0o777))
        archive.addfile(member("./b/x.py", size=1), io.BytesIO(b"1"))
    found, same = check_archive(one), check_archive(buffer.getvalue())
    assert found == same
    assert found.digest == hashlib.sha256(found.data).hexdigest()
    assert check_archive(packed(("b/x.py", b"3"), ("a.py", b"2"))).digest != found.digest


def test_the_canonical_form_is_its_own() -> None:
    """Checking a canonical archive gives the very same bytes."""
    archive = check_archive(packed(("x", b"1"), member("l", tarfile.SYMTYPE, "x")))
    assert check_archive(archive.data) == archive


def test_what_is_kept(tmp_path: Path) -> None:
    """Files with the owner's execute bit, folders, and links within stay as they are."""
    path = tmp_path / "code.tar.gz"
    path.write_bytes(
        packed(
            ("src/train.py", b"print()"),
            member("run.sh", mode=0o700),
            member("empty", tarfile.DIRTYPE),
            member("src/latest", tarfile.SYMTYPE, "../run.sh"),
        )
    )
    archive = check_archive(path)
    assert list(content(archive)) == [
        ("empty", 0o755, "", None),
        ("run.sh", 0o755, "", b""),
        ("src", 0o755, "", None),
        ("src/latest", 0o755, "../run.sh", None),
        ("src/train.py", 0o644, "", b"print()"),
    ]
    assert (len(archive.names), archive.size_bytes) == (3, 7)


SYM: Final = tarfile.SYMTYPE
REFUSED: Final = {
    "absolute": (packed(("/etc/passwd", b"")), "absolute"),
    "climbing": (packed(("a/../../b", b"")), "`..`"),
    "climbing on Windows": (packed(("..\\..\\b", b"")), "backslash"),
    "link to an absolute path": (packed(member("a", SYM, "/etc/passwd")), "absolute path"),
    "link out": (packed(member("a/b", SYM, "../../c")), "leaves"),
    "link out over a link": (
        packed(member("a", SYM, "b/c"), member("b/c", SYM, "."), member("d", SYM, "a/../..")),
        "leaves",
    ),
    "links in a circle": (packed(member("a", SYM, "b"), member("b", SYM, "a")), "leaves"),
    "a file in a link": (packed(member("a", SYM, "b"), ("a/x", b"")), "inside of"),
    "a file in a file": (packed(("a", b""), ("a/x", b"")), "inside of"),
    "twice": (packed(("a", b"1"), ("a", b"2")), "twice"),
    "file and folder": (packed(("a", b"1"), member("a", tarfile.DIRTYPE)), "twice"),
    "hard link": (packed(("a", b""), member("b", tarfile.LNKTYPE, "a")), "hard link"),
    "device": (packed(member("a", tarfile.CHRTYPE)), "neither"),
    "pipe": (packed(member("a", tarfile.FIFOTYPE)), "neither"),
    "long name": (packed(("a" * 300, b"")), "too long"),
    "deep name": (packed(("a/" * 600 + "b", b"")), "too long"),
    "no gzip": (b"hello", "no whole tar.gz"),
    "nothing": (b"", "damaged"),
    "cut short": (packed(("a", bytes(range(256)) * 99))[:-20], "no whole tar.gz"),
    "gzip of something else": (gzip.compress(b"hello" * 1000), "damaged"),
    "a bomb of zeros": (gzip.compress(bytes(64 * 1024 * 1024)), "unpacks to more"),
    "a bomb of a file": (packed(("a", bytes(3 * 1024 * 1024))), "unpacks to more"),
    "a crowd": (packed(*(member(f"{index}") for index in range(2000))), "more than 1,000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """Each is refused with a reason."""
    data, words = REFUSED[name]
    with pytest.raises(InvalidCode, match=words):
        check_archive(data, max_unpacked=2 * 1024 * 1024, max_members=1000)


@pytest.mark.parametrize(("count", "words"), [(16, ""), (17, "more than 16"), (900, "more than")])
def test_many_headers_of_one_member(count: int, words: str) -> None:
    """Few extended headers are read, many refused, in the same words however deep the stack."""
    whole = packed(member("a", pax_headers={"comment": "x"}))
    plain = gzip.decompress(whole)
    data = gzip.compress(plain[:1024] * count + plain[1024:])

    def refusal(frames: int) -> str:
        if frames:
            return refusal(frames - 1)
        try:
            check_archive(data)
        except InvalidCode as error:
            return str(error)
        return ""

    assert words in refusal(0)
    assert bool(words) == bool(refusal(0))
    assert refusal(0) == refusal(700)


def test_a_size_that_lies() -> None:
    """A header that promises more than there is, is refused, whatever it promises."""
    data = gzip.compress(member("a", size=10**12).tobuf() + b"x" * 2048)
    with pytest.raises(InvalidCode):
        check_archive(data)


def test_too_many_bytes() -> None:
    """What is too large is refused before it is unpacked."""
    with pytest.raises(InvalidCode, match="at most 10 are allowed"):
        check_archive(packed(("a", b"")), max_bytes=10)
