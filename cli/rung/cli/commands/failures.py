"""Why trials of an experiment errored, or failed after they were trained, in lines."""

from collections.abc import Iterator, Sequence
from typing import Final

from rung.client import Experiment, Failure
from rung.events.failure import shortened

_CAUSES_SHOWN: Final = 3


def failure_facts(experiment: Experiment) -> list[tuple[str, str]]:
    """Return why trials failed, as far as the reason does not say it, and where to read more."""
    errored, late = experiment.failures, experiment.late_failures
    facts = [*_causes_of(late, "failed", "after the training: ")]
    if len(errored) != 1 or shortened(errored[0].cause) not in (experiment.reason or ""):
        facts = [*_causes_of(errored, "errored"), *facts]
    if errored or late:
        first = (errored or late)[0].trial_id
        what = "it" if experiment.trial_count == 1 else "the first of them"
        facts.append(("log", f"`rung logs {first}` shows {what}"))
    return facts


def _causes_of(
    failures: Sequence[Failure], word: str, when: str = ""
) -> Iterator[tuple[str, str]]:
    for each in failures[:_CAUSES_SHOWN]:
        yield f"{each.trials} {word}", f"{when}{shortened(each.cause)} ({each.trial_id})"
    if others := sum(each.trials for each in failures[_CAUSES_SHOWN:]):
        yield f"{others} {word}", f"{when}for other causes"
