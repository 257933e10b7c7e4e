"""Code archives: validated before unpacking, and in a canonical form.

The *canonical form* is a tar.gz whose members are sorted, owned by nobody and dated 1970, with
modes 755 and 644 only, every folder named. Equal files therefore give equal bytes, and the SHA-256
of these bytes is the code's digest, under which it is stored once.

All who handle code use the same rules (`check_members`), so that what one accepts, the others
accept: `pack` before the command line sends it, `check_archive` where the gateway receives it,
`unpack` where an agent writes it.

Archives may be hostile. So time and memory are bounded: by the bytes that an archive unpacks to,
by its members with all of their folders, by the size of headers, by the length of links. Nothing
is written outside of the folder: no member lies in a link, links are made last, and each file is
created, never opened.
"""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple, Self, cast

from rung.config.problem import shortened
from rung.events.errors import RungError

BYTES_MAX: Final = 95 * 1024 * 1024
UNPACKED_MAX: Final = 1024 * 1024 * 1024
MEMBERS_MAX: Final = 50_000
"""Files, links and folders, with the folders that an archive does not name."""
DEPTH_MAX: Final = 100
"""Of folders, so that they can be walked by recursion (copying, compiling, deleting)."""

_NAME_MAX: Final = 1024
_PART_MAX: Final = 255
_HOPS_MAX: Final = 40
"""As in Linux: a path over more links counts as a circle."""
_STEPS_MAX: Final = 1_000_000
"""Parts of all targets of links together."""
_HEADER_MAX: Final = 64 * 1024
"""Of one extended header (PAX, GNU): names and targets have 1,024 bytes."""
_GLOBALS_MAX: Final = 4096
"""Of all global headers together; tarfile goes through them for each member."""
_NESTED_MAX: Final = 16
"""Extended headers before one member; tar writes four at most."""
_PER_MEMBER: Final = 4096
"""Bytes of the headers of a member with the longest name and target."""
_CHUNK: Final = 1024 * 1024
_LEVEL: Final = 6

_DAMAGED: Final = (
    tarfile.TarError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
)
"""What tarfile raises of invalid headers."""


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
    """Names of its files and links."""

    def may_hold(self, path: str) -> bool:
        """Return whether there may be a file or folder at a path, possibly behind a link."""
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
    content: "bytes | Slice | Path" = b""
    """A file's bytes, or where they are."""


class Slice(NamedTuple):
    """Where a file's bytes lie in a plain tar."""

    offset: int
    size: int


def check_archive(
    archive: bytes | Path,
    *,
    max_bytes: int = BYTES_MAX,
    max_unpacked: int = UNPACKED_MAX,
    max_members: int = MEMBERS_MAX,
) -> CodeArchive:
    """Return the canonical form of a tar.gz, which may be hostile.

    Blocks for as long as compressing takes; call it in a thread.

    Raises:
        InvalidCode: it is too large, damaged, or has a member that must not be unpacked.
        OSError: there is no space for temporary files.
    """
    size = len(archive) if isinstance(archive, bytes) else archive.stat().st_size
    if size > max_bytes:
        raise InvalidCode(
            f"the code archive has {size:,} bytes; at most {max_bytes:,} are allowed"
        )
    with _opened(archive, max_unpacked, max_members) as (members, plain):
        return write(members, plain)


def unpack(
    archive: bytes | Path,
    folder: Path,
    *,
    max_unpacked: int = UNPACKED_MAX,
    max_members: int = MEMBERS_MAX,
) -> None:
    """Unpack an archive into an empty folder, whose path has no link.

    Nothing is written if any member of it is refused. Blocks, as `check_archive`.

    Raises:
        InvalidCode: exactly where `check_archive` does, but for its `max_bytes`.
        OSError: the folder cannot be written.
    """
    with _opened(archive, max_unpacked, max_members) as (members, plain):
        for member in _sorted(members):
            target = folder / member.name
            if member.kind == tarfile.DIRTYPE:
                target.mkdir()
            elif member.kind == tarfile.REGTYPE:
                _create(target, member, plain)
        for member in members:
            if member.kind == tarfile.SYMTYPE:
                (folder / member.name).symlink_to(member.link)


