"""Trains a Keras model by its own `fit`, with Rung's callback."""

import os
from pathlib import Path
from typing import Any, TextIO

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"
keras: Any = __import__("keras")
rk: Any = __import__("rung.keras").keras


class Noting(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes each batch, and stops where the test says so."""

    def __init__(self, stop: Path, notes: TextIO) -> None:
        super().__init__()
        self.step, self.stop, self.notes = 0, stop, notes

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        """Note one more."""
        del logs
        self.step += 1
        self.notes.write(f"{self.step} {os.getpid()}\n")
        if self.stop.exists():
            self.model.stop_training = True


with rk.init() as run, Path(run.hparams["notes"], "0").open("a", buffering=1) as notes:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    x, y = np.ones((64, 8), "float32"), np.zeros((64, 1), "float32")
    around = [Noting(Path(run.hparams["stop"]), notes), rk.Callback(run)]
    validated = {"validation_data": (x, y), "verbose": 0}
    model.fit(x, y, batch_size=8, epochs=10**6, callbacks=around, **validated)
