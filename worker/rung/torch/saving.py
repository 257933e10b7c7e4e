"""Checkpoints of the trainer: copied between two steps, stored behind the following ones.

The training loop waits for one copy of the state in memory, and for the checkpoint before if that
is still being stored. A callback that looks at the files (`on_checkpoint_write_end`) is to see
them before training goes on, so with such a one the loop waits for the whole checkpoint.

Where several ranks train, all of them capture, and the chief alone copies and stores; where
tensors are sharded, each rank does so with its parts of them. The chief tells the others when a
checkpoint is stored, so that the callbacks of all ranks hear of it after the same step.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rung.core import CheckpointContext, DistributedContext
from rung.storage import CheckpointWriter
from rung.torch import files, state
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
        if captured.sharded:
            captured = files.divided(captured, self._ranks)
        share = captured.share
        if any(self._ranks.allgather(listening(self._hooks, "on_checkpoint_write_end"))):
            self._save_at_once(captured, metadata, steps_completed)
            return
        own: dict[str, files.File] = {}
        if self._ranks.is_chief or share is not None:
            self._snapshot.release()
            captured = files.copied(captured, self._snapshot)
            own = self._files(captured)

        def write(writer: CheckpointWriter) -> Any:
            _write(writer, own)
            return share.written if share is not None else None

        def complete(writer: CheckpointWriter, written: list[Any]) -> None:
            _write(writer, files.closing_files(captured, written))

        self._untold = self._checkpoints.save_async(
            write,
            metadata,
            steps_completed=steps_completed,
            shard=share is not None,
            complete=complete,
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
        share, chief = captured.share, self._ranks.is_chief
        storing = self._checkpoints.store_path(
            metadata, steps_completed=steps_completed, shard=share is not None
        )
        with storing as (folder, checkpoint_id), tempfile.TemporaryDirectory() as other:
            if chief or share is not None:
                files.write(folder, self._files(captured))
            written = self._ranks.gather(share.written) if share is not None else None
            if written is not None:
                files.write(folder, files.closing_files(captured, written))
            for hook in self._hooks:
                hook.on_checkpoint_write_end(str(folder) if chief else other)
        self._untold = checkpoint_id
        self.finish()

    def _files(self, captured: state.Captured) -> dict[str, files.File]:
        """Return how this rank writes the state, and the chief what is stored beside it."""
        saves = self._board.saves() if self._board is not None and self._ranks.is_chief else {}
        beside = {name: files.File(save, True) for name, save in saves.items()}  # noqa: FBT003 - a record
        return files.files_of(captured) | beside

    def _tell(self) -> None:
        checkpoint_id, self._untold = self._untold, None
        if checkpoint_id is not None:
            for hook in self._hooks:
                hook.on_checkpoint_upload_end(checkpoint_id)


def _write(writer: CheckpointWriter, own: Mapping[str, files.File]) -> None:
    for name, file in own.items():
        writer.write(name, file.save, may_be_unchanged=file.may_be_unchanged)
