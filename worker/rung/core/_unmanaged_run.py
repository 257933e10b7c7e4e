"""Unmanaged run: `python train.py`, started by hand, without an agent.

The script uses the same Core API; only the connection differs, which prints the reports here
instead of sending them.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rung.cache.log import log
from rung.core.ipc.protocol import (
    Acknowledged,
    Damaged,
    DeletionRequested,
    FromTrial,
    HparamsRefused,
    MetadataSet,
    ProgressReported,
    Reported,
    Restored,
    StatusSet,
    Stored,
    report_frame,
)
from rung.events.trial import RunSpec

FOLDER: Final = "rung-local"
"""The folder, below the working folder, in which unmanaged runs keep their checkpoints."""
DEFAULT_SEED: Final = 0


class UnmanagedConnection:
    """Prints the messages that a managed run would send."""

    preempted = False
    final = False

    def send(self, message: FromTrial) -> None:
        """Print a message.

        Raises:
            ReportRefused: metrics that are too large for a ledger.
        """
        report_frame(message)
        match message:
            case Reported(kind=kind, step=step, values=values):
                log().info(
                    kind,
                    step=step,
                    **{f"_{k}" if k in _TAKEN else k: v for k, v in values.items()},
                )
            case Stored(checkpoint_id=checkpoint_id, size_bytes=size_bytes):
                log().info("checkpoint stored", id=checkpoint_id, size_bytes=size_bytes)
            case Restored(checkpoint_id=checkpoint_id, steps_completed=steps):
                log().info("checkpoint restored", id=checkpoint_id, steps_completed=steps)
            case HparamsRefused(reason=reason):
                log().error("hyperparameters refused", reason=reason)
            case StatusSet(status=status):
                log().info("status", text=status)
            case MetadataSet(metadata=metadata):
                log().info("metadata set", values=metadata)
            case ProgressReported(progress=progress):
                log().info("progress", done=f"{progress:.0%}")
            case Damaged() | Acknowledged() | DeletionRequested():
                pass

    def best_validation(self, within_s: float) -> None:
        """Return None: there is no experiment, of which others could have validated."""

    def close(self) -> None:
        """Do nothing: messages are printed at once."""


_TAKEN: Final = frozenset({"event", "step"})
"""Keys that a log line uses itself."""


def unmanaged_spec(
    hparams: Mapping[str, Any] | None,
    config: Mapping[str, Any] | Path | str | None,
    seed: int | None,
    restore: str | None,
) -> RunSpec:
    """Return the specification of an unmanaged run.

    Args:
        hparams: the hyperparameters; None: those of the experiment file.
        config: an experiment file or its content as a mapping.
        seed: the trial's seed; None: the file's `experiment_seed`, or 0.
        restore: a checkpoint of an earlier local run to resume from.
    """
    file = _read(config)
    searcher = file.get("searcher") or {}
    space = file.pop("hyperparameters", None) or {}
    if seed is None:
        seed = (file.get("reproducibility") or {}).get("experiment_seed")
    experiment_id = f"local-{secrets.token_hex(4)}"
    return RunSpec(
        experiment_id=experiment_id,
        trial_id=f"{experiment_id}.0",
        trial_index=0,
        run=1,
        hparams=dict(hparams) if hparams is not None else typical(space),
        seed=DEFAULT_SEED if seed is None else seed,
        length=searcher.get("max_time"),
        time_metric=searcher.get("time_metric") or "batches",
        restore=[restore] if restore else [],
        code_digest=None,
        config=file,
    )


def typical(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return one choice from a search space: constants, first categories, middles of ranges."""
    return {name: _typical(value) for name, value in space.items()}


def _typical(value: Any) -> Any:
    match value:
        case {"type": "const", "val": choice} | {"type": "categorical", "vals": [choice, *_]}:
            return choice
        case {"type": "int", "minval": low, "maxval": high}:
            return (low + high) // 2
        case {"type": "double", "minval": low, "maxval": high}:
            return (low + high) / 2
        case {"type": "log", "minval": low, "maxval": high}:
            return float(value.get("base", 10)) ** ((low + high) / 2)
        case Mapping() as group:
            return typical(group)
        case _:
            return value


def _read(config: Mapping[str, Any] | Path | str | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    from rung.config import load  # noqa: PLC0415 - managed runs need neither it nor pydantic

    text = Path(config).read_text(encoding="utf-8")
    expanded: dict[str, Any] = load(text, today_seed=DEFAULT_SEED).expanded()
    return expanded
