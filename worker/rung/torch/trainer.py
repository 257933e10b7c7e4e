"""Trainer: trains the trial of a script."""

from rung.torch.context import TrialContext
from rung.torch.loop import Loop
from rung.torch.setup import current_context
from rung.torch.trial import Trial
from rung.training.plan import make_plan
from rung.training.units import TrainUnit


class Trainer:
    """Trains a trial."""

    def __init__(self, trial: Trial, context: TrialContext | None = None) -> None:
        """Train a trial.

        Args:
            trial: what to train.
            context: of the trial; by default the one that this process created last.
        """
        self._trial = trial
        self._context = context or current_context()

    def fit(  # noqa: PLR0913 - each has a default; Determined's names
        self,
        *,
        max_length: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        checkpoint_period: TrainUnit | None = None,
        reporting_period: TrainUnit | None = None,
        checkpoint_policy: str | None = None,
        latest_checkpoint: str | None = None,
        step_zero_validation: bool | None = None,
    ) -> None:
        """Train until the run's length, or until asked to exit.

        Arguments that are None come from the experiment file: `min_validation_period` (each
        epoch), `min_checkpoint_period` (chosen by a checkpoint's cost; never in an unmanaged run),
        `scheduling_unit` (how many batches make one training report, 100), `checkpoint_policy`
        (best), `perform_initial_validation` (false). If there is a length here and one of the
        searcher, the first that is reached ends the run.

        Args:
            max_length: train no longer than this, counted from the trial's beginning.
            validation_period: how often to validate; in any case at the length, and at the rungs
                of a search that stops trials early.
            checkpoint_period: how often to checkpoint; in any case before the run exits.
            reporting_period: how many batches to average for one training report.
            checkpoint_policy: `best`, `all` or `none`: whether validations are followed by one.
            latest_checkpoint: from which to resume, if the platform names none.
            step_zero_validation: whether to validate before the first batch.
        """
        plan = make_plan(
            self._context.core.info.trial,
            max_length=max_length,
            validation_period=validation_period,
            checkpoint_period=checkpoint_period,
            reporting_period=reporting_period,
            checkpoint_policy=checkpoint_policy,
            step_zero_validation=step_zero_validation,
        )
        Loop(self._trial, self._context, plan).run(latest_checkpoint)
