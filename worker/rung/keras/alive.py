"""A sign of life from every batch of an evaluation, which may take longer than `hang_timeout`."""

from typing import Any

import keras

from rung import core


class Alive(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Says of every batch that is evaluated that the run makes progress."""

    def __init__(self, run: core.Context) -> None:
        super().__init__()
        self._run = run

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002 - Keras' words
        """One more batch."""
        self._run.train.heartbeat()
