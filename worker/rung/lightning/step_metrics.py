"""What a module logs in a batch, or in a validation, by Lightning's public interfaces."""

from collections.abc import Mapping
from typing import Any

from rung import core


class LoggedSince:
    """The metrics that are logged from some moment on.

    Lightning shows callbacks all that was ever logged; what is logged again is another tensor.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] = {}

    def begin(self, trainer: Any) -> None:
        """Begin at this moment."""
        self._before = dict(trainer.callback_metrics)

    def found(self, trainer: Any) -> dict[str, Any]:
        """Return what was logged since."""
        before = self._before
        now = dict(trainer.callback_metrics)
        return {name: value for name, value in now.items() if before.get(name) is not value}


def with_loss(metrics: Mapping[str, Any], outputs: Any) -> dict[str, Any]:
    """Return metrics with the loss of a training step."""
    found = dict(metrics)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is not None:
        found.setdefault("loss", loss)
    return found


def mean_of_ranks(
    ranks: core.DistributedContext, metrics: Mapping[str, Any], records: int
) -> dict[str, Any]:
    """Return the means of what the ranks logged, each by the records that it saw.

    All ranks must call this.
    """
    if ranks.size == 1:
        return dict(metrics)
    own = ({name: float(value) for name, value in metrics.items()}, records)
    said = [each for each in ranks.allgather(own) if each[1]] or [own]
    total = sum(count for _, count in said) or 1
    return {
        name: sum(values.get(name, 0.0) * count for values, count in said) / total
        for name in metrics
    }
