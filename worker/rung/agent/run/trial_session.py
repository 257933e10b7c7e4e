"""Trial session: handles the messages of a run's processes.

`_take` is the one place that dispatches on the type of a message; the type checker reports a type
that it lacks.
"""

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never

import msgspec
from msgspec import structs

from rung.agent.isolation.isolation import as_owner_of
from rung.agent.node import Node
from rung.agent.objects.run_objects import NAME_CHARACTERS_MAX, RunObjects, problem_with_own
from rung.agent.outbox.event_buffer import EventBuffer
from rung.agent.run.best_validations import BestValidations
from rung.agent.run.ipc_server import Connection
from rung.agent.run.process_group import RankProcess
from rung.agent.run.termination import Termination
from rung.agent.run.watchdog import Watchdog
from rung.core.ipc import protocol
from rung.core.ipc.protocol import (
    Acknowledged,
    BestRequested,
    Damaged,
    DeletionRequested,
    Fetch,
    FromAgent,
    FromTrial,
    Heartbeat,
    Hello,
    HparamsRefused,
    MetadataSet,
    ProgressReported,
    Reported,
    Restored,
    StagedPart,
    StatusSet,
    Stored,
    Taken,
    Welcome,
)
from rung.core.ipc.unconfirmed import BYTES_MAX, PREFIX, frames_in
from rung.events import Payload
from rung.events.checkpoint import (
    CheckpointDamaged,
    CheckpointDeletionRequested,
    CheckpointStored,
)
from rung.events.trial import (
    RunSpec,
    TrialMetadataSet,
    TrialProgressReported,
    TrialRestored,
    TrialStatusSet,
    TrialValidated,
    comparable,
)
from rung.storage.no_follow import names_in, open_folder

_CONFIRM_S: Final = 0.25
_SETTLE_S: Final = 10.0
_INTEGER_MAX: Final = 2**53
_CHECKPOINT: Final = re.compile(r"[0-9]+\.[0-9]+\.[A-Za-z0-9_-]+")
"""The part of a checkpoint's id after the id of its experiment."""
_IGNORED: Final = "rung ignored a message of the script"


class Handlers(NamedTuple):
    """The parts of a run that handle messages."""

    event_buffer: EventBuffer
    termination: Termination
    watchdog: Watchdog
    run_objects: RunObjects
    best_validations: BestValidations
    begun: Callable[[], None]
    """Called when the run has begun, before any of its messages is handled."""
    save: Callable[[], None]
    """Saves the run for the next session of the agent."""


