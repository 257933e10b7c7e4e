"""Checkpoints: `ctx.checkpoint`.

A checkpoint is written to a scratch folder, stored file by file, and reported once its manifest is
stored. Its id is `<trial>.<run>.<steps>`. An incomplete one of a killed run has no manifest, and
is deleted by the agent, or by the next run of the trial.

`store_path_async` and `save_async` store in the background: one checkpoint at a time, the next one
waits. A failure there is raised by the next call, at the latest when the run ends, and so fails
the run. Checkpoints are reported in the order in which they were begun.

Where a run has several ranks, all of them must make these calls. The chief alone stores, or, with
`shard=True`, each rank stores its own files, under one manifest.
"""

import contextlib
import enum
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from rung.core._agent_connection import Connection
from rung.core._checkpoint.reader import CollectiveReader
from rung.core._checkpoint.writer import Begun, CollectiveWriter, Complete
from rung.core._distributed import DistributedContext, Group, SingleProcess
from rung.core._tensorboard import TensorboardFiles
from rung.core._train import step_number
from rung.core._unmanaged_run import UnmanagedConnection
from rung.core.ipc.protocol import DeletionRequested
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import CheckpointWriter, ObjectError, ObjectStore, checkpoint_prefix
from rung.storage.checkpoint.transfer import lay_out
from rung.storage.checkpoint.writer import files_of
from rung.storage.disk_fault import tells_of_fault, words_of

STEPS: Final = "steps_completed"
Selector = Callable[[str], bool]

_register_atexit: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]  # noqa: SLF001 - as concurrent.futures does


