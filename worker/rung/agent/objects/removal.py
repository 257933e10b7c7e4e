"""Deletion of folders that trials wrote to, without following links in them."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from rung.storage.no_follow import open_folder


def remove_tree(folder: Path, *parts: str) -> None:
    """Delete a folder and all its content, as far as that is possible; raises nothing.

    A link, pipe or file in its place is deleted itself. A trial may nest folders deeper than the
    recursion limit, which breaks `shutil.rmtree`, or make them read-only: for those, `chmod` and
    `rm` are used.

    Args:
        folder: the folder, or one above it; links on the way to it are followed.
        parts: the path from there to the folder to delete, on which no links are followed.
    """
    *above, name = (folder.name, *parts)
    with contextlib.suppress(OSError), open_folder(folder.parent, above) as opened:
        try:
            os.unlink(name, dir_fd=opened)
        except FileNotFoundError:
            return
        except OSError:  # it is a folder
            _remove_folder(name, opened)


def _remove_folder(name: str, above: int) -> None:
    with contextlib.suppress(RecursionError):
        shutil.rmtree(name, ignore_errors=True, dir_fd=above)
    if not os.access(name, os.F_OK, dir_fd=above, follow_symlinks=False):
        return
    left = f"/proc/self/fd/{above}/{name}"
    for command in (
        ["chmod", "-R", "u+rwX"],
        ["rm", "-rf"],
    ):  # of coreutils; neither follows links
        subprocess.run(  # noqa: S603 - as above
            [*command, "--", left], check=False, pass_fds=[above], stderr=subprocess.DEVNULL
        )
