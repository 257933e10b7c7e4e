"""Hooks into the trainer's loop."""

from collections.abc import Sequence
from typing import Any


class Callback:
    """Hooks into training; each method does nothing by default.

    Its `state_dict` is part of every checkpoint.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Training is set up and about to begin, or to resume from a checkpoint."""

    def on_trial_shutdown(self) -> None:
        """Training has ended without an error."""

    def on_training_start(self) -> None:
        """The first batch of this run is about to be trained."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """An epoch begins; not called where a run resumes within one."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """An epoch is complete."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """A training report is due.

        Args:
            avg_metrics: the means over the batches since the last report.
            batch_metrics: of each of these batches, in their order; where several ranks share a
                batch, of this rank's part.
        """

    def on_validation_start(self) -> None:
        """The model is about to be validated."""

    def on_validation_epoch_start(self) -> None:
        """The first validation batch is about to be evaluated; only with `evaluate_batch`."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """The last validation batch was evaluated; only with `evaluate_batch`.

        Args:
            outputs: what `evaluate_batch` returned for each batch; with several ranks, for those
                of this rank.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """The model was validated."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read and is about to be restored."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """A checkpoint's files are in the folder; more may be added."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """A checkpoint is in the object store."""

    def state_dict(self) -> dict[str, Any]:
        """Return a state for checkpoints: tensors and JSON values."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""


def listening(hooks: Sequence[Callback], name: str) -> bool:
    """Return whether any callback overrides a hook; preparing its arguments may be costly."""
    return any(getattr(type(hook), name) is not getattr(Callback, name) for hook in hooks)
