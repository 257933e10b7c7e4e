"""Staged store: the object store of a run without credentials for it.

Where objects lie in S3, only the agent has access. The run writes objects into a folder of the
agent on this machine, from which the agent uploads them while training goes on; to read an object,
it has the agent download it. Nothing is written twice: files are hard-linked in and moved out.

Files that checkpoints have in common are kept here under a second name after their upload
(`keep`), so that they need not be written again for the next one.

So that the disk does not fill while the store is away, a new checkpoint waits until at most one
other is still to be uploaded. Those of earlier processes of the run count, too, as each process of
a command may store one.
"""

import contextlib
import itertools
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from rung.core._agent_connection import AgentConnection
from rung.core.ipc.protocol import Fetch, Fetched, StagedPart, Uploaded
from rung.core.ipc.staged_folder import ANNOUNCED, CHECKPOINTS, KEPT
from rung.storage import FolderStore, ObjectError, ObjectInfo, ObjectMissing
from rung.storage.checkpoint.manifest import MANIFEST, checkpoint_prefix
from rung.storage.durable_file import DurableFile
from rung.storage.key import check_name

_PARALLEL: Final = 4
_UNDER_WAY_MAX: Final = 1
_LOOK_S: Final = 0.5


class StagedStore:
    """An object store, by way of the agent."""

    def __init__(self, staged: FolderStore, connection: AgentConnection) -> None:
        self._staged = staged
        self._connection = connection
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Fetched] = {}
        self._open: dict[int, Fetch] = {}
        """Requests that are not answered yet."""
        self._parts: dict[str, StagedPart] = {}
        """Parts of checkpoints whose upload the agent has not confirmed."""
        self._under_way: set[str] = set()
        self._before: list[Path] | None = None
        self._problem = ""
        self._kept: frozenset[str] = frozenset()
        connection.on_object = self._on_object
        connection.on_reconnect = self._repeat_requests

    @property
    def url(self) -> str:
        """The URL of the staging folder."""
        return self._staged.url

    def area(self, name: str) -> "StagedStore":
        """Return the store itself: the agent knows the area of each experiment."""
        del name
        return self

    @property
    def parallel(self) -> int:
        """How many objects to put or get in parallel."""
        return _PARALLEL

    @property
    def under_way(self) -> bool:
        """Whether a checkpoint of this process is still to be uploaded."""
        return bool(self._under_way)

    @contextlib.contextmanager
    def room_for(self, checkpoint_id: str) -> Iterator[None]:
        """Wait until a checkpoint may be staged, and count it as under way; stage it in the block.

        Raises:
            ObjectError: an earlier one could not be uploaded.
        """
        with self._changed:
            while not self._problem and self._count() > _UNDER_WAY_MAX:
                self._changed.wait(_LOOK_S)
            if self._problem:
                raise ObjectError(self._problem)
            self._under_way.add(checkpoint_id)
        try:
            yield
        except BaseException:
            self._under_way.discard(checkpoint_id)
            raise

    def holds(self, experiment_id: str, checkpoint_id: str) -> bool:
        """Return whether the run has staged a checkpoint, uploaded or not; sends no request."""
        root = self._staged.root
        manifest = root / checkpoint_prefix(experiment_id, checkpoint_id) / MANIFEST
        return manifest.is_file() or (root / ANNOUNCED / checkpoint_id).is_file()

    def upload_part(self, part: StagedPart) -> None:
        """Have a staged part of a checkpoint uploaded; return when it is.

        Raises:
            ObjectError: it could not be uploaded.
        """
        with self._changed:
            self._under_way.add(part.checkpoint_id)
            self._parts[part.checkpoint_id] = part
            self._connection.send(part)
            self._changed.wait_for(lambda: part.checkpoint_id not in self._under_way)
            del self._parts[part.checkpoint_id]
            if self._problem:
                raise ObjectError(self._problem)

    def put(self, name: str, source: Path) -> None:
        """Stage a file, which must not be changed afterwards."""
        path = self._staged.root / check_name(name)
        try:
            if source.is_symlink():
                raise OSError  # noqa: TRY301 - its target may not be the run's; copied below
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            os.link(source, path)
        except OSError:  # another file system, or one without links
            self._staged.put(name, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Stage bytes."""
        self._staged.put_bytes(name, data)

    def create(self, name: str) -> AbstractContextManager[DurableFile]:
        """Return a context in which an object is written; it is staged at its end."""
        return self._staged.create(name)

    def link(self, name: str, existing: str) -> bool:
        """Stage a staged object under a second name; return whether it existed."""
        return self._staged.link(name, existing) or self._staged.link(name, f"{KEPT}/" + existing)

    def keep(self, names: Sequence[str]) -> None:
        """Keep these staged objects for `link` after their upload, and no others any more.

        Hard links, so they use disk space once; the agent frees it when the run is over.
        """
        for name in names:
            self._staged.link(f"{KEPT}/" + name, name)
        for name in self._kept.difference(names):  # this process's; other ranks keep their own
            self._staged.delete(f"{KEPT}/" + name)
        self._kept = frozenset(names)

    def get(self, name: str, target: Path) -> None:
        """Write the object's bytes to a file."""
        try:
            self._staged.get(name, target)
        except ObjectMissing:
            fetched = self._fetch(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(fetched, target)

    def read(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        """Return the object's bytes, or some of them."""
        try:
            return self._staged.read(name, offset, size)
        except ObjectMissing:
            fetched = self._fetch(name)
            with fetched.open("rb") as opened:
                fetched.unlink()
                opened.seek(offset)
                return opened.read(-1 if size is None else size)

    def version(self, name: str) -> str:
        """Return a version string of a staged object's content."""
        return self._staged.version(name)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the staged objects with a prefix."""
        return self._staged.list(prefix)

    def delete(self, prefix: str) -> int:
        """Delete the staged objects with a prefix."""
        return self._staged.delete(prefix)

    def presign(self, name: str, expires_s: float) -> None:  # noqa: ARG002 - the port's
        """Return None: only this run can read staged objects."""
        check_name(name)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _count(self) -> int:
        """Return how many checkpoints are under way; note failed ones of earlier processes."""
        root = self._staged.root
        found = self._before
        if found is None:
            found = list(root.glob(f"{CHECKPOINTS}/*/*/{MANIFEST}"))
        self._before = [manifest for manifest in found if manifest.is_file()]
        for manifest in self._before:
            with contextlib.suppress(FileNotFoundError):
                said = root / ANNOUNCED / manifest.parent.name
                self._problem = self._problem or said.read_text(encoding="utf-8")
        return len(self._under_way) + len(self._before)

    def _fetch(self, name: str) -> Path:
        """Have the agent download an object; return its file, which belongs to this process.

        Raises:
            ObjectMissing: there is no such object.
            ObjectError: the store refused.
        """
        with self._changed:
            number = next(self._numbers)
            request = self._open[number] = Fetch(number, name)
            self._connection.send(request)
            self._changed.wait_for(lambda: number in self._answers)
            answer = self._answers.pop(number)
            del self._open[number]
        if answer.problem:
            raise (ObjectMissing if answer.missing else ObjectError)(answer.problem)
        return Path(answer.path)

    def _on_object(self, message: Fetched | Uploaded) -> None:
        with self._changed:
            if isinstance(message, Fetched):
                self._answers[message.number] = message
            else:
                self._under_way.discard(message.checkpoint_id)
                self._problem = self._problem or message.problem
            self._changed.notify_all()

    def _repeat_requests(self) -> None:
        """Repeat to a new agent the requests that the previous one did not answer.

        A checkpoint whose manifest is no longer staged was uploaded, or has failed.
        """
        with self._changed:
            for request in self._open.values():
                self._connection.send(request)
            for part in self._parts.values():
                self._connection.send(part)
            for name in [each for each in self._under_way if each not in self._parts]:
                self._settle(name)
            self._changed.notify_all()

    def _settle(self, checkpoint_id: str) -> None:
        """Note that a checkpoint is no longer under way, if the previous agent completed it."""
        said = self._staged.root / ANNOUNCED / checkpoint_id
        staged = self._staged.root.glob(f"{CHECKPOINTS}/*/{checkpoint_id}/{MANIFEST}")
        if said.is_file() and not any(staged):
            self._under_way.discard(checkpoint_id)
            with contextlib.suppress(FileNotFoundError):
                self._problem = self._problem or said.read_text(encoding="utf-8")
