"""`rung tensorboard`: an experiment's curves as event files, and TensorBoard on them.

The files need neither TensorFlow nor protobuf. A file is a sequence of records: the length, a
masked CRC-32C of the length, the data, and a masked CRC-32C of the data. The data are an `Event`
message: the time, the step and the value of one tag; the first one has the format's version.

Files that trials wrote for TensorBoard themselves (profiler traces, images, curves of their own)
are in their checkpoints below `tensorboard/`. Each checkpoint has all files up to then, so the
newest one of a trial has all of them.
"""

import asyncio
import contextlib
import importlib.util
import shutil
import signal
import struct
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import click

from rung.api import Checkpoint, ExperimentCurves
from rung.cli.connection_options import PATIENCE_FOLLOWING_S, Link, experiment_argument, linked
from rung.cli.exit_code import OK
from rung.cli.output import counted, print_json
from rung.client import ENDED, AsyncClient
from rung.events import RungError

FOLDER: Final = "rung-tensorboard"
_POINTS: Final = 2000
_POINTS_MIN: Final = 5
_AGAIN_S: Final = 10.0
_HOW: Final = "pip install tensorboard"
_PREFIX: Final = "tensorboard/"
"""Folder of a checkpoint in which it holds what the trial wrote for TensorBoard."""
_CHUNK_BYTES: Final = 1024 * 1024
NAME: Final = "events.out.tfevents.0.rung"
"""Name of an event file; TensorBoard reads files with `tfevents` in their name."""
_VERSION: Final = b"brain.Event:2"
_POLYNOMIAL: Final = 0x82F63B78
_MASK: Final = 0xA282EAD8
_WORD: Final = 0xFFFFFFFF
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Those that end TensorBoard with the command, as Ctrl-C does."""


@click.command()
@experiment_argument
@click.option("--port", type=click.IntRange(0, 65_535), default=6006, help="TensorBoard's. [6006]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Where to write the event files. [{FOLDER}/ID]",
)
@linked
async def tensorboard(experiment_id: str, link: Link, *, port: int, folder: Path | None) -> int:
    """Show an experiment's curves in TensorBoard, and update them while it trains.

    Each trial's metrics are written as an event file into a folder of its own, beside the files
    that it wrote for TensorBoard itself. Where TensorBoard is not installed, or with --json, that
    is all.
    """
    async with link.client(PATIENCE_FOLLOWING_S) as client:
        shown = await client.experiment(experiment_id, trials="none")
        target = folder or Path(FOLDER) / shown.id
        with contextlib.ExitStack() as files:
            board = Board(client, shown.id, target, files)
            await board.write()
            if link.json:
                found = {"trials": board.trials, "points": board.points, "files": board.files}
                print_json({"folder": str(target)} | found)
                return OK
            points, trials = counted(board.points, "point"), counted(board.trials, "trial")
            more = f", and {counted(board.files, 'file')} of theirs," if board.files else ""
            click.echo(f"{points} of {trials}{more} are in {target}")
            command = _command()
            if command is None:
                click.echo(f"TensorBoard is not installed: {_HOW}", err=True)
                click.echo(f"then: tensorboard --logdir {target}", err=True)
                return OK
            return await _serve([*command, "--logdir", str(target), "--port", str(port)], board)


class Scalar(NamedTuple):
    """A point of a curve."""

    tag: str
    step: int
    time_s: float
    value: float


class EventFile:
    """Writes scalars into a folder, in place of what it wrote there before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / NAME).open("wb")
        self._file.write(_record(_double(1, 0.0) + _bytes(3, _VERSION)))

    def add(self, scalar: Scalar) -> None:
        """Write a point."""
        value = _bytes(1, scalar.tag.encode()) + _float(2, scalar.value)
        event = _double(1, scalar.time_s) + _number(2, scalar.step) + _bytes(5, _bytes(1, value))
        self._file.write(_record(event))

    def flush(self) -> None:
        """Let readers see what is written."""
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


