"""Access to folders that others can write in, without following symbolic links.

Each system call resolves a path again, and between two of them a folder on it may be replaced by a
link. Here each folder is opened in the one above it, links refused, and stays open while it is
used; all access is relative to its descriptor. Functions that take a path get the one in
`/proc/self/fd` (`path_of`): it leads to the file or folder that was opened.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def open_folder(root: Path, parts: Sequence[str] = (), *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor (`O_PATH`) of a folder below another one.

    Args:
        root: the folder above; links on its path are followed.
        parts: names of the folders below it; links are refused.
        make: whether to create missing ones, durably.

    Raises:
        OSError: there is no such folder, or it is something else, such as a link.
    """
    if any(part in {"", ".", ".."} or "/" in part for part in parts):
        raise ValueError(f"{parts!r}: each part is one name")
    if make:
        _make_root(root)
    folder = os.open(root, _FOLDER)
    try:
        for part in parts:
            if make:
                _make(part, folder)
            above, folder = folder, os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(above)
        yield folder
    finally:
        os.close(folder)


def path_of(descriptor: int) -> Path:
    """Return a path of a descriptor, valid in this process while it is open."""
    return Path(f"/proc/self/fd/{descriptor}")


def new_file(path: Path) -> int:
    """Return a descriptor of a new, empty file, which replaces a file or link there.

    Raises:
        OSError: it cannot be created.
    """
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def replace_file(folder: int, name: str, text: str) -> None:
    """Write a small file in a folder atomically, replacing a file or link there.

    Raises:
        OSError: it cannot be written.
    """
    draft = f".{secrets.token_hex(16)}"
    try:
        file = new_file(path_of(folder) / draft)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def names_in(root: Path, *parts: str) -> list[str]:
    """Return the names in a folder below another one, sorted; empty if it is none."""
    with contextlib.suppress(OSError), open_folder(root, parts) as folder:
        return sorted(os.listdir(path_of(folder)))  # noqa: PTH208 - names are wanted
    return []


def is_file(root: Path, *parts: str) -> bool:
    """Return whether a path below a folder is a regular file: not a link, not a pipe."""
    with contextlib.suppress(OSError), open_folder(root, parts[:-1]) as folder:
        return stat.S_ISREG(os.lstat(parts[-1], dir_fd=folder).st_mode)
    return False


def sync_folder(folder: int) -> None:
    """Sync the entries of an open folder to the disk."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(readable)
    finally:
        os.close(readable)


def _make_root(root: Path) -> None:
    changed = []
    current = root
    while not current.is_dir():
        changed.append(current.parent)
        current = current.parent
    root.mkdir(parents=True, exist_ok=True)
    for folder in changed:
        with contextlib.suppress(FileNotFoundError), open_folder(folder) as opened:
            sync_folder(opened)


def _make(name: str, above: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=above)
        sync_folder(above)
