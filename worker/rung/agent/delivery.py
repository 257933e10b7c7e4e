"""The objects of one run: what it stages is carried on in order, what it asks for is brought.

A run that has ended waits for its checkpoints to arrive before it is reported: who decides what
follows must know the newest one. It does not wait when it is killed, for long when the agent
leaves, or for what will never arrive; what is complete by then is carried on all the same.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rung.agent.depot import Depot, Note, Owner, remove_if_empty
from rung.agent.endpoint import Connection
from rung.agent.isolation import Isolation, checkpoints_of, hold_folder, release_folder
from rung.agent.saying import problem_with_own
from rung.core.protocol import Fetch, Fetched, Shipped, StagedPart, Stored
from rung.events.trial import RunSpec, allocation_id_of
from rung.storage import ObjectError, ObjectMissing, ObjectUnavailable, sweep_unfinished


class Delivery:
    """Goes between a run's processes and the depot."""

    def __init__(
        self,
        depot: Depot,
        spec: RunSpec,
        note: Note,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._depot = depot
        self._owner = Owner(spec.experiment_id, spec.trial_id, spec.run)
        self._allocation_id = allocation_id_of(spec.trial_id, spec.run)
        self._folder = depot.folder_of(self._allocation_id)
        self._note = note
        self._clock = clock
        self._newest = asyncio.Event()
        """Set once the checkpoint that was staged last has arrived, or will not."""
        self._newest.set()
        self._numbers = itertools.count(1)
        self._shipments: set[asyncio.Task[None]] = set()
        self._under_way: dict[str, None] = {}
        """Ids of checkpoints, in the order in which they were staged."""
        self._answers: set[asyncio.Task[None]] = set()
        self._served_at = 0.0
        self._hurried = asyncio.Event()
        self._spec = spec
        self._held: Path | None = None
        self.within = ""
        """The prefix below which alone the run can write in its store; empty: everywhere."""
        self.problem = ""
        """Why a checkpoint of the run could not be stored, if one could not."""

    @property
    def staged(self) -> bool:
        """Whether the run stages its checkpoints, instead of storing them itself."""
        return self._depot.staged

    @property
    def url(self) -> str:
        """The object store that the run is to use."""
        return self._folder.as_uri() if self.staged else self._depot.store.url

    def open(self) -> None:
        """Clear away what earlier runs of the trial left half-stored, while this one starts."""
        if self.staged and self._owner.run > 1:
            self._depot.background(self._sweep(self._owner.run))

    def prepare(self, isolation: Isolation) -> tuple[list[Path], list[Path]]:
        """Make the folders of the run's objects; return its own, and those that it may read.

        Blocks; call it from a thread.
        """
        if self.staged:
            self._folder.mkdir(parents=True, exist_ok=True)
            isolation.own(self._folder, self._allocation_id)
            return [self._folder], []
        if isolation.mode != "namespaces":
            return [], []
        (root,) = self._depot.folders()
        own, readable = checkpoints_of(root, self._spec)
        self.within = own.relative_to(root).as_posix()
        self._held = hold_folder(root, self._allocation_id)
        return [own], readable

    def release(self) -> None:
        """Let go of the folders, once the run's processes are gone."""
        if self._held is not None:
            release_folder(self._held)

    def stored(self, connection: Connection, message: Stored) -> None:
        """Carry on what was staged, a checkpoint of the run's own."""
        after = self._depot.said
        self._under_way[message.checkpoint_id] = None
        before, self._newest = self._newest, asyncio.Event()
        work = self._ship(connection, message.checkpoint_id, after, before, self._newest)
        self._follow(self._depot.background(work), self._shipments)

    def staged_part(self, connection: Connection, message: StagedPart) -> str | None:
        """Carry on a part of a checkpoint; return what is wrong with the message, if something is.

        The process that staged it waits for the answer; when it is gone, nobody does.
        """
        if not self.staged:
            return "a part of a checkpoint is staged where runs do not stage"
        if problem := problem_with_own(self._spec, message.checkpoint_id):
            return problem
        self._answer(self._ship_part(connection, message))
        return None

    def fetch(self, connection: Connection, message: Fetch) -> None:
        """Bring what the run asks for."""
        self._answer(self._fetch(connection, message))

    @property
    def served_at(self) -> float:
        """When the run may last have waited for the object store, by the node's clock."""
        waits = self._answers or self._shipments
        return self._clock() if waits else self._served_at

    @property
    def pending(self) -> bool:
        """Whether checkpoints are still under way."""
        return any(not shipment.done() for shipment in self._shipments)

    @property
    def under_way(self) -> list[str]:
        """The checkpoints that have not arrived, and may yet."""
        return list(self._under_way)

    def hurry(self) -> None:
        """Do not let the run wait for its checkpoints any longer."""
        self._hurried.set()

    async def finish(self, within_s: float | None, *, broken: bool) -> None:
        """Return when the run's checkpoints have arrived, it is in a hurry, or time is over.

        Args:
            within_s: how long to wait at most.
            broken: whether it may have ended while it stored one, and runs on this agent alone.
        """
        for task in self._answers:
            task.cancel()
        if self._shipments:
            hurried = asyncio.create_task(self._hurried.wait())
            arrived = asyncio.gather(*self._shipments, return_exceptions=True)
            both: list[asyncio.Future[object]] = [hurried, arrived]  # type: ignore[list-item]
            await asyncio.wait(both, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
        if self.staged:
            self._depot.background(self._clear_up())
        elif broken:  # it may have been the trial's last run
            self._depot.background(self._sweep(self._owner.run + 1))

    def _follow(self, task: asyncio.Task[None], others: set[asyncio.Task[None]]) -> None:
        """Keep a task among others of its kind until it is done."""

        def done(task: asyncio.Task[None]) -> None:
            others.discard(task)
            self._served_at = self._clock()

        others.add(task)
        task.add_done_callback(done)

    async def _ship(
        self,
        connection: Connection,
        checkpoint_id: str,
        after: int,
        before: asyncio.Event,
        done: asyncio.Event,
    ) -> None:
        """Announce a checkpoint at once, and carry it on when the one before it is settled."""
        try:
            await self._depot.announce(self._owner, checkpoint_id, after)
            await before.wait()
            problem = await self._depot.ship(self._owner, checkpoint_id, self._note)
        except (OSError, ObjectError) as error:  # of this machine's disk
            problem = f"checkpoint {checkpoint_id} could not be stored: {error}"
        finally:
            done.set()
        self._under_way.pop(checkpoint_id, None)
        if problem:
            self._note(problem)
            self.problem = self.problem or problem
        connection.say(Shipped(checkpoint_id, problem))

    async def _ship_part(self, connection: Connection, message: StagedPart) -> None:
        try:
            await self._depot.ship_part(self._owner, message, self._note)
        except (OSError, ObjectError) as error:
            self.problem = self.problem or f"{message.checkpoint_id} could not be stored: {error}"
            connection.say(Shipped(message.checkpoint_id, str(error)))
        else:
            connection.say(Shipped(message.checkpoint_id))

    def _answer(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something for a process that waits for it, as long as the run goes on."""
        self._follow(self._depot.background(work), self._answers)

    def _readable(self, name: str) -> bool:
        """Whether an object is of a checkpoint that the run may read: as `checkpoints_of`."""
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
            target = await self._depot.fetch(
                self._allocation_id, message.name, next(self._numbers), self._note
            )
        except (OSError, ObjectError) as error:
            missing = isinstance(error, ObjectMissing)
            connection.say(Fetched(message.number, problem=str(error), missing=missing))
        else:
            connection.say(Fetched(message.number, str(target)))

    async def _sweep(self, before: int) -> None:
        """Delete what runs of the trial before this one left half-stored."""
        owner = self._owner
        try:
            await asyncio.to_thread(
                sweep_unfinished,
                self._depot.store,
                owner.experiment_id,
                owner.trial_id,
                allocation_id_of(owner.trial_id, before),
            )
        except ObjectUnavailable:
            return  # the next run sweeps
        except ObjectError as error:
            self._note(f"what was left half-stored stays: {error}")

    async def _clear_up(self) -> None:
        """Remove the run's folder once nothing of it is wanted."""
        await asyncio.gather(*self._shipments, return_exceptions=True)
        await asyncio.to_thread(remove_if_empty, self._folder)
