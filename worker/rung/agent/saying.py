"""What a process says over its socket, as the facts that it means."""

from typing import Any, Final

from rung.core import protocol
from rung.core.protocol import Damaged, Reported, Restored, Stored
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.trial import RunSpec, TrialRestored, TrialValidated

_INTEGER_MAX: Final = 2**53
_NAME_CHARACTERS_MAX: Final = 128

Fact = TrialValidated | CheckpointStored | TrialRestored | CheckpointDamaged


def fact_of(spec: RunSpec, message: Reported | Stored | Restored | Damaged) -> Fact | None:
    """Return the fact that a message of a run means; None for metrics that no decider needs."""
    about: dict[str, Any] = {
        "experiment_id": spec.experiment_id,
        "trial_id": spec.trial_id,
        "run": spec.run,
    }
    match message:
        case protocol.Reported():
            if message.kind != "validation":
                return None
            return TrialValidated(**about, steps_completed=message.step, metrics=message.values)
        case protocol.Stored():
            return CheckpointStored(
                **about,
                checkpoint_id=message.checkpoint_id,
                steps_completed=message.steps_completed,
                size_bytes=message.size_bytes,
                files=message.files,
                digest=message.digest,
            )
        case protocol.Restored():
            return TrialRestored(
                **about,
                checkpoint_id=message.checkpoint_id,
                steps_completed=message.steps_completed,
            )
        case protocol.Damaged():
            return CheckpointDamaged(
                **about, checkpoint_id=message.checkpoint_id, reason=message.reason
            )


def problem_with(message: Reported | Stored | Restored | Damaged) -> str | None:
    """Return what is wrong with a message that its type does not tell, None if it is fine."""
    match message:
        case protocol.Reported():
            step, name = message.step, message.kind
        case protocol.Damaged():
            step, name = 0, message.checkpoint_id
        case protocol.Stored() | protocol.Restored():
            step, name = message.steps_completed, message.checkpoint_id
    if not 0 <= step <= _INTEGER_MAX:
        return f"step {step} is not between 0 and {_INTEGER_MAX}"
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        return f"{name[:_NAME_CHARACTERS_MAX]!r} is no name of 1 to {_NAME_CHARACTERS_MAX} letters"
    return None
