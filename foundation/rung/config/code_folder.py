"""Packs a code folder for submission."""

import contextlib
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec, PathSpec

from rung.config.code_archive import (
    BYTES_MAX,
    MEMBERS_MAX,
    CodeArchive,
    InvalidCode,
    Member,
    check_archive,
    check_members,
    checked_link,
    checked_name,
    leaving_link,
    write,
)
from rung.config.problem import shortened

__all__ = ["CodeArchive", "InvalidCode", "LeftOut", "check_archive", "listed", "pack"]

_IGNORE_FILES: Final = (".rungignore", ".detignore")
"""Where the patterns are; the first file that exists counts, and decides before `.gitignore`."""
_GITIGNORE: Final = ".gitignore"

_ALWAYS_IGNORED: Final = (
    ".git",
    ".venv",
    "__pycache__",
    "*.pyc",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".DS_Store",
    "rung-local",
    "rung-tensorboard",
)
"""Left out everywhere, as are virtual environments, unless `.rungignore` brings them back by name
(`!.venv`; `!*/` does not)."""
_VENV: Final = "pyvenv.cfg"
"""What a folder holds that is a virtual environment, whatever its name."""
_LARGEST: Final = 5
"""How many files a refusal for size names."""
_NAMED: Final = 4
"""How many names are listed of what was left out for one reason."""


class LeftOut(NamedTuple):
    """A file or folder that was not packed."""

    name: str
    """Relative to the code folder; a folder's ends with a slash."""
    why: str
    """The file whose pattern it matches, or what it is."""


def listed(left_out: Iterable[LeftOut]) -> str:
    """Return what was left out, by the reason: `a.log, b.log and 2 more (.gitignore)`."""
    names: dict[str, list[str]] = {}
    for name, why in left_out:
        names.setdefault(why, []).append(name)
    return ", ".join(
        f"{', '.join(each[:_NAMED])}"
        + (f" and {len(each) - _NAMED} more" if len(each) > _NAMED else "")
        + f" ({why})"
        for why, each in names.items()
    )


def pack(
    folder: Path,
    *,
    follow_links: bool = False,
    max_bytes: int = BYTES_MAX,
    left_out: list[LeftOut] | None = None,
) -> CodeArchive:
    """Return the folder's code in its canonical form.

    Left out is what `.rungignore` names, what the `.gitignore` files of the folder and of its
    repository name, and virtual environments.

    Args:
        folder: with the code.
        follow_links: whether links that leave the folder are replaced by what they point to.
        max_bytes: all files taken together.
        left_out: a list, gets each file and folder that is left out, but for caches and `.git`.

    Raises:
        InvalidCode: there is no such folder, it holds too much, or something that is neither a
            file, a folder, nor a link within it.
    """
    if not folder.is_dir():
        raise InvalidCode(f"{folder} is not a folder")
    members: list[Member] = []
    sizes: list[tuple[int, str]] = []
    links: dict[str, str] = {}
    left_out = [] if left_out is None else left_out
    try:
        for member, size in _Walk(folder, left_out, follow_links=follow_links).members():
            members.append(member)
            sizes.append((size, member.name))
            if member.link:
                links[member.name] = member.link
            if len(members) > MEMBERS_MAX:
                raise InvalidCode(
                    f"{folder} holds more than {MEMBERS_MAX:,} files and folders;"
                    " name what the code does not need in .rungignore"
                )
        if left_out and all(member.kind == tarfile.DIRTYPE for member in members):
            raise InvalidCode(
                f"{folder} holds nothing to pack: {left_out[0].why} leaves out"
                f" {left_out[0].name}; name what the code needs in .rungignore, as `!train.py`"
            )
        _check_size(folder, sizes, max_bytes)
        name = leaving_link(links)
        if name is not None:
            raise InvalidCode(
                f"{_shown(folder / name)} is a link that leaves the folder"
                f" (to {shortened(links[name])}); pack what it points to with --follow-links, or"
                " name the link in .rungignore"
            )
        return write(check_members(members).values())
    except OSError as error:
        raise InvalidCode(
            f"{_shown(error.filename or folder)} cannot be read ({error.strerror or error});"
            " make it readable, or name it in .rungignore"
        ) from error


