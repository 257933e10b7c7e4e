"""Evaluation by turns: each rank takes whole batches, and what they give is put in order again.

The trainer's loop gathers after every batch, so all ranks go through as many; where one has none
left, a record stands in, and what it gives is cut away.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from accelerate.utils import recursively_apply
from torch import nn
from torch.utils.data import Sampler

from rung.torch import external_loop
from rung.training.shares import Part


class EvaluationTurns:
    """A loader of a rank's batches, in step with those of the others."""

    def __init__(self, entries: Sequence[list[Any]], part: Part) -> None:
        """Deal out batches in turn.

        Args:
            entries: the records of each batch.
            part: which rank of how many.
        """
        turns = [entries[i : i + part.size] for i in range(0, len(entries), part.size)]
        self._sizes: Final = [
            [len(turn[rank]) if rank < len(turn) else 0 for rank in range(part.size)]
            for turn in turns
        ]
        self._rank: Final = part.rank
        self._now: list[int] = []
        self.own: Final = _Listed(
            [turn[part.rank] if part.rank < len(turn) else turn[0][:1] for turn in turns]
        )
        self.loader: Any = None
        """Of these batches."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[Any]:
        for sizes, batch in zip(self._sizes, self.loader, strict=True):
            self._now = sizes
            yield batch

    def gather(self, data: Any) -> Any:
        """Return what all ranks found in this turn, in the order of the records."""
        return recursively_apply(self._gathered, data)

    def share_buffers(self, model: nn.Module) -> None:
        """Evaluate what the chief has."""
        external_loop.share_buffers(model)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        sizes = self._now
        if tensor.ndim == 0:
            tensor = tensor.repeat(max(sizes))
        padded = tensor.new_zeros((max(sizes), *tensor.shape[1:]))
        padded[: sizes[self._rank]] = tensor[: sizes[self._rank]]
        everything = [torch.empty_like(padded) for _ in sizes]
        torch.distributed.all_gather(everything, padded)
        return torch.cat([part[:size] for part, size in zip(everything, sizes, strict=True)])


class _Listed(Sampler[Any]):
    """Batches that are known."""

    def __init__(self, entries: Sequence[list[Any]]) -> None:
        self._entries = entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
