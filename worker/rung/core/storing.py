"""How a checkpoint comes into the store: written, sealed with a manifest, made known.

The chief does that alone, or each rank writes files of its own (`shard=True`). Then, as long as
one of them has something to write, there is no manifest:

    the chief                                   another rank
    waits for room, and says so            ->   begins
    writes its files                            writes its files
    hears that all have written            <-   says that it has
                                                has its agent carry them on, unless that is the
                                                chief's, too, which does that with the manifest
    takes in what the others wrote        <-    says what it wrote, or why it could not
    writes the manifest, and says so       ->   is done

What is said goes over connections of their own: it is said in threads, while the script says other
things to its ranks in an order that must be the same on all of them. So whoever waits here waits
for threads, which go on whatever their scripts do, and for no call of a script.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from rung.core.distributed import DistributedContext, Group
from rung.core.environment import provenance
from rung.core.link import Link
from rung.core.protocol import Alive, StagedPart, Stored
from rung.core.staging import StagedStore
from rung.events.trial import RunSpec
from rung.storage import (
    CheckpointWriter,
    FileEntry,
    ObjectError,
    ObjectMissing,
    ObjectStore,
    StoredCheckpoint,
    read_manifest,
)

Complete = Callable[[CheckpointWriter, list[Any]], None]
_ALIVE_S: Final = 2.0


class Begun(NamedTuple):
    """A checkpoint that has a name and nothing else yet."""

    checkpoint_id: str
    steps: int
    metadata: dict[str, Any]


class _Part(NamedTuple):
    """What a rank says of the files that it wrote."""

    files: Mapping[str, FileEntry]
    returned: Any
    problem: str


class Storing:
    """Stores one checkpoint at a time; whoever calls sees to that."""

    def __init__(
        self, link: Link, store: ObjectStore, spec: RunSpec, ranks: DistributedContext
    ) -> None:
        self._link = link
        self._store = store
        self._spec = spec
        self._ranks = ranks
        self.previous: StoredCheckpoint | None = None
        """The one before, whose unchanged files the next one may share."""

    def has(self, checkpoint_id: str) -> bool:
        """Return whether this run stored a checkpoint; does not wait for a store that is away."""
        experiment_id = self._spec.experiment_id
        if isinstance(self._store, StagedStore):
            return self._store.holds(experiment_id, checkpoint_id)
        try:
            read_manifest(self._store, experiment_id, checkpoint_id)
        except ObjectMissing:
            return False
        return True

    def store(
        self,
        begun: Begun,
        save: Callable[[CheckpointWriter], Any],
        group: Group,
        complete: Complete | None = None,
    ) -> None:
        """Store a checkpoint, and make it known; all ranks of the group must call this.

        Args:
            begun: its name and what is to be kept with it.
            save: writes this rank's files.
            group: who writes files.
            complete: writes, on the chief, what there is to say of what all `save` returned.

        Raises:
            ObjectError: it could not be stored, here or by another rank.
        """
        name = begun.checkpoint_id
        writer = CheckpointWriter(self._store, self._spec.experiment_id, name, self.previous)
        try:
            with contextlib.ExitStack() as stack:
                self._wait_for_room(name, stack, group)
                outcome = self._write(begun, writer, save, group, complete)
        except BaseException:
            with contextlib.suppress(ObjectError):  # the next run sweeps
                writer.discard()
            raise
        self.previous = outcome
        if self._ranks.is_chief:
            manifest = outcome.manifest
            size, files = manifest.size_bytes, len(manifest.files)
            self._link.send(Stored(name, begun.steps, size, files, outcome.digest))

    def _wait_for_room(self, name: str, stack: contextlib.ExitStack, group: Group) -> None:
        """Wait until a checkpoint may be staged, on the chief's machine.

        Raises:
            ObjectError: it never may.
        """
        problem = ""
        if isinstance(self._store, StagedStore) and self._ranks.is_chief:
            try:
                stack.enter_context(self._store.room_for(name))
            except ObjectError as error:
                problem = str(error)
        if problem := group.broadcast(f"room for {name}", problem):
            raise ObjectError(problem)

    def _write(
        self,
        begun: Begun,
        writer: CheckpointWriter,
        save: Callable[[CheckpointWriter], Any],
        group: Group,
        complete: Complete | None,
    ) -> StoredCheckpoint:
        """Write, with all others of the group, and return what became of it."""
        failure: Exception | None = None
        returned: Any = None
        outcome: StoredCheckpoint | str = ""
        try:
            returned = save(writer)
        except Exception as error:  # noqa: BLE001 - raised below, once the others know
            failure = error
        group.gather(f"files of {begun.checkpoint_id}", None)
        with self._alive():
            try:
                if failure is None:
                    self._hand_on(writer)
            except ObjectError as error:
                failure = error
            said = _Part(writer.files, returned, _words(failure))
            parts: list[_Part] | None = group.gather(f"parts of {begun.checkpoint_id}", said)
        if parts is not None:
            try:
                outcome = self._sealed(begun, writer, parts, complete)
            except Exception as error:  # noqa: BLE001 - as above
                failure = failure or error
                outcome = _words(error)
        outcome = group.broadcast(f"end of {begun.checkpoint_id}", outcome)
        if isinstance(outcome, str):
            raise failure or ObjectError(outcome)
        return outcome

    def _hand_on(self, writer: CheckpointWriter) -> None:
        """Have the files carried on that the chief's agent does not find on its machine."""
        if not isinstance(self._store, StagedStore):
            return
        with contextlib.suppress(ObjectError):  # the next one writes them again
            self._store.keep(writer.lasting)
        if self._ranks.cross_rank != 0:
            before = self.previous.manifest.checkpoint_id if self.previous else None
            self._store.hand_on(StagedPart(writer.checkpoint_id, writer.files, before))

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        """Have the run not taken for one that hangs while other machines' agents carry on files.

        That may take as long as the object store is away, and the chief's agent, which watches,
        does not know of it.
        """
        over = threading.Event()

        def say() -> None:
            while not over.wait(_ALIVE_S):
                self._link.send(Alive())

        told = isinstance(self._store, StagedStore) and self._ranks.is_chief
        told &= self._ranks.cross_size > 1
        thread = threading.Thread(target=say, name="rung-alive", daemon=True)
        if told:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if told:
                thread.join()

    def _sealed(
        self, begun: Begun, writer: CheckpointWriter, parts: list[_Part], complete: Complete | None
    ) -> StoredCheckpoint:
        """Write the manifest over the files of all.

        Raises:
            ObjectError: one of the ranks has failed, or the store refused.
        """
        problems = [
            f"rank {rank}: {part.problem}" for rank, part in enumerate(parts) if part.problem
        ]
        if problems:
            raise ObjectError(f"checkpoint {begun.checkpoint_id}: {'; '.join(problems)}")
        for rank, part in enumerate(parts[1:], 1):
            writer.include(part.files, f"rank {rank}")
        if complete is not None:
            complete(writer, [part.returned for part in parts])
        return writer.finish(
            steps_completed=begun.steps,
            metadata=begun.metadata,
            provenance=provenance(self._spec),
        )


def _words(error: Exception | None) -> str:
    if error is None or isinstance(error, ObjectError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"
