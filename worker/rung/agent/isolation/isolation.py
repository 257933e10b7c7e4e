"""Isolation of runs from the agent, from its user, and from each other.

    namespaces  a run is the agent's user, but sees only its own processes, its own shared memory
                and its own ones of Rung's folders; the rest of the file system is as outside
    users       a run has its own user id, from a range, and so no access to files of the agent
                or of another run; its checkpoints are stored by the agent. Its supplementary
                groups are those of `trial_groups`, and no others
    none        a run has all the permissions of the agent

`auto` takes user ids where objects lie in S3 (a cluster) and the agent may change users, otherwise
namespaces where the kernel allows them. An agent of a cluster that has neither refuses to start.
The chosen mode is tried once when the agent starts.
"""

import contextlib
import ctypes
import grp
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from rung.agent.forkserver.messages import View
from rung.events import RungError
from rung.events.trial import RunSpec
from rung.storage import FolderStore
from rung.storage.key import INCOMING, check_name
from rung.storage.no_follow import open_folder

Choice = Literal["auto", "namespaces", "users", "off"]
_PROBE_S: Final = 60.0
_libc: Final = ctypes.CDLL(None, use_errno=True)
_SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - in which all may write


class IsolationRefused(RungError):
    """The requested isolation does not work on this machine; the message says why."""