class TrialSession:
    """A `Session` of the IPC server."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts that it connects
        self,
        token: str,
        spec: RunSpec,
        rank: int,
        greet: Callable[[int], Welcome],
        to: Handlers,
        taken: Mapping[str, int],
    ) -> None:
        """Wait for the processes of a run.

        Args:
            token: the secret that each `Hello` must contain.
            spec: of the run.
            rank: of the first process on this agent.
            greet: returns the `Welcome` for a rank.
            to: the parts of the run that handle messages.
            taken: stream → the last message that took effect in an earlier session.
        """
        self.token: Final = token
        self.connections: Final[list[Connection]] = []
        """Of the connected processes."""
        self.spoke = False
        """Whether any process ever connected that acts on requests to exit."""
        self.validated_at: float | None = None
        """The last validation's value of the time metric, None before the first."""
        self._spec = spec
        self._rank = rank
        self._welcome = greet
        self._to = to
        self._taken = dict(taken)
        """Stream → the number of the last message that was handled."""
        self._confirming: asyncio.Task[None] | None = None
        self._silent = asyncio.Event()
        self._silent.set()

    def connected(self, connection: Connection) -> None:
        """Welcome a process of the run."""
        self.connections.append(connection)
        self._silent.clear()
        if connection.attends and not self.spoke:
            self.spoke = True
            self._to.save()
        self._to.begun()
        welcome = self._welcome(connection.rank)
        if stream := connection.stream:
            taken = self._taken[stream] = max(self._taken.get(stream, 0), connection.first - 1)
            welcome = structs.replace(welcome, taken=taken)
        connection.send(welcome)
        self._to.termination.remind(connection)

    def disconnected(self, connection: Connection) -> None:
        """Note that a process of the run has disconnected."""
        self.connections.remove(connection)
        if not self.connections:
            self._silent.set()

    def rejected(self, reason: str) -> None:
        """Write into the run's log that a message was ignored, and why."""
        self._to.event_buffer.note("warning", f"{_IGNORED}: {reason}", self._rank)

    def refused(self, connection: Connection, message: FromTrial, reason: str) -> None:
        """Skip a message, and write that into the run's log."""
        self.rejected(reason)
        self._to.event_buffer.take(self._next(connection.stream, message))

    def received(self, connection: Connection, message: FromTrial) -> None:
        """Handle a message of a process of the run."""
        self._take(message, connection.rank, self._next(connection.stream, message), connection)

    def _next(self, stream: str, message: FromTrial) -> dict[str, int]:
        """Count a message of a stream; return its number, if it has one."""
        if not stream or not isinstance(message, protocol.NUMBERED):
            return {}
        self._taken[stream] = self._taken.get(stream, 0) + 1
        if self._confirming is None:
            self._confirming = asyncio.create_task(self._confirm())
        return {stream: self._taken[stream]}

    async def _confirm(self) -> None:
        """Confirm to the processes which of their messages are durable."""
        await asyncio.sleep(_CONFIRM_S)
        self._confirming = None
        self._to.event_buffer.flush()
        taken = dict(self._taken)
        await self._to.event_buffer.written()
        for connection in self.connections:
            if connection.stream in taken:
                connection.send(Taken(taken[connection.stream]))

    def _take(  # noqa: C901, PLR0912, PLR0915 - one case for each message
        self,
        message: FromTrial,
        rank: int,
        number: dict[str, int],
        connection: Connection | None = None,
    ) -> None:
        """Handle a message.

        Args:
            message: of a process of the run.
            rank: of the process.
            number: stream → the number of the message, if it has one.
            connection: to the process, if it is connected.
        """
        to = self._to
        to.watchdog.message_came()
        match message:
            case Heartbeat():
                to.watchdog.heartbeat_came()
            case Hello():
                self.rejected("a second hello")
            case Acknowledged():
                to.termination.acknowledge(unattended=message.unattended)
                to.save()
            case HparamsRefused():
                to.termination.refuse(message.reason)
                to.save()
            case StagedPart():
                if connection and (problem := to.run_objects.staged_part(connection, message)):
                    self.rejected(problem)
            case Fetch():
                if connection:
                    to.run_objects.fetch(connection, message)
            case BestRequested():
                if connection:
                    to.run_objects.answer(self._find_best(connection, message))
            case Reported():
                to.watchdog.steps = message.step
                if self._accepts(rank, _step(message.step), _name(message.kind)):
                    self._report(message, number)
            case Stored(checkpoint_id=name, steps_completed=step):
                to.watchdog.steps = step
                problem = problem_with_own(self._spec, name)
                if self._accepts(rank, _step(step), _name(name), problem):
                    self._store(message, number)
            case Restored(checkpoint_id=name, steps_completed=step):
                to.watchdog.steps = step
                if self._accepts(rank, _step(step), _name(name), self._given(name)):
                    self._put(TrialRestored, number, checkpoint_id=name, steps_completed=step)
            case Damaged(checkpoint_id=name, reason=reason):
                if self._accepts(rank, _name(name), self._given(name)):
                    text = f"checkpoint {name} is damaged: {reason}"
                    to.event_buffer.note("warning", text, rank)
                    self._put(CheckpointDamaged, number, checkpoint_id=name, reason=reason)
            case StatusSet(status=status):
                if self._accepts(rank, _status(status)):
                    self._put(TrialStatusSet, number, status=status)
            case MetadataSet(metadata=metadata):
                if self._accepts(rank, _metadata(metadata)):
                    self._put(TrialMetadataSet, number, metadata=metadata)
            case ProgressReported(progress=progress):
                if self._accepts(rank, _progress(progress)):
                    self._put(TrialProgressReported, number, progress=progress)
            case DeletionRequested(checkpoint_id=name):
                if self._accepts(rank, _name(name), self._of_experiment(name)):
                    self._request_deletion(name, number)
            case _:
                assert_never(message)
        to.event_buffer.take(number)

    def _report(self, message: Reported, number: dict[str, int]) -> None:
        """Record metrics; those of a validation also as a fact, on which the searcher decides."""
        self._to.event_buffer.reported(message)
        if message.kind == "validation":
            time = comparable(message.values.get(self._spec.time_metric))
            self.validated_at = float(message.step) if time is None else time
            found = {"steps_completed": message.step, "metrics": message.values}
            self._put(TrialValidated, number, **found)

    def _store(self, message: Stored, number: dict[str, int]) -> None:
        """Record that a checkpoint is stored, or upload it first where it is staged."""
        self._to.run_objects.newest_bytes = message.size_bytes
        if self._to.run_objects.staged:
            self._to.event_buffer.flush()
            save = partial(self._to.event_buffer.save, taken=number)
            self._to.run_objects.stored(message.checkpoint_id, save)
        else:
            self._put(CheckpointStored, number, **structs.asdict(message))

    async def _find_best(self, connection: Connection, message: BestRequested) -> None:
        """Answer a process that asks for the experiment's best validation."""
        connection.send(await self._to.best_validations.answer(self._spec, message))

    def _put(self, kind: Callable[..., Payload], number: dict[str, int], **fields: Any) -> None:
        """Record a fact about the run."""
        spec = self._spec
        fact = kind(
            experiment_id=spec.experiment_id, trial_id=spec.trial_id, run=spec.run, **fields
        )
        self._to.event_buffer.put(fact, number)

    def _request_deletion(self, checkpoint_id: str, number: dict[str, int]) -> None:
        """Record that a checkpoint of any trial of the experiment is to be deleted."""
        request = CheckpointDeletionRequested(
            experiment_id=self._spec.experiment_id,
            trial_id=checkpoint_id.rsplit(".", 2)[0],
            checkpoint_id=checkpoint_id,
            area=self._spec.area_of(self._spec.experiment_id),
        )
        self._to.event_buffer.put(request, number)

    def _accepts(self, rank: int, *problems: str | None) -> bool:
        """Return whether to record a report: rank 0's alone are, if nothing is wrong with them.

        Processors trust facts about checkpoints, whichever process reports them; so a run may
        report only checkpoints that it stored itself, and those that it was given to restore.
        Problems are written into the run's log.
        """
        if rank != 0:
            return False
        found = next((problem for problem in problems if problem is not None), None)
        if found is not None:
            self.rejected(found)
        return found is None

    def _given(self, checkpoint_id: str) -> str | None:
        """Return an error unless the run was given a checkpoint to restore."""
        if checkpoint_id in self._spec.restore:
            return None
        name = checkpoint_id[:NAME_CHARACTERS_MAX]
        return f"checkpoint {name!r} is not one that this run was to start from"

    def _of_experiment(self, checkpoint_id: str) -> str | None:
        """Return an error unless a checkpoint is one of the experiment's."""
        own = f"{self._spec.experiment_id}."
        if checkpoint_id.startswith(own) and _CHECKPOINT.fullmatch(checkpoint_id, len(own)):
            return None
        name = checkpoint_id[:NAME_CHARACTERS_MAX]
        return f"checkpoint {name!r} is not one of this experiment's"

    async def ended(self, node: Node, members: Sequence[RankProcess], folder: Path) -> None:
        """Read the rest of the messages and output of the processes, which have all ended.

        Args:
            node: of the run.
            members: its processes here.
            folder: its working folder, with files of messages that they could not send.
        """
        await node.ipc_server.settled()
        while True:
            try:
                async with asyncio.timeout(_SETTLE_S):
                    for member in members:
                        await member.output_read()
                    await self._silent.wait()
            except TimeoutError:
                if node.outbox.saturated:
                    continue
                text = "a process of this run does not end; the rest of its output is not read"
                self._to.event_buffer.note("error", text, self._rank)
            break
        await self.recover(folder)

    async def recover(self, folder: Path) -> bool:
        """Handle messages that processes wrote to files; return whether there were any."""
        found = await asyncio.to_thread(_unconfirmed, folder)
        for data in found:
            self._take_file(data)
        return bool(found)

    def _take_file(self, data: bytes) -> None:
        """Handle the messages in a process's file that were not handled before."""
        found = frames_in(data)
        if found is None:
            return
        head, frames = found
        self._to.begun()
        for number, frame in enumerate(frames, head.first):
            if number <= self._taken.get(head.stream, 0):
                continue
            self._taken[head.stream] = number
            try:
                message = protocol.trial_decoder.decode(frame)
            except msgspec.DecodeError as error:
                self.rejected(str(error))
                continue
            self._take(message, head.rank, {head.stream: number})

    def send(self, message: FromAgent) -> None:
        """Send a message to all processes of the run."""
        for connection in self.connections:
            connection.send(message)

    def abort(self) -> None:
        """Disconnect all processes."""
        for connection in list(self.connections):
            connection.abort()


