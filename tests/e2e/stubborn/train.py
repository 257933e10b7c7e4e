"""A trial that checkpoints every few steps and does not leave when it is asked to."""

import hashlib
import json
import time

from rung import core


def main() -> None:
    """Train to the length, deaf to everything else."""
    with core.init() as context:
        step, state = 0, str(context.seed)
        length = context.info.trial.length or 1
        checkpoint = context.checkpoint.download_latest()
        if checkpoint is not None:
            with context.checkpoint.restore_path(checkpoint) as path:
                step, state = json.loads((path / "state.json").read_text())
        while step < length:
            step += 1
            state = hashlib.sha256(state.encode()).hexdigest()
            time.sleep(float(context.hparams["pause_s"]))
            metrics = {"loss": int(state[:8], 16) / 2**32}
            context.train.report_validation_metrics(steps_completed=step, metrics=metrics)
            if step % int(context.hparams["every"]) == 0 or step == length:
                with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "state.json").write_text(json.dumps([step, state]))


main()
