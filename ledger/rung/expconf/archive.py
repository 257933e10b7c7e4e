"""A code archive: checked without ever unpacking it to disk, and in one form for equal code.

The *canonical form* is a tar.gz whose members are sorted, owned by nobody and dated 1970, with
modes 755 and 644 only. Equal files therefore give equal bytes, and the SHA-256 of these bytes is
the code's digest, under which it is stored once.
"""

import gzip
import hashlib
import io
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, NamedTuple

from rung.events.errors import RungError
from rung.expconf.problem import shortened

BYTES_MAX: Final = 95 * 1024 * 1024
UNPACKED_MAX: Final = 1024 * 1024 * 1024
MEMBERS_MAX: Final = 50_000

_NAME_MAX: Final = 1024
_PART_MAX: Final = 255
_HOPS_MAX: Final = 40
_CHUNK: Final = 1024 * 1024
_LEVEL: Final = 6


class InvalidCode(RungError):
    """Code that cannot be submitted; the message names the file and the fix."""


class CodeArchive(NamedTuple):
    """Code in its canonical form."""

    data: bytes
    """The tar.gz."""
    digest: str
    """SHA-256 of data, in hexadecimal."""
    size_bytes: int
    """The size of its files, unpacked."""
    names: frozenset[str]
    """What its files and links are called."""

    def may_hold(self, path: str) -> bool:
        """Return whether a file or folder may be found there, be it behind a link."""
        parts = path.split("/")
        ways = {"/".join(parts[: count + 1]) for count in range(len(parts))}
        inside = "" if path == "." else f"{path}/"
        return bool(ways & self.names) or any(name.startswith(inside) for name in self.names)


class Member(NamedTuple):
    """One entry of an archive."""

    name: str
    """Relative to the code folder, `/` between its parts."""
    kind: bytes
    """tarfile's type: REGTYPE, DIRTYPE or SYMTYPE."""
    executable: bool = False
    link: str = ""
    """A link's target."""
    content: bytes | tarfile.TarInfo | Path = b""
    """A file's bytes, or where they are."""


def check_archive(
    archive: bytes | Path,
    *,
    max_bytes: int = BYTES_MAX,
    max_unpacked: int = UNPACKED_MAX,
    max_members: int = MEMBERS_MAX,
) -> CodeArchive:
    """Return a tar.gz from anybody in its canonical form.

    Blocks for as long as compressing takes; call it from a thread where an event loop runs.

    Raises:
        InvalidCode: it is too large, damaged, or has a member that must not be unpacked.
    """
    size = len(archive) if isinstance(archive, bytes) else archive.stat().st_size
    if size > max_bytes:
        raise InvalidCode(
            f"the code archive has {size:,} bytes; at most {max_bytes:,} are allowed"
        )
    # Unlinked at once and never unpacked: a plain tar, so that its members can be sorted.
    with tempfile.TemporaryFile() as plain:
        _decompress(archive, plain, max_unpacked + 4096 * max_members)
        plain.seek(0)
        try:
            with tarfile.open(fileobj=plain, mode="r:") as opened:
                members = _members(opened, max_unpacked, max_members)
                return write(members, opened)
        except (tarfile.TarError, ValueError, EOFError, OSError) as error:
            raise InvalidCode(f"the code archive is damaged: {error}") from error


def write(members: Iterable[Member], source: tarfile.TarFile | None = None) -> CodeArchive:
    """Return the canonical archive of the members, whose names differ."""
    buffer = io.BytesIO()
    names: list[str] = []
    size = 0
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=buffer, mtime=0) as gz,
        tarfile.open(fileobj=gz, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(members, key=lambda member: member.name.split("/")):
            info = tarfile.TarInfo(member.name)
            info.type = member.kind
            info.linkname = member.link
            info.mode = 0o755 if member.executable or member.kind != tarfile.REGTYPE else 0o644
            content = _content(member, source)
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))
            if member.kind != tarfile.DIRTYPE:
                names.append(member.name)
            size += info.size
    data = buffer.getvalue()
    return CodeArchive(data, hashlib.sha256(data).hexdigest(), size, frozenset(names))


def climbs_out(name: str, links: dict[str, str]) -> bool:
    """Return whether a path, followed through the archive's links, leaves the code folder."""
    todo = name.split("/")[::-1]
    done: list[str] = []
    hops = 0
    while todo:
        part = todo.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            if not done:
                return True
            done.pop()
            continue
        done.append(part)
        target = links.get("/".join(done))
        if target is not None:
            hops += 1
            if target.startswith("/") or hops > _HOPS_MAX:
                return True
            done.pop()
            todo.extend(target.split("/")[::-1])
    return False


