"""Profiling: traces of a trial's batches by torch's profiler, in its TensorBoard folder.

    context.set_profiler(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA],
        schedule=torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1),
    )

The schedule counts the batches of a run; one that resumes from a checkpoint counts from 0.
"""

from typing import Any

from torch import profiler

from rung.torch.metrics.tensorboard import Board


class Profiling:
    """A profiler of the training loop; none until `set` is called."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._options: dict[str, Any] | None = None
        self._running: Any = None

    def set(self, options: dict[str, Any]) -> None:
        """Set the options of `torch.profiler.profile`."""
        self._options = options

    def start(self) -> None:
        """Start, before the run's first batch."""
        if self._options is None:
            return
        folder = str(self._board.path())
        written = profiler.tensorboard_trace_handler(folder, use_gzip=True)
        self._running = profiler.profile(**{"on_trace_ready": written} | self._options)
        self._running.start()

    def step(self) -> None:
        """Note that a batch was trained."""
        if self._running is not None:
            self._running.step()

    def stop(self) -> None:
        """Stop, after the run's last batch, and write the last trace."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()
