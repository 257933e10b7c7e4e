"""The objects of an agent's runs: carried on to the object store, and brought from there.

A run is user code and holds no keys. Where objects lie in a folder, runs use it themselves. Where
they lie in S3, each run gets a folder of the agent's to stage its checkpoints in:

    staged/<allocation>/checkpoints/…    complete ones with a manifest, others half-written
    staged/<allocation>/announced/…      names of those whose run said so, and what it said before
                                         is safe in the spool; why it could not be stored
    staged/<allocation>/fetched/…        objects on their way to the run
    staged/<allocation>/kept/…           what its next checkpoint may have in common with the last

Of a checkpoint to which ranks on several machines give their files, each other machine's agent
carries these on without a manifest, before the first one's agent carries on what is there with it.

An announced one is carried on, its manifest last; then, and not before, `CheckpointStored` is
written, and the staged one deleted. So the folder is the queue: what lies there when an agent
starts is carried on first, if it was announced: a checkpoint must not overtake the reports of the
steps that it holds, which may have died with the agent. While the store is away everything waits
and is tried again.

All below `staged/<allocation>` is the run's to change at any time, and where runs are not users of
their own the agent has no fewer rights than they: so no link there is followed, and only regular
files are read.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from rung.agent.isolation import as_owner_of, held_file, release_folder
from rung.agent.removal import remove_tree
from rung.agent.spool import Spool
from rung.core.protocol import StagedPart
from rung.core.staging import ANNOUNCED
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.runtime.metrics.observed_store import ObservedStore
from rung.storage import (
    FolderStore,
    Manifest,
    ObjectDamaged,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    ObjectUnavailable,
    Provenance,
    StoredCheckpoint,
    check_file,
    checkpoint_prefix,
    copy_checkpoint,
    copy_files,
)
from rung.storage.checkpoint.manifest import MANIFEST
from rung.storage.no_follow import is_file, names_in, open_folder, path_of, replace_file

_SHIPPED_AT_ONCE: Final = 2
_FETCHED_AT_ONCE: Final = 4
_CHECKPOINTS: Final = "checkpoints"
_FETCHED: Final = "fetched"
_KEPT: Final = "kept"
_WAIT_S: Final = 1.0
_WAIT_S_MAX: Final = 30.0
CREDENTIALS: Final = frozenset(
    f"{name}{suffix}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for suffix in ("", "_FILE")
) | {
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
}
"""Variables with the keys to the store, or the way to them, which no run must get."""

T = TypeVar("T")
Note = Callable[[str], None]
"""Tells the log of a run something."""

_log = structlog.get_logger()


class Owner(NamedTuple):
    """The run that a checkpoint comes from."""

    experiment_id: str
    trial_id: str
    run: int

    @property
    def allocation_id(self) -> str:
        """Its allocation."""
        return f"{self.trial_id}.{self.run}"


class Depot:
    """Carries objects between the runs of an agent and the object store."""

    def __init__(self, folder: Path, store: ObjectStore, spool: Spool) -> None:
        self._folder = folder / "staged"
        self._spool = spool
        self._store = store
        self.store = ObservedStore(store)
        self.staged = not isinstance(store, FolderStore)
        """Whether runs stage their checkpoints here."""
        self._shippers = ThreadPoolExecutor(_SHIPPED_AT_ONCE, "shipping")
        self._fetchers = ThreadPoolExecutor(_FETCHED_AT_ONCE, "fetching")
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def said(self) -> int:
        """The number in the spool of the last that any run has said."""
        return self._spool.last

    def folder_of(self, allocation_id: str) -> Path:
        """Return where a run stages what it stores."""
        return self._folder / allocation_id

    def folders(self) -> list[Path]:
        """Return the folder with all objects, where they lie in one."""
        return [self._store.root] if isinstance(self._store, FolderStore) else []

    def release(self, allocations: list[str]) -> None:
        """Let go of the folders that runs of an earlier life had."""
        for root in self.folders():
            for allocation_id in allocations:
                release_folder(held_file(root, allocation_id))

    def hidden_variables(self) -> frozenset[str]:
        """Return the variables that runs must not get."""
        return CREDENTIALS if self.staged else frozenset()

    async def clear_backlog(self, within_s: float) -> None:
        """Carry on what an earlier life of the agent left behind, some time before all else.

        What takes longer goes on beside the rest.
        """
        left = await asyncio.to_thread(lambda: list(self._left()))
        shipping = [self.background(self.ship(owner, found, _log_note)) for owner, found in left]
        if shipping:
            _log.info("carrying on checkpoints of an earlier life", count=len(shipping))
            await asyncio.wait(shipping, timeout=within_s)

    async def announce(self, owner: Owner, checkpoint_id: str, after: int) -> None:
        """Note that a checkpoint may be carried on, once the spool is safe up to a number."""
        await self._spool.durable(after)
        await asyncio.to_thread(self._write_announcement, owner, checkpoint_id)

    async def ship(self, owner: Owner, checkpoint_id: str, note: Note) -> str:
        """Carry a staged checkpoint to the store and write that it is there.

        Returns an empty string, or why it is not there; where it never will be, that is written.
        """
        folder = self.folder_of(owner.allocation_id)

        def carry() -> StoredCheckpoint:
            with as_owner_of(folder):
                staged = FolderStore(folder, foreign=True)
                return copy_checkpoint(staged, self.store, owner.experiment_id, checkpoint_id)

        def discard() -> None:
            with as_owner_of(folder):
                _discard(folder, owner.experiment_id, checkpoint_id)

        what = f"checkpoint {checkpoint_id}"
        try:
            stored = await self._patiently(self._shippers, what, note, carry)
        except ObjectError as error:
            _log.error("a checkpoint cannot be stored", id=checkpoint_id, error=str(error))
            problem = f"{what} could not be stored: {error}"
            with contextlib.suppress(OSError):  # the run has put something else there
                await asyncio.to_thread(self._write_announcement, owner, checkpoint_id, problem)
            if isinstance(error, ObjectDamaged | ObjectMissing):
                await asyncio.to_thread(discard)
                lost = CheckpointDamaged(
                    experiment_id=owner.experiment_id,
                    trial_id=owner.trial_id,
                    run=owner.run,
                    checkpoint_id=checkpoint_id,
                    reason=f"it could not be stored: {error}",
                )
                await self._spool.durable(self._spool.put(lost))
            return problem
        await self._spool.durable(self._spool.put(_fact_of(owner, stored)))
        await asyncio.to_thread(discard)
        return ""

    async def ship_part(self, owner: Owner, part: StagedPart, note: Note) -> None:
        """Carry the staged files of a rank to the store, without a manifest.

        Raises:
            ObjectError: they will never be there.
            OSError: the staged files cannot be deleted.
        """
        root = self.folder_of(owner.allocation_id)
        stored = _part_of(owner, part)
        prefix = checkpoint_prefix(owner.experiment_id, part.checkpoint_id)

        def carry() -> None:
            with as_owner_of(root):
                copy_files(FolderStore(root, foreign=True), self.store, stored)
                for name in part.files:
                    *above, last = (prefix + name).split("/")
                    with (
                        contextlib.suppress(FileNotFoundError),
                        open_folder(root, above) as folder,
                    ):
                        os.unlink(last, dir_fd=folder)

        what = f"the part of checkpoint {part.checkpoint_id}"
        await self._patiently(self._shippers, what, note, carry)

    async def fetch(self, allocation_id: str, name: str, number: int, note: Note) -> Path:
        """Bring an object to a file in the folder in which a run stages; return that.

        Args:
            allocation_id: of the run.
            name: of the object.
            number: of the file, which no other that the run waits for has.
            note: for the run's log.

        Raises:
            ObjectMissing: there is no such object.
            ObjectError: the store refused.
            OSError: the file cannot be written.
        """
        root = self.folder_of(allocation_id)

        def bring() -> None:
            with as_owner_of(root), open_folder(root, [_FETCHED], make=True) as folder:
                self.store.get(name, path_of(folder) / str(number))

        await self._patiently(self._fetchers, name, note, bring)
        return root / _FETCHED / str(number)

    async def patiently(self, what: str, note: Note, call: Callable[[], T]) -> T:
        """Return what a call to the store returns, however long the store is away."""
        return await self._patiently(self._fetchers, what, note, call)

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do something that may outlive its run; it ends with the depot."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _write_announcement(self, owner: Owner, checkpoint_id: str, problem: str = "") -> None:
        root = self.folder_of(owner.allocation_id)
        with as_owner_of(root), open_folder(root, [ANNOUNCED], make=True) as folder:
            replace_file(folder, checkpoint_id, problem)

    async def close(self) -> None:
        """Stop; what is staged stays for the next life."""
        await asyncio.to_thread(self.store.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for threads in (self._shippers, self._fetchers):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)

    async def _patiently(
        self, threads: ThreadPoolExecutor, what: str, note: Note, call: Callable[[], T]
    ) -> T:
        loop = asyncio.get_running_loop()
        wait_s = _WAIT_S
        while True:
            try:
                return await loop.run_in_executor(threads, call)
            except ObjectUnavailable as error:
                if wait_s == _WAIT_S:
                    note(f"{what} waits for the object store: {error}")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _WAIT_S_MAX)

    def _left(self) -> Iterator[tuple[Owner, str]]:
        """Yield the announced checkpoints that are staged; delete everything else."""
        if not self._folder.is_dir():
            return
        for run in sorted(self._folder.iterdir()):
            whole = [
                (experiment_id, name)
                for experiment_id, name in _whole_in(run)
                if is_file(run, ANNOUNCED, name)
                and run.name.startswith(f"{experiment_id}.")
                and name.startswith(f"{run.name}.")
            ]
            trial_id, _, number = run.name.rpartition(".")
            if not whole or not number.isdecimal() or not self.staged:
                remove_tree(run)
                continue
            for needless in (_FETCHED, _KEPT):
                remove_tree(run, needless)
            for found in _staged_in(run):
                if found not in whole:
                    _discard(run, *found)
            for experiment_id, name in whole:
                yield Owner(experiment_id, trial_id, int(number)), name


def remove_if_empty(folder: Path) -> None:
    """Remove a run's folder; if a complete checkpoint is in it, only what it fetched and kept."""
    remove_tree(folder, _FETCHED)
    remove_tree(folder, _KEPT)
    if not _whole_in(folder):
        remove_tree(folder)


