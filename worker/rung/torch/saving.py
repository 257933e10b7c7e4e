"""Checkpoints of the trainer: copied between two steps, stored behind the following ones.

The training loop waits for one copy of the state in memory, and for the checkpoint before if that
is still being stored. A callback that looks at the files (`on_checkpoint_write_end`) is to see
them before training goes on, so with such a one the loop waits for the whole checkpoint.

Where several ranks train, all of them capture, since parts are brought together for that, and the
chief alone copies and stores. It tells the others when a checkpoint is stored, so that the
callbacks of all ranks hear of it after the same step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rung.core import CheckpointContext, DistributedContext
from rung.objects import Draft
from rung.torch import state
from rung.torch.board import Board
from rung.torch.callback import Callback, listening
from rung.torch.snapshot import Snapshot


class Saver:
    """Stores what is captured, one checkpoint at a time."""

    def __init__(
        self,
        checkpoints: CheckpointContext,
        hooks: Sequence[Callback],
        ranks: DistributedContext,
        board: Board | None = None,
    ) -> None:
        self._board = board
        self._checkpoints = checkpoints
        self._ranks = ranks
        self._hooks = hooks
        self._snapshot = Snapshot()
        self._untold: str | None = None

    def save(
        self,
        capture: Callable[[], state.Captured],
        metadata: Mapping[str, Any],
        steps_completed: int,
    ) -> None:
        """Store the state that `capture` returns, once the checkpoint before is stored.

        All ranks must call this.

        Raises:
            ObjectError: the one before could not be stored.
            NotPlain: some state holds what a checkpoint cannot.
        """
        self.finish()
        captured = capture()
        for hook in self._hooks:
            hook.on_checkpoint_save_start(captured.training)
        if any(self._ranks.allgather(listening(self._hooks, "on_checkpoint_write_end"))):
            self._save_at_once(captured, metadata, steps_completed)
            return
        files: dict[str, state.File] = {}
        if self._ranks.is_chief:
            self._snapshot.release()
            files = state.files_of(state.copied(captured, self._snapshot)) | self._beside()

        def write(draft: Draft) -> None:
            for name, file in files.items():
                draft.write(name, file.save, may_be_unchanged=file.may_be_unchanged)

        self._untold = self._checkpoints.save_async(
            write, metadata, steps_completed=steps_completed
        )

    def poll(self) -> None:
        """Tell the callbacks of a checkpoint that was stored meanwhile; wait for nothing.

        Raises:
            ObjectError: it could not be stored.
        """
        if self._untold is not None and self._ranks.broadcast(self._checkpoints.stored()):
            self._tell()

    def finish(self) -> None:
        """Return when everything is stored.

        Raises:
            ObjectError: it could not be stored.
        """
        self._checkpoints.wait()
        if self._untold is not None:
            self._ranks.broadcast(None)  # comes when the chief has waited
            self._tell()

    def _save_at_once(
        self, captured: state.Captured, metadata: Mapping[str, Any], steps_completed: int
    ) -> None:
        with self._checkpoints.store_path(metadata, steps_completed=steps_completed) as (
            folder,
            checkpoint_id,
        ):
            if self._ranks.is_chief:
                state.write(folder, captured, self._beside())
            for hook in self._hooks:
                hook.on_checkpoint_write_end(str(folder))
        self._untold = checkpoint_id
        self.finish()

    def _beside(self) -> dict[str, state.File]:
        """Return how to write what is stored beside the state."""
        saves = self._board.saves() if self._board is not None else {}
        return {name: state.File(save, True) for name, save in saves.items()}  # noqa: FBT003 - a record

    def _tell(self) -> None:
        checkpoint_id, self._untold = self._untold, None
        if checkpoint_id is not None:
            for hook in self._hooks:
                hook.on_checkpoint_upload_end(checkpoint_id)
