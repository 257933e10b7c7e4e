"""A trial without a framework: a falling curve with a state that only a checkpoint brings back.

Its metric depends on every step taken so far, so a run that lost or repeated one step would report
another number from there on. While the file exists that the variable HOLD names, no step after
the tenth is taken.
"""

import hashlib
import json
import os
import time
from pathlib import Path

from rung import core

HELD_STEP = 11


def advance(state: str, hparams: dict[str, object]) -> str:
    """Return the state after one more step: a chain of digests."""
    text = state + json.dumps(hparams, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def may_go_on(context: core.Context, step: int) -> bool:
    """Wait while a step is held back; return whether it may be taken, or the trial is to leave."""
    hold = Path(os.environ.get("HOLD", "/nonexistent"))
    while step >= HELD_STEP and hold.exists():
        if context.preempt.should_preempt():
            return False
        time.sleep(0.05)
    return True


def main() -> None:
    """Train until told to leave."""
    with core.init() as context:
        step, state = 0, str(context.seed)
        checkpoint = context.checkpoint.download_latest()
        if checkpoint is not None:
            with context.checkpoint.restore_path(checkpoint) as path:
                step, state = json.loads((path / "state.json").read_text())
        pause_s = float(context.hparams["pause_s"])
        while may_go_on(context, step + 1):
            step += 1
            state = advance(state, context.hparams)
            time.sleep(pause_s)
            noise = int(state[:8], 16) / 2**32
            loss = float(context.hparams["limit"]) + (1 + noise) / step
            context.train.report_training_metrics(steps_completed=step, metrics={"noise": noise})
            context.train.report_validation_metrics(steps_completed=step, metrics={"loss": loss})
            metadata = {"steps_completed": step}
            with context.checkpoint.store_path(metadata) as (path, _):
                (path / "state.json").write_text(json.dumps([step, state]))
            if context.preempt.should_preempt():
                return


main()
