"""Layer settings: what layers and the optimizer are besides their weights, which checkpoints hold.

Whether a layer is trained, a dropout rate, an own number or list, a hook, which layers and which
optimizer there are: a change during `fit` would be undone in a run that resumes, so it is refused
at the next checkpoint. It could not be set again either: with TensorFlow Keras takes up a change
only where the model is compiled again.
"""

import hashlib
import types
from collections.abc import Iterator
from typing import Any, Final

import keras
import numpy as np

from rung.training.errors import NotResumable

_NO_SETTING: Final = frozenset(
    {"built", "predict_function", "stop_training", "test_function", "train_function", "training"}
)
"""What Keras itself sets while a model is trained."""
_HOOKS: Final = "hooks"
"""What names of attributes end with that have the hooks of a layer, a module of torch."""
_COMPILED: Final = ("optimizer", "loss")
"""Attributes of a model that `compile` sets."""
_DEPTH_MAX: Final = 4
_TEXT_MAX: Final = 80


class LayerSettings:
    """Compares the settings of a model with those at the beginning of training."""

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._compiled: Final = {name: getattr(model, name, None) for name in _COMPILED}
        self._layers: Final = dict(_layers(model, ""))
        self._made: Final = self._settings()

    def demand_unchanged(self) -> None:
        """Check that no setting has changed.

        Raises:
            NotResumable: one has; the message names it, and says what to do.
        """
        changed = [
            f"{name} of the model is another object now: compile the model before fit()"
            for name, made in self._compiled.items()
            if getattr(self._model, name, None) is not made
        ]
        layers = dict(_layers(self._model, ""))
        changed += [
            f"{name or 'the model'} is another layer now, a {type(layers.get(name)).__name__}"
            for name, made in self._layers.items()
            if layers.get(name) is not made
        ]
        changed += [
            f"{name} is a layer that was not there" for name in layers if name not in self._layers
        ]
        now = {} if changed else self._settings()
        changed += [
            f"{name} is {now[name]}, and was {was}"
            for name, was in self._made.items()
            if name in now and now[name] != was
        ]
        if changed:
            raise NotResumable(
                "a run that resumes would lose what has changed in the layers during fit(): "
                f"{'; '.join(changed)}. Set it before fit() and leave it; what is to change is "
                "kept in a weight: self.add_weight(…, trainable=False), or in the learning rate"
            )

    def _settings(self) -> dict[str, str]:
        """Return the settings of all layers and of the optimizer, as text, by name."""
        found: dict[str, str] = {}
        for name, layer in self._layers.items():
            prefix = f"{name}." if name else "model."
            found[f"{prefix}trainable"] = repr(layer.trainable)
            found |= {f"{prefix}{field}": text for field, text in _plain_fields(layer)}
            for field, value in vars(layer).items():
                if field.endswith(_HOOKS) and isinstance(value, dict):
                    found[f"{prefix}{field.strip('_')}"] = str(len(value))
        optimizer = self._compiled["optimizer"]
        if optimizer is not None:
            found |= {f"optimizer.{field}": text for field, text in _plain_fields(optimizer)}
        return found


def _plain_fields(thing: Any) -> Iterator[tuple[str, str]]:
    """Yield an object's attributes with plain values, as text."""
    for field, value in sorted(vars(thing).items()):
        hidden = field.startswith("_") or "cache" in field.lower()
        if field not in _NO_SETTING and not hidden and (text := _text(value, 0)) is not None:
            yield field, text


def _text(value: Any, depth: int) -> str | None:  # noqa: PLR0911 - a case for each kind
    """Return a text that differs for different values; None: it is not compared."""
    match value:
        case None | bool() | int() | float() | str():
            return repr(value)
        case np.ndarray() if not value.dtype.hasobject:
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:8]
            return f"an array of {value.shape} ({digest})"
        case list() | tuple() | dict() if depth < _DEPTH_MAX:
            items = [*value.items()] if isinstance(value, dict) else [*value]
            parts = [_text(item, depth + 1) for item in items]
            if any(part is None for part in parts):
                return None
            text = f"{type(value).__name__} of {', '.join(map(str, parts))}"
            if len(text) <= _TEXT_MAX:
                return text
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            return f"a {type(value).__name__} of {len(items)} ({digest})"
        case types.FunctionType() | type():
            return f"the function {value.__qualname__}"
        case keras.regularizers.Regularizer() | keras.constraints.Constraint():
            return _text(value.get_config(), depth + 1)
        case _:
            return None


def _layers(layer: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a layer and all in it, by names that say where they are."""
    return _layers_in(layer, name, set())


def _layers_in(layer: Any, name: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    seen.add(id(layer))
    yield name, layer
    for each in layer.layers if isinstance(layer, keras.Model) else _held_by(layer):
        if isinstance(each, keras.layers.Layer) and id(each) not in seen:
            yield from _layers_in(each, f"{name}.{each.name}" if name else each.name, seen)


def _held_by(layer: Any) -> Iterator[Any]:
    """Yield the values of a layer's attributes, and the items of lists and dicts among them."""
    for value in [*vars(layer).values()]:
        match value:
            case dict():
                yield from [*value.values()]
            case list() | tuple():
                yield from [*value]
            case _:
                yield value
