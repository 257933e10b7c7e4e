"""Upload of staged checkpoints to the object store, and download of what runs read from it.

A run is user code and holds no keys. Where objects lie in a folder, runs use it directly. Where
they lie in S3, each run gets a folder of the agent, `staged/<allocation>`, in which it stages its
checkpoints (`rung.core.ipc.staged_folder`).

Of a checkpoint with files of ranks on several machines, the agents of the other machines upload
their files without a manifest first; then the first machine's agent uploads the rest with it.

An announced checkpoint is uploaded, its manifest last; only then `CheckpointStored` is written,
and the staged copy deleted. So the folder is the queue: announced checkpoints that lie there when
an agent starts are uploaded first; the storage area that they go to lies beside it, in
`staged-areas/<allocation>`. Without an announcement a checkpoint might be recorded before
the reports of its steps, which may be lost with the agent. While the store is away, uploads are
retried.

A run may change anything below `staged/<allocation>` at any time, and where runs have no user ids
of their own the agent has the same rights as they: so no link there is followed, and only regular
files are read.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from rung.agent.isolation.isolation import as_owner_of, held_file, release_folder
from rung.agent.objects.removal import remove_tree
from rung.agent.outbox.outbox import Outbox
from rung.agent.outbox.outbox_file import Change
from rung.core.ipc.protocol import StagedPart
from rung.core.ipc.staged_folder import ANNOUNCED, CHECKPOINTS, FETCHED, KEPT
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

_UPLOADS_MAX: Final = 2
_FETCHES_MAX: Final = 4
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
"""Variables with credentials of the store, or their location, which no run must inherit."""

T = TypeVar("T")
Note = Callable[[str], None]
"""Writes a line into the log of a run."""

_log = structlog.get_logger()


class Owner(NamedTuple):
    """The run that stored a checkpoint."""

    experiment_id: str
    trial_id: str
    run: int
    area: str = ""
    """The storage area of its checkpoints; empty: none."""

    @property
    def allocation_id(self) -> str:
        """Its allocation."""
        return f"{self.trial_id}.{self.run}"


class CheckpointUpload:
    """Uploads checkpoints of an agent's runs, and downloads objects for them."""

    def __init__(self, folder: Path, store: ObjectStore, outbox: Outbox) -> None:
        self._folder = folder / "staged"
        self._notes = folder / "staged-areas"
        self._outbox = outbox
        self._store = store
        self.store = ObservedStore(store)
        self.staged = not isinstance(store, FolderStore)
        """Whether runs stage their checkpoints in a folder of the agent."""
        self._uploaders = ThreadPoolExecutor(_UPLOADS_MAX, "uploading")
        self._fetchers = ThreadPoolExecutor(_FETCHES_MAX, "fetching")
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def last_reported(self) -> int:
        """The number of the outbox's newest fact."""
        return self._outbox.last

    def save(self, changes: Sequence[Change]) -> None:
        """Write changes to the outbox, after all facts so far."""
        self._outbox.put(changes=changes)

    def folder_of(self, allocation_id: str) -> Path:
        """Return the folder in which a run stages its checkpoints."""
        return self._folder / allocation_id

    @property
    def folder_store(self) -> FolderStore:
        """The object store of runs that do not stage."""
        assert isinstance(self._store, FolderStore), "runs stage"
        return self._store

    def folders(self) -> list[Path]:
        """Return the folder of the object store, if the store is a folder."""
        return [self._store.root] if isinstance(self._store, FolderStore) else []

    def note_area(self, owner: Owner) -> None:
        """Note durably the storage area that a run's checkpoints are uploaded to; blocks.

        The run cannot write there.

        Raises:
            ObjectError: it cannot be written.
        """
        if owner.area:
            notes = FolderStore(self._notes)
            notes.put_bytes(owner.allocation_id, owner.area.encode())

    def forget_area(self, allocation_id: str) -> None:
        """Delete the note of a run's storage area."""
        (self._notes / allocation_id).unlink(missing_ok=True)

    def release(self, allocations: list[str]) -> None:
        """Release the folders that runs of an earlier session held.

        Raises:
            ObjectError: the storage area of one cannot be read.
        """
        for allocation_id in allocations if self.folders() else ():
            root = self.folder_store.area(self._area_of(allocation_id)).root
            release_folder(held_file(root, allocation_id))
            self.forget_area(allocation_id)

    def hidden_variables(self) -> frozenset[str]:
        """Return the variables that runs must not inherit."""
        return CREDENTIALS if self.staged else frozenset()

    async def upload_backlog(self, within_s: float, kept: Collection[str] = ()) -> None:
        """Upload the checkpoints that an earlier session of the agent left behind.

        Returns when they are uploaded, or after `within_s`; uploads then go on in the background.
        Checkpoints of the runs `kept` are left to these.
        """
        left = await asyncio.to_thread(lambda: list(self._left(kept)))
        uploading = [
            self.background(self.upload(owner, found, _log_note)) for owner, found in left
        ]
        if uploading:
            _log.info("uploading checkpoints of an earlier agent", count=len(uploading))
            await asyncio.wait(uploading, timeout=within_s)

    async def announce(self, owner: Owner, checkpoint_id: str, after: int) -> None:
        """Announce a checkpoint for upload, once the outbox is durable up to the fact `after`."""
        await self._outbox.durable(after)
        await asyncio.to_thread(self._write_announcement, owner, checkpoint_id)

    async def upload(
        self,
        owner: Owner,
        checkpoint_id: str,
        note: Note,
        settled: Callable[[], list[Change]] = list,
    ) -> str:
        """Upload a staged checkpoint and record that it is stored.

        `settled` returns changes that are written in the same transaction as the result.

        Returns an empty string, or why it is not uploaded; a permanent failure is recorded as
        `CheckpointDamaged`.
        """
        folder = self.folder_of(owner.allocation_id)
        target = self.store.area(owner.area)

        def upload() -> StoredCheckpoint:
            with as_owner_of(folder):
                staged = FolderStore(folder, foreign=True)
                return copy_checkpoint(staged, target, owner.experiment_id, checkpoint_id)

        def discard() -> None:
            with as_owner_of(folder):
                _discard(folder, owner.experiment_id, checkpoint_id)

        what = f"checkpoint {checkpoint_id}"
        try:
            stored = await self._retry(self._uploaders, what, note, upload)
        except ObjectError as error:
            _log.error("a checkpoint cannot be stored", id=checkpoint_id, error=str(error))
            problem = f"{what} could not be stored: {error}"
            with contextlib.suppress(OSError):  # the run has made something else of that name
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
                await self._outbox.durable(self._outbox.put(lost, changes=settled()))
            return problem
        await self._outbox.durable(self._outbox.put(_fact_of(owner, stored), changes=settled()))
        await asyncio.to_thread(discard)
        return ""

    async def upload_part(self, owner: Owner, part: StagedPart, note: Note) -> None:
        """Upload the staged files of a rank, without a manifest.

        Raises:
            ObjectError: they cannot be uploaded; retries would not help.
            OSError: the staged files cannot be deleted.
        """
        root = self.folder_of(owner.allocation_id)
        stored = _part_of(owner, part)
        target = self.store.area(owner.area)
        prefix = checkpoint_prefix(owner.experiment_id, part.checkpoint_id)

        def upload() -> None:
            with as_owner_of(root):
                copy_files(FolderStore(root, foreign=True), target, stored)
                for name in part.files:
                    *above, last = (prefix + name).split("/")
                    with (
                        contextlib.suppress(FileNotFoundError),
                        open_folder(root, above) as folder,
                    ):
                        os.unlink(last, dir_fd=folder)

        what = f"the part of checkpoint {part.checkpoint_id}"
        await self._retry(self._uploaders, what, note, upload)

    async def fetch(
        self, allocation_id: str, name: str, area: str, number: int, note: Note
    ) -> Path:
        """Download an object into a file in a run's staging folder; return the file's path.

        Args:
            allocation_id: of the run.
            name: of the object.
            area: the storage area that it lies in; empty: none.
            number: of the file, unique among the run's open requests.
            note: for the run's log.

        Raises:
            ObjectMissing: there is no such object.
            ObjectError: the store refused.
            OSError: the file cannot be written.
        """
        root, source = self.folder_of(allocation_id), self.store.area(area)

        def fetch() -> None:
            with as_owner_of(root), open_folder(root, [FETCHED], make=True) as folder:
                source.get(name, path_of(folder) / str(number))

        await self._retry(self._fetchers, name, note, fetch)
        return root / FETCHED / str(number)

    async def retry(self, what: str, note: Note, call: Callable[[], T]) -> T:
        """Return the result of a call to the store; retry while the store is away."""
        return await self._retry(self._fetchers, what, note, call)

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that may outlive its run; it is cancelled by `close`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _write_announcement(self, owner: Owner, checkpoint_id: str, problem: str = "") -> None:
        root = self.folder_of(owner.allocation_id)
        with as_owner_of(root), open_folder(root, [ANNOUNCED], make=True) as folder:
            replace_file(folder, checkpoint_id, problem)

    async def close(self) -> None:
        """Stop; staged checkpoints stay for the next session."""
        await asyncio.to_thread(self.store.close)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for threads in (self._uploaders, self._fetchers):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)

    async def _retry(
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

    def _left(self, kept: Collection[str]) -> Iterator[tuple[Owner, str]]:
        """Yield the announced checkpoints that are staged; delete everything else."""
        if not self._folder.is_dir():
            return
        for run in sorted(self._folder.iterdir()):
            if run.name in kept:
                continue
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
            for needless in (FETCHED, KEPT):
                remove_tree(run, needless)
            for found in _staged_in(run):
                if found not in whole:
                    _discard(run, *found)
            area = self._area_of(run.name)
            for experiment_id, name in whole:
                yield Owner(experiment_id, trial_id, int(number), area), name
        if self.staged:
            self._forget_areas(kept)

    def _area_of(self, allocation_id: str) -> str:
        """Return the storage area that was noted for a run.

        Raises:
            ObjectError: it cannot be read.
        """
        try:
            return FolderStore(self._notes, read_only=True).read(allocation_id).decode()
        except ObjectMissing:
            return ""

    def _forget_areas(self, kept: Collection[str]) -> None:
        """Delete the notes of runs that are over and have no folder any more."""
        for info in FolderStore(self._notes, read_only=True).list(""):
            if info.name not in kept and not self.folder_of(info.name).is_dir():
                self.forget_area(info.name)

    def clear(self, allocation_id: str) -> None:
        """Remove a run's folder as far as nothing in it is needed."""
        folder = self.folder_of(allocation_id)
        remove_if_empty(folder)
        if not folder.exists():
            self.forget_area(allocation_id)


def remove_if_empty(folder: Path) -> None:
    """Remove a run's folder; with a complete checkpoint in it, only `FETCHED` and `KEPT`."""
    remove_tree(folder, FETCHED)
    remove_tree(folder, KEPT)
    if not _whole_in(folder):
        remove_tree(folder)


def _staged_in(folder: Path) -> list[tuple[str, str]]:
    """Return the entries where checkpoints belong in a run's folder: experiments and names."""
    return [
        (experiment_id, name)
        for experiment_id in names_in(folder, CHECKPOINTS)
        for name in names_in(folder, CHECKPOINTS, experiment_id)
    ]


def _whole_in(folder: Path) -> list[tuple[str, str]]:
    """Return the complete checkpoints in a run's folder: experiments and names."""
    return [it for it in _staged_in(folder) if is_file(folder, CHECKPOINTS, *it, MANIFEST)]


def _discard(folder: Path, experiment_id: str, name: str) -> None:
    """Delete a staged checkpoint, and the folders that are empty then."""
    remove_tree(folder, CHECKPOINTS, experiment_id, name)
    with contextlib.suppress(OSError), open_folder(folder, [CHECKPOINTS]) as above:
        os.rmdir(experiment_id, dir_fd=above)
    with contextlib.suppress(OSError):
        (folder / CHECKPOINTS).rmdir()


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
    """Return the files that a rank staged, in the form of a checkpoint without a digest.

    Raises:
        ObjectError: a file name is not valid.
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
