"""Why trials of an experiment errored, in lines."""

from typing import Final

from rung.client import Experiment
from rung.events.failure import shortened

_CAUSES_SHOWN: Final = 3


def failure_facts(experiment: Experiment) -> list[tuple[str, str]]:
    """Return why trials errored, as far as the reason does not say it, and where to read more."""
    failures = experiment.failures
    if not failures:
        return []
    log = ("log", f"`rung logs {failures[0].trial_id}` shows the first of them")
    if len(failures) == 1 and shortened(failures[0].cause) in (experiment.reason or ""):
        return [log]
    facts = [
        (f"{each.trials} errored", f"{shortened(each.cause)} ({each.trial_id})")
        for each in failures[:_CAUSES_SHOWN]
    ]
    others = sum(each.trials for each in failures[_CAUSES_SHOWN:])
    return [*facts, *([(f"{others} errored", "for other causes")] if others else []), log]
