"""A fork server: reads one order a line, trains in a fork, and tells how the fork ended."""

import hashlib
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from rung import torch as rt
from rung.storage import CheckpointWriter
from support.trials.noisy import Fuse, NoisyTrial
from support.trials.rivals import RivalsTrial
from support.trials.steady import SteadyTrial


def train(order: dict[str, Any]) -> None:
    """Train the noisy trial as a run, and write what became of it."""
    warnings.simplefilter("ignore")
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    torch.set_num_threads(1)
    make: Any = {"noisy": NoisyTrial, "steady": SteadyTrial, "rivals": RivalsTrial}[order["trial"]]
    fuse, idle = Fuse(order["moment"]), Fuse(None)
    if order["fuse"] == "stores":
        burn_when_storing(fuse)
        fuse = idle
    with rt.init(aggregation_frequency=2) as context:
        trial = make(context, fuse, order["workers"])
        rt.Trainer(trial, context).fit()
        kept = [torch.get_rng_state(), *(it.state_dict() for it in context.models)]
        kept += [it.state_dict() for it in context.optimizers]
        kept += [repr(it.scheduler.state_dict()) for it in context.schedulers]
        kept += [it.state_dict() for it in context.kept.values()]
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    result = {"weights": digest, "validations": trial.moments.validations}
    if isinstance(trial, RivalsTrial):
        result |= {"patience": trial.moments.state_dict(), "steps": context.schedulers.steps()}
    if context.scaler is not None:
        result["scale"] = context.scaler.get_scale()
    Path("result.json").write_text(json.dumps(result), encoding="utf-8")


def burn_when_storing(fuse: Fuse) -> None:
    """Ask the fuse before each file of a checkpoint, and before and after its manifest."""
    write, finish = CheckpointWriter.write, CheckpointWriter.finish

    def burning_write(self: CheckpointWriter, *arguments: Any, **options: Any) -> None:
        fuse.burn()
        write(self, *arguments, **options)

    def burning_finish(self: CheckpointWriter, **options: Any) -> Any:
        fuse.burn()
        stored = finish(self, **options)
        fuse.burn()
        return stored

    CheckpointWriter.write = burning_write  # type: ignore[method-assign]
    CheckpointWriter.finish = burning_finish  # type: ignore[method-assign]


def warm_up() -> None:
    """Take one step, so that torch has imported what it imports then."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    model(torch.ones(1)).sum().backward()
    optimizer.step()


def main() -> None:
    """Serve orders until the end of the input."""
    warm_up()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # standard output is for the answers
            train(json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
