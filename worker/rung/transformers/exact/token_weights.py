"""The labels of a batch that count: what a mean over tokens is a mean of.

A loss that is a mean has nothing to divide by where no label of a rank's part counts, and is no
number; so one label is made to count there, and the loss then weighs nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

IGNORED: Final = -100
_NAMES: Final = ("labels", "shift_labels")


def without_items(batch: Any) -> dict[str, Any]:
    """Return the labels of a batch, of which none counts."""
    return {name: torch.full_like(batch[name], IGNORED) for name in _NAMES if name in batch}


def counted(batch: Any, *, shifted: bool) -> torch.Tensor | None:
    """Return how many labels of a batch count, as the trainer counts them.

    Args:
        batch: with labels, or without.
        shifted: whether the loss compares each place with the next one's label.

    Returns:
        None where there are no labels that could be counted; values to come near are none.
    """
    if not isinstance(batch, Mapping):
        return None
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
        if shifted and torch.is_tensor(labels):
            labels = labels[..., 1:]
    if not torch.is_tensor(labels) or labels.is_floating_point():
        return None
    return labels.ne(IGNORED).sum()


def shifts(model: Any) -> bool:
    """Return whether a model's loss compares each place with the next one's label."""
    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None))
    config = getattr(model, "config", None)
    return loss is ForCausalLMLoss and not getattr(config, "is_encoder_decoder", False)


def with_an_item(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of whose labels the last one counts, whatever it was."""
    changed = dict(batch)
    for name in _NAMES:
        labels = changed.get(name)
        if torch.is_tensor(labels) and labels.numel():
            changed[name] = labels.clone(memory_format=torch.contiguous_format)
            changed[name].view(-1)[-1] = 0
    return changed
