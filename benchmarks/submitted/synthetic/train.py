"""A trial that only reports a synthetic curve at the rungs of ASHA with eta 3 and R 81."""

from rung import core

with core.init() as context:
    limit = float(context.hparams["limit"])
    for step in (1, 3, 9, 27, 81):
        loss = limit + 1 / step
        context.train.report_validation_metrics(steps_completed=step, metrics={"loss": loss})
        if context.preempt.should_preempt():
            break
