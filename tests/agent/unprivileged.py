"""Runs tests once more as a user without any rights, on a machine where they run as root."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rung.agent import namespaces

_USER: Final = 65534
_NEW_MOUNTS, _PRIVATE, _RECURSIVE, _BIND = 0x20000, 1 << 18, 1 << 14, 1 << 12
_PREPARE: Final = """
import sys
import os
from agent.unprivileged import become
become()
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]])
"""


def run_tests(file: Path) -> None:
    """Run the tests of a file as that user; a test that calls this does nothing then."""
    with tempfile.TemporaryDirectory(prefix="rung-nobody-") as folder:
        os.chown(folder, _USER, _USER)
        _run_tests(file, Path(folder))


def _run_tests(file: Path, scratch: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={scratch / 'tests'}", "-x"]
    done = subprocess.run(  # noqa: S603 - our own tests
        [sys.executable, "-c", _PREPARE, *options, str(file)],
        env=os.environ
        | {"HOME": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path), "USER": "nobody"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def become() -> None:
    """Become that user, to whom the interpreter's folders are open whatever lies above them."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(_NEW_MOUNTS) == 0, os.strerror(ctypes.get_errno())
    namespaces._mount(None, "/", None, _PRIVATE | _RECURSIVE)
    for folder in {Path(sys.base_prefix), Path(sys.prefix).resolve()}:
        closed = [parent for parent in folder.parents if not parent.stat().st_mode & 0o001]
        if closed:
            source = os.open(folder, os.O_PATH)
            namespaces._mount("tmpfs", str(closed[-1]), "tmpfs", 0, "mode=0755")
            folder.mkdir(parents=True)
            namespaces._mount(f"/proc/self/fd/{source}", str(folder), None, _BIND)
            os.close(source)
    os.setgroups([])
    os.setresgid(_USER, _USER, _USER)
    os.setresuid(_USER, _USER, _USER)
