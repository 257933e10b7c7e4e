"""Keras training that resumes as if nothing had happened, in Keras' own `fit`.

    import keras
    from rung import keras as rk

    with rk.init(config="experiment.yaml") as run:
        model = ...
        model.compile(...)
        model.fit(x, y, epochs=10, validation_data=..., callbacks=[rk.Callback(run)])

The callback reports, checkpoints, resumes (within an epoch, too) and leaves when asked to. It
works with the TensorFlow and torch backends, on one slot or on several.
"""

from rung.keras.callback import Callback
from rung.keras.setup import init
from rung.training.errors import NotResumable

__all__ = ["Callback", "NotResumable", "init"]
