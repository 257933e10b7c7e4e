"""A Keras trial as a user writes it, for any number of slots; may wait to be preempted."""

import time
from typing import Any

import keras
import numpy as np

from rung import keras as rk

INPUTS = np.linspace(-1, 1, 34, dtype="float32").reshape(17, 2)
TARGETS = np.sin(INPUTS.sum(1, keepdims=True))
WAITS_BEHIND = 1
"""This batch of an epoch, counted from 0."""


def main() -> None:
    """Train until the trial's length."""
    with rk.init() as run:
        options: dict[str, Any] = run.info.trial.config.get("data") or {}
        model = keras.Sequential(
            [
                keras.layers.Input((2,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.Dropout(0.3 if options.get("noise") else 0.0),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], jit_compile=False)

        def wait(batch: int, logs: Any) -> None:
            if options.get("waits") and batch == WAITS_BEHIND:
                while not run.preempt.should_preempt(auto_ack=False):
                    time.sleep(0.01)

        model.fit(
            INPUTS,
            TARGETS,
            batch_size=run.hparams["global_batch_size"],
            epochs=100,
            verbose=0,
            callbacks=[
                keras.callbacks.LambdaCallback(on_train_batch_end=wait),
                rk.Callback(run, validation_data=(INPUTS, TARGETS)),
            ],
        )


if __name__ == "__main__":
    main()
