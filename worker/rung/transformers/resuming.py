"""Where a trainer goes on: what it would restore itself in another way, or not at all.

How many epochs are done the trainer works out from its steps and an epoch's length, which a stream
does not have; the course knows it. And what `ExportableState` callbacks keep lies in
`trainer_state.json`, but the trainer's own way back makes new objects of them, at the end of the
list, if it is asked to at all; here they stay the objects that the script made, in their places.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from transformers.trainer_callback import ExportableState

from rung.torch.plan import Progress


@contextlib.contextmanager
def resuming(
    trainer: Any, progress: Progress, arrive: Callable[[str | None], None]
) -> Iterator[None]:
    """Have a trainer go on, within the block, from a checkpoint as if nothing had happened.

    Args:
        trainer: to train within the block.
        progress: of the checkpoint.
        arrive: is called when the position in the data is reached.
    """

    def position(*arguments: Any) -> tuple[int, int]:
        type(trainer)._init_training_state(trainer, *arguments)
        return progress.epochs, progress.batch_in_epoch * trainer.args.gradient_accumulation_steps

    ways = {
        "_init_training_state": position,
        "_load_callback_state": lambda: give_back(trainer),
        "_load_rng_state": arrive,
    }
    vars(trainer).update(ways)
    try:
        yield
    finally:
        for name in ways:
            del vars(trainer)[name]


def give_back(trainer: Any) -> None:
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
