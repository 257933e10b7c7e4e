"""Code and configurations of experiments, by digest: code is copied for each trial.

    configs/<digest>.json   configurations as they lie in the object store
    code/<digest>/          the archive's files with their byte code; trials get copies
    runs/<allocation>       an empty file for each run that uses a working folder
    work/<trial>/           a trial's working folder with its copy of the code, while a run uses it
    kept/<trial>/           the same between two runs; an empty file if nothing was written to it

Copies instead of links, so that what a trial writes into its files does not reach others. An
archive is unpacked, and a configuration read, only if its bytes have the digest; an archive by the
rules by which the gateway accepted it (`rung.config.code_archive`).

What a run writes outside of checkpoints is there again, under the same path, when its trial goes
on here. One run of a trial at a time has the folder (`take`, `release`). Runs cannot enter `kept`,
whose owner is the agent. It is bounded: the least recently used folders are deleted once all
together have more than a tenth of what is free on the disk, and any after `_KEPT_S`; one with more
than `_ENTRIES_MAX` entries or `_DEPTH_MAX` levels is not kept.

Methods block, unless they are async; call them from a thread.
"""

import asyncio
import compileall
import contextlib
import hashlib
import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rung.agent.forkserver.framework_imports import SOURCE_BYTES_MAX, wants_frameworks
from rung.agent.objects.removal import remove_tree
from rung.config.code_archive import InvalidCode, unpack
from rung.config.run_config import object_name
from rung.events.trial import CODE_REFUSED
from rung.storage import ObjectMissing, ObjectStore

_KEPT_MAX: Final = 16
"""How many unpacked archives are kept at a restart of the agent."""
_CONFIGS_MAX: Final = 1000
"""How many configurations are kept then."""
_COMPILING_S_MAX: Final = 20.0
"""Time limit for byte code; files beyond it are compiled by each run that imports them."""
_KEPT_S: Final = 7 * 86_400.0
"""How long a working folder is kept for the next run of its trial."""
_KEPT_PART: Final = 0.1
"""The part of the free space of the disk that kept folders may have."""
_NAMES_MAX: Final = 10_000
"""How many trials are remembered of which nothing is kept."""
_ENTRIES_MAX: Final = 100_000
_DEPTH_MAX: Final = 100
_OWN: Final = ".rung-"
"""Prefix of the names of files in a working folder that belong to one run of Rung."""


class CodeUnusable(Exception):
    """Code or a configuration that cannot be run; the message is for users.

    Attributes:
        fault: `CODE_REFUSED` where the same bytes would be refused again, otherwise empty.
    """

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault


class Source(NamedTuple):
    """The code of a run."""

    folder: Path
    """Its working folder."""
    frameworks: bool
    """Whether the code may import frameworks."""
    kept: bool = False
    """Whether it has what an earlier run of the trial wrote to it, if that wrote anything."""


class _Use(NamedTuple):
    """The use of a trial's working folder by a run."""

    allocation_id: str
    over: asyncio.Event


