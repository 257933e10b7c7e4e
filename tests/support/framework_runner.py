"""A parent with a framework imported: reads one order a line, trains in a fork, tells its end.

    python -m support.framework_runner support.frameworks.keras_trial

The module named has `train(order) -> dict`, what became of the trial, and may have `warm_up`. An
order has an environment for each rank; where one of several fails the others are killed, as an
agent does. With `hasty`, automatic checkpoints come as often as they can; `versions` are what
packages then say that they are.
"""

import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any


def become(module: Any, order: dict[str, Any], rank: int) -> int:
    """Train as a rank of a run and write what became of it; return the exit code."""
    warnings.simplefilter("ignore")
    os.dup2(2, 1)  # standard output is for the answers
    os.environ.update(order["environments"][rank])
    os.chdir(order["folder"])
    if rank != order["victim"]:
        order["moment"] = None
    if order.get("hasty"):
        hurry()
    for package, version in order.get("versions", {}).items():
        vars(importlib.import_module(package))["__version__"] = version
    try:
        result = module.train(order)
    except BaseException as error:  # noqa: BLE001 - nothing may climb into the parent's loop
        traceback.print_exc()
        result, code = {"error": str(error)}, 1
    else:
        code = 0
    Path(f"result-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    return code


def hurry() -> None:
    """Have a checkpoint due whenever none is being stored, where no period is set."""
    from rung.training.checkpoint_schedule import CheckpointSchedule  # noqa: PLC0415 - loads torch

    def due(self: CheckpointSchedule, *, storing: bool) -> bool:
        return self._automatic and not storing

    CheckpointSchedule.due = due  # type: ignore[method-assign]  # in a fork of its own


def train(module: Any, order: dict[str, Any]) -> int:
    """Fork the ranks of a run; return how the first that failed ended, or 0."""
    children = []
    for rank in range(len(order["environments"])):
        child = os.fork()
        if child == 0:
            os._exit(become(module, order, rank))
        children.append(child)
    first = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first = code
            for other in children:
                os.kill(other, signal.SIGKILL)
    return first


def main() -> None:
    """Serve orders until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # frameworks may print while they are imported
    module = importlib.import_module(sys.argv[1])
    if hasattr(module, "warm_up"):
        module.warm_up()
    for line in sys.stdin:
        answers.write(f"{train(module, json.loads(line))}\n")
        answers.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # what frameworks clean up at an exit takes them seconds
