"""Suspension: the agent takes no new allocations while its machine's disk fails.

The folders to which runs and the agent write are checked every few seconds. Once a check fails,
the agent records that it is suspended, delays runs that were granted before, and checks again with
back-off until it can resume. Running processes go on. A run that fails meanwhile is recorded as a
failure of the machine, which does not count as a restart.

A run may also fail for lack of space on a disk that has room again when the failure is examined,
because a large checkpoint did not fit. Where a message of the platform's own shows that, it is the
machine's failure, too; its report is delayed, longer from one such run to the next, so that a
trial which cannot succeed does not restart over and over without a pause. Where the size of the
run's last checkpoint is known, the agent is suspended until so much is free.

If a run's own files are most of what a full disk holds, the failure is the run's.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from rung.agent.isolation.isolation import as_owner_of
from rung.runtime.health.disk import Disk, reserve_of
from rung.storage.disk_fault import tells_of_fault

_EVERY_S: Final = 5.0
_WAIT_S: Final = 1.0
_WAIT_S_MAX: Final = 30.0
_BACK_OFF_S: Final = 2.0
_BACK_OFF_S_MAX: Final = 120.0
_LOG_EVERY_S: Final = 60.0
_FIX: Final = "free disk space, or mount the folder again; the agent resumes by itself"
NO_START: Final = "the run could not start: "
_PLATFORMS: Final = re.compile(
    rf"\bObject(Error|Unavailable): |{NO_START}|checkpoint \S+ could not be stored: "
)
"""Matches messages of the platform's own, not of scripts."""
_PATH: Final = re.compile(r"'(/[^']+)'")

_log = structlog.get_logger()


class Waiting(Protocol):
    """The outbox, as far as it is used here."""

    @property
    def unwritable(self) -> str | None:
        """Why nothing can be written to it now, None if it can."""
        ...


class MachineFault(NamedTuple):
    """Why the failure of a run is the machine's."""

    reason: str
    wait_s: float
    """How long to wait before the run is reported."""