def write(members: Iterable[Member], plain: IO[bytes] | None = None) -> CodeArchive:
    """Return the canonical archive of members that `check_members` returned.

    `plain` is the tar that their slices are in.
    """
    buffer = io.BytesIO()
    names: list[str] = []
    size = 0
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=buffer, mtime=0) as gz,
        tarfile.open(fileobj=gz, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as target,
    ):
        for member in _sorted(members):
            info = tarfile.TarInfo(member.name)
            info.type = member.kind
            info.linkname = member.link
            info.mode = _mode(member)
            with _content(member, plain) as (content, length):
                info.size = length
                target.addfile(info, content)
            if member.kind != tarfile.DIRTYPE:
                names.append(member.name)
            size += info.size
    data = buffer.getvalue()
    return CodeArchive(data, hashlib.sha256(data).hexdigest(), size, frozenset(names))


def check_members(
    members: Iterable[Member], *, max_members: int = MEMBERS_MAX
) -> dict[str, Member]:
    """Return members that may be unpacked together, by name, with all of their folders.

    Their names must be those that `checked_name` returned.

    Raises:
        InvalidCode: there are too many, two of one name, one in a file or in a link, or a link
            that leaves the code folder.
    """
    found: dict[str, Member] = {}
    for member in members:
        known = found.setdefault(member.name, member)
        if known is not member and not known.kind == member.kind == tarfile.DIRTYPE:
            raise InvalidCode(f"{_shown(member.name)}: twice in the code archive")
        _check_count(found, max_members)
    for name in list(found):
        parts = name.split("/")
        for end in range(1, len(parts)):
            parent = "/".join(parts[:end])
            if found.setdefault(parent, Member(parent, tarfile.DIRTYPE)).kind != tarfile.DIRTYPE:
                raise InvalidCode(f"{_shown(name)}: lies inside of a file or a link")
        _check_count(found, max_members)
    leaving = leaving_link({name: member.link for name, member in found.items() if member.link})
    if leaving is not None:
        raise InvalidCode(f"{_shown(leaving)}: a link that leaves the code folder")
    return found


def leaving_link(links: Mapping[str, str]) -> str | None:
    """Return the first of links (name → target) that leaves the code folder or is circular.

    Raises:
        InvalidCode: their targets are too long, taken together.
    """
    if sum(target.count("/") + 1 for target in links.values()) > _STEPS_MAX:
        raise InvalidCode("the links in the code have targets that are too long, all in all")
    ways = _Ways(links)
    return next((name for name in links if ways.of(name) is None), None)


def checked_name(name: str) -> str:
    """Return a member's name if it may be unpacked anywhere.

    Raises:
        InvalidCode: it is absolute, climbs, is too long or too deep, or is no text.
    """
    shown = _shown(name)
    parts = name.split("/")
    if name.startswith("/"):
        raise InvalidCode(f"{shown}: the path is absolute; pack the folder's content, relative")
    if ".." in parts:
        raise InvalidCode(f"{shown}: the path leaves the code folder (`..`)")
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        raise InvalidCode(f"{shown}: the name is not UTF-8; rename the file") from None
    if any(len(part) > _PART_MAX for part in encoded) or len(name.encode()) > _NAME_MAX:
        raise InvalidCode(
            f"{shown}: the name is too long ({_NAME_MAX} bytes at most, {_PART_MAX} for each part)"
        )
    if "\0" in name or "\\" in name:
        raise InvalidCode(f"{shown}: the name must not contain a backslash or NUL")
    kept = [part for part in parts if part not in {"", "."}]
    if len(kept) > DEPTH_MAX:
        raise InvalidCode(f"{shown}: lies more than {DEPTH_MAX} folders deep")
    return "/".join(kept)