class SourceFolder:
    """Working folders for runs, with their code."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._configs = folder / "configs"
        self._code = folder / "code"
        self._runs = folder / "runs"
        self._work = folder / "work"
        self._kept = folder / "kept"
        self._uses: dict[str, _Use] = {}
        """Trial → the run that has its working folder."""
        self._digests: dict[str, str | None] = {}
        """Trial → the digest of the code that this session has copied into its working folder."""
        self._sizes: dict[str, int] = {}
        """Trial → size of its kept folder in bytes."""
        self._store = store
        self._lock = threading.Lock()
        self._kept_lock = threading.Lock()
        self._frameworks: dict[str, bool] = {}
        """Digest → whether its code may import frameworks."""

    def left(self) -> list[str]:
        """Return the allocations of runs that an earlier session has left running, sorted."""
        try:
            return sorted(entry.name for entry in self._runs.iterdir())
        except FileNotFoundError:
            return []

    def open(self, kept: Collection[str] = ()) -> None:
        """Create the folders; keep those of runs of an earlier session, delete code long unused.

        Args:
            kept: allocations whose runs go on.
        """
        for folder in (self._work, self._code, self._configs):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (self._runs, self._kept):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._sizes = {
            entry.name: _size_of(entry) or 0 for entry in self._kept.iterdir() if entry.is_dir()
        }
        for allocation_id in self.left():
            if allocation_id not in kept:
                self.discard(allocation_id)
        used = {_trial_of(allocation_id) for allocation_id in kept}
        for entry in self._work.iterdir():
            if entry.name not in used:
                remove_tree(entry)
        self._shrink()
        configs = sorted(self._configs.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for entry in configs[:-_CONFIGS_MAX]:
            entry.unlink()
        entries = sorted(self._code.iterdir(), key=lambda entry: entry.stat().st_mtime)
        whole = [entry for entry in entries if entry.suffix == ""]
        for entry in entries:
            if entry.suffix or entry in whole[:-_KEPT_MAX]:
                remove_tree(entry)

    async def take(self, allocation_id: str) -> None:
        """Take the working folder of a run's trial; wait until an earlier run has released it."""
        trial_id = _trial_of(allocation_id)
        while (use := self._uses.get(trial_id)) and use.allocation_id != allocation_id:
            await use.over.wait()
        self.hold(allocation_id)

    def hold(self, allocation_id: str) -> None:
        """Note that a run has the working folder of its trial."""
        self._uses[_trial_of(allocation_id)] = _Use(allocation_id, asyncio.Event())

    async def release(self, allocation_id: str) -> None:
        """Keep the working folder for the next run of the trial, if this run has it."""
        trial_id = _trial_of(allocation_id)
        use = self._uses.get(trial_id)
        if use is None or use.allocation_id != allocation_id:
            return
        try:
            await asyncio.to_thread(self.discard, allocation_id)
        finally:
            del self._uses[trial_id]
            use.over.set()

    def prepare(self, allocation_id: str, digest: str | None) -> Source:
        """Return the working folder for a run, with the code of that digest in it.

        Raises:
            CodeUnusable: there is no such archive, it is damaged, or a member is refused.
            OSError: the folder cannot be written.
        """
        target = self.folder_of(allocation_id)
        code = self._unpacked(digest) if digest is not None else None
        (self._runs / allocation_id).touch()
        found = self._bring_back(target, digest)
        if not target.exists():
            draft = target.with_name(f"{target.name}.new")
            remove_tree(draft)
            if code is None:
                draft.mkdir()
            else:
                shutil.copytree(code, draft, symlinks=True)
            draft.rename(target)
            self._digests[target.name] = digest
        if digest is None or code is None:
            return Source(target, frameworks=True, kept=found)
        if digest not in self._frameworks:
            self._frameworks[digest] = wants_frameworks(code)
        return Source(target, self._frameworks[digest], kept=found)

    def has_configuration(self, digest: str) -> bool:
        """Return whether a configuration with this digest was downloaded before."""
        return (self._configs / f"{digest}.json").is_file()

    def configuration(self, digest: str) -> dict[str, Any]:
        """Return the configuration with a digest.

        Raises:
            CodeUnusable: there is no such configuration, or it is damaged.
            OSError: the folder cannot be written.
        """
        path = self._configs / f"{digest}.json"
        with self._lock:
            if not path.is_file() or _digest_of(path) != digest:
                self._fetch_configuration(digest, path)
            path.touch()
            try:
                found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise CodeUnusable(
                    f"the configuration {digest} cannot be read: {error}", CODE_REFUSED
                ) from error
        return found

    def _fetch_configuration(self, digest: str, path: Path) -> None:
        fix = "`rung ledger import` restores it from the ledger, `rung objects copy` copies it"
        draft = path.with_suffix(".fetching")
        try:
            self._store.get(object_name(digest), draft)
            found = _digest_of(draft)
            if found != digest:
                raise CodeUnusable(f"the configuration {digest} is damaged: its digest is {found}")
            draft.rename(path)
        except ObjectMissing as error:
            raise CodeUnusable(
                f"the configuration {digest} is missing in the object store: {error} ({fix})"
            ) from error
        finally:
            draft.unlink(missing_ok=True)

    def folder_of(self, allocation_id: str) -> Path:
        """Return a run's working folder."""
        return self._work / _trial_of(allocation_id)

    def discard(self, allocation_id: str) -> None:
        """Keep the working folder of a run that is over, within the limits, or delete it."""
        folder = self.folder_of(allocation_id)
        if folder.is_dir():
            with contextlib.suppress(OSError):
                self._keep(folder)
        remove_tree(folder)
        (self._runs / allocation_id).unlink(missing_ok=True)
        self._shrink()

    def _bring_back(self, folder: Path, digest: str | None) -> bool:
        """Move a kept folder to its place; return whether a run of its trial was here before."""
        kept = self._kept / folder.name
        with self._kept_lock:
            self._sizes.pop(folder.name, None)
            if self._digests.get(folder.name, digest) != digest:
                remove_tree(kept)
                return False
            if kept.is_dir():
                kept.rename(folder)
            elif kept.exists():
                kept.unlink()
            else:
                return folder.exists()
        return True

    def _keep(self, folder: Path) -> None:
        """Move a working folder to the kept ones; leave it where it is too large for that.

        Raises:
            OSError: the disk failed.
        """
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(_OWN):
                remove_tree(folder, entry.name)
        kept = self._kept / folder.name
        remove_tree(kept)
        digest = self._digests.get(folder.name)
        if digest and _is_copy(folder, self._code / digest):
            kept.touch()
            return
        size = _size_of(folder)
        if size is None:
            self._digests.pop(folder.name, None)
            return
        os.utime(folder)
        folder.rename(kept)
        with self._kept_lock:
            self._sizes[folder.name] = size

    def _shrink(self) -> None:
        """Delete kept folders that are too old or too large together."""
        with self._kept_lock, contextlib.suppress(OSError):
            entries = sorted(
                (entry.stat(follow_symlinks=False).st_mtime, entry.name)
                for entry in os.scandir(self._kept)
            )
            total = sum(self._sizes.values())
            most = (shutil.disk_usage(self._kept).free + total) * _KEPT_PART
            names = len(entries)
            for used_at, name in entries:
                old = used_at < time.time() - _KEPT_S or names > _NAMES_MAX
                if old or (total > most and name in self._sizes):
                    remove_tree(self._kept / name)
                    total -= self._sizes.pop(name, 0)
                    self._digests.pop(name, None)
                    names -= 1

    def _unpacked(self, digest: str) -> Path:
        target = self._code / digest
        with self._lock:
            if target.is_dir():
                target.touch()
                return target
            draft = self._code / f"{digest}.unpacking"
            remove_tree(draft)
            draft.mkdir()
            try:
                self._unpack(digest, draft)
                draft.rename(target)
            except BaseException:
                remove_tree(draft)
                raise
            return target

    def _unpack(self, digest: str, folder: Path) -> None:
        archive = self._code / f"{digest}.archive"
        try:
            self._store.get(f"code/{digest}.tar.gz", archive)
            found = _digest_of(archive)
            if found != digest:
                raise CodeUnusable(f"the code archive {digest} is damaged: its digest is {found}")
            unpack(archive, folder)
        except ObjectMissing as error:
            raise CodeUnusable(f"the code archive {digest} is missing: {error}") from error
        except InvalidCode as error:
            raise CodeUnusable(
                f"the code archive {digest} cannot be unpacked: {error}", CODE_REFUSED
            ) from error
        finally:
            archive.unlink(missing_ok=True)
        _compile(folder)


