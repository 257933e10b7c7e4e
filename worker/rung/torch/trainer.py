"""What a script calls to train its trial."""

from rung.torch.context import TrialContext
from rung.torch.loop import Loop
from rung.torch.plan import make_plan
from rung.torch.trial import Trial
from rung.torch.unit import TrainUnit


class Trainer:
    """Trains a trial."""

    def __init__(self, trial: Trial, context: TrialContext) -> None:
        self._trial = trial
        self._context = context

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
        """Train until the run's length, or until asked to leave.

        What is not given comes from the experiment file: `min_validation_period`,
        `min_checkpoint_period`, `scheduling_unit` (how many batches make one training report,
        100), `checkpoint_policy` (best), `perform_initial_validation` (false). A length given
        here and one of the searcher's both hold: the first that is reached ends the run.

        Args:
            max_length: train no longer than this, counted from the trial's beginning.
            validation_period: how often to validate; always at the length, and at the rungs of a
                search that stops trials on their way.
            checkpoint_period: how often to checkpoint; always before leaving.
            reporting_period: how many batches to average for one training report.
            checkpoint_policy: `best`, `all` or `none`: whether validations are followed by one.
            latest_checkpoint: what to go on from, where the platform does not say.
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
