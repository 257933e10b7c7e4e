"""A checkpoint in the store and on record."""

from pathlib import Path

from gateway.conftest import World
from rung.events.checkpoint import CheckpointStored
from rung.events.trial import TrialValidated
from rung.storage import Provenance, store_checkpoint
from support.gateway.scenario import EXPERIMENT, History, submitted

TRIAL = f"{EXPERIMENT}.0"
FILES = {"model.pt": b"m" * 100_000, "deep/ümlaut.bin": b"x" * 512, "empty": b""}


async def store_files(world: World, tmp_path: Path, files: dict[str, bytes]) -> None:
    """Store a checkpoint `c1` and put it on record."""
    folder = tmp_path / "checkpoint"
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    done = store_checkpoint(
        world.store,
        folder,
        checkpoint_id="c1",
        steps_completed=30,
        metadata={"steps_completed": 30},
        provenance=Provenance(experiment_id=EXPERIMENT, trial_id=TRIAL, run=1),
    )
    history = History()
    history.write(submitted(max_trials=1), origin="client/x")
    history.decide()
    history.write(
        TrialValidated(
            experiment_id=EXPERIMENT,
            trial_id=TRIAL,
            run=1,
            steps_completed=30,
            metrics={"error": 0.5},
        )
    )
    history.write(
        CheckpointStored(
            experiment_id=EXPERIMENT,
            trial_id=TRIAL,
            run=1,
            checkpoint_id="c1",
            steps_completed=30,
            size_bytes=done.manifest.size_bytes,
            files=len(files),
            digest=done.digest,
        )
    )
    await world.play(history)
