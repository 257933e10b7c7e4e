"""Checkpoints: `ctx.checkpoint`.

A checkpoint is written to a scratch folder, stored file by file, and made known once its manifest
is there. It is named `<trial>.<run>.<steps>`. What a killed run left half-stored has no manifest
and is swept by the next run of the trial.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from rung.core.distributed import DistributedContext
from rung.core.environment import provenance
from rung.core.link import Link
from rung.core.protocol import Damaged, Restored, Stored
from rung.core.staging import StagedStore
from rung.core.values import step_number
from rung.events.trial import RunSpec, allocation_id_of
from rung.objects import (
    ObjectDamaged,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    StoredCheckpoint,
    load_checkpoint,
    read_manifest,
    store_checkpoint,
    sweep_unfinished,
)

STEPS: Final = "steps_completed"

_log = structlog.get_logger(__name__)


class CheckpointContext:
    """Stores checkpoints and brings them back, verified."""

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
        self._names: dict[int, int] = {}
        self._found: tuple[StoredCheckpoint, Path] | None = None
        self._latest: str | None = None
        self._searched = False
        self._restored = False

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, steps_completed: int | None = None
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and the checkpoint's id; store the folder at the end.

        A block that raises stores nothing, and so does another rank than the chief: what it
        writes is thrown away.

        Args:
            metadata: JSON values to keep with the checkpoint; `steps_completed` may be among
                them.
            steps_completed: at which step the checkpoint is.
        """
        kept = dict(metadata or {})
        steps = step_number(kept.get(STEPS, 0) if steps_completed is None else steps_completed)
        kept[STEPS] = steps
        checkpoint_id = self._new_id(steps)
        with self._scratch_folder() as folder:
            yield folder, checkpoint_id
            if not self._ranks.is_chief:
                return
            room = self._store.room_for if isinstance(self._store, StagedStore) else _no_limit
            with room(checkpoint_id):
                stored = store_checkpoint(
                    self._store,
                    folder,
                    checkpoint_id=checkpoint_id,
                    steps_completed=steps,
                    metadata=kept,
                    provenance=provenance(self._spec),
                )
        manifest = stored.manifest
        self._link.send(
            Stored(checkpoint_id, steps, manifest.size_bytes, len(manifest.files), stored.digest)
        )

    @property
    def latest(self) -> str | None:
        """The checkpoint to go on from, whole and verified, or None: start from scratch.

        The first look brings it here and checks every digest; a damaged one is reported and the
        one before it is tried. All ranks ask, and get what the chief found.
        """
        if not self._searched:
            self._searched = True
            if self._ranks.is_chief:
                self._sweep()
                self._found = self._first_whole()
            found = self._found[0].manifest.checkpoint_id if self._found else None
            self._latest = self._ranks.broadcast(found)
        return self._latest

    @contextlib.contextmanager
    def restore_path(self, checkpoint_id: str) -> Iterator[Path]:
        """Yield a folder with the checkpoint's files, each checked against its digest.

        All ranks ask; those on one agent get the same folder, which is brought there once, and
        all leave it together.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        ranks = self._ranks
        if not ranks.is_local_chief:
            path, problem = ranks.broadcast_local(None)
            if problem:
                raise ObjectDamaged(problem)
            yield Path(path)
            ranks.allgather_local(None)
            return
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(self._brought(checkpoint_id))
            except ObjectError as error:
                ranks.broadcast_local(("", str(error)))
                raise
            ranks.broadcast_local((str(folder), ""))
            yield folder
            ranks.allgather_local(None)

    @contextlib.contextmanager
    def _brought(self, checkpoint_id: str) -> Iterator[Path]:
        if self._found and self._found[0].manifest.checkpoint_id == checkpoint_id:
            stored, folder = self._found
            yield folder
            if not self._restored and self._ranks.is_chief:
                self._restored = True
                self._link.send(Restored(checkpoint_id, stored.manifest.steps_completed))
            return
        with self._scratch_folder() as folder:
            load_checkpoint(self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder)
            yield folder

    def get_metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return what was kept with the checkpoint; `steps_completed` is always among it."""
        stored = read_manifest(self._store, self._experiment_of(checkpoint_id), checkpoint_id)
        return stored.manifest.metadata

    def _experiment_of(self, checkpoint_id: str) -> str:
        """Return the experiment that a checkpoint belongs to, from its name."""
        experiment_id, dot, _ = checkpoint_id.partition(".")
        return experiment_id if dot else self._spec.experiment_id

    def _new_id(self, steps: int) -> str:
        name = f"{allocation_id_of(self._spec.trial_id, self._spec.run)}.{steps}"
        number = self._names.get(steps, 0)
        self._names[steps] = number + 1
        return f"{name}-{number}" if number else name

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self._scratch) as folder:
            yield Path(folder)

    def _first_whole(self) -> tuple[StoredCheckpoint, Path] | None:
        for checkpoint_id in self._spec.restore:
            folder = Path(tempfile.mkdtemp(prefix="restore-", dir=self._scratch))
            try:
                stored = load_checkpoint(
                    self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder
                )
            except (ObjectDamaged, ObjectMissing) as error:
                shutil.rmtree(folder)
                _log.warning("checkpoint damaged; trying the one before", reason=str(error))
                self._link.send(Damaged(checkpoint_id, str(error)))
            else:
                return stored, folder
        if self._spec.restore:
            _log.warning("no checkpoint is whole; training starts from scratch")
        return None

    def _sweep(self) -> None:
        """Delete what earlier runs of this trial were storing when they were killed."""
        if self._spec.run == 1:
            return
        current = allocation_id_of(self._spec.trial_id, self._spec.run)
        sweep_unfinished(self._store, self._spec.experiment_id, self._spec.trial_id, current)


def _no_limit(_checkpoint_id: str) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()


def experiment_of(checkpoint_id: str) -> str:
    """Return the experiment that a checkpoint belongs to, from its name."""
    return checkpoint_id.partition(".")[0]
