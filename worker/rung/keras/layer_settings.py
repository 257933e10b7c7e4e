"""Layer settings: what layers and the optimizer are besides their weights, which checkpoints hold.

Whether a layer is trained, a dropout rate, an own number, tensor or object, a hook, which layers
and which optimizer there are: a change during `fit` would be undone in a run that resumes, so it
is refused at the next checkpoint. It could not be set again either: with TensorFlow Keras takes up
a change only where the model is compiled again.
"""

import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import keras
import numpy as np

from rung.training.errors import NotResumable
from rung.training.introspection.library_code import library_names
from rung.training.states.state_tree import Lost, Node, Resource, Writer

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
_CONTAINERS: Final = (list, tuple, dict, set)
"""Also where Keras makes one of its own of them, which tracks what it holds."""
_LIBRARIES: Final = frozenset({"keras", "tensorflow", "torch"})


class Setting(NamedTuple):
    """An attribute."""

    text: str | None
    """Of its value; None: it is not compared."""
    of_library: bool = False
    """Whether the library, too, sets attributes of this name, perhaps later."""


Settings = dict[str, Setting]
"""By name."""


class LayerSettings:
    """Compares the settings of a model with those at the beginning of training."""

    def __init__(self, model: Any, foreign: Callable[[], list[Any]]) -> None:
        """Take the settings as they are.

        Args:
            model: whose.
            foreign: returns what is no setting wherever it occurs: weights, layers, metrics.
        """
        self._model: Final = model
        self._foreign: Final = foreign
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
        changed = changed or changes(self._made, self._settings())
        if changed:
            raise NotResumable(
                "a run that resumes would lose what has changed in the layers during fit(): "
                f"{'; '.join(changed)}. Set it before fit() and leave it; what is to change is "
                "kept in a weight: self.add_weight(…, trainable=False), or in the learning rate"
            )

    def _settings(self) -> Settings:
        """Return the settings of all layers and of the optimizer."""
        found: Settings = {}
        foreign = self._foreign()
        for name, layer in self._layers.items():
            prefix = f"{name}." if name else "model."
            found[f"{prefix}trainable"] = Setting(repr(layer.trainable))
            found |= settings_of(layer, foreign, prefix)
            for field, value in vars(layer).items():
                if field.endswith(_HOOKS) and isinstance(value, dict):
                    found[f"{prefix}{field.strip('_')}"] = Setting(str(len(value)))
        optimizer = self._compiled["optimizer"]
        if optimizer is not None:
            found |= settings_of(optimizer, foreign, "optimizer.")
        return found


def settings_of(thing: Any, foreign: list[Any], prefix: str = "") -> Settings:
    """Return the attributes of an object, without those that its library uses by hidden names."""
    of_library = library_names(type(thing), _LIBRARIES)
    found = {}
    for field, value in sorted(vars(thing).items()):
        known = field in of_library
        if field in _NO_SETTING or "cache" in field.lower() or (known and field.startswith("_")):
            continue
        found[f"{prefix}{field}"] = Setting(_text(value, 0) or _digest(value, foreign), known)
    return found


def changes(before: Settings, now: Settings) -> list[str]:
    """Return how settings differ, one by one, in words."""
    found = []
    for name in dict.fromkeys([*before, *now]):
        was, is_now = before.get(name), now.get(name)
        if was is None:
            assert is_now is not None
            if is_now.text is not None and not is_now.of_library:
                found.append(f"{name} is {is_now.text}, and was not there")
        elif is_now is None:
            if was.text is not None and not was.of_library:
                found.append(f"{name} is gone, and was {was.text}")
        elif was != is_now and None not in {was.text, is_now.text}:
            found.append(f"{name} is {is_now.text}, and was {was.text}")
    return found


def _is_left_out(value: Any) -> bool:
    """Return whether an object is a library's own and no tensor, or what a step has computed.

    An optimizer in a list has its own state; what a step computed the next one computes anew.
    """
    if type(value).__module__.partition(".")[0] not in _LIBRARIES:
        return False
    tensor = hasattr(value, "shape") and hasattr(value, "numpy")
    kept = tensor or isinstance(value, _CONTAINERS)
    return not kept or getattr(value, "grad_fn", None) is not None


def _digest(value: Any, foreign: list[Any]) -> str | None:
    """Return a text that differs for different contents of an object; None: it is not compared."""
    name = type(value).__name__
    if any(value is each for each in foreign) or _is_left_out(value):
        return None
    if hasattr(value, "shape") and hasattr(value, "numpy"):
        try:
            value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError, NotImplementedError):  # a symbol of a graph
            return None
    writer = Writer(foreign, _is_left_out)
    try:
        tree = writer.tree(value, ())
    except (Resource, Lost):
        return None
    return f"a {name} ({Node(tree, writer.arrays).digest()[:8]})"


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