def _trial_of(allocation_id: str) -> str:
    """Return the trial of an allocation, whose last part is the number of the run."""
    return allocation_id.rpartition(".")[0] or allocation_id


def _entries_of(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield all that is below a folder by its path in it; links are not followed.

    The content of folders with byte code is left out.

    Raises:
        OverflowError: there are too many entries, or too many levels.
        OSError: one cannot be read.
    """
    waiting, count = [("", 0)], 0
    while waiting:
        place, depth = waiting.pop()
        with os.scandir(folder / place) as entries:
            for entry in entries:
                count += 1
                if depth > _DEPTH_MAX or count > _ENTRIES_MAX:
                    raise OverflowError(place)
                path = f"{place}/{entry.name}" if place else entry.name
                if entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                    waiting.append((path, depth + 1))
                yield path, entry.stat(follow_symlinks=False)


def _size_of(folder: Path) -> int | None:
    """Return how much of the disk a folder takes in bytes, None if it has too many entries."""
    try:
        return sum(found.st_blocks * 512 for _, found in _entries_of(folder))
    except (OverflowError, OSError):
        return None


def _is_copy(folder: Path, code: Path) -> bool:
    """Return whether a copy of a code folder is as it was made."""

    def shown(found: os.stat_result) -> tuple[int, int, int]:
        if stat.S_ISDIR(found.st_mode):
            return found.st_mode, 0, 0
        return found.st_mode, found.st_size, found.st_mtime_ns

    try:
        originals = {path: shown(found) for path, found in _entries_of(code)}
        for path, found in _entries_of(folder):
            if originals.pop(path, None) != shown(found):
                return False
    except (OverflowError, OSError):
        return False
    return not originals


def _digest_of(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _compile(folder: Path) -> None:
    """Compile the Python files below a folder to byte code, within a time limit."""
    until = time.monotonic() + _COMPILING_S_MAX
    for path in folder.rglob("*.py"):
        if time.monotonic() > until:
            return
        # A file that cannot be compiled fails in the run, if it is imported at all.
        if not path.is_symlink() and path.is_file() and path.stat().st_size <= SOURCE_BYTES_MAX:
            compileall.compile_file(path, quiet=2)