class UserIds(NamedTuple):
    """A range of user ids, both ends included, such as `60000-60999`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "UserIds":
        """Parse a range.

        Raises:
            ValueError: the text is not a range of user ids.
        """
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 2**31):
            raise ValueError(f"trial_uids is {text!r}: give a range of user ids, as 60000-60999")
        return cls(int(first), int(last))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def groups_of(text: str) -> tuple[int, ...]:
    """Return the ids of groups, given as comma-separated names and ids.

    Raises:
        ValueError: this machine has no group of that name.
    """
    found: dict[int, None] = {}
    for name in filter(None, map(str.strip, text.split(","))):
        try:
            found[int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid] = None
        except KeyError:
            raise ValueError(
                f"trial_groups: there is no group {name!r} here; give its id instead"
            ) from None
    return tuple(found)


def check_groups(groups: Sequence[int], users: UserIds) -> None:
    """Check that groups may be given to runs.

    Raises:
        ValueError: one is root's, the agent's own, or of the range of the runs' own ids.
    """
    for group in groups:
        if group == 0:
            raise ValueError("trial_groups has root's group, 0: leave it out")
        if group in {os.getgid(), os.getegid()}:
            raise ValueError(f"trial_groups has the agent's own group, {group}: leave it out")
        if users.first <= group <= users.last:
            raise ValueError(
                f"trial_groups has {group}, which is among trial_uids {users}: it would open the"
                " files of one trial to the others"
            )
        if group >= 2**32 - 1:
            raise ValueError(f"trial_groups has {group}, which is not a valid group id")


class Isolation:
    """How an agent isolates its runs."""

    def __init__(
        self,
        mode: Literal["namespaces", "users", "none"],
        why: str = "",
        *,
        users: UserIds | None = None,
        groups: Sequence[int] = (),
        hidden: Sequence[Path] = (),
    ) -> None:
        """Use a mode that works on this machine.

        Args:
            mode: see the module.
            why: why there is no isolation, in mode `none`.
            users: the range of user ids, in mode `users`.
            groups: supplementary groups of each run, in mode `users`.
            hidden: folders of which a run sees its own sub-folders alone, in mode `namespaces`.
        """
        self.mode: Final = mode
        self.groups: Final = tuple(groups) if users is not None else ()
        """Supplementary groups of a run with its own user id."""
        self._why = why
        self._users = users
        self._hidden = [str(folder) for folder in hidden]
        self._taken: dict[str, int] = {}
        self._next = users.first if users else 0

    def __str__(self) -> str:
        match self.mode:
            case "namespaces":
                return "namespaces"
            case "users":
                groups = f", groups {' '.join(map(str, self.groups))}" if self.groups else ""
                return f"user ids {self._users}{groups}"
            case "none":
                return f"none: {self._why}"

    def view(
        self, own: Sequence[Path], readable: Sequence[Path], needed: Iterable[Path] = ()
    ) -> View | None:
        """Return the file system view of a run; None where it is the agent's.

        Args:
            own: the run's folders.
            readable: files and folders that it may read, without links; those that do not exist
                are left out.
            needed: further paths that it must see; read-only where they lie in a hidden folder.
                A link into a hidden folder, which a run may have made, is not followed.
        """
        if self.mode != "namespaces":
            return None
        seen = [path.resolve() for path in own]
        seen += [path for path in readable if path.exists()]
        python = map(Path, sorted({*sys.path, sys.prefix, sys.base_prefix}))
        named = [path for path in needed if path.resolve() == path.absolute()]
        shown = [
            path
            for path in (*named, *(it.resolve() for it in python))
            if self._hides(path)
            and path.exists()
            and not any(path.is_relative_to(folder) for folder in seen)
        ]
        writable, readable = seen[: len(own)], [*seen[len(own) :], *shown]
        return View(self._hidden, list(map(str, writable)), list(map(str, readable)))

    def user_of(self, allocation_id: str) -> int | None:
        """Return the user id of a run, assigned at the first call; None where it is the agent's.

        A run keeps it until it is released, and no other run gets it meanwhile.

        Raises:
            OSError: all ids of the range are in use.
        """
        if self._users is None:
            return None
        if allocation_id not in self._taken:
            self._taken[allocation_id] = self._free(self._users)
        return self._taken[allocation_id]

    def resume(self, allocation_id: str, user: int | None) -> None:
        """Assign a resumed run the user id that it had."""
        if user is not None:
            self._taken[allocation_id] = user

    def release(self, allocation_id: str) -> None:
        """Free the user id of a run whose processes are gone; delete its temporary files.

        Blocks; call it from a thread.
        """
        user = self._taken.get(allocation_id)
        if user is None:
            return
        for shared in _SHARED_FOLDERS:
            _delete_files_of(user, Path(shared))
        del self._taken[allocation_id]

    def chown(self, folder: Path, allocation_id: str) -> None:
        """Make a run the owner of a folder and all its content, closed to other users.

        What in it belongs to another user than the folder is left alone: an earlier run of the
        trial may have made hard links to files of others.

        Raises:
            OSError: the agent may not.
        """
        user = self.user_of(allocation_id)
        if user is None:
            return
        owner = os.lstat(folder).st_uid
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                path = Path(place) / name
                if os.lstat(path).st_uid == owner:
                    os.chown(path, user, user, follow_symlinks=False)
        folder.chmod(0o700)
        os.chown(folder, user, user)

    def open_folders(self, folder: Path) -> None:
        """Let runs with other user ids traverse the agent's folder to their own, and no more.

        Raises:
            OSError: the agent may not.
        """
        if self.mode != "users":
            return
        os.umask(0o022)
        os.setgroups([])  # so that no group adds to a run's rights when the agent acts with them
        for name in ("code", "lock"):
            (folder / name).chmod(0o700)
        for outbox in folder.glob("spool.db*"):
            outbox.chmod(0o600)
        for shared in map(Path, _SHARED_FOLDERS):
            if shared.is_dir() and shared.stat().st_mode & 0o1002 == 0o002:
                shared.chmod(0o1777)  # without the sticky bit a run could rename files of others
        for passed in (folder, folder / "work", folder / "staged", folder / "socket"):
            passed.mkdir(exist_ok=True)
            passed.chmod(0o711)

    def _hides(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._hidden)

    def _free(self, users: UserIds) -> int:
        """Return the least recently used id that is free."""
        taken = set(self._taken.values())
        count = users.last - users.first + 1
        for step in range(count):
            user = users.first + (self._next - users.first + step) % count
            if user not in taken:
                self._next = user + 1
                return user
        raise OSError(f"all user ids of {users} are in use: give the agent more (--trial-uids)")


def isolation_of(  # noqa: PLR0913 - one for each option
    choice: Choice,
    *,
    folder: Path,
    users: UserIds,
    groups: Sequence[int] = (),
    hidden: Sequence[Path],
    cluster: bool,
) -> Isolation:
    """Choose how an agent isolates its runs, and try it. Blocks.

    Args:
        choice: the requested mode.
        folder: the agent's.
        users: the range of user ids.
        groups: supplementary groups of runs with their own user ids.
        hidden: folders to hide from runs.
        cluster: whether objects lie in S3, and runs are of many users.

    Raises:
        IsolationRefused: the requested mode does not work here, or in a cluster none does.
    """
    if choice == "off":
        return Isolation("none", "switched off")
    problems = []
    if choice == "users" or (choice == "auto" and cluster):
        problem = (
            _problem_with_users(folder, users, groups) if cluster else "objects lie in a folder"
        )
        if not problem:
            return Isolation("users", users=users, groups=groups)
        problems.append(f"user ids: {problem}")
    if choice in {"auto", "namespaces"}:
        if not (problem := _problem_with_namespaces()):
            return Isolation("namespaces", hidden=_distinct(hidden))
        problems.append(f"namespaces: {problem}")
    if choice != "auto":
        raise IsolationRefused(f"--isolation {choice} does not work here; {problems[-1]}")
    if cluster:
        raise IsolationRefused(
            f"trials cannot be isolated from the agent ({'; '.join(problems)}): give the agent the"
            " capabilities CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID, or set"
            " --isolation off"
        )
    return Isolation("none", f"the kernel refuses {problems[-1]}")


def checkpoints_of(store: FolderStore, spec: RunSpec) -> tuple[Path, list[Path]]:
    """Return the folder of a run's checkpoints in a folder store, and others that it may read.

    Symbolic links are left out: a run of another experiment may have made them, and their targets
    would become readable for this run.
    """
    experiments = {name: name.partition(".")[0] for name in spec.restore if "." in name}

    def folder_of(experiment_id: str) -> Path:
        root = store.area(spec.area_of(experiment_id)).root
        return root / check_name(f"checkpoints/{experiment_id}")

    foreign = [
        folder_of(experiment_id).resolve() / check_name(name)
        for name, experiment_id in experiments.items()
        if experiment_id != spec.experiment_id
    ]
    return folder_of(spec.experiment_id), [path for path in foreign if not path.is_symlink()]


@contextlib.contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Access files, in this thread and those that it starts, with the rights of a folder's owner.

    Links that a run has made there may lead anywhere; so they lead no further than the run's own
    rights. Does nothing where the agent is the owner, or the folder is gone.
    """
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        yield
        return
    if found.st_uid == os.geteuid():
        yield
        return
    _libc.setfsgid(found.st_gid)
    _libc.setfsuid(found.st_uid)
    try:
        if _libc.setfsuid(-1) != found.st_uid:
            raise PermissionError(f"cannot act with the rights of user {found.st_uid}")
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())


