"""Layer settings: what layers are besides their weights, which no checkpoint holds.

Whether a layer is trained, a dropout rate, an own number: a change during `fit` would be undone in
a run that resumes, so it is refused at the next checkpoint. It could not be set again either: with
TensorFlow Keras takes up a change only where the model is compiled anew.
"""

from collections.abc import Iterator
from typing import Any, Final

import keras

from rung.training.errors import NotResumable

_NO_SETTING: Final = frozenset({"built", "stop_training"})
"""What becomes true while a model is trained."""


class LayerSettings:
    """Compares the settings of a model's layers with those at the beginning of training."""

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._made: Final = dict(_settings(model, ""))

    def demand_unchanged(self) -> None:
        """Check that no setting has changed.

        Raises:
            NotResumable: one has; the message names it, and says what to do.
        """
        now = dict(_settings(self._model, ""))
        changed = [
            f"{name} is {now[name]!r}, and was {was!r}"
            for name, was in self._made.items()
            if name in now and now[name] != was
        ]
        if changed:
            raise NotResumable(
                "a run that resumes would lose what has changed in the layers during fit(): "
                f"{'; '.join(changed)}. Set it before fit() and leave it; what is to change is "
                "kept in a weight: self.add_weight(…, trainable=False), or in the learning rate"
            )


def _settings(model: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the numbers, text and flags of each layer, with a name."""
    for layer in model.layers:
        name = f"{place}{layer.name}"
        yield f"{name}.trainable", layer.trainable
        for field, value in sorted(vars(layer).items()):
            plain = isinstance(value, bool | int | float | str)
            if plain and field not in _NO_SETTING and not field.startswith("_"):
                yield f"{name}.{field}", value
        if isinstance(layer, keras.Model):
            yield from _settings(layer, f"{name}.")