class Suspension:
    """Whether the agent takes new allocations, by the state of its disk."""

    def __init__(  # noqa: PLR0913 - what it watches, and whom it tells
        self,
        folders: Sequence[Path],
        outbox: Waiting,
        changed: Callable[[str | None], None],
        *,
        hidden: Sequence[Path] = (),
        checkpoints: Sequence[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin unsuspended.

        Args:
            folders: to which runs and the agent write.
            outbox: of the agent.
            changed: is called with the reason of a suspension, with None at its end.
            hidden: further folders of the platform.
            checkpoints: those of the folders on whose disks checkpoints are written.
            clock: a monotonic clock, in seconds.
        """
        self._disk = Disk(folders)
        self._own = [*folders, *hidden]
        self._checkpoints = checkpoints
        self._needed_bytes = 0
        """What must be free for a checkpoint that did not fit."""
        self._outbox = outbox
        self._changed = changed
        self._clock = clock
        self._wait_s = _WAIT_S
        self._back_off_s = _BACK_OFF_S
        self._logged_at = float("-inf")
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._suspended = asyncio.Event()
        self.reason: str | None = None
        """Why the agent is suspended, None if it is not."""

    async def run(self) -> None:
        """Check the disk until cancelled."""
        try:
            while True:
                await self._look()
                if self.reason is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_EVERY_S):
                            await self._suspended.wait()
                else:
                    await asyncio.sleep(self._wait_s)
                    self._wait_s = min(2 * self._wait_s, _WAIT_S_MAX)
        finally:
            self._disk.close()

    async def over(self) -> None:
        """Return when the agent is not suspended."""
        await self._healthy.wait()

    async def machine_fault(
        self, words: str, folder: Path, checkpoint_bytes: int = 0
    ) -> MachineFault | None:
        """Return why a failure is the machine's, None where it is the script's.

        Args:
            words: the failure's message.
            folder: the run's working folder.
            checkpoint_bytes: the size of its last checkpoint; 0 if there was none.
        """
        platforms = tells_of_fault(words) and _PLATFORMS.search(words) is not None
        if platforms:
            self._needed_bytes = max(self._needed_bytes, checkpoint_bytes)
        trouble, wait_s = await self._look(), 0.0
        if trouble is None and tells_of_fault(words):
            if platforms:
                trouble, wait_s = words, self._back_off_s
                self._back_off_s = min(2 * self._back_off_s, _BACK_OFF_S_MAX)
            else:
                trouble = await asyncio.to_thread(self._trouble_of_named, words, folder)
        if trouble is None or await asyncio.to_thread(_fills_its_disk, folder):
            return None
        return MachineFault(trouble, wait_s)

    def run_succeeded(self) -> None:
        """Note that a run succeeded: the next delay is short again."""
        self._back_off_s = _BACK_OFF_S

    async def _look(self) -> str | None:
        """Check the disk; begin or end a suspension accordingly, and return what is wrong."""
        trouble = self._outbox.unwritable or await self._disk.look()
        if trouble is None and self._needed_bytes:
            trouble = await asyncio.to_thread(
                too_little_for, self._needed_bytes, self._checkpoints
            )
            self._needed_bytes *= trouble is not None
        if trouble is not None:
            self._begin(trouble)
        elif self.reason is not None:
            _log.info("takes allocations again", after=self.reason)
            self.reason, self._wait_s = None, _WAIT_S
            self._logged_at = float("-inf")
            self._healthy.set()
            self._suspended.clear()
            self._changed(None)
        return trouble

    def _trouble_of_named(self, words: str, folder: Path) -> str | None:
        """Return what is wrong with the disk of a path that a failure's message names.

        The path is the script's choice, and may contain links: so nothing is written in the
        platform's own folders, which `_look` checks, and elsewhere only as the run's user.
        """
        own = [each.absolute() for each in self._own]
        own += [each.resolve() for each in own]
        with as_owner_of(folder):
            for path in map(Path, _PATH.findall(words)):
                found = _nearest_folder(path)
                if found is None or any(
                    each.is_relative_to(mine) for each in (path, found) for mine in own
                ):
                    continue
                try:
                    trouble = Disk([found]).trouble_of(found)
                except PermissionError:  # the run cannot have written there
                    continue
                except OSError as error:
                    trouble = f"{found} cannot be used: {error.strerror or error}"
                if trouble:
                    return trouble
        return None

    def _begin(self, trouble: str) -> None:
        if self._clock() - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = self._clock()
            _log.error("takes nothing new: the machine's disk fails", reason=trouble, fix=_FIX)
        if self.reason is None:
            self.reason = trouble
            self._healthy.clear()
            self._suspended.set()
            self._changed(trouble)


def too_little_for(size: int, folders: Sequence[Path]) -> str | None:
    """Return on which folder's disk a checkpoint has no room that its disk could have; or None."""
    for folder in folders:
        with contextlib.suppress(OSError):
            usage = os.statvfs(folder)
            whole, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
            needed = size + reserve_of(whole)
            if free < needed < whole:
                return (
                    f"the disk of {folder} is nearly full: {free / 1e6:.1f} MB are free, and a "
                    f"checkpoint of {size / 1e6:.1f} MB did not fit"
                )
    return None


def _nearest_folder(path: Path) -> Path | None:
    """Return the nearest existing folder above a path, without links; None if there is none."""
    for each in path.parents:
        with contextlib.suppress(OSError):  # closed to the run
            if each.is_dir():
                return each.resolve()
    return None


def _fills_its_disk(folder: Path) -> bool:
    """Return whether the files of a folder are most of what its file system holds.

    `du` follows no links, and counts folders that are nested deeper than Python recurses.
    """
    counted = subprocess.run(  # noqa: S603 - of coreutils
        ["du", "-skx", "--", str(folder)],  # noqa: S607 - as above
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout.split()
    try:
        usage = os.statvfs(folder)
    except OSError:
        return False
    own = 1024 * int(counted[0]) if counted else 0
    return 2 * own > (usage.f_blocks - usage.f_bfree) * usage.f_frsize
