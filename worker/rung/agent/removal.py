"""Deletes folders in which a trial wrote what it liked."""

import shutil
import subprocess
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Delete a folder and all that it holds, as far as that is possible; nothing is raised.

    A trial may nest folders deeper than Python recurses, which `shutil.rmtree` does: those are
    left to `rm`.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False)  # noqa: S603, S607 - of coreutils
