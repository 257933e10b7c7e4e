"""Reader of checkpoints: finds them, verifies digests, downloads once for the ranks of an agent.

All ranks must make the calls. The chief finds the latest one, and on each agent the first rank
downloads the files, which the others there share.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from rung.cache.log import log
from rung.core._agent_connection import Connection
from rung.core._distributed import DistributedContext
from rung.core.ipc.protocol import Damaged, Restored
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import (
    FolderStore,
    Manifest,
    ObjectDamaged,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    StoredCheckpoint,
    load_checkpoint,
    open_checkpoint,
    read_manifest,
    sweep_unfinished,
)
from rung.storage.checkpoint.transfer import OpenCheckpoint

FilesT = TypeVar("FilesT")


class CollectiveReader:
    """Restores checkpoints, collectively."""

    def __init__(
        self,
        connection: Connection,
        store: ObjectStore,
        spec: RunSpec,
        scratch: Path,
        ranks: DistributedContext,
    ) -> None:
        self._connection = connection
        self._ranks = ranks
        self._store = store
        self._spec = spec
        self._scratch = scratch
        self._found: OpenCheckpoint | None = None
        self._fetched: Path | None = None
        """The folder with the latest checkpoint's files, where these were downloaded."""
        self._latest: StoredCheckpoint | None = None
        self._searched = False
        self._restored = False

    @property
    def own(self) -> StoredCheckpoint | None:
        """The latest checkpoint, if it is of this experiment."""
        if self._latest is None:
            return None
        experiment_id = self._latest.manifest.provenance.experiment_id
        return self._latest if experiment_id == self._spec.experiment_id else None

    def latest(self) -> str | None:
        """Return the id of the newest intact checkpoint."""
        if not self._searched:
            if self._ranks.is_chief:
                self._sweep()
                self._found = self._first_intact()
            self._latest = self._ranks.broadcast(self._found.stored if self._found else None)
            self._searched = True
        return self._latest.manifest.checkpoint_id if self._latest else None

    @contextlib.contextmanager
    def copies(self, checkpoint_id: str) -> Iterator[Path]:
        """Yield a folder with copies of a checkpoint's files."""
        with self._together(self._copied(checkpoint_id)) as folder:
            yield folder
        self._note_restored(checkpoint_id)

    @contextlib.contextmanager
    def files(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        """Yield the paths of a checkpoint's files."""
        with self._together(self._opened(checkpoint_id)) as paths:
            yield paths
        self._note_restored(checkpoint_id)

    def metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return a checkpoint's metadata."""
        return self.manifest(checkpoint_id).metadata

    def manifest(self, checkpoint_id: str) -> Manifest:
        """Return a checkpoint's manifest."""
        return read_manifest(*self._location_of(checkpoint_id), checkpoint_id).manifest

    @contextlib.contextmanager
    def _together(self, download: AbstractContextManager[FilesT]) -> Iterator[FilesT]:
        """Yield, on all ranks of an agent, the files that the first one has downloaded.

        They are kept until all of these ranks have left the block.
        """
        ranks = self._ranks
        if not ranks.is_local_chief:
            files, problem = ranks.broadcast_local(None)
            if problem:
                raise ObjectDamaged(problem)
            yield files
            ranks.allgather_local(None)
            return
        with contextlib.ExitStack() as stack:
            try:
                files = stack.enter_context(download)
            except ObjectError as error:
                ranks.broadcast_local((None, str(error)))
                raise
            ranks.broadcast_local((files, ""))
            yield files
            ranks.allgather_local(None)

    @contextlib.contextmanager
    def _copied(self, checkpoint_id: str) -> Iterator[Path]:
        with self._downloaded(checkpoint_id) as latest:
            if latest is not None:
                yield latest
                return
        with self._scratch_folder() as folder:
            load_checkpoint(*self._location_of(checkpoint_id), checkpoint_id, folder)
            yield folder

    @contextlib.contextmanager
    def _opened(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        if self._is_latest(checkpoint_id) and self.latest_files:
            with self._downloaded(checkpoint_id):
                yield self.latest_files
                return
        with self._scratch_folder() as folder:
            location = self._location_of(checkpoint_id)
            yield open_checkpoint(*location, checkpoint_id, folder).paths

    @contextlib.contextmanager
    def _downloaded(self, checkpoint_id: str) -> Iterator[Path | None]:
        """Yield the folder of the latest checkpoint; None: another one, or in a folder store.

        Its files are deleted after the block, so that a run does not hold two checkpoints on its
        disk while it trains; a script that wants them once more has them downloaded again.
        """
        folder = self._fetched if self._is_latest(checkpoint_id) else None
        try:
            yield folder
        finally:
            if folder is not None and self._found is not None:
                shutil.rmtree(folder, ignore_errors=True)
                self._found, self._fetched = OpenCheckpoint(self._found.stored, {}), None

    def _is_latest(self, checkpoint_id: str) -> bool:
        found = self._found
        return found is not None and found.stored.manifest.checkpoint_id == checkpoint_id

    @property
    def latest_files(self) -> Mapping[str, Path]:
        """The paths of the latest checkpoint's files, on the chief, until they were restored."""
        return self._found.paths if self._found else {}

    @contextlib.contextmanager
    def own_files(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        """Yield the paths of a checkpoint's files, for this rank alone."""
        with self._opened(checkpoint_id) as paths:
            yield paths

    def experiment_of(self, checkpoint_id: str) -> str:
        """Return the experiment of a checkpoint, from its id."""
        experiment_id, dot, _ = checkpoint_id.partition(".")
        return experiment_id if dot else self._spec.experiment_id

    def _location_of(self, checkpoint_id: str) -> tuple[ObjectStore, str]:
        """Return the store of a checkpoint's area, and its experiment."""
        experiment_id = self.experiment_of(checkpoint_id)
        return self._store.area(self._spec.area_of(experiment_id)), experiment_id

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self._scratch) as folder:
            yield Path(folder)

    def _first_intact(self) -> OpenCheckpoint | None:
        """Return the first candidate that is intact; None: start from scratch.

        Raises:
            ObjectDamaged: none is, and one of another experiment was asked for: the run must not
                begin without its weights.
        """
        for checkpoint_id in self._spec.restore:
            folder = Path(tempfile.mkdtemp(prefix="restore-", dir=self._scratch))
            store, experiment_id = self._location_of(checkpoint_id)
            try:
                found = open_checkpoint(store, experiment_id, checkpoint_id, folder)
            except (ObjectDamaged, ObjectMissing) as error:
                shutil.rmtree(folder)
                log().warning("checkpoint damaged; trying the one before", reason=str(error))
                self._connection.send(Damaged(checkpoint_id, str(error)))
            else:
                self._fetched = None if isinstance(store, FolderStore) else folder
                return found
        foreign = [
            checkpoint_id
            for checkpoint_id in self._spec.restore
            if self.experiment_of(checkpoint_id) != self._spec.experiment_id
        ]
        if foreign:
            raise ObjectDamaged(
                f"checkpoint {foreign[0]}, which this experiment starts from, is damaged or gone:"
                " submit it again with another searcher.source_checkpoint_uuid or source_trial_id"
            )
        if self._spec.restore:
            log().warning("no checkpoint is intact; training starts from scratch")
        return None

    def _note_restored(self, checkpoint_id: str) -> None:
        """Report once, on the chief, that the run resumes from its latest checkpoint."""
        if self._restored or self._found is None:
            return
        manifest = self._found.stored.manifest
        if manifest.checkpoint_id == checkpoint_id:
            self._restored = True
            self._connection.send(Restored(checkpoint_id, manifest.steps_completed))

    def _sweep(self) -> None:
        """Delete incomplete checkpoints of this trial's earlier runs."""
        if self._spec.run == 1:
            return
        current = allocation_id_of(self._spec.trial_id, self._spec.run)
        store = self._store.area(self._spec.area_of(self._spec.experiment_id))
        sweep_unfinished(store, self._spec.experiment_id, self._spec.trial_id, current)