def checked_name(name: str) -> str:
    """Return a member's name if it may be unpacked anywhere.

    Raises:
        InvalidCode: it is absolute, climbs, is too long, or is no text.
    """
    shown = repr(shortened(name, 100))
    parts = name.split("/")
    if name.startswith("/"):
        raise InvalidCode(f"{shown}: the path is absolute; pack the folder's content, relative")
    if ".." in parts:
        raise InvalidCode(f"{shown}: the path leaves the code folder (`..`)")
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        raise InvalidCode(f"{shown}: the name is not UTF-8; rename the file") from None
    if any(len(part) > _PART_MAX for part in encoded) or len("/".join(parts).encode()) > _NAME_MAX:
        raise InvalidCode(f"{shown}: the name is too long ({_NAME_MAX} bytes at most)")
    if "\0" in name or "\\" in name:
        raise InvalidCode(f"{shown}: the name must not contain a backslash or NUL")
    return "/".join(part for part in parts if part not in {"", "."})


def _content(member: Member, source: tarfile.TarFile | None) -> bytes:
    content = member.content
    if isinstance(content, bytes):
        return content
    if isinstance(content, Path):
        return content.read_bytes()
    assert source is not None
    opened = source.extractfile(content)
    assert opened is not None, content
    return opened.read()


def _decompress(archive: bytes | Path, target: IO[bytes], most: int) -> None:
    written = 0
    try:
        with (
            io.BytesIO(archive)
            if isinstance(archive, bytes)
            else archive.open("rb") as compressed,
            gzip.GzipFile(fileobj=compressed) as source,
        ):
            while chunk := source.read(_CHUNK):
                written += len(chunk)
                if written > most:
                    raise InvalidCode(f"the code archive unpacks to more than {most:,} bytes")
                target.write(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidCode(f"the code archive is no whole tar.gz: {error}") from error


def _members(archive: tarfile.TarFile, max_unpacked: int, max_members: int) -> list[Member]:
    found: dict[str, Member] = {}
    links: dict[str, str] = {}
    count = size = 0
    for info in archive:
        count += 1
        size += info.size
        if count > max_members:
            raise InvalidCode(f"the code archive has more than {max_members:,} members")
        if size > max_unpacked:
            raise InvalidCode(f"the code archive unpacks to more than {max_unpacked:,} bytes")
        member = _member(info)
        if not member.name:
            continue
        if member.name in found and not found[member.name].kind == member.kind == tarfile.DIRTYPE:
            raise InvalidCode(f"{shortened(member.name, 100)!r}: twice in the code archive")
        found[member.name] = member
        if member.link:
            links[member.name] = member.link
    for name in list(found):
        _check_place(name, found, links)
    return list(found.values())


def _member(info: tarfile.TarInfo) -> Member:
    name = checked_name(info.name)
    shown = repr(shortened(info.name, 100))
    if info.isdir():
        return Member(name, tarfile.DIRTYPE)
    if info.issym():
        return Member(name, tarfile.SYMTYPE, link=_checked_link(info.linkname, shown))
    if info.islnk():
        raise InvalidCode(f"{shown}: a hard link; pack with `tar --hard-dereference`")
    if not info.isreg() or info.issparse():
        raise InvalidCode(f"{shown}: neither a plain file, a folder nor a symbolic link")
    return Member(name, tarfile.REGTYPE, bool(info.mode & 0o100), content=info)


def _checked_link(target: str, shown: str) -> str:
    if target.startswith("/"):
        raise InvalidCode(f"{shown}: a link to an absolute path; make it relative")
    try:
        target.encode()
    except UnicodeEncodeError:
        raise InvalidCode(f"{shown}: the link's target is not UTF-8") from None
    if not target or "\0" in target or len(target) > _NAME_MAX:
        raise InvalidCode(f"{shown}: the link's target is empty or too long")
    return target


def _check_place(name: str, found: dict[str, Member], links: dict[str, str]) -> None:
    """Refuse a member that lies in a file or a link, or leads out; name its folders."""
    parts = name.split("/")
    for end in range(1, len(parts)):
        parent = "/".join(parts[:end])
        if found.setdefault(parent, Member(parent, tarfile.DIRTYPE)).kind != tarfile.DIRTYPE:
            raise InvalidCode(f"{shortened(name, 100)!r}: lies inside of a file or a link")
    if name in links and climbs_out(name, links):
        raise InvalidCode(f"{shortened(name, 100)!r}: a link that leaves the code folder")
