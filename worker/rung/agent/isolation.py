"""Isolation: what keeps a run from acting as the agent, as its owner, and as another run.

    namespaces  a run sees its own processes, its own shared memory and its own folders of Rung's,
                as the user that the agent is; the rest of the file system is as outside
    users       a run has a user id of its own, from a range, and so no right to what is the
                agent's or another run's; its checkpoints are stored by the agent. It is in the
                groups that the agent was told to give to runs, and in no others
    none        a run has all the rights that the agent has

`auto` takes user ids where objects lie in S3 (a cluster) and the agent may change users, otherwise
namespaces where the kernel allows them. An agent of a cluster that has neither refuses to start.
What is chosen is tried once, for real, when the agent starts.
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

from rung.agent.wire import View
from rung.events import RungError
from rung.events.trial import RunSpec
from rung.storage import checkpoint_prefix
from rung.storage.key import INCOMING
from rung.storage.no_follow import open_folder

Choice = Literal["auto", "namespaces", "users", "off"]
_PROBE_S: Final = 60.0
_libc: Final = ctypes.CDLL(None, use_errno=True)
_SHARED_FOLDERS: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - in which all may write


class IsolationRefused(RungError):
    """Trials cannot be isolated as they shall be on this machine; the message says why."""


class UserIds(NamedTuple):
    """A range of user ids, both ends among them, such as `60000-60999`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "UserIds":
        """Return the range that a text names.

        Raises:
            ValueError: it names none.
        """
        first, _, last = text.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 2**31):
            raise ValueError(f"trial_uids is {text!r}: give a range of user ids, as 60000-60999")
        return cls(int(first), int(last))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def groups_of(text: str) -> tuple[int, ...]:
    """Return the ids of the groups that a text names: names and ids with commas between them.

    Raises:
        ValueError: this machine has no group of a name.
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
        ValueError: one is root's, the agent's own, or the one that a run has to itself.
    """
    for group in groups:
        if group == 0:
            raise ValueError("trial_groups has root's group, 0: trials get no rights of root's")
        if group in {os.getgid(), os.getegid()}:
            raise ValueError(
                f"trial_groups has the agent's own group, {group}: trials get none of its rights"
            )
        if users.first <= group <= users.last:
            raise ValueError(
                f"trial_groups has {group}, which is among trial_uids {users}: it would open the"
                " files of one trial to the others"
            )
        if group >= 2**32 - 1:
            raise ValueError(f"trial_groups has {group}, which is no id of a group")


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
        """Isolate runs as was found to work.

        Args:
            mode: see above.
            why: there is none, if there is none.
            users: the range of user ids.
            groups: that each run is in, besides its own.
            hidden: folders that no run sees, other than what is its own in them.
        """
        self.mode: Final = mode
        self.groups: Final = tuple(groups) if users is not None else ()
        """That a run which is a user of its own is in, too."""
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
        """Return what a run sees; None where that is what the agent sees.

        Args:
            own: the run's folders.
            readable: files and folders that it may read, without links; those that do not exist
                are left out.
            needed: what else it must see; as outside where it is not hidden, else to be read. A
                link into a hidden folder, which a run may have made, shows nothing of that.
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
        """Return the user id of a run; None where it is the agent's.

        A run has the same one until it is released, and no other run meanwhile.

        Raises:
            OSError: all of the range are in use.
        """
        if self._users is None:
            return None
        if allocation_id not in self._taken:
            self._taken[allocation_id] = self._free(self._users)
        return self._taken[allocation_id]

    def release(self, allocation_id: str) -> None:
        """Free the user id of a run whose processes are gone; delete what it left behind.

        Blocks; call it from a thread.
        """
        user = self._taken.get(allocation_id)
        if user is None:
            return
        for shared in _SHARED_FOLDERS:
            _delete_files_of(user, Path(shared))
        del self._taken[allocation_id]

    def own(self, folder: Path, allocation_id: str) -> None:
        """Give a run a folder with all that is in it, which is closed to others.

        Raises:
            OSError: the agent may not.
        """
        user = self.user_of(allocation_id)
        if user is None:
            return
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.chown(Path(place) / name, user, user, follow_symlinks=False)
        folder.chmod(0o700)
        os.chown(folder, user, user)

    def open_folders(self, folder: Path) -> None:
        """Let runs that are other users pass through the agent's folder to their own, and no more.

        Raises:
            OSError: the agent may not.
        """
        if self.mode != "users":
            return
        os.umask(0o022)
        os.setgroups([])  # files are touched with a run's rights, to which no group may add
        for name in ("code", "lock"):
            (folder / name).chmod(0o700)
        for spool in folder.glob("spool.db*"):
            spool.chmod(0o600)
        for shared in map(Path, _SHARED_FOLDERS):
            if shared.is_dir() and shared.stat().st_mode & 0o1002 == 0o002:
                shared.chmod(0o1777)  # a volume's: else a run might move away what is another's
        for passed in (folder, folder / "work", folder / "staged", folder / "socket"):
            passed.mkdir(exist_ok=True)
            passed.chmod(0o711)

    def _hides(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._hidden)

    def _free(self, users: UserIds) -> int:
        """Return the id that was not used for longest, so that what is left of it is long gone."""
        taken = set(self._taken.values())
        count = users.last - users.first + 1
        for step in range(count):
            user = users.first + (self._next - users.first + step) % count
            if user not in taken:
                self._next = user + 1
                return user
        raise OSError(f"all user ids of {users} are in use: give the agent more (--trial-uids)")


def isolation_of(  # noqa: PLR0913 - what is known of the agent
    choice: Choice,
    *,
    folder: Path,
    users: UserIds,
    groups: Sequence[int] = (),
    hidden: Sequence[Path],
    cluster: bool,
) -> Isolation:
    """Return how an agent isolates its runs; tries it. Blocks.

    Args:
        choice: what was asked for.
        folder: the agent's.
        users: the range of user ids.
        groups: that runs are in where each is a user of its own.
        hidden: folders that no run shall see.
        cluster: whether objects lie in S3, and runs come from many people.

    Raises:
        IsolationRefused: what was asked for does not work here, or in a cluster nothing does.
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
            " capabilities CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID and SETUID, or say"
            " --isolation off"
        )
    return Isolation("none", f"the kernel refuses {problems[-1]}")


