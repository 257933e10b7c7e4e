"""`rung tensorboard`: an experiment's curves in TensorBoard."""

import asyncio
import contextlib
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rung.cli.commands.complete import experiment_ids
from rung.cli.commands.tensorboard.board_files import BoardFiles
from rung.cli.commands.tensorboard.event_file import EventFile, Scalar
from rung.cli.exit_code import OK
from rung.cli.link import PATIENCE_FOLLOWING_S, Link, asynchronous, linked
from rung.cli.output import print_json
from rung.events import RungError

if TYPE_CHECKING:
    from rung.api import ExperimentCurves
    from rung.client import AsyncClient

FOLDER: Final = "rung-tensorboard"
_POINTS: Final = 2000
_POINTS_MIN: Final = 5
_AGAIN_S: Final = 10.0
_ENDED: Final = frozenset({"completed", "errored", "canceled"})
_HOW: Final = "pip install tensorboard"


@click.command()
@click.argument("experiment_id", metavar="ID", shell_complete=experiment_ids)
@click.option("--port", type=click.IntRange(0, 65_535), default=6006, help="TensorBoard's. [6006]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Where to write the event files. [{FOLDER}/ID]",
)
@linked
@asynchronous
async def tensorboard(experiment_id: str, link: Link, *, port: int, folder: Path | None) -> int:
    """Show an experiment's curves in TensorBoard, and go on as it trains.

    Each trial's metrics are written as an event file into a folder of its own, beside the files
    that it wrote for TensorBoard itself. Where TensorBoard is not installed, or with --json, that
    is all.
    """
    async with link.client(PATIENCE_FOLLOWING_S) as client:
        shown = await client.experiment(experiment_id)
        target = folder or Path(FOLDER) / shown.id
        with contextlib.ExitStack() as files:
            board = Board(client, shown.id, target, files)
            await board.write()
            if link.json:
                found = {"trials": board.trials, "points": board.points, "files": board.files}
                print_json({"folder": str(target)} | found)
                return OK
            more = f", and {board.files} files of theirs," if board.files else ""
            click.echo(f"{board.points} points of {board.trials} trials{more} are in {target}")
            command = _command()
            if command is None:
                click.echo(f"TensorBoard is not installed: {_HOW}", err=True)
                click.echo(f"then: tensorboard --logdir {target}", err=True)
                return OK
            return await _serve([*command, "--logdir", str(target), "--port", str(port)], board)


class Board:
    """The event files of one experiment."""

    def __init__(
        self, client: "AsyncClient", experiment_id: str, folder: Path, files: contextlib.ExitStack
    ) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._folder = folder
        self._stack = files
        self._own = BoardFiles(client, experiment_id, folder)
        self._files: dict[str, EventFile] = {}
        self._last: dict[tuple[str, str], int] = {}
        self.points = 0
        """How many points are written."""

    @property
    def trials(self) -> int:
        """How many trials have a file."""
        return len(self._files)

    @property
    def files(self) -> int:
        """How many files the trials wrote themselves."""
        return self._own.count

    async def write(self) -> None:
        """Write what there is beyond what was written before."""
        names = (await self._curves("validation", "-", _POINTS_MIN)).names
        for metric in names:
            found = await self._curves(metric.kind, metric.name, _POINTS)
            for trial_id, points in found.curves.items():
                tag = f"{metric.kind}/{metric.name}"
                for step, value, time_ms in points:
                    self._add(trial_id, Scalar(tag, step, time_ms / 1000, float(value)))
        for file in self._files.values():
            file.flush()
        await self._own.bring()

    async def follow(self) -> None:
        """Write what comes, until the experiment ended.

        What goes wrong is told once, and tried again.
        """
        told = ""
        while True:
            try:
                shown = await self._client.experiment(self._experiment_id)
                await self.write()
            except RungError as error:
                if str(error) != told:
                    told = str(error)
                    click.echo(f"the newest points are not all here: {told}", err=True)
            else:
                if shown.state in _ENDED:
                    return
            await asyncio.sleep(_AGAIN_S)

    async def _curves(self, kind: str, name: str, points: int) -> "ExperimentCurves":
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
    """Return how TensorBoard is started, None where it is not installed."""
    if importlib.util.find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    return [found] if found else None


async def _serve(command: list[str], board: Board) -> int:
    """Run TensorBoard until it is interrupted, and feed it."""
    process = await asyncio.create_subprocess_exec(*command)
    following = asyncio.create_task(board.follow())
    try:
        return await process.wait()
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        if process.returncode is None:
            process.terminate()
            await process.wait()
