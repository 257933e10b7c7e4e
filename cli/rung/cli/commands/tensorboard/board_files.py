"""What trials wrote for TensorBoard themselves: profiler traces, pictures, curves of their own.

Their checkpoints hold it below `tensorboard/`, each all that there was by then, so the newest
checkpoint of a trial has all of it.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rung.events import RungError

if TYPE_CHECKING:
    from rung.api import Checkpoint
    from rung.client import AsyncClient

PREFIX: Final = "tensorboard/"
_CHUNK: Final = 1024 * 1024


class BoardFiles:
    """The files of an experiment's trials, in a folder for each."""

    def __init__(self, client: "AsyncClient", experiment_id: str, folder: Path) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._folder = folder
        self._seen: dict[str, Checkpoint] = {}
        self._failed: set[str] = set()
        self._files: set[Path] = set()

    @property
    def count(self) -> int:
        """How many files were brought."""
        return len(self._files)

    async def bring(self) -> None:
        """Bring what there is beyond what was brought before.

        What cannot be brought is told once, and tried again the next time.
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
                await self._bring_one(trial_id, checkpoint.id)
            except RungError as error:
                self._tell(trial_id, checkpoint.id, error)
            else:
                self._seen[trial_id] = checkpoint

    def _tell(self, trial_id: str, checkpoint_id: str, error: RungError) -> None:
        """Say once what is missing."""
        if checkpoint_id not in self._failed:
            self._failed.add(checkpoint_id)
            missing = f"the files that {trial_id} wrote for TensorBoard are not all here"
            click.echo(f"{missing}: {error}", err=True)

    async def _bring_one(self, trial_id: str, checkpoint_id: str) -> None:
        detail = await self._client.checkpoint(checkpoint_id)
        if not any(file.name.startswith(PREFIX) for file in detail.files):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as scratch:
            draft = Path(scratch) / "files"
            await self._client.download(checkpoint_id, draft, below=PREFIX)
            target = self._folder / trial_id
            self._files |= set(await asyncio.to_thread(_placed, draft / PREFIX, target))


def _placed(source: Path, target: Path) -> list[Path]:
    """Bring files to another folder of the same disk; return where they are.

    One that only grew is appended to: a reader that has it open sees no other that replaces it.
    """
    placed = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not _appended(path, place):
                path.replace(place)
            placed.append(place)
    return placed


def _appended(source: Path, place: Path) -> bool:
    """Append to a file what another, which begins with all of it, has beyond it, if it does."""
    if not place.is_file() or source.stat().st_size < place.stat().st_size:
        return False
    with source.open("rb") as new, place.open("r+b") as old:
        while found := old.read(_CHUNK):
            if new.read(len(found)) != found:
                return False
        shutil.copyfileobj(new, old, _CHUNK)
    return True
