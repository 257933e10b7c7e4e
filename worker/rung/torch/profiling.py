"""The profiler hook: traces of what a trial's batches do, in its TensorBoard folder.

    context.set_profiler(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1),
    )

The schedule counts the batches of a run. A run that goes on from a checkpoint counts anew.
"""

from typing import Any

from torch import profiler

from rung.torch.board import Board


class Profiling:
    """A profiler over the training loop; none until it is set."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._options: dict[str, Any] | None = None
        self._running: Any = None

    def set(self, options: dict[str, Any]) -> None:
        """Profile with what `torch.profiler.profile` takes."""
        self._options = options

    def start(self) -> None:
        """Begin, before the run's first batch."""
        if self._options is None:
            return
        folder = str(self._board.path())
        written = profiler.tensorboard_trace_handler(folder, use_gzip=True)
        self._running = profiler.profile(**{"on_trace_ready": written} | self._options)
        self._running.start()

    def step(self) -> None:
        """A batch is trained."""
        if self._running is not None:
            self._running.step()

    def stop(self) -> None:
        """End, behind the run's last batch, and write what is not yet written."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()
