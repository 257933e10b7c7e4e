"""Suspension: the agent takes nothing new while its machine's disk fails, and goes on by itself.

The folders that runs and the agent write to are looked at every few seconds. Once one of them is
in trouble the agent tells the scheduler that it is suspended, holds back what was granted before
that, and looks again with back-off. What runs goes on. A run that fails meanwhile is no failure of
its script: it is reported as the machine's, which counts as no restart.

A run may also fail for want of space on a disk that has room again by the time that it is judged,
because a large checkpoint did not fit. Where the platform's own words say so, that is the
machine's fault, too; its report waits for a while, which grows from one such run to the next, so
that a trial which cannot succeed does not start again and again without a pause.

A run whose own files are most of what a full disk holds has filled it: that failure is its own.
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

from rung.agent.isolation import as_owner_of
from rung.runtime.health.disk import Disk, tells_of_fault

_EVERY_S: Final = 5.0
_WAIT_S: Final = 1.0
_WAIT_S_MAX: Final = 30.0
_BACK_OFF_S: Final = 2.0
_BACK_OFF_S_MAX: Final = 120.0
_LOG_EVERY_S: Final = 60.0
_FIX: Final = "free disk space, or mount the folder again; the agent goes on by itself"
NO_START: Final = "the run could not start: "
_PLATFORMS: Final = re.compile(
    rf"\bObject(Error|Unavailable): |{NO_START}|checkpoint \S+ could not be stored: "
)
"""Where words are the platform's own, and no script's."""
_PATH: Final = re.compile(r"'(/[^']+)'")

_log = structlog.get_logger()


class Waiting(Protocol):
    """What facts wait in until the ledger has them."""

    @property
    def unwritable(self) -> str | None:
        """Why nothing can be written to it now, None if it can."""
        ...


class Blame(NamedTuple):
    """Why the machine is to blame for the failure of a run."""

    reason: str
    wait_s: float
    """How long to wait before the run is reported."""


class Suspension:
    """Whether the agent takes new allocations, as far as its machine lets it."""

    def __init__(
        self,
        folders: Sequence[Path],
        outbox: Waiting,
        changed: Callable[[str | None], None],
        *,
        hidden: Sequence[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without trouble.

        Args:
            folders: that runs and the agent write to.
            outbox: of the agent.
            changed: is called with the reason of a suspension, with None at its end.
            hidden: further folders of the platform's own.
            clock: in seconds, from any beginning.
        """
        self._disk = Disk(folders)
        self._own = [*folders, *hidden]
        self._outbox = outbox
        self._changed = changed
        self._clock = clock
        self._wait_s = _WAIT_S
        self._back_off_s = _BACK_OFF_S
        self._logged_at = float("-inf")
        self._well = asyncio.Event()
        self._well.set()
        self._begun = asyncio.Event()
        self.reason: str | None = None
        """Why the agent is suspended, None if it is not."""

    async def run(self) -> None:
        """Look after the disk until cancelled."""
        try:
            while True:
                await self._look()
                if self.reason is None:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_EVERY_S):
                            await self._begun.wait()
                else:
                    await asyncio.sleep(self._wait_s)
                    self._wait_s = min(2 * self._wait_s, _WAIT_S_MAX)
        finally:
            self._disk.close()

    async def over(self) -> None:
        """Return when the agent is not suspended."""
        await self._well.wait()

    async def blame(self, words: str, folder: Path) -> Blame | None:
        """Return why the machine is to blame for a failure, None where the script is.

        Args:
            words: of the failure.
            folder: the run's working folder.
        """
        trouble, wait_s = await self._look(), 0.0
        if trouble is None and tells_of_fault(words):
            if _PLATFORMS.search(words) is not None:
                trouble, wait_s = words, self._back_off_s
                self._back_off_s = min(2 * self._back_off_s, _BACK_OFF_S_MAX)
            else:
                trouble = await asyncio.to_thread(self._trouble_of_named, words, folder)
        if trouble is None or await asyncio.to_thread(_fills_its_disk, folder):
            return None
        return Blame(trouble, wait_s)

    def worked(self) -> None:
        """Note that a run ended well: the next fault begins with a short wait again."""
        self._back_off_s = _BACK_OFF_S

    async def _look(self) -> str | None:
        """Look at the disk; begin or end a suspension with what is found, and return it."""
        trouble = self._outbox.unwritable or await self._disk.look()
        if trouble is not None:
            self._begin(trouble)
        elif self.reason is not None:
            _log.info("takes allocations again", after=self.reason)
            self.reason, self._wait_s = None, _WAIT_S
            self._logged_at = float("-inf")
            self._well.set()
            self._begun.clear()
            self._changed(None)
        return trouble

    def _trouble_of_named(self, words: str, folder: Path) -> str | None:
        """Return what is wrong with the disk of a path that a failure names.

        What it names is the script's choice, and links may lie on the way: so nothing is written
        in the platform's own folders, at which `_look` looks, and elsewhere as the run's user.
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
            self._well.clear()
            self._begun.set()
            self._changed(trouble)


def _nearest_folder(path: Path) -> Path | None:
    """Return the folder that a path lies in, or lay in, without links; None if there is none."""
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
