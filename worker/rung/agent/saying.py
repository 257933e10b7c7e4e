"""What a process says over its socket, as the facts that it means."""

import re
from typing import Any, Final

from rung.core import protocol
from rung.core.protocol import Damaged, Reported, Restored, Stored
from rung.events.checkpoint import CheckpointDamaged, CheckpointStored
from rung.events.trial import RunSpec, TrialRestored, TrialValidated, allocation_id_of

_INTEGER_MAX: Final = 2**53
_NAME_CHARACTERS_MAX: Final = 128
_LAST_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
"""Of a checkpoint's id, behind its run's."""

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


def problem_with(spec: RunSpec, message: Reported | Stored | Restored | Damaged) -> str | None:
    """Return what is wrong with a run's message that its type does not tell, None if it is fine.

    Deciders believe what a fact says of a checkpoint, whoever reports it; so a run reports what it
    stored itself, and what became of those that it was given to start from.
    """
    match message:
        case protocol.Reported():
            step, name, problem = message.step, message.kind, None
        case protocol.Stored():
            step, name = message.steps_completed, message.checkpoint_id
            problem = problem_with_own(spec, name)
        case protocol.Restored():
            step, name = message.steps_completed, message.checkpoint_id
            problem = _problem_with_given(spec, name)
        case protocol.Damaged():
            step, name = 0, message.checkpoint_id
            problem = _problem_with_given(spec, name)
    if not 0 <= step <= _INTEGER_MAX:
        return f"step {step} is not between 0 and {_INTEGER_MAX}"
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        return f"{name[:_NAME_CHARACTERS_MAX]!r} is no name of 1 to {_NAME_CHARACTERS_MAX} letters"
    return problem


def problem_with_own(spec: RunSpec, checkpoint_id: str) -> str | None:
    """Return why a checkpoint cannot be one that the run stored, None if it can."""
    own = f"{allocation_id_of(spec.trial_id, spec.run)}."
    if checkpoint_id.startswith(own) and _LAST_PART.fullmatch(checkpoint_id, len(own)):
        return None
    return f"checkpoint {checkpoint_id[:_NAME_CHARACTERS_MAX]!r} is not one of this run's"


def _problem_with_given(spec: RunSpec, checkpoint_id: str) -> str | None:
    if checkpoint_id in spec.restore:
        return None
    name = checkpoint_id[:_NAME_CHARACTERS_MAX]
    return f"checkpoint {name!r} is not one that this run was to start from"
