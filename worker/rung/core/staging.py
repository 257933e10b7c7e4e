"""The object store of a run that has no keys to it.

Where objects lie in S3, only the agent may go there. What the run stores it puts into a folder of
the agent's on this machine, from which the agent carries it on while training goes on; what it
reads it has the agent bring. Nothing is written twice: files are linked in and moved out.

What a checkpoint has in common with the one before stays here under a second name when the agent
has carried that one on (`keep`), so that it need not be written again for the next one.

So that the disk does not fill while the store is away, a checkpoint waits until at most one other
is still on its way, be it of this process or of one before it: a command stores no more than one.
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

from rung.core.link import AgentLink
from rung.core.protocol import Fetch, Fetched, Shipped, StagedPart
from rung.storage import FolderStore, ObjectError, ObjectInfo, ObjectMissing
from rung.storage.checkpoint.manifest import MANIFEST, checkpoint_prefix
from rung.storage.durable_file import DurableFile
from rung.storage.key import check_name

_PARALLEL: Final = 4
_UNDER_WAY_MAX: Final = 1
_LOOK_S: Final = 0.5
_KEPT: Final = "kept/"
ANNOUNCED: Final = "announced"
"""In this folder the agent has a file for each checkpoint that the run told it of: an empty one,
or with the words why it will never be stored."""


class StagedStore:
    """An object store, by way of the agent."""

    def __init__(self, staged: FolderStore, link: AgentLink) -> None:
        self._staged = staged
        self._link = link
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Fetched] = {}
        self._under_way: set[str] = set()
        self._before: list[Path] | None = None
        self._problem = ""
        self._kept: frozenset[str] = frozenset()
        link.hear = self._hear

    @property
    def url(self) -> str:
        """Where the staged objects are."""
        return self._staged.url

    @property
    def parallel(self) -> int:
        """How many objects it is good to put or get at once."""
        return _PARALLEL

    @contextlib.contextmanager
    def room_for(self, checkpoint_id: str) -> Iterator[None]:
        """Wait until a checkpoint may be staged; in the block it is.

        Raises:
            ObjectError: an earlier one could not be carried on.
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
        """Return whether the run stored a checkpoint, wherever it is by now; asks nobody."""
        root = self._staged.root
        manifest = root / checkpoint_prefix(experiment_id, checkpoint_id) / MANIFEST
        return manifest.is_file() or (root / ANNOUNCED / checkpoint_id).is_file()

    def hand_on(self, part: StagedPart) -> None:
        """Have a part of a checkpoint carried on that is staged; return when it is there.

        Raises:
            ObjectError: it could not be carried on.
        """
        with self._changed:
            self._under_way.add(part.checkpoint_id)
            self._link.send(part)
            self._changed.wait_for(lambda: part.checkpoint_id not in self._under_way)
            if self._problem:
                raise ObjectError(self._problem)

    def put(self, name: str, source: Path) -> None:
        """Stage a file, which must not be changed afterwards."""
        path = self._staged.root / check_name(name)
        try:
            if source.is_symlink():
                raise OSError  # noqa: TRY301 - what it points to is somebody else's
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            os.link(source, path)
        except OSError:  # another file system, or one without links
            self._staged.put(name, source)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Stage bytes."""
        self._staged.put_bytes(name, data)

    def create(self, name: str) -> AbstractContextManager[DurableFile]:
        """Return a context in which an object is written that is staged when it ends."""
        return self._staged.create(name)

    def link(self, name: str, existing: str) -> bool:
        """Stage the bytes of a staged object a second time; return whether they were there."""
        return self._staged.link(name, existing) or self._staged.link(name, _KEPT + existing)

    def keep(self, names: Sequence[str]) -> None:
        """Let staged objects be linked when they are carried on, too, and no others any more.

        They take their space once, also when no checkpoint that has them is staged any more;
        the agent frees it when the run is over.
        """
        for name in names:
            self._staged.link(_KEPT + name, name)
        for name in self._kept.difference(names):  # this process's: other ranks keep theirs there
            self._staged.delete(_KEPT + name)
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
        """Return what changes whenever a staged object's bytes do."""
        return self._staged.version(name)

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Return the staged objects whose name begins with the prefix."""
        return self._staged.list(prefix)

    def delete(self, prefix: str) -> int:
        """Delete the staged objects whose name begins with the prefix."""
        return self._staged.delete(prefix)

    def presign(self, name: str, expires_s: float) -> None:  # noqa: ARG002 - the port's
        """Nobody but this run can read what is staged."""
        check_name(name)

    def close(self) -> None:
        """Nothing is held open."""

    def _count(self) -> int:
        """Return how many checkpoints are on their way; note what became of earlier processes'."""
        root = self._staged.root
        found = root.glob(f"checkpoints/*/*/{MANIFEST}") if self._before is None else self._before
        self._before = [manifest for manifest in found if manifest.is_file()]
        for manifest in self._before:
            with contextlib.suppress(FileNotFoundError):
                said = root / ANNOUNCED / manifest.parent.name
                self._problem = self._problem or said.read_text(encoding="utf-8")
        return len(self._under_way) + len(self._before)

    def _fetch(self, name: str) -> Path:
        """Have the agent bring an object; return the file, which is ours.

        Raises:
            ObjectMissing: there is no such object.
            ObjectError: the store refused.
        """
        number = next(self._numbers)
        self._link.send(Fetch(number, name))
        with self._changed:
            self._changed.wait_for(lambda: number in self._answers)
            answer = self._answers.pop(number)
        if answer.problem:
            raise (ObjectMissing if answer.missing else ObjectError)(answer.problem)
        return Path(answer.path)

    def _hear(self, message: Fetched | Shipped) -> None:
        with self._changed:
            if isinstance(message, Fetched):
                self._answers[message.number] = message
            else:
                self._under_way.discard(message.checkpoint_id)
                self._problem = self._problem or message.problem
            self._changed.notify_all()