class Board:
    """The event files of one experiment, and the files that its trials wrote themselves."""

    def __init__(
        self, client: AsyncClient, experiment_id: str, folder: Path, files: contextlib.ExitStack
    ) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._folder = folder
        self._stack = files
        self._own = BoardFiles(client, experiment_id, folder)
        self._files: dict[str, EventFile] = {}
        self._last: dict[tuple[str, str], int] = {}
        self.points = 0
        """Points that were written."""

    @property
    def trials(self) -> int:
        """Trials that have an event file."""
        return len(self._files)

    @property
    def files(self) -> int:
        """Files that the trials wrote themselves."""
        return self._own.count

    async def write(self) -> None:
        """Write the points and files that are new since the last call."""
        names = (await self._curves("validation", "-", _POINTS_MIN)).names
        for metric in names:
            found = await self._curves(metric.kind, metric.name, _POINTS)
            for trial_id, points in found.curves.items():
                tag = f"{metric.kind}/{metric.name}"
                for step, value, time_ms in points:
                    self._add(trial_id, Scalar(tag, step, time_ms / 1000, float(value)))
        for file in self._files.values():
            file.flush()
        await self._own.download()

    async def follow(self) -> None:
        """Write what is new until the experiment ended.

        A failure is printed once and retried.
        """
        printed = ""
        while True:
            try:
                shown = await self._client.experiment(self._experiment_id, trials="none")
                await self.write()
            except RungError as error:
                if str(error) != printed:
                    printed = str(error)
                    click.echo(f"the newest points are not all here: {printed}", err=True)
            else:
                if shown.state in ENDED:
                    return
            await asyncio.sleep(_AGAIN_S)

    async def _curves(self, kind: str, name: str, points: int) -> ExperimentCurves:
        return await self._client.curves(self._experiment_id, kind=kind, name=name, points=points)

    def _add(self, trial_id: str, scalar: Scalar) -> None:
        key = (trial_id, scalar.tag)
        if scalar.step <= self._last.get(key, -1):
            return
        self._last[key] = scalar.step
        if trial_id not in self._files:
            file = EventFile(self._folder / trial_id)
            self._files[trial_id] = self._stack.enter_context(file)
        self._files[trial_id].add(scalar)
        self.points += 1


def _command() -> list[str] | None:
    """Return the command that starts TensorBoard, None if it is not installed."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    return [found] if found else None


async def _serve(command: list[str], board: Board) -> int:
    """Run TensorBoard until it is interrupted or terminated, and update its files."""
    process = await asyncio.create_subprocess_exec(*command)
    following = asyncio.create_task(board.follow())
    ending: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        ending.append(number)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, end, number)
    try:
        code = await process.wait()
        return 128 + ending[0] if ending else code
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if process.returncode is None:
            process.terminate()
            await process.wait()


class BoardFiles:
    """Files that trials wrote for TensorBoard, downloaded from checkpoints to a folder a trial."""

    def __init__(self, client: AsyncClient, experiment_id: str, folder: Path) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._folder = folder
        self._seen: dict[str, Checkpoint] = {}
        self._failed: set[str] = set()
        self._files: set[Path] = set()

    @property
    def count(self) -> int:
        """Files that were downloaded."""
        return len(self._files)

    async def download(self) -> None:
        """Download the files that are new since the last call.

        A failure is printed once and retried by the next call.
        """
        newest = dict(self._seen)
        for checkpoint in await self._client.checkpoints(self._experiment_id):
            before = newest.get(checkpoint.trial_id)
            fewer = before is not None and checkpoint.steps_completed < before.steps_completed
            if checkpoint.state == "stored" and not fewer:
                newest[checkpoint.trial_id] = checkpoint
        for trial_id, checkpoint in newest.items():
            seen = self._seen.get(trial_id)
            if seen is not None and seen.id == checkpoint.id:
                continue
            try:
                await self._download_one(trial_id, checkpoint.id)
            except RungError as error:
                self._print_once(trial_id, checkpoint.id, error)
            else:
                self._seen[trial_id] = checkpoint

    def _print_once(self, trial_id: str, checkpoint_id: str, error: RungError) -> None:
        if checkpoint_id not in self._failed:
            self._failed.add(checkpoint_id)
            missing = f"the files that {trial_id} wrote for TensorBoard are not all here"
            click.echo(f"{missing}: {error}", err=True)

    async def _download_one(self, trial_id: str, checkpoint_id: str) -> None:
        detail = await self._client.checkpoint(checkpoint_id)
        if not any(file.name.startswith(_PREFIX) for file in detail.files):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as scratch:
            new = Path(scratch) / "files"
            await self._client.download(checkpoint_id, new, below=_PREFIX)
            target = self._folder / trial_id
            self._files |= set(await asyncio.to_thread(_moved, new / _PREFIX, target))


def _moved(source: Path, target: Path) -> list[Path]:
    """Move files to another folder of the same file system; return their new paths.

    A file that only grew is appended to, because a reader that has it open would not see another
    file replace it.
    """
    moved = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not _appended(path, place):
                path.replace(place)
            moved.append(place)
    return moved


def _appended(source: Path, place: Path) -> bool:
    """If a file begins with all of another, append the rest to that one and return True."""
    if not place.is_file() or source.stat().st_size < place.stat().st_size:
        return False
    with source.open("rb") as new, place.open("r+b") as old:
        while found := old.read(_CHUNK_BYTES):
            if new.read(len(found)) != found:
                return False
        shutil.copyfileobj(new, old, _CHUNK_BYTES)
    return True


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum."""
    crc = _WORD
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ _WORD


def _table() -> list[int]:
    table = []
    for entry in range(256):
        crc = entry
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _table()


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = ((crc >> 15) | (crc << 17)) & _WORD
    return struct.pack("<I", (rotated + _MASK) & _WORD)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
