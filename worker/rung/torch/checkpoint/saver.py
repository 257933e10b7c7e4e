"""Saver: copies the state between two steps, and stores it in the background.

The training loop waits for the copy in memory, and for the previous checkpoint if that is still
being stored. A callback with `on_checkpoint_write_end` must see the files before training goes on,
so with one the loop waits for the whole checkpoint.

Where several ranks train, all of them capture, and the chief alone copies and stores; where
tensors are sharded, each rank does so with its parts. The chief decides after which step the
callbacks learn that a checkpoint is stored, so that those of all ranks are called after the same
one.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rung.core import CheckpointContext, DistributedContext
from rung.storage import CheckpointWriter
from rung.torch.callback import Callback, listening
from rung.torch.checkpoint import files, state
from rung.torch.checkpoint.snapshot import Snapshot
from rung.torch.metrics.tensorboard import Board


class Saver:
    """Stores captured states, one checkpoint at a time."""

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
        self._unannounced: str | None = None

    def save(
        self,
        capture: Callable[[], state.Captured],
        metadata: Mapping[str, Any],
        steps_completed: int,
    ) -> None:
        """Store the state that `capture` returns, once the previous checkpoint is stored.

        All ranks must call this.

        Raises:
            ObjectError: the previous one could not be stored.
            NotPlain: some state contains values that a checkpoint cannot.
        """
        self.finish()
        captured = capture()
        for hook in self._hooks:
            hook.on_checkpoint_save_start(captured.training)
        if captured.sharded:
            captured = files.divided(captured, self._ranks)
        share = captured.share
        if not self._ranks.is_chief:
            metadata = {}  # those of all ranks are merged, and say the same
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

        self._unannounced = self._checkpoints.save_async(
            write,
            metadata,
            steps_completed=steps_completed,
            shard=share is not None,
            complete=complete,
        )

    @property
    def stored(self) -> bool:
        """Whether the last checkpoint is stored and the callbacks were not notified yet.

        Does not wait. All ranks call `notify` by the chief's answer.

        Raises:
            ObjectError: it could not be stored.
        """
        return self._unannounced is not None and self._checkpoints.stored()

    def notify(self) -> None:
        """Call the callbacks of a checkpoint that is stored."""
        checkpoint_id, self._unannounced = self._unannounced, None
        if checkpoint_id is not None:
            for hook in self._hooks:
                hook.on_checkpoint_upload_end(checkpoint_id)

    def finish(self) -> None:
        """Return when everything is stored.

        Raises:
            ObjectError: it could not be stored.
        """
        self._checkpoints.wait()
        if self._unannounced is not None:
            self._ranks.broadcast(None)  # returns when the chief has waited
            self.notify()

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
        self._unannounced = checkpoint_id
        self.finish()

    def _files(self, captured: state.Captured) -> dict[str, files.File]:
        """Return how this rank writes the state; on the chief with the TensorBoard files."""
        saves = self._board.saves() if self._board is not None and self._ranks.is_chief else {}
        beside = {name: files.File(save, True) for name, save in saves.items()}  # noqa: FBT003 - a record
        return files.files_of(captured) | beside


def _write(writer: CheckpointWriter, own: Mapping[str, files.File]) -> None:
    for name, file in own.items():
        writer.write(name, file.save, may_be_unchanged=file.may_be_unchanged)