def _step(step: int) -> str | None:
    """Return an error if a number of steps is out of range."""
    possible = 0 <= step <= _INTEGER_MAX
    return None if possible else f"step {step} is not between 0 and {_INTEGER_MAX}"


def _name(name: str) -> str | None:
    """Return an error if a name is too long or empty."""
    if 0 < len(name) <= NAME_CHARACTERS_MAX:
        return None
    cut = name[:NAME_CHARACTERS_MAX]
    return f"{cut!r} is not a name of 1 to {NAME_CHARACTERS_MAX} characters"


def _status(status: str) -> str | None:
    size = len(status)
    most = protocol.STATUS_CHARACTERS_MAX
    return f"a status of {size} characters, more than {most}" if size > most else None


def _metadata(metadata: Mapping[str, Any]) -> str | None:
    size = len(protocol.encoder.encode(metadata))
    most = protocol.METADATA_BYTES_MAX
    return f"metadata of {size} bytes, more than {most}" if size > most else None


def _progress(progress: float) -> str | None:
    return None if 0 <= progress <= 1 else f"progress {progress} is not between 0 and 1"


def _unconfirmed(folder: Path) -> list[bytes]:
    """Return the files of unconfirmed messages in a run's folder, which the run may have made."""
    found: list[bytes] = []
    if not folder.is_dir():
        return found
    with as_owner_of(folder):
        for name in names_in(folder):
            if name.startswith(PREFIX):
                with contextlib.suppress(OSError), open_folder(folder) as opened:
                    found.append(_read_regular(opened, name))
    return found


def _read_regular(folder: int, name: str) -> bytes:
    """Return the content of a regular file; links are not followed.

    Raises:
        OSError: it is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{name} is not a regular file")
        return file.read(2 * BYTES_MAX)
