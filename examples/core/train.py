"""Minimise a function by gradient descent with momentum: any script can be a trial.

It needs no framework, only `rung.core`: metrics, checkpoints, and leaving when asked to.
"""

import json
from pathlib import Path

from rung import core


def gradient(x: float, y: float) -> tuple[float, float]:
    """The slope of Rosenbrock's valley, whose lowest point is (1, 1)."""
    return -2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)


def main() -> None:
    here = Path(__file__).with_name("experiment.yaml")
    with core.init(config=here) as ctx:
        rate, momentum = ctx.hparams["rate"], ctx.hparams["momentum"]
        if momentum + rate > 1:
            raise core.InvalidHP("momentum + rate must not exceed 1")
        state = {"x": -1.0, "y": 1.0, "dx": 0.0, "dy": 0.0, "step": 0}
        if (latest := ctx.checkpoint.download_latest()) is not None:
            with ctx.checkpoint.restore_path(latest) as path:
                state = json.loads((path / "state.json").read_text())

        while not ctx.preempt.should_preempt():
            slope = gradient(state["x"], state["y"])
            for axis, value in zip("xy", slope, strict=True):
                step = momentum * state[f"d{axis}"] - rate * max(-10.0, min(10.0, value))
                state[f"d{axis}"] = step
                state[axis] += step
            state["step"] += 1
            distance = ((state["x"] - 1) ** 2 + (state["y"] - 1) ** 2) ** 0.5
            ctx.train.report_training_metrics(state["step"], {"distance": distance})
            if state["step"] % 100 == 0:
                ctx.train.report_validation_metrics(state["step"], {"distance": distance})

        with ctx.checkpoint.store_path(steps_completed=state["step"]) as (path, _):
            (path / "state.json").write_text(json.dumps(state))


if __name__ == "__main__":
    main()