def checkpoints_of(root: Path, spec: RunSpec) -> tuple[Path, list[Path]]:
    """Return where a run stores checkpoints in a folder store, and which others it may read.

    A link that a run of another experiment has put there is none of them: what it leads to would
    be shown to this run.
    """
    experiments = {name: name.partition(".")[0] for name in spec.restore if "." in name}
    foreign = [
        (root / checkpoint_prefix(experiment_id, name)).parent.resolve() / name
        for name, experiment_id in experiments.items()
        if experiment_id != spec.experiment_id
    ]
    return root / "checkpoints" / spec.experiment_id, [
        path for path in foreign if not path.is_symlink()
    ]


@contextlib.contextmanager
def as_owner_of(folder: Path) -> Iterator[None]:
    """Touch files, in this thread and those that it starts, with the rights of a folder's owner.

    What a run has put there may lead anywhere, by links; so it leads no further than the run's own
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
    """Return the file that says that a run has the folder of its experiment's checkpoints."""
    return root / "checkpoints" / allocation_id.partition(".")[0] / INCOMING / allocation_id


def hold_folder(root: Path, allocation_id: str) -> Path:
    """Keep the folder of an experiment's checkpoints there for a run, and return the file for it.

    A run has it mounted, so it must not go and come again when all that is in it is deleted.
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
    """Remove what `hold_folder` made, and the folders that are empty then."""
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
    command = [sys.executable, "-m", "rung.agent.namespaces"]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=_PROBE_S, check=False, cwd="/"
    )
    if done.returncode:
        return (done.stderr.strip() or f"the probe ended with {done.returncode}").splitlines()[-1]
    return done.stdout.strip()


def _problem_with_users(folder: Path, users: UserIds, groups: Sequence[int]) -> str:
    """Start a process as a user of the range in a folder of its own, as a run's is."""
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
    """Delete what a user left in a folder in which all may write."""
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
