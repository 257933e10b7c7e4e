"""The states of a trainer's other callbacks, such as an early stop's patience.

They lie in `trainer_state.json`. The trainer's own way of restoring them makes new objects, at the
end of the list, if it is asked to at all; here they stay the objects that the script made, in
their places.
"""

from typing import Any

from transformers.trainer_callback import ExportableState


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
