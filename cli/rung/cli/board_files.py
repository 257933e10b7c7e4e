"""What trials wrote for TensorBoard themselves: profiler traces, pictures, curves of their own.

Their checkpoints hold it below `tensorboard/`, each all that there was by then, so the newest
checkpoint of a trial has all of it.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rung.client import AsyncClient

PREFIX: Final = "tensorboard/"


class BoardFiles:
    """The files of an experiment's trials, in a folder for each."""

    def __init__(self, client: "AsyncClient", experiment_id: str, folder: Path) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self._folder = folder
        self._seen: dict[str, str] = {}
        self._files: set[Path] = set()

    @property
    def count(self) -> int:
        """How many files were brought."""
        return len(self._files)

    async def bring(self) -> None:
        """Bring what there is beyond what was brought before."""
        newest: dict[str, str] = {}
        for checkpoint in await self._client.checkpoints(self._experiment_id):
            if checkpoint.state == "stored":
                newest[checkpoint.trial_id] = checkpoint.id
        for trial_id, checkpoint_id in newest.items():
            if self._seen.get(trial_id) != checkpoint_id:
                self._seen[trial_id] = checkpoint_id
                await self._bring_one(trial_id, checkpoint_id)

    async def _bring_one(self, trial_id: str, checkpoint_id: str) -> None:
        detail = await self._client.checkpoint(checkpoint_id)
        if not any(file.name.startswith(PREFIX) for file in detail.files):
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".") as scratch:
            draft = Path(scratch) / "files"
            await self._client.download(checkpoint_id, draft, below=PREFIX)
            target = self._folder / trial_id
            self._files |= set(await asyncio.to_thread(_moved, draft / PREFIX, target))


def _moved(source: Path, target: Path) -> list[Path]:
    """Move files to another folder of the same disk; return where they are."""
    moved = []
    for path in sorted(source.rglob("*")):
        if path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            moved.append(path.replace(place))
    return moved
