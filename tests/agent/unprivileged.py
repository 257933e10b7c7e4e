"""Runs tests once more as a user without any rights, on a machine where they run as root."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rung.agent.isolation import namespaces

_USER: Final = 65534
OPENED: Final = "RUNG_TEST_OPENED"
_NEW_MOUNTS, _PRIVATE, _RECURSIVE, _BIND = 0x20000, 1 << 18, 1 << 14, 1 << 12
_PREPARE: Final = """
import sys
import os
from agent.unprivileged import become
become(int(sys.argv.pop(1)))
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


def run_tests(file: Path, *, root: bool = False) -> None:
    """Run the tests of a file as that user, or as root; a test that calls this does nothing then.

    The interpreter is open to all users then, and the environment has `OPENED`.
    """
    with tempfile.TemporaryDirectory(prefix="rung-nobody-") as folder:
        user = 0 if root else _USER
        os.chown(folder, user, user)
        _run_tests(file, Path(folder), user)


def _run_tests(file: Path, scratch: Path, user: int) -> None:
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={scratch / 'tests'}", "-x"]
    done = subprocess.run(
        [sys.executable, "-c", _PREPARE, str(user), *options, str(file)],
        env=os.environ
        | {
            "HOME": str(scratch),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "USER": "nobody",
            OPENED: "1",
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def become(user: int = _USER) -> None:
    """Become a user, to whom the interpreter and the tests are open whatever lies above them."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
    namespaces._mount(None, "/", None, _PRIVATE | _RECURSIVE)
    needed = [Path(__file__).parents[2], Path(sys.base_prefix), Path(sys.prefix).resolve()]
    closed = {folder: top for folder in needed if (top := _closed_above(folder))}
    sources = {folder: os.open(folder, os.O_PATH) for folder in closed}
    for top in sorted(set(closed.values())):
        namespaces._mount("tmpfs", str(top), "tmpfs", 0, "mode=0755")
    for folder, source in sources.items():
        folder.mkdir(parents=True, exist_ok=True)
        namespaces._mount(f"/proc/self/fd/{source}", str(folder), None, _BIND)
        os.close(source)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _closed_above(folder: Path) -> Path | None:
    """Return the topmost folder above a folder that other users cannot pass through."""
    return next((it for it in folder.parents[::-1] if not it.stat().st_mode & 0o001), None)
