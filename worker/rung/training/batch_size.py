"""Batch size: how many records all slots together train per step, for every framework.

* **A batch of the script** (`DataLoader(batch_size=B)`, `fit(batch_size=B)`, a tf.data pipeline)
  is of all slots together, so that a script trains the same on 1 slot and on n.
* **The hyperparameter `global_batch_size`** is of all slots together, too. Where it is set, the
  script's number must equal it.
* **A slot's part of it**, as `context.get_per_slot_batch_size()` returns it, may be given to a
  DataLoader as in Determined: its batches are made as large as `global_batch_size`.
* **A number per device** (`per_device_train_batch_size`) is of each slot, so all slots together
  train n times as much.

Contradictions are refused with the names of the fields and the fix. Every run logs the result.
Gradient accumulation is not included: a step is one batch of all slots.
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import structlog

from rung import core
from rung.training.shares import Part
from rung.training.units import InvalidPlan

HYPERPARAMETER: Final = "global_batch_size"

_log = structlog.get_logger("rung")


class Given(enum.Enum):
    """The meaning of a script's batch size on several slots."""

    TOGETHER = "of all slots together"
    PER_SLOT = "of each slot"
    EITHER = "of all slots together, or a slot's part of global_batch_size"


class BatchSize(NamedTuple):
    """How many records are trained per step."""

    together: int
    """By all slots."""
    slots: int = 1
    accumulated: int = 1
    """Over how many steps gradients are accumulated."""

    def of_rank(self, rank: int) -> int:
        """Return how many records a rank trains."""
        return Part(rank, self.slots).count(self.together)

    def __str__(self) -> str:
        """Return it as a line of the trial's log."""
        text = f"each step trains {_records(self.together)}"
        if self.slots > 1:
            most, least = self.of_rank(0), self.of_rank(self.slots - 1)
            each = f"{most}" if most == least else f"{least} or {most}"
            text += f" on {self.slots} slots together, {each} on each"
        if self.accumulated > 1:
            text += f"; gradients are accumulated over {self.accumulated}"
        return text


def batch_size(
    run: core.Context, given: int, field: str, means: Given, *, accumulated: int = 1
) -> BatchSize:
    """Return the batch size of all slots of a run, and log it.

    Args:
        run: what `init` returned.
        given: the script's number.
        field: its name in messages: "per_device_train_batch_size".
        means: its meaning on several slots.
        accumulated: over how many steps gradients are accumulated.

    Raises:
        InvalidPlan: the number contradicts `global_batch_size`, or is too small for the slots.
    """
    slots, wanted = run.distributed.size, wanted_by(run.hparams)
    found = agreed(given, slots, field, means, wanted=wanted)._replace(accumulated=accumulated)
    log(run, found)
    return found


def log(run: core.Context, size: BatchSize | None, *, each_own: bool = False) -> None:
    """Log the batch size of a run.

    Args:
        run: what `init` returned.
        size: None: the size of the script's batches is not known.
        each_own: whether each slot has batches of its own.
    """
    slots = run.distributed.size
    if not run.distributed.is_chief:
        return
    if size is not None:
        _log.info(str(size))
    elif slots > 1 and each_own:
        _log.info(f"each step trains {slots} batches of the script, one on each slot")
    elif slots > 1:
        _log.info(f"each step trains a batch of the script on {slots} slots together")
    else:
        _log.info("each step trains a batch of the script")


def wanted_by(hparams: Mapping[str, Any]) -> int | None:
    """Return the hyperparameter `global_batch_size`; None where there is none.

    Raises:
        InvalidPlan: it is not a number of records.
    """
    value = hparams.get(HYPERPARAMETER)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or value < 1:
        raise InvalidPlan(
            f"hyperparameters.{HYPERPARAMETER}: must be a number of records, not {value!r}"
        )
    return int(value)


def agreed(
    given: int, slots: int, field: str, means: Given, *, wanted: int | None = None
) -> BatchSize:
    """Return the batch size of all slots, checked against `global_batch_size`.

    Args:
        given: the script's number.
        slots: how many train.
        field: the number's name in messages.
        means: its meaning on several slots.
        wanted: the hyperparameter `global_batch_size`.

    Raises:
        InvalidPlan: the number contradicts `global_batch_size`, or is too small for the slots.
    """
    together = given * slots if means is Given.PER_SLOT else given
    if wanted is not None and together != wanted:
        if means is not Given.EITHER or given != slot_part(wanted, slots):
            raise InvalidPlan(_contradiction(given, slots, field, means, wanted))
        together = wanted
    if together < slots:
        raise InvalidPlan(
            f"a batch of {together} cannot be shared between {slots} slots: raise {field}, or "
            "lower resources.slots_per_trial"
        )
    return BatchSize(together, slots)


def slot_part(wanted: int, slots: int) -> int:
    """Return a slot's part of `global_batch_size`: what `get_per_slot_batch_size` returns."""
    return max(1, wanted // slots)


def _contradiction(given: int, slots: int, field: str, means: Given, wanted: int) -> str:
    """Return an error message: the contradiction to `global_batch_size`, and the fix."""
    name = f"hyperparameters.{HYPERPARAMETER}"
    said = f"{field} is {given}"
    match means:
        case _ if slots == 1:
            right = "make them equal"
        case Given.TOGETHER:
            said += ", of all slots together"
            right = "make them equal"
        case Given.PER_SLOT:
            said += f", so {slots} slots train {given * slots} together"
            even = wanted % slots == 0
            right = f"make it {wanted // slots}" if even else f"make {name} a multiple of {slots}"
        case Given.EITHER:
            part = slot_part(wanted, slots)
            right = f"make it {wanted}, of all {slots} slots together, or {part}, a slot's part"
    return f"{said}, but {name} is {wanted}: {right}, or leave {HYPERPARAMETER} out"


def _records(number: int) -> str:
    return f"{number} record" + ("s" if number != 1 else "")
