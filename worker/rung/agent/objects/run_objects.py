"""The objects of one run: uploads its staged checkpoints in order, downloads what it requests.

The end of a run is reported only when its checkpoints are uploaded, because the decision on what
follows depends on the newest one. The wait is skipped when the run is killed, shortened when the
agent leaves, and ends for checkpoints that cannot be uploaded; complete checkpoints are uploaded
in any case.
"""

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rung.agent.isolation.isolation import Isolation, checkpoints_of, hold_folder, release_folder
from rung.agent.objects.checkpoint_upload import CheckpointUpload, Note, Owner
from rung.agent.outbox.outbox_file import Change
from rung.agent.run.ipc_server import Connection
from rung.core.ipc.protocol import Fetch, Fetched, StagedPart, Uploaded
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import ObjectError, ObjectMissing, ObjectUnavailable, sweep_unfinished

NAME_CHARACTERS_MAX: Final = 128
_LAST_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
"""The part of a checkpoint's id after the id of its run."""


class RunObjects:
    """Connects a run's processes to the upload and download of its agent."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that it connects
        self,
        checkpoint_upload: CheckpointUpload,
        spec: RunSpec,
        note: Note,
        send: Callable[[Uploaded], None],
        save: Callable[[], list[Change]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without checkpoints.

        Args:
            checkpoint_upload: of the agent.
            spec: of the run.
            note: writes into the run's log.
            send: sends a message to the run's processes.
            save: returns the changes that save the run for the next session of the agent.
            clock: by which hangs are detected.
        """
        self._send = send
        self._save = save
        self._checkpoint_upload = checkpoint_upload
        area = spec.area_of(spec.experiment_id)
        self._owner = Owner(spec.experiment_id, spec.trial_id, spec.run, area)
        self._allocation_id = allocation_id_of(spec.trial_id, spec.run)
        self._folder = checkpoint_upload.folder_of(self._allocation_id)
        self._note = note
        self._clock = clock
        self._newest = asyncio.Event()
        """Set once the newest staged checkpoint is uploaded, or cannot be."""
        self._newest.set()
        self._numbers = itertools.count(1)
        self._uploads: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, None] = {}
        """Ids of checkpoints, in the order in which they were staged."""
        self._answers: set[asyncio.Task[None]] = set()
        self._served_at = 0.0
        self._hurried = asyncio.Event()
        self._spec = spec
        self._held: Path | None = None
        self._recovering = False
        self.within = ""
        """The only prefix below which the run can write in its store; empty: everywhere."""
        self.newest_bytes = 0
        """The size of the run's newest checkpoint; 0 if it stored none."""
        self.problem = ""
        """Why a checkpoint of the run could not be stored, if one could not."""

    @property
    def staged(self) -> bool:
        """Whether the run stages its checkpoints, instead of storing them itself."""
        return self._checkpoint_upload.staged

    @property
    def url(self) -> str:
        """The URL of the object store that the run is to use."""
        return self._folder.as_uri() if self.staged else self._checkpoint_upload.store.url

    def open(self) -> None:
        """Delete incomplete checkpoints of the trial's earlier runs, in the background."""
        if self.staged and self._owner.run > 1:
            self._checkpoint_upload.background(self._sweep(self._owner.run))

    def prepare(self, isolation: Isolation) -> tuple[list[Path], list[Path]]:
        """Create the folders of the run's objects; return its own, and those that it may read.

        Blocks; call it from a thread.
        """
        if self.staged:
            self._folder.mkdir(parents=True, exist_ok=True)
            isolation.chown(self._folder, self._allocation_id)
            self._checkpoint_upload.note_area(self._owner)
            return [self._folder], []
        if isolation.mode != "namespaces":
            return [], []
        self._checkpoint_upload.note_area(self._owner)
        store = self._checkpoint_upload.folder_store
        own, readable = checkpoints_of(store, self._spec)
        self.within = own.relative_to(store.root).as_posix()
        self._held = hold_folder(store.area(self._owner.area).root, self._allocation_id)
        return [own], readable

    def resume(self, isolation: Isolation, under_way: Sequence[str]) -> None:
        """Continue a run that was prepared before.

        Args:
            isolation: of the run.
            under_way: checkpoints that were staged and not uploaded yet.
        """
        if not self.staged:
            self.prepare(isolation)
        for checkpoint_id in under_way:
            self.stored(checkpoint_id, self._checkpoint_upload.save)

    def recover(self) -> None:
        """Only announce staged checkpoints: `upload_backlog` uploads them."""
        self._recovering = True

    def release(self) -> None:
        """Release the folders, once the run's processes are gone."""
        if self._held is not None:
            release_folder(self._held)
            self._checkpoint_upload.forget_area(self._allocation_id)

    def stored(self, checkpoint_id: str, save: Callable[[Sequence[Change]], object]) -> None:
        """Upload a checkpoint that the run has staged; save the run before.

        Args:
            checkpoint_id: of the checkpoint.
            save: writes changes to the outbox, in one transaction with the number of the message
                that reported the checkpoint: an agent that takes the run over uploads it once,
                whether or not the process repeats the message.
        """
        if self._recovering:
            announced = self._checkpoint_upload.announce(
                self._owner, checkpoint_id, self._checkpoint_upload.last_reported
            )
            self._follow(self._checkpoint_upload.background(announced), self._uploads)
            return
        self._under_way[checkpoint_id] = None
        save(self._save())
        after = self._checkpoint_upload.last_reported
        before, self._newest = self._newest, asyncio.Event()
        work = self._upload(checkpoint_id, after, before, self._newest)
        self._follow(self._checkpoint_upload.background(work), self._uploads)

    def staged_part(self, connection: Connection, message: StagedPart) -> str | None:
        """Upload a part of a checkpoint; return what is wrong with the message, None if nothing.

        The process that staged it waits for the answer.
        """
        if not self.staged:
            return "a part of a checkpoint is staged where runs do not stage"
        if problem := problem_with_own(self._spec, message.checkpoint_id):
            return problem
        self.answer(self._upload_part(connection, message))
        return None

    def fetch(self, connection: Connection, message: Fetch) -> None:
        """Download an object for a process of the run."""
        self.answer(self._fetch(connection, message))

    @property
    def served_at(self) -> float:
        """When the run last may have waited for an answer or an upload, by the node's clock."""
        waits = self._answers or self._uploads
        return self._clock() if waits else self._served_at

    @property
    def pending(self) -> bool:
        """Whether uploads are under way."""
        return any(not upload.done() for upload in self._uploads)

    @property
    def under_way(self) -> list[str]:
        """The checkpoints that are not uploaded yet."""
        return list(self._under_way)

    def hurry(self) -> None:
        """Let `finish` return without waiting for uploads."""
        self._hurried.set()

    async def finish(self, within_s: float | None, *, broken: bool) -> None:
        """Return when the run's checkpoints are uploaded, `hurry` was called, or time is over.

        Args:
            within_s: how long to wait at most.
            broken: whether the run may have left an incomplete one, and is on this agent alone.
        """
        for task in self._answers:
            task.cancel()
        if self._uploads:
            hurried = asyncio.create_task(self._hurried.wait())
            arrived = asyncio.gather(*self._uploads, return_exceptions=True)
            both: list[asyncio.Future[object]] = [hurried, arrived]  # type: ignore[list-item]
            await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
        if self.staged:
            self._checkpoint_upload.background(self._clear_up())
        elif broken:  # it may have been the trial's last run
            self._checkpoint_upload.background(self._sweep(self._owner.run + 1))

    def _follow(self, task: asyncio.Task[None], others: set[asyncio.Task[None]]) -> None:
        """Keep a task in a set until it is done."""

        def done(task: asyncio.Task[None]) -> None:
            others.discard(task)
            self._served_at = self._clock()

        others.add(task)
        task.add_done_callback(done)

    async def _upload(
        self,
        checkpoint_id: str,
        after: int,
        before: asyncio.Event,
        done: asyncio.Event,
    ) -> None:
        """Announce a checkpoint at once, and upload it after the one before it."""
        try:
            await self._checkpoint_upload.announce(self._owner, checkpoint_id, after)
            await before.wait()
            problem = await self._checkpoint_upload.upload(
                self._owner, checkpoint_id, self._note, partial(self._settled, checkpoint_id)
            )
        except (OSError, ObjectError) as error:  # of this machine's disk
            problem = f"checkpoint {checkpoint_id} could not be stored: {error}"
        finally:
            done.set()
        self._under_way.pop(checkpoint_id, None)
        if problem:
            self._note(problem)
            self.problem = self.problem or problem
        self._send(Uploaded(checkpoint_id, problem))

    def _settled(self, checkpoint_id: str) -> list[Change]:
        """Return the changes to write together with the result of an upload."""
        self._under_way.pop(checkpoint_id, None)
        return self._save()

    async def _upload_part(self, connection: Connection, message: StagedPart) -> None:
        try:
            await self._checkpoint_upload.upload_part(self._owner, message, self._note)
        except (OSError, ObjectError) as error:
            self.problem = self.problem or f"{message.checkpoint_id} could not be stored: {error}"
            connection.send(Uploaded(message.checkpoint_id, str(error)))
        else:
            connection.send(Uploaded(message.checkpoint_id))

    def answer(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task for whose answer a process waits; cancelled when the run ends."""
        self._follow(self._checkpoint_upload.background(work), self._answers)

    def _readable(self, name: str) -> bool:
        """Return whether the run may read an object; the same rule as in `checkpoints_of`."""
        if name.startswith(f"checkpoints/{self._spec.experiment_id}/"):
            return True
        return any(
            name.startswith(f"checkpoints/{given.partition('.')[0]}/{given}/")
            for given in self._spec.restore
        )

    async def _fetch(self, connection: Connection, message: Fetch) -> None:
        try:
            if not self._readable(message.name):
                raise ObjectError(  # noqa: TRY301 - answered below
                    f"a run may read checkpoints of its experiment, and those that it starts from,"
                    f" not {message.name[:200]!r}"
                )
            target = await self._checkpoint_upload.fetch(
                self._allocation_id,
                message.name,
                self._spec.area_of(message.name.split("/")[1]),
                next(self._numbers),
                self._note,
            )
        except (OSError, ObjectError) as error:
            missing = isinstance(error, ObjectMissing)
            connection.send(Fetched(message.number, problem=str(error), missing=missing))
        else:
            connection.send(Fetched(message.number, str(target)))

    async def _sweep(self, before: int) -> None:
        """Delete incomplete checkpoints of the trial's runs before the run `before`."""
        owner = self._owner
        try:
            await asyncio.to_thread(
                sweep_unfinished,
                self._checkpoint_upload.store.area(owner.area),
                owner.experiment_id,
                owner.trial_id,
                allocation_id_of(owner.trial_id, before),
            )
        except ObjectUnavailable:
            return  # the next run sweeps
        except ObjectError as error:
            self._note(f"incomplete checkpoints of earlier runs could not be deleted: {error}")

    async def _clear_up(self) -> None:
        """Remove the run's folder once nothing in it is needed."""
        await asyncio.gather(*self._uploads, return_exceptions=True)
        await asyncio.to_thread(self._checkpoint_upload.clear, self._allocation_id)


def problem_with_own(spec: RunSpec, checkpoint_id: str) -> str | None:
    """Return why a checkpoint cannot be one of the run's own, None if it can."""
    own = f"{allocation_id_of(spec.trial_id, spec.run)}."
    if checkpoint_id.startswith(own) and _LAST_PART.fullmatch(checkpoint_id, len(own)):
        return None
    return f"checkpoint {checkpoint_id[:NAME_CHARACTERS_MAX]!r} is not one of this run's"
