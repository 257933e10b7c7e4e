"""Checkpoints: `ctx.checkpoint`.

A checkpoint is written to a scratch folder, stored file by file, and made known once its manifest
is there. It is named `<trial>.<run>.<steps>`. What a killed run left half-stored has no manifest
and is swept by its agent, or by the next run of the trial.

`store_path_async` and `save_async` store behind the script's back: one checkpoint at a time, the
next one waits. What fails there is raised by the next call, at the latest when the run ends, and
so fails the run. Checkpoints are made known in the order in which they were begun.

Where a run has several ranks, all of them make these calls. The chief alone stores, or, with
`shard=True`, each rank stores files of its own, under one manifest.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from rung.core.behind import Behind
from rung.core.distributed import Alone, DistributedContext, Group
from rung.core.link import Link
from rung.core.restoring import Restoring
from rung.core.storing import Begun, Complete, Storing
from rung.core.values import step_number
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import CheckpointWriter, ObjectStore

STEPS: Final = "steps_completed"


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
        self._spec = spec
        self._scratch = scratch
        self._ranks = ranks
        self._group: Group | None = None
        self._storing = Storing(link, store, spec, ranks)
        self._names: dict[int, int] = {}
        self._behind = Behind()
        self._restoring = Restoring(link, store, spec, scratch, ranks)

    @contextlib.contextmanager
    def store_path(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """Yield a folder to write to and the checkpoint's id; store the folder at the end.

        A block that raises stores nothing, and so does another rank than the chief: what it
        writes is thrown away, unless the checkpoint is sharded.

        Args:
            metadata: JSON values to keep with the checkpoint; `steps_completed` may be among
                them.
            steps_completed: at which step the checkpoint is.
            shard: whether it is the files of all ranks, each in a folder of its own and under
                names that no other rank has. The metadata are the chief's. Ends on all ranks
                when it is stored, and fails on all if it is not.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        with self._scratch_folder() as folder:
            with self._told_to_the_others(begun, shard=shard):
                yield folder, begun.checkpoint_id
            if shard or self._ranks.is_chief:
                self._store(begun, lambda writer: writer.add(folder), shard=shard)

    @contextlib.contextmanager
    def store_path_async(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
    ) -> Iterator[tuple[Path, str]]:
        """As `store_path`, but what follows the block does not wait for the store.

        The folder is stored behind the script's back and then removed; so do not write to it
        after the block. If the checkpoint before is still being stored, this waits for it first.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._scratch_folder())
            with self._told_to_the_others(begun, shard=shard):
                yield folder, begun.checkpoint_id
            if not (shard or self._ranks.is_chief):
                return
            later = stack.pop_all()

        def store() -> None:
            with later:
                self._store(begun, lambda writer: writer.add(folder), shard=shard)

        self._behind.start(store)

    def save_async(
        self,
        save: Callable[[CheckpointWriter], Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        shard: bool = False,
        complete: Complete | None = None,
    ) -> str:
        """Have a function write a checkpoint behind the script's back; return its id at once.

        The function runs in a thread, so it must work on a copy of what training goes on to
        change. What it writes goes straight to the store, digested on the way:
        `draft.write("model.pt", lambda file: torch.save(state, file))`. If the checkpoint before
        is still being stored, this waits for it first. On other ranks than the chief it is not
        called, unless the checkpoint is sharded.

        Args:
            save: writes the checkpoint's files.
            metadata: as for `store_path`.
            steps_completed: as for `store_path`.
            shard: as for `store_path`.
            complete: of a sharded checkpoint, is called on the chief when all ranks have written
                their files, with what `save` returned on each; it may write files about that.
        """
        self.wait()
        begun = self._begin(metadata, steps_completed, shard=shard)
        if shard or self._ranks.is_chief:
            self._behind.start(lambda: self._store(begun, save, complete, shard=shard))
        return begun.checkpoint_id

    def wait(self) -> None:
        """Return when all checkpoints that this process began to store are stored.

        A sharded one is stored when the files of all ranks are.

        Raises:
            ObjectError: one could not be stored.
        """
        self._behind.wait()

    def stored(self) -> bool:
        """Return whether all that this process began to store is stored; waits for nothing.

        Raises:
            ObjectError: one could not be stored.
        """
        if self._behind.busy:
            return False
        self._behind.check()
        return True

    def has(self, steps_completed: int) -> bool:
        """Return whether this run stored a checkpoint at a step, in this process or before it.

        It may still be on its way to the store.
        """
        return self._storing.has(self._name(steps_completed))

    @property
    def latest(self) -> str | None:
        """The checkpoint to go on from, whole and verified, or None: start from scratch.

        The first look brings it here and checks every digest; a damaged one is reported and the
        one before it is tried. All ranks ask, and get what the chief found.
        """
        latest = self._restoring.latest()
        if self._storing.previous is None:
            self._storing.previous = self._restoring.own
        return latest

    @contextlib.contextmanager
    def restore_path(self, checkpoint_id: str) -> Iterator[Path]:
        """Yield a folder with the checkpoint's files, each checked against its digest.

        All ranks ask; those on one agent get the same folder, which is brought there once, and
        all leave it together.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        with self._restoring.copies(checkpoint_id) as folder:
            yield folder

    @contextlib.contextmanager
    def restore_files(self, checkpoint_id: str) -> Iterator[Mapping[str, Path]]:
        """Yield where the checkpoint's files are, each checked against its digest.

        They are brought only if they are not on this machine, so they may be the store's own:
        read or map them, but never change them. All ranks ask, as with `restore_path`.

        Raises:
            ObjectMissing: there is no such checkpoint.
            ObjectDamaged: a file is missing or differs; the message names it.
        """
        with self._restoring.files(checkpoint_id) as files:
            yield files

    def get_metadata(self, checkpoint_id: str) -> dict[str, Any]:
        """Return what was kept with the checkpoint; `steps_completed` is always among it."""
        return self._restoring.metadata(checkpoint_id)

    def _begin(
        self, metadata: Mapping[str, Any] | None, steps_completed: int | None, *, shard: bool
    ) -> Begun:
        """Give a checkpoint its name, on all ranks the same."""
        if shard and self._group is None:
            self._group = self._ranks.apart("checkpoints")
        kept = dict(metadata or {})
        steps = step_number(kept.get(STEPS, 0) if steps_completed is None else steps_completed)
        kept[STEPS] = steps
        return Begun(self._new_id(steps), steps, kept)

    @contextlib.contextmanager
    def _told_to_the_others(self, begun: Begun, *, shard: bool) -> Iterator[None]:
        """Let ranks that wait for this one's files know if the block raises: there are none."""
        try:
            yield
        except Exception as error:
            if shard:
                with contextlib.suppress(Exception):  # it is this one that counts
                    self._store(begun, partial(_raise, error), shard=True)
            raise

    def _store(
        self,
        begun: Begun,
        save: Callable[[CheckpointWriter], Any],
        complete: Complete | None = None,
        *,
        shard: bool,
    ) -> None:
        group = self._group if shard and self._group is not None else Alone()
        self._storing.store(begun, save, group, complete)

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


def _raise(error: Exception, _writer: CheckpointWriter) -> None:
    raise error
