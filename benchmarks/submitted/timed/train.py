"""A trial that takes known time: so long to start, so long a unit, and some to leave."""

import json
import time

from rung import core

with core.init() as context:
    hparams = context.hparams
    time.sleep(hparams["start_s"])
    step = 0
    if (latest := context.checkpoint.download_latest()) is not None:
        with context.checkpoint.restore_path(latest) as path:
            step = json.loads((path / "step.json").read_text())
    while True:
        time.sleep(hparams["unit_s"] * hparams["slowness"])
        step += 1
        if step % hparams["every"] == 0:
            loss = hparams["limit"] + (1 + hparams["limit"]) / step
            context.train.report_validation_metrics(step, {"loss": loss})
        if context.preempt.should_preempt():
            break
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        (path / "step.json").write_text(json.dumps(step))
