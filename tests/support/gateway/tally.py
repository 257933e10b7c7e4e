"""The tally of an experiment counted anew: what that of the projection must equal."""

from rung.events.trial import is_better
from rung.gateway.projections.experiment import (
    Experiment,
    checkpoint_phase,
    trial_phase,
)
from rung.gateway.projections.tally import Share, Tally, TopTrial


def counted(experiment: Experiment) -> Tally:
    """Return the tally of an experiment with all of its trials and checkpoints."""
    tally = Tally()
    tally.recount(
        Share.of(experiment, it, trial_phase(experiment, it)) for it in experiment.trials
    )
    smaller = experiment.submission is None or experiment.submission.smaller_is_better
    for trial in experiment.trials:
        best = tally.best
        if trial.best is not None and (
            best is None or is_better(trial.best.value, best.value, smaller_is_better=smaller)
        ):
            tally.best = TopTrial(trial.index, trial.best.value, trial.best.steps)
    for each in experiment.checkpoints.values():
        tally.count_checkpoint(each.size_bytes, None, checkpoint_phase(each))
    return tally
