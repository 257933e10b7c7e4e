"""Linux namespaces: processes with their own process ids, mounts and shared memory.

`clone` creates the first process of such namespaces (PID 1 there), `enter` mounts the file system
of a run: Rung's own folders hidden, the run's folders visible at their paths, its own `/proc` and
`/dev/shm`. Processes that PID 1 starts call `drop_capabilities`, so that they cannot undo the
mounts.

Root needs no user namespace for this. Any other user gets one in which it is the same user, where
the kernel allows that (`user.max_user_namespaces`, AppArmor, the seccomp profile of a container).
"""

import contextlib
import ctypes
import errno
import os
import platform
import signal
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rung.agent.forkserver.messages import View

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWIPC: Final = 0x08000000
_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWPID: Final = 0x20000000
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
"""The system call's number, for machines on which the flags are its first argument."""

_MS_RDONLY: Final = 1
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOEXEC: Final = 8
_MS_REMOUNT: Final = 32
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MS_SLAVE: Final = 1 << 19
_MS_RELATIME: Final = 1 << 21
_ST_RELATIME: Final = 4096
_KEPT_FLAGS: Final = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
"""Flags of a mount, from `statvfs`, that a remount in a user namespace must not drop."""

_NO_LINK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC

_PR_CAPBSET_DROP: Final = 24
_CAPABILITY_VERSION: Final = 0x20080522
_CAP_SETPCAP: Final = 8
_CAP_SYS_ADMIN: Final = 21
_CAPABILITIES_OF_TRIALS: Final = (0, 1, 3, 4, 5, 6, 7, 10, 14, 23, 24)
"""Kept by trials that run as root: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID,
NET_BIND_SERVICE, IPC_LOCK, SYS_NICE, SYS_RESOURCE."""

_libc: Final = ctypes.PyDLL(None, use_errno=True)
"""`PyDLL` keeps the GIL: the child of `clone` has no other thread that could release it."""


class _Unmapped:
    """The user and group ids of this process outside of its new user namespace, if it has one."""

    ids: tuple[int, int] | None = None


def clone() -> int:
    """Fork the first process of new namespaces; return its process id, 0 in the child.

    The child calls `enter` next, and must never return into the parent's code, not even by an
    exception.

    The caller must be single-threaded. Unlike `os.fork` this runs no fork handlers of the C
    library, so a lock of another thread, as of `malloc`, would stay locked in the child.

    Raises:
        OSError: the kernel refuses, or this process has more than one thread.
    """
    number = _SYS_CLONE.get(platform.machine())
    if number is None:
        raise OSError(0, f"Rung cannot make namespaces on {platform.machine()}")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208 - as cheap as can be
        raise OSError(0, f"the process that makes them has {threads} threads instead of one")
    uid, gid = os.geteuid(), os.getegid()
    user = not _has_capability(_CAP_SYS_ADMIN)
    flags = _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC | (_CLONE_NEWUSER if user else 0)
    ctypes.pythonapi.PyOS_BeforeFork()
    null = ctypes.c_void_p(None)
    pid: int = _libc.syscall(number, ctypes.c_ulong(flags | signal.SIGCHLD), *(null,) * 4)
    error = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        _Unmapped.ids = (uid, gid) if user else None
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, os.strerror(error))
    return pid


def enter(view: View) -> None:
    """Mount the file system of a run for PID 1 of new namespaces and all that it starts.

    Raises:
        OSError: a folder is missing, or the kernel refuses.
    """
    if _Unmapped.ids is not None:
        _map_user(*_Unmapped.ids)
        _Unmapped.ids = None
    os.chdir("/")
    _mount(None, "/", None, _MS_SLAVE | _MS_REC)
    hidden = [os.path.realpath(path) for path in view.hidden]
    inside = [path for path in (*view.writable, *view.readable) if _below(path, hidden)]
    sources = {path: _open_below(path, hidden) for path in inside}
    for path in hidden:
        _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=4m")
    for path, source in sources.items():
        _make_mount_point(path, folder=os.path.isdir(f"/proc/self/fd/{source}"))  # noqa: PTH112
        _mount(f"/proc/self/fd/{source}", path, None, _MS_BIND | _MS_REC)
        os.close(source)
    for path in view.readable:
        if path not in sources:
            _mount(path, path, None, _MS_BIND | _MS_REC)
        _make_read_only(path)
    for path in hidden:
        _make_read_only(path)
    if os.path.isdir("/dev/shm"):  # noqa: PTH112, S108 - where POSIX has it
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777")  # noqa: S108
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def drop_capabilities() -> None:
    """Drop, irrevocably, all capabilities to undo the mounts or to enter other namespaces."""
    held = _capabilities()
    kept = 0
    if os.geteuid() == 0:
        kept = held & sum(1 << number for number in _CAPABILITIES_OF_TRIALS)
    if held >> _CAP_SETPCAP & 1:
        for number in range(64):
            if not kept >> number & 1 and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                break  # the kernel has no more
    _set_capabilities(kept)


def _map_user(uid: int, gid: int) -> None:
    """Map the user and group to the same ids in the new user namespace."""
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - as cheap as can be
        file.write(text)


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _open_below(path: str, folders: Iterable[str]) -> int:
    """Open a path in one of some folders without following links that other runs may have made.

    Raises:
        OSError: a part of the path is a link, or does not exist.
    """
    folder = next(each for each in folders if _below(path, [each]))
    opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    for part in filter(None, path[len(folder) :].split("/")):
        above, opened = opened, os.open(part, _NO_LINK, dir_fd=opened)
        os.close(above)
    if stat.S_ISLNK(os.fstat(opened).st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return opened


def _make_mount_point(path: str, *, folder: bool) -> None:
    point = Path(path)
    if folder:
        point.mkdir(parents=True, exist_ok=True)
        return
    point.parent.mkdir(parents=True, exist_ok=True)
    point.touch()


def _make_read_only(path: str) -> None:
    found = os.statvfs(path).f_flag
    flags = found & _KEPT_FLAGS | (_MS_RELATIME if found & _ST_RELATIME else 0)
    _mount(None, path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    data = None if options is None else options.encode()
    if _libc.mount(*arguments, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {target}: {os.strerror(number)}")


def _has_capability(number: int) -> bool:
    return bool(_capabilities() >> number & 1)


def _capabilities() -> int:
    """Return the effective capabilities of this process, as bits."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data) != 0:
        return 0
    return data[0] | data[3] << 32


def _set_capabilities(bits: int) -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    if _libc.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot drop capabilities: {os.strerror(number)}")


def probe() -> None:
    """Create such namespaces once, and end them.

    Raises:
        OSError: the kernel refuses; the message says what.
    """
    reading, writing = os.pipe()
    pid = clone()
    if pid == 0:
        said = ""
        try:
            enter(View())
            if os.getpid() != 1:
                said = "the kernel did not make a process namespace"
            drop_capabilities()
        except BaseException as error:  # noqa: BLE001 - sent to the parent
            said = str(error)
        finally:
            with contextlib.suppress(OSError):
                os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - of a descriptor
        said = pipe.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if said or status:
        raise OSError(0, said or f"the probe ended with {status}")


def main() -> None:
    """Print why namespaces cannot be used here; nothing where they can."""
    try:
        probe()
    except OSError as error:
        print(error.strerror or error)  # noqa: T201 - it is the answer


if __name__ == "__main__":
    main()
