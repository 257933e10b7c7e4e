"""Checkpoints: `ctx.checkpoint`.

A checkpoint is written to a scratch folder, stored file by file, and made known once its manifest
is there. It is named `<trial>.<run>.<steps>`. What a killed run left half-stored has no manifest
and is swept by the next run of the trial.

`store_path_async` and `save_async` store behind the script's back: one checkpoint at a time, the
next one waits. What fails there is raised by the next call, at the latest when the run ends, and
so fails the run. Checkpoints are made known in the order in which they were begun.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from rung.core.behind import Behind
from rung.core.environment import provenance
from rung.core.link import Link
from rung.core.protocol import Damaged, Restored, Stored
from rung.core.staging import StagedStore
from rung.core.values import step_number
from rung.events.trial import RunSpec, allocation_id_of
from rung.objects import (
    Draft,
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
from rung.objects.transfer import OpenCheckpoint

STEPS: Final = "steps_completed"

_log = structlog.get_logger(__name__)


class CheckpointContext:
    """Stores checkpoints and brings them back, verified."""

    def __init__(self, link: Link, store: ObjectStore, spec: RunSpec, scratch: Path) -> None:
        self._link = link
        self._store = store
        self._spec = spec
        self._scratch = scratch
        self._names: dict[int, int] = {}
        self._behind = Behind()
        self._previous: StoredCheckpoint | None = None
        self._found: OpenCheckpoint | None = None
        self._searched = False
        self._restored = False

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, steps_completed: int | None = None
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and the checkpoint's id; store the folder at the end.

        A block that raises stores nothing.

        Args:
            metadata: JSON values to keep with the checkpoint; `steps_completed` may be among
                them.
            steps_completed: at which step the checkpoint is.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed)
        with self._scratch_folder() as folder:
            yield folder, begun.checkpoint_id
            self._store_one(begun, lambda draft: draft.add(folder))

    @contextlib.contextmanager
    def store_path_async(
        self, metadata: Mapping[str, Any] | None = None, *, steps_completed: int | None = None
    ) -> Iterator[tuple[Path, str]]:
        """As `store_path`, but what follows the block does not wait for the store.

        The folder is stored behind the script's back and then removed; so do not write to it
        after the block. If the checkpoint before is still being stored, this waits for it first.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._scratch_folder())
            yield folder, begun.checkpoint_id
            later = stack.pop_all()

        def store() -> None:
            with later:
                self._store_one(begun, lambda draft: draft.add(folder))

        self._behind.start(store)

    def save_async(
        self,
        save: Callable[[Draft], None],
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
    ) -> str:
        """Have a function write a checkpoint behind the script's back; return its id at once.

        The function runs in a thread, so it must work on a copy of what training goes on to
        change. What it writes goes straight to the store, digested on the way:
        `draft.write("model.pt", lambda file: torch.save(state, file))`. If the checkpoint before
        is still being stored, this waits for it first.

        Args:
            save: writes the checkpoint's files.
            metadata: as for `store_path`.
            steps_completed: as for `store_path`.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed)
        self._behind.start(lambda: self._store_one(begun, save))
        return begun.checkpoint_id

    def wait(self) -> None:
        """Return when all checkpoints that were begun are stored.

        Raises:
            ObjectError: one could not be stored.
        """
        self._behind.wait()

    def stored(self) -> bool:
        """Return whether all checkpoints that were begun are stored; waits for nothing.

        Raises:
            ObjectError: one could not be stored.
        """
        if self._behind.busy:
            return False
        self._behind.check()
        return True

    @property
    def latest(self) -> str | None:
        """The checkpoint to go on from, whole and verified, or None: start from scratch.

        The first look brings it here and checks every digest; a damaged one is reported and the
        one before it is tried.
        """
        if not self._searched:
            self._searched = True
            self._sweep()
            self._found = self._first_whole()
        return self._found.stored.manifest.checkpoint_id if self._found else None

    @contextlib.contextmanager
    def restore_path(self, checkpoint_id: str) -> Iterator[Path]:
        """Yield a folder with the checkpoint's files, each checked against its digest.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        with self._scratch_folder() as folder:
            load_checkpoint(self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder)
            yield folder
        self._note_restored(checkpoint_id)

    @contextlib.contextmanager
    def restore_files(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        """Yield where the checkpoint's files are, each checked against its digest.

        They are brought only if they are not on this machine, so they may be the store's own:
        read or map them, but never change them.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        if self._found and self._found.stored.manifest.checkpoint_id == checkpoint_id:
            yield self._found.paths
            self._note_restored(checkpoint_id)
            return
        with self._scratch_folder() as folder:
            experiment_id = self._experiment_of(checkpoint_id)
            yield open_checkpoint(self._store, experiment_id, checkpoint_id, folder).paths

    def get_metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return what was kept with the checkpoint; `steps_completed` is always among it."""
        stored = read_manifest(self._store, self._experiment_of(checkpoint_id), checkpoint_id)
        return stored.manifest.metadata

    def _experiment_of(self, checkpoint_id: str) -> str:
        """Return the experiment that a checkpoint belongs to, from its name."""
        experiment_id, dot, _ = checkpoint_id.partition(".")
        return experiment_id if dot else self._spec.experiment_id

    def _begin(self, metadata: Mapping[str, Any] | None, steps_completed: int | None) -> "_Begun":
        kept = dict(metadata or {})
        steps = step_number(kept.get(STEPS, 0) if steps_completed is None else steps_completed)
        kept[STEPS] = steps
        return _Begun(self._new_id(steps), steps, kept)

    def _store_one(self, begun: "_Begun", save: Callable[[Draft], None]) -> None:
        """Store a checkpoint and make it known; whoever calls sees to it that one is at a time."""
        spec, checkpoint_id = self._spec, begun.checkpoint_id
        room = self._store.room_for if isinstance(self._store, StagedStore) else _no_limit
        with room(checkpoint_id):
            draft = Draft(self._store, spec.experiment_id, checkpoint_id, self._previous)
            try:
                save(draft)
                stored = draft.seal(
                    steps_completed=begun.steps,
                    metadata=begun.metadata,
                    provenance=provenance(spec),
                )
            except BaseException:
                with contextlib.suppress(ObjectError):  # the next run sweeps
                    draft.discard()
                raise
        self._previous, manifest = stored, stored.manifest
        size, files = manifest.size_bytes, len(manifest.files)
        self._link.send(Stored(checkpoint_id, begun.steps, size, files, stored.digest))

    def _new_id(self, steps: int) -> str:
        name = f"{allocation_id_of(self._spec.trial_id, self._spec.run)}.{steps}"
        number = self._names.get(steps, 0)
        self._names[steps] = number + 1
        return f"{name}-{number}" if number else name

    @contextlib.contextmanager
    def _scratch_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self._scratch) as folder:
            yield Path(folder)

    def _first_whole(self) -> OpenCheckpoint | None:
        for checkpoint_id in self._spec.restore:
            folder = Path(tempfile.mkdtemp(prefix="restore-", dir=self._scratch))
            try:
                found = open_checkpoint(
                    self._store, self._experiment_of(checkpoint_id), checkpoint_id, folder
                )
            except (ObjectDamaged, ObjectMissing) as error:
                shutil.rmtree(folder)
                _log.warning("checkpoint damaged; trying the one before", reason=str(error))
                self._link.send(Damaged(checkpoint_id, str(error)))
            else:
                if found.stored.manifest.provenance.experiment_id == self._spec.experiment_id:
                    self._previous = found.stored
                return found
        if self._spec.restore:
            _log.warning("no checkpoint is whole; training starts from scratch")
        return None

    def _note_restored(self, checkpoint_id: str) -> None:
        """Say, once, that the run goes on from its latest checkpoint."""
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


class _Begun(NamedTuple):
    """A checkpoint that has a name and nothing else yet."""

    checkpoint_id: str
    steps: int
    metadata: dict[str, Any]


def _no_limit(_checkpoint_id: str) -> contextlib.nullcontext[None]:
    return contextlib.nullcontext()