class DownloadMode(enum.Enum):
    """Which ranks download a checkpoint."""

    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Stores checkpoints, and restores them with their digests verified."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a run
        self,
        connection: Connection,
        store: ObjectStore,
        spec: RunSpec,
        scratch: Path,
        ranks: DistributedContext,
        tensorboard: TensorboardFiles | None = None,
    ) -> None:
        self._connection = connection
        self._store = own = store.area(spec.area_of(spec.experiment_id))
        self._tensorboard = tensorboard
        self._spec = spec
        self._scratch = scratch
        self._ranks = ranks
        self._group: Group | None = None
        self._writer = CollectiveWriter(connection, own, spec, ranks)
        self._names: dict[int, int] = {}
        self._background = BackgroundTask()
        self._reader = CollectiveReader(connection, store, spec, scratch, ranks)

    @contextlib.contextmanager
    def store_path(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and the checkpoint's id; store the folder at the end.

        Nothing is stored if the block raises. Files of other ranks than the chief are discarded,
        unless the checkpoint is sharded.

        Args:
            metadata: JSON values to store with the checkpoint; `steps_completed` may be among
                them.
            steps_completed: the step of the checkpoint.
            shard: whether it consists of the files of all ranks, each from its own folder and
                with names that no other rank uses. The metadata of all ranks are merged, maps key
                by key; two values for one key are refused. The call ends on all ranks when the
                checkpoint is stored, and raises on all if it cannot be.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        with self._scratch_folder() as folder:
            with self._failure_reported(begun, shard=shard), _disk_failures_named(begun):
                yield folder, begun.checkpoint_id
            if shard or self._ranks.is_chief:
                self._add_tensorboard(folder)
                self._write(begun, lambda writer: writer.add(folder), shard=shard)

    @contextlib.contextmanager
    def store_path_async(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """As `store_path`, but the folder is stored in the background after the block.

        It is removed then, so do not write to it after the block. If the previous checkpoint is
        still being stored, this waits for it first.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._scratch_folder())
            with self._failure_reported(begun, shard=shard), _disk_failures_named(begun):
                yield folder, begun.checkpoint_id
            if not (shard or self._ranks.is_chief):
                return
            self._add_tensorboard(folder)
            with self._failure_reported(begun, shard=shard):
                files_of(folder)  # what cannot be stored is refused here, and not in the thread
            later = stack.pop_all()

        def store() -> None:
            with later:
                self._write(begun, lambda writer: writer.add(folder), shard=shard)

        self._background.start(store)

    def save_async(
        self,
        save: Callable[[CheckpointWriter], Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
        complete: Complete | None = None,
    ) -> str:
        """Have a function write a checkpoint in the background; return its id at once.

        The function runs in a thread, so it must work on a copy of any state that training goes
        on to change. It writes directly to the store, and digests are computed on the way:
        `writer.write("model.pt", lambda file: torch.save(state, file))`. If the previous
        checkpoint is still being stored, this waits for it first. On other ranks than the chief
        the function is not called, unless the checkpoint is sharded.

        Args:
            save: writes the checkpoint's files.
            metadata: as for `store_path`.
            steps_completed: as for `store_path`.
            shard: as for `store_path`.
            complete: for a sharded checkpoint; called on the chief when all ranks have written
                their files, with the results of `save` of all ranks; it may write further files.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        if shard or self._ranks.is_chief:
            self._background.start(lambda: self._write(begun, save, complete, shard=shard))
        return begun.checkpoint_id

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Store the files of a folder as a checkpoint; return its id.

        As `store_path`, for files that exist already.

        Args:
            ckpt_dir: the folder; None, with `shard`, where this rank has no files.
            metadata: as for `store_path`.
            steps_completed: as for `store_path`.
            shard: as for `store_path`. Where ranks of one agent name the same folder without
                selectors, the first of them stores it.
            selector: takes a name within the folder; returns whether to store the file.
        """
        if ckpt_dir is None and not shard:
            raise ValueError("ckpt_dir is None: give the folder to store, or shard=True")
        taken = self._is_mine(ckpt_dir, selector) if shard else True
        stored = self.store_path(metadata, steps_completed=steps_completed, shard=shard)
        with stored as (folder, checkpoint_id):
            if ckpt_dir is not None and taken and (shard or self._ranks.is_chief):
                _copy_files(files_below(Path(ckpt_dir)), folder, selector)
        return checkpoint_id

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode | str = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Write a checkpoint's files into a folder, each verified by its digest.

        Args:
            storage_id: the checkpoint.
            ckpt_dir: the folder; it is created if need be.
            download_mode: by default the first rank of each agent writes the files that any rank
                there selects, and all ranks must call this; otherwise this rank alone writes.
            selector: takes a file's name; returns whether to download the file.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        target = Path(ckpt_dir)
        if DownloadMode(download_mode) is DownloadMode.NoSharedDownload:
            with self._reader.own_files(storage_id) as own:
                _copy_files(own, target, selector)
            lay_out(self._reader.manifest(storage_id), target)
            return
        with self.restore_files(storage_id) as files:
            chosen = {name for name in files if selector is None or selector(name)}
            union = set[str]().union(*self._ranks.allgather_local(chosen))
            if self._ranks.is_local_chief:
                _copy_files(files, target, union.__contains__)
                lay_out(self._reader.manifest(storage_id), target)

    def delete(self, storage_id: str) -> None:
        """Have a checkpoint of this experiment deleted.

        It is kept as long as a trial may resume from it, or another experiment starts from it.
        On other ranks than the chief this does nothing.
        """
        if not self._ranks.is_chief:
            return
        if isinstance(self._connection, UnmanagedConnection):
            experiment_id = self._reader.experiment_of(storage_id)
            self._store.delete(checkpoint_prefix(experiment_id, storage_id))
            return
        self._connection.send(DeletionRequested(storage_id))

    def wait(self) -> None:
        """Return when all checkpoints that this process began are stored.

        A sharded one is stored when the files of all ranks are.

        Raises:
            ObjectError: one could not be stored.
        """
        self._background.wait()

    def stored(self) -> bool:
        """Return whether all checkpoints that this process began are stored; does not wait.

        Raises:
            ObjectError: one could not be stored.
        """
        if self._background.busy:
            return False
        self._background.check()
        return True

    @property
    def storing(self) -> bool:
        """Whether a checkpoint that this process began is not in the object store yet.

        Where a run stages its checkpoints, `stored` returns True earlier: when they are staged.
        """
        return self._background.busy or self._writer.under_way

    def has(self, steps_completed: int) -> bool:
        """Return whether this run has a checkpoint of a step, by this or an earlier process.

        One that this process is still storing in the background is waited for. It may not be
        uploaded yet.

        Raises:
            ObjectError: that one could not be stored.
        """
        if steps_completed in self._names:
            self.wait()
        return self._writer.has(self._name(steps_completed))

    @property
    def latest(self) -> str | None:
        """Deprecated: use `download_latest()`."""
        warnings.warn(
            "checkpoint.latest downloads; write checkpoint.download_latest()",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.download_latest()

    def download_latest(self) -> str | None:
        """Return the checkpoint to resume from, verified; None: start from scratch.

        The first call downloads it and verifies every digest; a damaged one is reported and an
        earlier one is tried. All ranks must call this, and get the chief's result.
        """
        latest = self._reader.latest()
        own = f"{self._spec.trial_id}."
        if self._tensorboard and self._ranks.is_chief and latest and latest.startswith(own):
            self._tensorboard.restore(self._reader.latest_files)
        if self._writer.previous is None:
            self._writer.previous = self._reader.own
        return latest

    @contextlib.contextmanager
    def restore_path(self, checkpoint_id: str) -> Iterator[Path]:
        """Yield a folder with the checkpoint's files, each verified by its digest.

        All ranks must call this; those on one agent share one folder, which is downloaded once
        and kept until all of them have left the block.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        with self._reader.copies(checkpoint_id) as folder:
            yield folder

    @contextlib.contextmanager
    def restore_files(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        """Yield the paths of the checkpoint's files, each verified by its digest.

        They are downloaded only if they are not on this machine, so they may be the store's own
        files: read or map them, but never change them. All ranks must call this, as with
        `restore_path`.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        with self._reader.files(checkpoint_id) as files:
            yield files

    def get_metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return the checkpoint's metadata, which always contain `steps_completed`."""
        return self._reader.metadata(checkpoint_id)

    def _is_mine(self, ckpt_dir: str | os.PathLike[str] | None, selector: Selector | None) -> bool:
        """Return whether this rank stores its folder; False if another one with the same does."""
        own: tuple[int, int, int] | None = None
        if ckpt_dir is not None and selector is None:
            about = Path(ckpt_dir).stat()
            own = (self._ranks.cross_rank, about.st_dev, about.st_ino)
        everyone = self._ranks.allgather(own)
        return own is None or everyone.index(own) == self._ranks.rank

    def _add_tensorboard(self, folder: Path) -> None:
        if self._tensorboard is not None and self._ranks.is_chief:
            self._tensorboard.add_to(folder)

    def _begin(
        self, metadata: Mapping[str, Any] | None, steps_completed: int | None, *, shard: bool
    ) -> Begun:
        """Begin a checkpoint, with the same id on all ranks."""
        if shard and self._group is None:
            self._group = self._ranks.new_group("checkpoints")
        kept = dict(metadata or {})
        steps = step_number(kept.get(STEPS, 0) if steps_completed is None else steps_completed)
        kept[STEPS] = steps
        return Begun(self._new_id(steps), steps, kept)

    @contextlib.contextmanager
    def _failure_reported(self, begun: Begun, *, shard: bool) -> Iterator[None]:
        """If the block raises, report that to the ranks that wait for this one's files."""
        try:
            yield
        except Exception as error:
            if shard:
                with contextlib.suppress(Exception):  # the block's error is raised
                    self._write(begun, partial(_raise, error), shard=True)
            raise

    def _write(
        self,
        begun: Begun,
        save: Callable[[CheckpointWriter], Any],
        complete: Complete | None = None,
        *,
        shard: bool,
    ) -> None:
        group = self._group if shard and self._group is not None else SingleProcess()
        with _disk_failures_named(begun):
            self._writer.store(begun, save, group, complete)

    def _name(self, steps: int) -> str:
        return f"{allocation_id_of(self._spec.trial_id, self._spec.run)}.{steps}"

    def _new_id(self, steps: int) -> str:
        name = self._name(steps)
        number = self._names.get(steps, 0)
        self._names[steps] = number + 1
        return f"{name}-{number}" if number else name

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self._scratch) as folder:
            yield Path(folder)


@contextlib.contextmanager
def _disk_failures_named(begun: Begun) -> Iterator[None]:
    """Name a failure of the disk in the block as one of storing a checkpoint.

    Then the agent takes it for the machine's failure, also where the disk has room again as soon
    as the incomplete file is deleted.

    Raises:
        ObjectError: the block raised an error of the file system.
    """
    try:
        yield
    except Exception as error:
        text = words_of(error)
        if isinstance(error, ObjectError) or not tells_of_fault(text):
            raise
        message = f"checkpoint {begun.checkpoint_id} could not be stored: {text}"
        raise ObjectError(message) from error


def files_below(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their names within it.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def _copy_files(files: Mapping[str, Path], folder: Path, selector: Selector | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if selector is None or selector(name):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _raise(error: Exception, _writer: CheckpointWriter) -> None:
    raise error


class BackgroundTask:
    """Runs functions in a thread, one at a time; the next call raises the error of the last one.

    The interpreter waits for the thread at its exit, so that a checkpoint that was begun is
    completed.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._waits_at_exit = False
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Wait for the previous function, then start this one.

        Raises:
            BaseException: the error of the previous one.
        """
        self.wait()
        self._wait_at_exit()
        self._thread = threading.Thread(target=self._do, args=(work,), name="rung-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when no function is running.

        Raises:
            BaseException: the error of the last one; it is raised once.
        """
        self._join()
        self._thread = None
        self.check()

    def check(self) -> None:
        """Raise the error of an earlier function, if it failed; does not wait."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _wait_at_exit(self) -> None:
        """Register the wait so that it comes before thread pools are shut down at exit.

        The function may use them, and they are shut down before the interpreter joins threads.
        """
        if not self._waits_at_exit:
            self._waits_at_exit = True
            _register_atexit(self._join)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised in the script's thread
            self._error = error