def checked_link(target: str, shown: str) -> str:
    """Return a link's target if it may be made anywhere; `leaving_link` checks where it leads.

    Raises:
        InvalidCode: it is absolute, empty, too long, or is no text.
    """
    if target.startswith("/"):
        raise InvalidCode(f"{shown}: a link to an absolute path; make it relative")
    try:
        size = len(target.encode())
    except UnicodeEncodeError:
        raise InvalidCode(f"{shown}: the link's target is not UTF-8") from None
    if not target or "\0" in target or size > _NAME_MAX:
        raise InvalidCode(f"{shown}: the link's target is empty or too long")
    return target


class _Ways:
    """The targets of the links of a code folder, each resolved once."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._found: dict[str, tuple[list[str], int]] = {}

    def of(self, link: str, before: int = 0) -> tuple[list[str], int] | None:
        """Return the path that a link resolves to, and over how many links.

        None: out of the folder, or in a circle. `before` counts the links on the way to it.
        """
        target = self._links[link]
        if link in self._found:
            return self._found[link]
        if before >= _HOPS_MAX or target.startswith("/"):
            return None
        done, hops = link.split("/")[:-1], 1
        for part in target.split("/"):
            if part in {"", "."}:
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            done.append(part)
            place = "/".join(done)
            if place in self._links:
                way = self.of(place, before + hops)
                if way is None:
                    return None
                done, hops = [*way[0]], hops + way[1]
        if hops > _HOPS_MAX:
            return None
        self._found[link] = done, hops
        return done, hops


class _Bounded:
    """A plain tar that bounds how much tarfile reads at once as a header."""

    def __init__(self, plain: IO[bytes], size: int) -> None:
        self._plain = plain
        self._size = size
        self.nested = 0
        """How many headers tarfile is reading, each within the one before it."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= _HEADER_MAX:
            raise InvalidCode(
                f"the code archive is damaged: a header of more than {_HEADER_MAX:,} bytes"
            )
        return self._plain.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place in it."""
        if whence != os.SEEK_SET or not 0 <= offset <= self._size:
            raise InvalidCode("the code archive is damaged: it ends before its last member does")
        return self._plain.seek(offset)

    def tell(self) -> int:
        """Return where it is."""
        return self._plain.tell()


class _Header(tarfile.TarInfo):
    """A member's header, with a bounded number of extended headers."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Return the next member; tarfile calls this again behind an extended header."""
        plain = cast("_Bounded", tarfile.fileobj)
        if plain.nested > _NESTED_MAX:
            raise InvalidCode(
                f"the code archive is damaged: more than {_NESTED_MAX} headers of one member"
            )
        plain.nested += 1
        try:
            return super().fromtarfile(tarfile)
        finally:
            plain.nested -= 1


@contextmanager
def _opened(
    archive: bytes | Path, max_unpacked: int, max_members: int
) -> Iterator[tuple[list[Member], IO[bytes]]]:
    """Yield the checked members of an archive, and the plain tar that their slices are in."""
    # A temporary plain tar, so that its members can be sorted.
    with tempfile.TemporaryFile() as plain:
        size = _decompress(
            archive, plain, max_unpacked + _PER_MEMBER * max_members + tarfile.RECORDSIZE
        )
        plain.seek(0)
        members = _members(_Bounded(plain, size), max_unpacked, max_members)
        yield list(check_members(members, max_members=max_members).values()), plain


def _decompress(archive: bytes | Path, target: IO[bytes], most: int) -> int:
    written = 0
    with (
        io.BytesIO(archive) if isinstance(archive, bytes) else archive.open("rb") as compressed,
        gzip.GzipFile(fileobj=compressed) as source,
    ):
        while chunk := _next_chunk(source):
            written += len(chunk)
            if written > most:
                raise InvalidCode(f"the code archive unpacks to more than {most:,} bytes")
            target.write(chunk)
    return written