def _staged_in(folder: Path) -> list[tuple[str, str]]:
    """Return what lies in the place of checkpoints in a run's folder: experiments and names."""
    return [
        (experiment_id, name)
        for experiment_id in names_in(folder, _CHECKPOINTS)
        for name in names_in(folder, _CHECKPOINTS, experiment_id)
    ]


def _whole_in(folder: Path) -> list[tuple[str, str]]:
    """Return the complete checkpoints in a run's folder: experiments and names."""
    return [it for it in _staged_in(folder) if is_file(folder, _CHECKPOINTS, *it, MANIFEST)]


def _discard(folder: Path, experiment_id: str, name: str) -> None:
    """Delete a staged checkpoint, and the folders that are empty then."""
    remove_tree(folder, _CHECKPOINTS, experiment_id, name)
    with contextlib.suppress(OSError), open_folder(folder, [_CHECKPOINTS]) as above:
        os.rmdir(experiment_id, dir_fd=above)
    with contextlib.suppress(OSError):
        (folder / _CHECKPOINTS).rmdir()


def _fact_of(owner: Owner, stored: StoredCheckpoint) -> CheckpointStored:
    manifest = stored.manifest
    return CheckpointStored(
        experiment_id=owner.experiment_id,
        trial_id=owner.trial_id,
        run=owner.run,
        checkpoint_id=manifest.checkpoint_id,
        steps_completed=manifest.steps_completed,
        size_bytes=manifest.size_bytes,
        files=len(manifest.files),
        digest=stored.digest,
    )


def _part_of(owner: Owner, part: StagedPart) -> StoredCheckpoint:
    """Return what a rank staged as if it were all of the checkpoint; it has no manifest.

    Raises:
        ObjectError: a file has a name that none may have.
    """
    for name in part.files:
        check_file(name)
    manifest = Manifest(
        checkpoint_id=part.checkpoint_id,
        steps_completed=0,
        metadata={},
        files=part.files,
        provenance=Provenance(
            experiment_id=owner.experiment_id, trial_id=owner.trial_id, run=owner.run
        ),
        environment="",
        previous=part.previous,
    )
    return StoredCheckpoint(manifest, "")


def _log_note(text: str) -> None:
    _log.warning(text)
