"""A small convolutional network in Keras on scikit-learn's handwritten digits."""

from pathlib import Path

import keras
from sklearn.datasets import load_digits

from rung import keras as rk


def main() -> None:
    with rk.init(config=Path(__file__).with_name("experiment.yaml")) as run:
        images, labels = load_digits(return_X_y=True)
        images = (images / 16).reshape(-1, 8, 8, 1).astype("float32")
        model = keras.Sequential(
            [
                keras.layers.Input((8, 8, 1)),
                keras.layers.Conv2D(run.hparams["channels"], 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            keras.optimizers.Adam(run.hparams["lr"]),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            jit_compile=False,
        )
        model.fit(
            images[400:],
            labels[400:],
            batch_size=64,
            epochs=100,  # the experiment's length ends it
            validation_data=(images[:400], labels[:400]),
            callbacks=[rk.Callback(run)],
            verbose=0,
        )


if __name__ == "__main__":
    main()