class _Patterns:
    """The patterns of one file, which concern what lies in its folder."""

    def __init__(
        self, lines: Sequence[str], source: str = "", within: str = "", above: str = ""
    ) -> None:
        """Compile lines.

        Args:
            lines: patterns in the syntax of `.gitignore`.
            source: the file's name.
            within: its folder, relative to the code folder; with a slash at its end.
            above: or the code folder, relative to its folder; with a slash at its end.

        Raises:
            ValueError: a line is no pattern.
        """
        self.source = source
        self._within = within
        self._above = above
        try:
            # Its backend on RE2 fails on names that are no UTF-8.
            self._files = GitIgnoreSpec.from_lines(lines, backend="simple")
            # Other than to git, folders are left out by `*`, `!*/` to `GitIgnoreSpec`, and the
            # folder `data` itself by `data/**` to both.
            folders = [line for line in lines if not line.rstrip().endswith("/**")]
            self._folders = PathSpec.from_lines("gitignore", folders, backend="simple")
        except re.error as error:
            raise ValueError(str(error)) from error

    def decide(self, name: str) -> bool | None:
        """Return whether these leave out what has a name, None if they do not say.

        A folder's name ends with a slash.
        """
        path = self._above + name.removeprefix(self._within)
        spec = self._folders if path.endswith("/") else self._files
        return spec.check_file(path).include


_Id = tuple[int, int]


class _Walk:
    """Goes through a code folder."""

    def __init__(self, folder: Path, left_out: list[LeftOut], *, follow_links: bool) -> None:
        self._folder = folder
        self._real = os.path.realpath(folder)
        self._follow = follow_links
        self._left = left_out
        self._always = _Patterns(_ALWAYS_IGNORED)
        self._own, self._wanted = _own(folder)

    def members(self) -> Iterator[tuple[Member, int]]:
        """Yield what is packed, with sizes."""
        yield from self._below("", _of_repository(Path(self._real)), [], outside=False)

    def _below(
        self, prefix: str, patterns: list[_Patterns], parents: list[_Id], *, outside: bool
    ) -> Iterator[tuple[Member, int]]:
        """Yield what lies in a folder; `outside`: behind a link that leaves the code."""
        place = self._folder / prefix
        facts = place.stat()
        here = (facts.st_dev, facts.st_ino)
        if here in parents:
            raise InvalidCode(
                f"{_shown(place)} is a link to a folder that it lies in; name it in .rungignore"
            )
        parents = [*parents, here]
        patterns = [*patterns, *_gitignore(place, within=prefix)]
        with os.scandir(place) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = f"{prefix}{entry.name}"
            if self._left_out(name, entry, patterns):
                continue
            checked_name(name)
            follows = entry.is_symlink() and self._follow and (outside or self._leaves(name))
            if entry.is_symlink() and not follows:
                link = _target(self._folder, name)
                yield Member(name, tarfile.SYMTYPE, link=link), 0
            elif entry.is_dir(follow_symlinks=follows):
                yield Member(name, tarfile.DIRTYPE), 0
                yield from self._below(f"{name}/", patterns, parents, outside=outside or follows)
            else:
                yield self._file(name, entry, follows=follows)

    def _file(self, name: str, entry: os.DirEntry[str], *, follows: bool) -> tuple[Member, int]:
        path = self._folder / name
        try:
            facts = entry.stat(follow_symlinks=follows)
        except FileNotFoundError:
            if not follows:
                raise
            raise InvalidCode(
                f"{_shown(path)} is a link to what is not there"
                f" ({shortened(str(path.readlink()))}); remove it, or name it in .rungignore"
            ) from None
        if not stat.S_ISREG(facts.st_mode):
            raise InvalidCode(
                f"{_shown(path)} is a device, pipe or socket; remove it, or name it in .rungignore"
            )
        executable = bool(facts.st_mode & stat.S_IXUSR)
        return Member(name, tarfile.REGTYPE, executable, content=path), facts.st_size

    def _left_out(self, name: str, entry: os.DirEntry[str], patterns: list[_Patterns]) -> bool:
        """Return whether an entry is left out; a link to a folder is one for patterns, too."""
        is_folder = entry.is_dir(follow_symlinks=False) or Path(entry).is_dir()
        shown = f"{name}/" if is_folder else name
        if self._wanted.decide(shown) is None:
            if self._always.decide(shown):
                return True
            if is_folder and (self._folder / name / _VENV).is_file():
                self._left.append(LeftOut(shown, "a virtual environment"))
                return True
        for each in (self._own, *reversed(patterns)):
            decided = each.decide(shown)
            if decided:
                self._left.append(LeftOut(shown, each.source))
            if decided is not None:
                return decided
        return False

    def _leaves(self, name: str) -> bool:
        """Return whether a link's target is out of the folder.

        `lib/../x` is, where `lib` is a link, though it does not look like it.
        """
        target = os.path.normpath(Path(name).parent / _target(self._folder, name))
        if target.startswith(("/", "../")) or target == "..":
            return True
        real = os.path.realpath(self._folder / name)
        return os.path.realpath(self._folder / target) != real


