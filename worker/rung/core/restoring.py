"""The way back of checkpoints: found, compared with their digests, and shared by an agent's ranks.

All ranks ask. The chief finds the latest one, and on each agent the first rank brings the files,
which the others there use too.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from rung.cache.log import log
from rung.core.distributed import DistributedContext
from rung.core.link import Link
from rung.core.protocol import Damaged, Restored
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import (
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

BroughtT = TypeVar("BroughtT")


class Restoring:
    """Brings checkpoints back."""

    def __init__(
        self,
        link: Link,
        store: ObjectStore,
        spec: RunSpec,
        scratch: Path,
        ranks: DistributedContext,
    ) -> None:
        self._link = link
        self._ranks = ranks
        self._store = store
        self._spec = spec
        self._scratch = scratch
        self._found: OpenCheckpoint | None = None
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
        """Return the name of the newest checkpoint that is whole."""
        if not self._searched:
            if self._ranks.is_chief:
                self._sweep()
                self._found = self._first_whole()
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
        """Yield where a checkpoint's files are."""
        with self._together(self._opened(checkpoint_id)) as paths:
            yield paths
        self._note_restored(checkpoint_id)

    def metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return what was kept with a checkpoint."""
        stored = read_manifest(self._store, self._experiment_of(checkpoint_id), checkpoint_id)
        return stored.manifest.metadata

    @contextlib.contextmanager
    def _together(self, bringing: AbstractContextManager[BroughtT]) -> Iterator[BroughtT]:
        """Yield, on all ranks of an agent, what the first of them brings; they leave together."""
        ranks = self._ranks
        if not ranks.is_local_chief:
            brought, problem = ranks.broadcast_local(None)
            if problem:
                raise ObjectDamaged(problem)
            yield brought
            ranks.allgather_local(None)
            return
        with contextlib.ExitStack() as stack:
            try:
                brought = stack.enter_context(bringing)
            except ObjectError as error:
                ranks.broadcast_local((None, str(error)))
                raise
            ranks.broadcast_local((brought, ""))
            yield brought
            ranks.allgather_local(None)

    @contextlib.contextmanager
    def _copied(self, checkpoint_id: str) -> Iterator[Path]:
        with self._scratch_folder() as folder:
            load_checkpoint(self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder)
            yield folder

    @contextlib.contextmanager
    def _opened(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        if self._found and self._found.stored.manifest.checkpoint_id == checkpoint_id:
            yield self._found.paths
            return
        with self._scratch_folder() as folder:
            experiment_id = self._experiment_of(checkpoint_id)
            yield open_checkpoint(self._store, experiment_id, checkpoint_id, folder).paths

    def _experiment_of(self, checkpoint_id: str) -> str:
        """Return the experiment that a checkpoint belongs to, from its name."""
        experiment_id, dot, _ = checkpoint_id.partition(".")
        return experiment_id if dot else self._spec.experiment_id

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self._scratch) as folder:
            yield Path(folder)

    def _first_whole(self) -> OpenCheckpoint | None:
        """Return the first candidate that is whole; None: start from scratch.

        Raises:
            ObjectDamaged: none is, and another experiment's was wanted: its weights are what the
                run is about, so that it must not begin without them.
        """
        for checkpoint_id in self._spec.restore:
            folder = Path(tempfile.mkdtemp(prefix="restore-", dir=self._scratch))
            try:
                return open_checkpoint(
                    self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder
                )
            except (ObjectDamaged, ObjectMissing) as error:
                shutil.rmtree(folder)
                log().warning("checkpoint damaged; trying the one before", reason=str(error))
                self._link.send(Damaged(checkpoint_id, str(error)))
        foreign = [
            checkpoint_id
            for checkpoint_id in self._spec.restore
            if self._experiment_of(checkpoint_id) != self._spec.experiment_id
        ]
        if foreign:
            raise ObjectDamaged(
                f"checkpoint {foreign[0]}, which this experiment starts from, is damaged or gone:"
                " submit it again with another searcher.source_checkpoint_uuid or source_trial_id"
            )
        if self._spec.restore:
            log().warning("no checkpoint is whole; training starts from scratch")
        return None

    def _note_restored(self, checkpoint_id: str) -> None:
        """Say, once, that the run goes on from its latest checkpoint; the chief's word."""
        if self._restored or self._found is None:
            return
        manifest = self._found.stored.manifest
        if manifest.checkpoint_id == checkpoint_id:
            self._restored = True
            self._link.send(Restored(checkpoint_id, manifest.steps_completed))

    def _sweep(self) -> None:
        """Delete what earlier runs of this trial were storing when they were killed."""
        if self._spec.run == 1:
            return
        current = allocation_id_of(self._spec.trial_id, self._spec.run)
        sweep_unfinished(self._store, self._spec.experiment_id, self._spec.trial_id, current)
