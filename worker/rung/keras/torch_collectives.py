"""The other ranks of Keras on torch: torch's own process group."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from rung import core
from rung.keras.collectives import DIFFERENT_BATCHES, Span
from rung.training.errors import NotResumable
from rung.training.shares import Part


class TorchExchange:
    """One rank among those of a process group."""

    def __init__(self, ranks: core.DistributedContext, backend: str | None) -> None:
        """Join the others.

        Args:
            ranks: those of the run.
            backend: `gloo` or `nccl`; None: what fits the device.
        """
        self._part: Final = Part(ranks.rank, ranks.size)
        device = None
        if torch.cuda.is_available():
            device = torch.device("cuda", ranks.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(device)
        backend = backend or ("nccl" if device else "gloo")
        self._own: Final = not torch.distributed.is_initialized()
        if self._own:
            torch.distributed.init_process_group(
                backend, device_id=device if backend == "nccl" else None
            )

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the sums over all ranks: one exchange for each type and device."""
        found = [torch.as_tensor(tensor).detach() for tensor in tensors]
        together: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for index, tensor in enumerate(found):
            together.setdefault((tensor.dtype, tensor.device), []).append(index)
        for indices in together.values():
            flat = torch.cat([found[index].reshape(-1) for index in indices])
            torch.distributed.all_reduce(flat)
            parts = torch.split_with_sizes(flat, [found[index].numel() for index in indices])
            for index, part in zip(indices, parts, strict=True):
                found[index] = part.reshape(found[index].shape)
        return found

    def span(self, leaf: Any) -> Span:
        """Return this rank's part of a batch."""
        return span_of(self._part, int(leaf.shape[0]))

    def insist(self, equal: Any) -> None:
        """Fail the step where this is not true.

        Raises:
            NotResumable: it is not.
        """
        if not bool(equal):
            raise NotResumable(DIFFERENT_BATCHES)

    def refused(self, error: Exception) -> bool:  # noqa: ARG002 - TensorFlow's needs it
        """Return False: what `insist` raises says itself what it is."""
        return False

    def close(self) -> None:
        """Leave the process group, if it was made here."""
        if self._own and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def span_of(part: Part, length: int) -> Span:
    """Return a rank's part of a batch of a length that is known."""
    given = part.given(length)
    return Span(given.start, given.stop, part.count(length) / length)