def _own(folder: Path) -> tuple[_Patterns, _Patterns]:
    """Return the patterns of `.rungignore`, and those of what they bring back by name."""
    lines: list[str] = []
    for name in _IGNORE_FILES:
        try:
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidCode(f"{folder / name} cannot be read: {error}") from error
        break
    try:
        wanted = [line for line in lines if line.startswith("!") and "*" not in line]
        return _Patterns(lines, name), _Patterns(wanted)
    except ValueError as error:
        raise InvalidCode(f"{folder / name}: {error}") from error


def _gitignore(folder: Path, *, within: str = "", above: str = "") -> list[_Patterns]:
    """Return the patterns of a folder's `.gitignore`; skips what is no pattern, as git does."""
    path = folder / _GITIGNORE
    if not path.is_file():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        with contextlib.suppress(ValueError):
            _Patterns([line])
            kept.append(line)
    return [_Patterns(kept, f"{within}{_GITIGNORE}", within, above)]


def _of_repository(folder: Path) -> list[_Patterns]:
    """Return the patterns of the `.gitignore` files above a folder, up to its repository's root.

    None where they leave out the folder itself, which is packed all the same.
    """
    above = [folder, *folder.parents]
    root = next((place for place, each in enumerate(above) if (each / ".git").exists()), 0)
    found: list[_Patterns] = []
    for parent in reversed(above[1 : root + 1]):
        found += _gitignore(parent, above=f"{folder.relative_to(parent).as_posix()}/")
    decided = (each.decide("") for each in reversed(found))
    ignored = next((each for each in decided if each is not None), False)
    return [] if ignored else found


def _target(folder: Path, name: str) -> str:
    """Return a link's target; one that is absolute but inside of the folder becomes relative."""
    target = (folder / name).readlink()
    if not target.is_absolute():
        return checked_link(str(target), _shown(folder / name))
    for root in (folder.absolute(), folder.resolve()):
        if target.is_relative_to(root):
            relative = os.path.relpath(target, (root / name).parent)
            return checked_link(relative, _shown(folder / name))
    return str(target)


def _check_size(folder: Path, sizes: list[tuple[int, str]], max_bytes: int) -> None:
    total = sum(size for size, _ in sizes)
    if total <= max_bytes:
        return
    first, *others = sorted(sizes, reverse=True)[:_LARGEST]
    largest = [first, *(item for item in others if item[0] >= total / 100)]
    listed = ", ".join(f"{_shown(name)} ({_mib(size)})" for size, name in largest)
    raise InvalidCode(
        f"{folder} holds {_mib(total)}; at most {_mib(max_bytes)} can be submitted. The largest"
        f" files: {listed}. Name what the code does not need in .rungignore"
    )


def _shown(path: Path | str) -> str:
    """Return a path as it may be quoted in a message."""
    return shortened(str(path), 400)


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.1f} MiB"
