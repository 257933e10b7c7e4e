"""Packs a code folder for submission."""

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

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

__all__ = ["CodeArchive", "InvalidCode", "check_archive", "pack"]

_IGNORE_FILES: Final = (".rungignore", ".detignore")
"""Where the patterns are; the first file that exists counts."""

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
)
"""Left out everywhere, unless the file says otherwise (`!.venv`)."""
_LARGEST: Final = 5
"""How many files a refusal for size names."""


def pack(folder: Path, *, max_bytes: int = BYTES_MAX) -> CodeArchive:
    """Return the folder's code, without what `.rungignore` names, in its canonical form.

    Raises:
        InvalidCode: there is no such folder, it holds too much, or something that is neither a
            file, a folder, nor a link within it.
    """
    if not folder.is_dir():
        raise InvalidCode(f"{folder} is not a folder")
    members: list[Member] = []
    sizes: list[tuple[int, str]] = []
    links: dict[str, str] = {}
    try:
        for member, size in _walk(folder, "", _ignored(folder)):
            members.append(member)
            sizes.append((size, member.name))
            if member.link:
                links[member.name] = member.link
            if len(members) > MEMBERS_MAX:
                raise InvalidCode(
                    f"{folder} holds more than {MEMBERS_MAX:,} files and folders;"
                    " name what the code does not need in .rungignore"
                )
        _check_size(folder, sizes, max_bytes)
        name = leaving_link(links)
        if name is not None:
            raise InvalidCode(
                f"{_shown(folder / name)} is a link that leaves the folder"
                f" (to {shortened(links[name])});"
                " copy what it points to, or name the link in .rungignore"
            )
        return write(check_members(members).values())
    except OSError as error:
        raise InvalidCode(
            f"{_shown(error.filename or folder)} cannot be read ({error.strerror or error});"
            " make it readable, or name it in .rungignore"
        ) from error


def _ignored(folder: Path) -> GitIgnoreSpec:
    """Return the patterns of a folder's `.rungignore`, in the syntax of `.gitignore`."""
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
        return GitIgnoreSpec.from_lines([*_ALWAYS_IGNORED, *lines])
    except ValueError as error:
        raise InvalidCode(f"{folder / name}: {error}") from error


def _walk(folder: Path, prefix: str, ignored: GitIgnoreSpec) -> Iterator[tuple[Member, int]]:
    """Yield what lies in the folder, with sizes."""
    with os.scandir(folder / prefix) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = f"{prefix}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if ignored.match_file(f"{name}/" if is_folder else name):
            continue
        facts = entry.stat(follow_symlinks=False)
        checked_name(name)
        if is_folder:
            yield Member(name, tarfile.DIRTYPE), 0
            yield from _walk(folder, f"{name}/", ignored)
        elif entry.is_symlink():
            yield Member(name, tarfile.SYMTYPE, link=_target(folder, name)), 0
        elif stat.S_ISREG(facts.st_mode):
            executable = bool(facts.st_mode & stat.S_IXUSR)
            content = folder / name
            yield Member(name, tarfile.REGTYPE, executable, content=content), facts.st_size
        else:
            raise InvalidCode(
                f"{_shown(folder / name)} is a device, pipe or socket; remove it, or name it in"
                " .rungignore"
            )


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
