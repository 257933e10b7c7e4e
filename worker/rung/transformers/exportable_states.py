"""The states of a trainer's other callbacks, such as an early stop's patience.

They lie in `trainer_state.json`. The trainer's own way of restoring them makes new objects, at the
end of the list, if it is asked to at all; here they stay the objects that the script made, in
their places.
"""

import json
from collections.abc import Iterator
from typing import Any

from transformers.trainer_callback import ExportableState

from rung.training.errors import NotResumable


def demand_storable(trainer: Any) -> None:
    """Check that the file gives back what callbacks export, as it is.

    Raises:
        NotResumable: something in it is another value as JSON, or none; the message names it.
    """
    lost: list[str] = []
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ExportableState):
            name, state = f"{type(callback).__name__}.state()", callback.state()
            lost += _changed_by_json(state.get("attributes", {}), f"{name}['attributes']")
            try:
                json.dumps(state, sort_keys=True)
            except (TypeError, ValueError) as error:
                lost = lost or [f"{name}: {error}"]
    if lost:
        raise NotResumable(
            f"a run that resumes would lose the state of a callback: {'; '.join(lost)}. The"
            " trainer stores it as JSON: numbers, text, lists, and dicts with texts as keys"
        )


def _changed_by_json(value: Any, place: str) -> Iterator[str]:
    """Yield what is not read as it was written, each with its place."""
    if isinstance(value, dict):
        for key, each in value.items():
            if type(key) is not str:
                yield f"{place} has the key {key!r}, which is a {type(key).__name__}"
            yield from _changed_by_json(each, f"{place}[{key!r}]")
    elif type(value) is list:
        for index, each in enumerate(value):
            yield from _changed_by_json(each, f"{place}[{index}]")
    elif value is not None and not isinstance(value, str | int | float):
        yield f"{place} is a {type(value).__name__}"


def restore(trainer: Any) -> None:
    """Give the trainer's callbacks what they kept."""
    kept = trainer.state.stateful_callbacks
    for kind, callbacks in _exporting(trainer).items():
        states = kept.get(kind, [])
        states = states if isinstance(states, list) else [states]
        # Of several of one class each save adds all to the list; the last ones are the newest.
        for callback, state in zip(callbacks, states[-len(callbacks) :], strict=False):
            for name, value in state.get("attributes", {}).items():
                setattr(callback, name, value)


def _exporting(trainer: Any) -> dict[str, list[Any]]:
    """Return the callbacks that keep something, by their class, as the trainer names them."""
    found: dict[str, list[Any]] = {}
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, ExportableState):
            found.setdefault(type(callback).__name__, []).append(callback)
    return found
