"""What killed runs left half-stored."""

from rung.objects.manifest import MANIFEST, checkpoint_prefix
from rung.objects.port import ObjectStore


def sweep_unfinished(store: ObjectStore, experiment_id: str, trial_id: str, current: str) -> None:
    """Delete the files of a trial's checkpoints that have no manifest.

    Args:
        store: where they are.
        experiment_id: whose trial it is.
        trial_id: whose checkpoints they are.
        current: the allocation whose checkpoints are being stored now; they are left alone.
    """
    names = [info.name for info in store.list(f"checkpoints/{experiment_id}/{trial_id}.")]
    whole = {name.split("/")[2] for name in names if name.endswith(f"/{MANIFEST}")}
    for checkpoint_id in sorted({name.split("/")[2] for name in names} - whole):
        if not checkpoint_id.startswith(f"{current}."):
            store.delete(checkpoint_prefix(experiment_id, checkpoint_id))
