"""Trains in steps of ten milliseconds by the Core API alone, and checkpoints now and then."""

import os
import time
from pathlib import Path

from rung import core

with core.init() as run:
    step = 0
    if (latest := run.checkpoint.download_latest()) is not None:
        with run.checkpoint.restore_path(latest) as path:
            step = int((path / "step").read_text())
    with Path(run.hparams["notes"], "0").open("a", buffering=1) as notes:
        while not (Path(run.hparams["stop"]).exists() or run.preempt.should_preempt()):
            step += 1
            time.sleep(0.01)
            notes.write(f"{step} {os.getpid()}\n")
            run.train.report_training_metrics(step, {"loss": 1 / step})
            if step % 50 == 0:
                with run.checkpoint.store_path_async({"steps_completed": step}) as (path, _):
                    (path / "step").write_text(str(step))
    run.train.report_validation_metrics(step, {"loss": 1 / step})
    if not run.checkpoint.has(step):
        with run.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "step").write_text(str(step))
