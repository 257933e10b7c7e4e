"""Code and configurations of experiments, by digest: code is copied for each run.

    configs/<digest>.json   configurations as they lie in the object store
    code/<digest>/          the archive's files with their byte code; runs get copies
    work/<allocation>/      a run's own copy, its working folder, deleted after the run

Copies instead of links, so that what a run writes into its files does not reach other runs. An
archive is unpacked, and a configuration read, only if its bytes have the digest; an archive by the
rules by which the gateway accepted it (`rung.config.code_archive`).

Methods block; call them from a thread.
"""

import compileall
import hashlib
import shutil
import threading
import time
from collections.abc import Collection
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


class SourceFolder:
    """Working folders for runs, with their code."""

    def __init__(self, folder: Path, store: ObjectStore) -> None:
        self._configs = folder / "configs"
        self._code = folder / "code"
        self._work = folder / "work"
        self._store = store
        self._lock = threading.Lock()
        self._frameworks: dict[str, bool] = {}
        """Digest → whether its code may import frameworks."""

    def left(self) -> list[str]:
        """Return the allocations of runs that an earlier session has left running, sorted."""
        try:
            return sorted(entry.name for entry in self._work.iterdir())
        except FileNotFoundError:
            return []

    def open(self, kept: Collection[str] = ()) -> None:
        """Create the folders; delete those of runs of an earlier session, and code long unused.

        Args:
            kept: allocations whose runs go on.
        """
        for allocation_id in self.left():
            if allocation_id not in kept:
                self.discard(allocation_id)
        self._work.mkdir(parents=True, exist_ok=True)
        self._code.mkdir(parents=True, exist_ok=True)
        self._configs.mkdir(parents=True, exist_ok=True)
        configs = sorted(self._configs.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for entry in configs[:-_CONFIGS_MAX]:
            entry.unlink()
        entries = sorted(self._code.iterdir(), key=lambda entry: entry.stat().st_mtime)
        whole = [entry for entry in entries if entry.suffix == ""]
        for entry in entries:
            if entry.suffix or entry in whole[:-_KEPT_MAX]:
                remove_tree(entry)

    def prepare(self, allocation_id: str, digest: str | None) -> Source:
        """Return a new working folder for a run with the code of that digest in it.

        Raises:
            CodeUnusable: there is no such archive, it is damaged, or a member is refused.
            OSError: the folder cannot be written.
        """
        target = self.folder_of(allocation_id)
        if digest is None:
            target.mkdir()
            return Source(target, frameworks=True)
        shutil.copytree(self._unpacked(digest), target, symlinks=True)
        if digest not in self._frameworks:
            self._frameworks[digest] = wants_frameworks(target)
        return Source(target, self._frameworks[digest])

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
        return self._work / allocation_id

    def discard(self, allocation_id: str) -> None:
        """Delete a run's working folder."""
        remove_tree(self.folder_of(allocation_id))

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