def held_file(root: Path, allocation_id: str) -> Path:
    """Return the file that marks the folder of an experiment's checkpoints as used by a run."""
    return root / "checkpoints" / allocation_id.partition(".")[0] / INCOMING / allocation_id


def hold_folder(root: Path, allocation_id: str) -> Path:
    """Mark the folder of an experiment's checkpoints as used by a run; return the mark's file.

    A run has it mounted, so it must not be deleted and created again when it becomes empty.
    """
    held = held_file(root, allocation_id)
    while True:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with open_folder(held.parent.parent, [INCOMING], make=True) as folder:
                os.close(os.open(held.name, flags, dir_fd=folder))
        except FileNotFoundError:  # another run released it meanwhile
            continue
        except FileExistsError:
            pass
        return held


def release_folder(held: Path) -> None:
    """Remove the mark of `hold_folder`, and the folders that are empty then."""
    with contextlib.suppress(OSError), open_folder(held.parent.parent, [INCOMING]) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(held.name, dir_fd=folder)
        held.parent.rmdir()
        held.parent.parent.rmdir()


def _distinct(folders: Sequence[Path]) -> list[Path]:
    """Return the folders that exist and do not lie in another one of them."""
    real = sorted({folder.resolve() for folder in folders if folder.is_dir()})
    return [it for it in real if not any(it != o and it.is_relative_to(o) for o in real)]


def _problem_with_namespaces() -> str:
    command = [sys.executable, "-m", "rung.agent.isolation.namespaces"]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=_PROBE_S, check=False, cwd="/"
    )
    if done.returncode:
        return (done.stderr.strip() or f"the probe ended with {done.returncode}").splitlines()[-1]
    return done.stdout.strip()


def _problem_with_users(folder: Path, users: UserIds, groups: Sequence[int]) -> str:
    """Start a process as a user of the range, in its own folder, as for a run.

    Returns what went wrong, an empty string if nothing did.
    """
    place = folder / "work"
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711)
        place.chmod(0o711)
        with tempfile.TemporaryDirectory(prefix="probe-", dir=place) as own:
            os.chown(own, users.last, users.last)
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "-c", f"import os, rung.core; os.mkdir({own!r} + '/made')"],
                user=users.last,
                group=users.last,
                extra_groups=list(groups),
                cwd="/",
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=False,
            )
    except OSError as error:
        return f"{error.strerror} ({error.filename or 'to become another user'})"
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        return f"user {users.last} cannot use {sys.executable} and {place}: {said}"
    return ""


def _delete_files_of(user: int, folder: Path) -> None:
    """Delete the files of a user in a world-writable folder."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            if entry.stat(follow_symlinks=False).st_uid != user:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - of an entry
        except OSError:
            continue
