"""The code of experiments: unpacked once per digest, copied for each run.

    code/<digest>/          the archive's files with their byte code; never run from
    work/<allocation>/      a run's own copy, its working folder, gone after the run

A copy, not links: what a run writes into its files must not reach another run. An archive is
unpacked only if its bytes have the digest; members that climb out of the folder, links out of
it, devices, and archives that swell beyond bounds are refused.

Methods block; call them from a thread.
"""

import compileall
import hashlib
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Final, NamedTuple

from rung.agent.imports import wants_frameworks
from rung.objects import ObjectMissing, ObjectStore

UNPACKED_BYTES_MAX: Final = 4 * 1024**3
MEMBERS_MAX: Final = 200_000
_KEPT_MAX: Final = 16
"""How many unpacked archives outlive a restart of the agent."""


class CodeUnusable(Exception):
    """A code archive that cannot be run; its message is written for a person."""


class Source(NamedTuple):
    """What a run works with."""

    folder: Path
    """Its working folder."""
    frameworks: bool
    """Whether its code may want the frameworks."""


class SourceFolder:
    """Working folders for runs, filled with their code."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._code = folder / "code"
        self._work = folder / "work"
        self._store = store
        self._lock = threading.Lock()
        self._frameworks: dict[str, bool] = {}
        """Of each digest, whether its code may want the frameworks."""

    def open(self) -> list[str]:
        """Make the folders; clear what runs of an earlier life left, and code long unused.

        Returns the allocations of those runs.
        """
        left = [entry.name for entry in self._work.iterdir()] if self._work.is_dir() else []
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True, exist_ok=True)
        self._code.mkdir(parents=True, exist_ok=True)
        entries = sorted(self._code.iterdir(), key=lambda entry: entry.stat().st_mtime)
        whole = [entry for entry in entries if entry.suffix == ""]
        for entry in entries:
            if entry.suffix or entry in whole[:-_KEPT_MAX]:
                shutil.rmtree(entry, ignore_errors=True)
        return left

    def prepare(self, allocation_id: str, digest: str | None) -> Source:
        """Return a new working folder for a run with the code of that digest in it.

        Raises:
            CodeUnusable: there is no such archive, it is damaged, or a member is refused.
            OSError: the folder cannot be written.
        """
        target = self._work / allocation_id
        if digest is None:
            target.mkdir()
            return Source(target, frameworks=True)
        shutil.copytree(self._unpacked(digest), target, symlinks=True)
        if digest not in self._frameworks:
            self._frameworks[digest] = wants_frameworks(target)
        return Source(target, self._frameworks[digest])

    def discard(self, allocation_id: str) -> None:
        """Delete a run's working folder."""
        shutil.rmtree(self._work / allocation_id, ignore_errors=True)

    def _unpacked(self, digest: str) -> Path:
        target = self._code / digest
        with self._lock:
            if target.is_dir():
                target.touch()
                return target
            draft = self._code / f"{digest}.unpacking"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            try:
                self._unpack(digest, draft)
                draft.rename(target)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
            return target

    def _unpack(self, digest: str, folder: Path) -> None:
        archive = self._code / f"{digest}.archive"
        try:
            self._store.get(f"code/{digest}.tar.gz", archive)
            with archive.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != digest:
                raise CodeUnusable(f"the code archive {digest} is damaged: its digest is {found}")
            with tarfile.open(archive, "r:gz") as members:
                members.extractall(folder, members=_Bounded(members), filter="data")
        except ObjectMissing as error:
            raise CodeUnusable(f"the code archive {digest} is missing: {error}") from error
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise CodeUnusable(f"the code archive {digest} cannot be unpacked: {error}") from error
        finally:
            archive.unlink(missing_ok=True)
        compileall.compile_dir(folder, quiet=2)


class _Bounded:
    """The members of an archive, up to the bounds."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def __iter__(self) -> "_Bounded":
        self._count = 0
        self._bytes = 0
        self._members = iter(self._archive)
        return self

    def __next__(self) -> tarfile.TarInfo:
        member = next(self._members)
        self._count += 1
        self._bytes += member.size
        if self._count > MEMBERS_MAX or self._bytes > UNPACKED_BYTES_MAX:
            raise CodeUnusable(
                f"the code archive holds more than {MEMBERS_MAX} files "
                f"or {UNPACKED_BYTES_MAX // 1024**3} GiB"
            )
        return member