def _next_chunk(source: gzip.GzipFile) -> bytes:
    try:
        return source.read(_CHUNK)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidCode(f"the code archive is no whole tar.gz: {error}") from error


def _members(plain: _Bounded, max_unpacked: int, max_members: int) -> Iterator[Member]:
    """Yield the members of a plain tar in order, each checked by itself."""
    size = 0
    for count, info in enumerate(_headers(plain), 1):
        size += info.size
        if count > 2 * max_members:  # a folder may be named again
            raise InvalidCode(_crowd(max_members))
        if info.size < 0 or size > max_unpacked:
            raise InvalidCode(f"the code archive unpacks to more than {max_unpacked:,} bytes")
        member = _member(info)
        if member.name:
            yield member


def _headers(plain: _Bounded) -> Iterator[tarfile.TarInfo]:
    try:
        with tarfile.open(
            fileobj=cast("IO[bytes]", plain),
            mode="r:",
            encoding="utf-8",
            errors="surrogateescape",
            tarinfo=_Header,
        ) as opened:
            while (info := opened.next()) is not None:
                if sum(map(len, opened.pax_headers.values())) > _GLOBALS_MAX:
                    raise InvalidCode(
                        "the code archive is damaged: its global headers are too long"
                    )
                yield info
                info.pax_headers = {}  # tarfile keeps all members: what is left of them is small
                info.uname = info.gname = ""
    except _DAMAGED as error:
        raise InvalidCode(f"the code archive is damaged: {error}") from error


def _member(info: tarfile.TarInfo) -> Member:
    name = checked_name(info.name)
    shown = _shown(info.name)
    if info.isdir():
        return Member(name, tarfile.DIRTYPE)
    if not name:
        raise InvalidCode(f"{shown}: the code folder itself must be a folder")
    if info.issym():
        return Member(name, tarfile.SYMTYPE, link=checked_link(info.linkname, shown))
    if info.islnk():
        raise InvalidCode(f"{shown}: a hard link; pack with `tar --hard-dereference`")
    if not info.isreg() or info.issparse():
        raise InvalidCode(f"{shown}: neither a plain file, a folder nor a symbolic link")
    content = Slice(info.offset_data, info.size)
    return Member(name, tarfile.REGTYPE, bool(info.mode & 0o100), content=content)


def _check_count(found: Mapping[str, Member], max_members: int) -> None:
    if len(found) > max_members:
        raise InvalidCode(_crowd(max_members))


def _crowd(max_members: int) -> str:
    return (
        f"the code archive has more than {max_members:,} files and folders; leave out what the"
        " code does not need"
    )


def _sorted(members: Iterable[Member]) -> list[Member]:
    """Return members so that each folder comes before what it holds."""
    return sorted(members, key=lambda member: member.name.split("/"))


def _mode(member: Member) -> int:
    return 0o755 if member.executable or member.kind != tarfile.REGTYPE else 0o644


@contextmanager
def _content(member: Member, plain: IO[bytes] | None) -> Iterator[tuple[IO[bytes], int]]:
    """Yield a file's bytes, and how many they are."""
    match member.content:
        case bytes() as data:
            yield io.BytesIO(data), len(data)
        case Slice(offset, size):
            assert plain is not None
            plain.seek(offset)
            yield plain, size
        case Path() as path:
            with path.open("rb") as file:
                yield file, os.fstat(file.fileno()).st_size


def _create(path: Path, member: Member, plain: IO[bytes]) -> None:
    """Write a new file, dated 1970 as its archive says."""
    with path.open("xb") as file, _content(member, plain) as (content, size):
        left = size
        while left:
            chunk = content.read(min(left, _CHUNK))
            if not chunk:
                raise InvalidCode(f"{_shown(member.name)}: the code archive ends within it")
            file.write(chunk)
            left -= len(chunk)
        os.fchmod(file.fileno(), _mode(member))
    os.utime(path, (0, 0))


def _shown(name: str) -> str:
    return repr(shortened(name, 100))
