"""Writer of checkpoints: writes the files, then the manifest, and reports the checkpoint.

The chief does that alone, or each rank writes its own files (`shard=True`). Then the manifest is
written after the files of all ranks:

    the chief                                   another rank
    waits for room, broadcasts that        ->   begins
    writes its files                            writes its files
    gathers that all have written          <-   has written
                                                has its agent upload them, unless it has the same
                                                agent as the chief, which uploads all its files
    gathers the lists of files             <-   sends its list of files, or its error
    writes the manifest, broadcasts that   ->   is done

These messages have separate connections: they are sent by threads, while the script calls
collectives in an order that must be the same on all ranks. So a thread here waits only for threads
of other ranks, which do not depend on their scripts.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import msgspec

from rung.core._agent_connection import Connection
from rung.core._checkpoint.provenance import provenance
from rung.core._checkpoint.staged_store import StagedStore
from rung.core._distributed import DistributedContext, Group
from rung.core.errors import CheckpointConflict
from rung.core.ipc.protocol import Heartbeat, StagedPart, Stored
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
    """A checkpoint of which nothing is stored yet."""

    checkpoint_id: str
    steps: int
    metadata: dict[str, Any]


class _Part(NamedTuple):
    """The files that a rank wrote, its metadata and its error."""

    files: Mapping[str, FileEntry]
    names: Sequence[str]
    """Names of these files and of those that it could not write."""
    metadata: bytes
    """As JSON."""
    returned: Any
    problem: str


class CollectiveWriter:
    """Stores checkpoints, one at a time; the callers ensure that."""

    def __init__(
        self, connection: Connection, store: ObjectStore, spec: RunSpec, ranks: DistributedContext
    ) -> None:
        self._connection = connection
        self._store = store
        self._spec = spec
        self._ranks = ranks
        self.previous: StoredCheckpoint | None = None
        """The previous checkpoint, whose unchanged files the next one may share."""

    def has(self, checkpoint_id: str) -> bool:
        """Return whether this run has stored or staged a checkpoint."""
        experiment_id = self._spec.experiment_id
        if isinstance(self._store, StagedStore):
            return self._store.holds(experiment_id, checkpoint_id)
        try:
            read_manifest(self._store, experiment_id, checkpoint_id)
        except ObjectMissing:
            return False
        return True

    @property
    def under_way(self) -> bool:
        """Whether one is staged that the agent has not uploaded yet."""
        return isinstance(self._store, StagedStore) and self._store.under_way

    def store(
        self,
        begun: Begun,
        save: Callable[[CheckpointWriter], Any],
        group: Group,
        complete: Complete | None = None,
    ) -> None:
        """Store a checkpoint, and report it; all ranks of the group must call this.

        Args:
            begun: its id, step and metadata.
            save: writes this rank's files.
            group: the ranks that write files.
            complete: called on the chief with the results of `save` of all ranks.

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
            with contextlib.suppress(ObjectError):  # the next run deletes incomplete ones
                writer.discard()
            raise
        self.previous = outcome
        if self._ranks.is_chief:
            manifest = outcome.manifest
            size, files = manifest.size_bytes, len(manifest.files)
            self._connection.send(Stored(name, begun.steps, size, files, outcome.digest))

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
        """Write a checkpoint together with the group; return the stored checkpoint."""
        failure: Exception | None = None
        returned: Any = None
        metadata = b"{}"
        outcome: StoredCheckpoint | CheckpointConflict | str = ""
        try:
            metadata = msgspec.json.encode(begun.metadata)
            returned = save(writer)
        except Exception as error:  # noqa: BLE001 - raised below, after the others have it
            failure = error
        group.gather(f"files of {begun.checkpoint_id}", None)
        with self._heartbeats():
            try:
                if failure is None:
                    self._upload_own_part(writer)
            except ObjectError as error:
                failure = error
            said = _Part(writer.files, writer.names, metadata, returned, _message_of(failure))
            parts: list[_Part] | None = group.gather(f"parts of {begun.checkpoint_id}", said)
        if parts is not None:
            try:
                outcome = self._sealed(begun, writer, parts, complete)
            except CheckpointConflict as error:
                outcome = error
            except Exception as error:  # noqa: BLE001 - as above
                failure = failure or error
                outcome = _message_of(error)
        outcome = group.broadcast(f"end of {begun.checkpoint_id}", outcome)
        if isinstance(outcome, CheckpointConflict):
            raise outcome from failure
        if isinstance(outcome, str):
            raise failure or ObjectError(outcome)
        return outcome

    def _upload_own_part(self, writer: CheckpointWriter) -> None:
        """Have this agent upload the files if it is not the chief's, and wait for that."""
        if not isinstance(self._store, StagedStore):
            return
        with contextlib.suppress(ObjectError):  # the next checkpoint writes them again
            self._store.keep(writer.lasting)
        if self._ranks.cross_rank != 0:
            before = self.previous.manifest.checkpoint_id if self.previous else None
            self._store.upload_part(StagedPart(writer.checkpoint_id, writer.files, before))

    @contextlib.contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Send heartbeats to the chief's agent while other agents upload files.

        That may take as long as the object store is away. The chief's agent, whose watchdog ends
        hanging runs, cannot observe it.
        """
        over = threading.Event()

        def say() -> None:
            while not over.wait(_ALIVE_S):
                self._connection.send(Heartbeat())

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
        """Write the manifest of all ranks' files.

        Raises:
            ObjectError: one of the ranks has failed, or the store refused.
            CheckpointConflict: files or metadata of two ranks conflict.
        """
        clash = _clash_of_names([part.names for part in parts])
        if clash is not None:
            raise CheckpointConflict(f"checkpoint {begun.checkpoint_id}: {clash}")
        problems = [
            f"rank {rank}: {part.problem}" for rank, part in enumerate(parts) if part.problem
        ]
        if problems:
            raise ObjectError(f"checkpoint {begun.checkpoint_id}: {'; '.join(problems)}")
        metadata: dict[str, Any] = {}
        for rank, part in enumerate(parts):
            clash = _merge(metadata, msgspec.json.decode(part.metadata))
            if clash is not None:
                raise CheckpointConflict(
                    f"checkpoint {begun.checkpoint_id}: rank {rank} gives another value for"
                    f" `{clash}` in the metadata than a rank before it; give the same value on all"
                    " ranks, or each its own key"
                )
        for part in parts[1:]:
            writer.include(part.files)
        if complete is not None:
            complete(writer, [part.returned for part in parts])
        return writer.finish(
            steps_completed=begun.steps,
            metadata=metadata,
            provenance=provenance(self._spec),
        )


def _clash_of_names(names: Sequence[Sequence[str]]) -> str | None:
    """Return a conflict between the names of the ranks' files, None if there is none."""
    files: dict[str, int] = {}
    folders: dict[str, tuple[int, str]] = {}
    for rank, own in enumerate(names):
        for name in own:
            if name in files:
                return (
                    f"rank {rank} wrote {name}, which another rank wrote, too; give each rank's"
                    " files names of their own"
                )
            files[name] = rank
            for parent in map(str, PurePosixPath(name).parents):
                folders.setdefault(parent, (rank, name))
    for name, rank in files.items():
        if name in folders:
            other, inside = folders[name]
            return (
                f"{name} is a file of rank {rank} and a folder of rank {other}, which wrote"
                f" {inside}; rename one"
            )
    return None


def _merge(merged: dict[str, Any], metadata: dict[str, Any]) -> str | None:
    """Merge a rank's metadata into those of others, maps key by key.

    Returns the path of a value that differs, None if there is none.
    """
    for key, value in metadata.items():
        known = merged.setdefault(key, value)
        if isinstance(known, dict) and isinstance(value, dict):
            differs = _merge(known, value)
            if differs is not None:
                return f"{key}.{differs}"
        elif known != value:
            return key
    return None


def _message_of(error: Exception | None) -> str:
    if error is None or isinstance(error, ObjectError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"
