"""How a run ended: from what its process did, and what it had been asked to do.

refused its hyperparameters                            invalid_hp
killed because it hung                                 failed
ended by a signal that the platform sent               killed
ended by another signal                                failed
exit code 0, asked to leave and acknowledged           preempted
exit code 0                                            finished
another exit code, after the platform's SIGTERM        killed
another exit code                                      failed
"""

import signal
from collections.abc import Sequence
from typing import Final, NamedTuple

from rung.agent.wire import Exited
from rung.events.allocation import AllocationReleased
from rung.events.trial import ExitOutcome, RunSpec, TrialExited, allocation_id_of

MESSAGE_CHARACTERS_MAX: Final = 1000
_GRAVEST: Final[tuple[ExitOutcome, ...]] = (
    "invalid_hp",
    "failed",
    "killed",
    "preempted",
    "finished",
)


class Ending(NamedTuple):
    """What `TrialExited` says about the end of a run."""

    outcome: ExitOutcome
    code: int | None
    signal: int | None
    message: str
    fault: str = ""
    """What kind of fault it was; empty where that cannot be told, or where it was none."""
    machine: bool = False
    """Whether a failure is the machine's, and not the script's."""


class Conduct(NamedTuple):
    """What passed between the platform and a run before it ended."""

    asked_to_leave: bool = False
    acknowledged: bool = False
    sent_sigterm: bool = False
    sent_sigkill: str | None = None
    """Why, if it was killed."""
    hung: str | None = None
    """In words, if it was killed because it hung."""
    refusal: str | None = None
    """Why the script cannot train with its hyperparameters, if it said so."""


def ending_of(exited: Exited, conduct: Conduct, last_words: str) -> Ending:
    """Return how a run ended.

    Args:
        exited: what its process did.
        conduct: what passed before.
        last_words: the last line of its traceback, or of what it printed as errors.
    """
    outcome, message = _judge(exited, conduct, last_words)
    return Ending(outcome, exited.code, exited.signal, message[:MESSAGE_CHARACTERS_MAX])


def worst(endings: Sequence[Ending]) -> int:
    """Return which of the ends of a run's processes, in the order of ranks, is the run's end."""
    return min(range(len(endings)), key=lambda number: _GRAVEST.index(endings[number].outcome))


def facts_of(  # noqa: PLR0913 - what is known of an end
    ending: Ending,
    spec: RunSpec,
    agent_id: str,
    *,
    pool: str,
    incarnation: int,
    failed: str = "",
    steps: int | None = None,
    under_way: Sequence[str] = (),
) -> tuple[TrialExited, AllocationReleased]:
    """Return what is written about the end of a run: how it ended, and that its slots are free.

    Args:
        ending: how it ended.
        spec: the run.
        agent_id: of this agent.
        pool: of this agent.
        incarnation: of this agent.
        failed: what other agents that have a part of the run shall stop for.
        steps: the last step that the run spoke of.
        under_way: its checkpoints that have not arrived yet.
    """
    exited = TrialExited(
        experiment_id=spec.experiment_id,
        trial_id=spec.trial_id,
        run=spec.run,
        agent_id=agent_id,
        outcome=ending.outcome,
        exit_code=ending.code,
        signal=ending.signal,
        message=ending.message[:MESSAGE_CHARACTERS_MAX],
        fault=ending.fault,
        steps_completed=steps,
        machine=ending.machine,
        under_way=list(under_way),
    )
    released = AllocationReleased(
        pool=pool,
        allocation_id=allocation_id_of(spec.trial_id, spec.run),
        agent_id=agent_id,
        incarnation=incarnation,
        failed=failed,
        machine=bool(failed) and ending.machine,
    )
    return exited, released


def _judge(exited: Exited, conduct: Conduct, last_words: str) -> tuple[ExitOutcome, str]:
    if conduct.refusal is not None:
        return "invalid_hp", conduct.refusal
    if conduct.hung is not None and exited.signal == signal.SIGKILL:
        return "failed", conduct.hung
    if exited.signal is not None:
        return _judge_signal(exited.signal, conduct)
    if exited.code == 0:
        left = conduct.asked_to_leave and (conduct.acknowledged or conduct.sent_sigterm)
        return ("preempted", "left as asked") if left else ("finished", "")
    message = f"exit code {exited.code}"
    if conduct.sent_sigterm:
        return "killed", f"ended as asked, with {message}"
    return "failed", f"{last_words} ({message})" if last_words else message


def _judge_signal(number: int, conduct: Conduct) -> tuple[ExitOutcome, str]:
    if number == signal.SIGKILL and conduct.sent_sigkill is not None:
        return "killed", conduct.sent_sigkill
    if number == signal.SIGTERM and conduct.sent_sigterm:
        return "killed", "ended as asked"
    hint = "; did the machine run out of memory?" if number == signal.SIGKILL else ""
    return "failed", f"killed by signal {number} ({_name_of(number)}){hint}"


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a real-time signal"
