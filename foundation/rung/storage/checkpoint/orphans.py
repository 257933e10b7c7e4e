"""What killed runs left half-stored."""

from rung.storage.checkpoint.deduplication import delete_checkpoint
from rung.storage.checkpoint.manifest import MANIFEST
from rung.storage.port import ObjectStore


def sweep_unfinished(store: ObjectStore, experiment_id: str, trial_id: str, current: str) -> None:
    """Delete the files of a trial's checkpoints that have no manifest.

    Args:
        store: where they are.
        experiment_id: whose trial it is.
        trial_id: whose checkpoints they are.
        current: the allocation that runs now; what it and later ones store is left alone.
    """
    run = _run_of(f"{current}.", trial_id)
    names = [info.name for info in store.list(f"checkpoints/{experiment_id}/{trial_id}.")]
    whole = {name.split("/")[2] for name in names if name.endswith(f"/{MANIFEST}")}
    for checkpoint_id in sorted({name.split("/")[2] for name in names} - whole):
        if _run_of(checkpoint_id, trial_id) < run:
            delete_checkpoint(store, experiment_id, checkpoint_id)


def _run_of(checkpoint_id: str, trial_id: str) -> float:
    """Return the run that a checkpoint is of; one that says no run is of none that ended."""
    number = checkpoint_id[len(trial_id) + 1 :].partition(".")[0]
    return int(number) if number.isdecimal() else float("inf")
