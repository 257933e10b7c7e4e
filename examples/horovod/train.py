"""A small network on scikit-learn's handwritten digits, for code that speaks Horovod already.

Rung starts the ranks and `hvd.init()` finds them; there is no horovodrun. Reports, checkpoints and
`should_preempt()` are written once and are the same lines on every rank.
"""

from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn

from rung import core

IMAGES, LABELS = (torch.tensor(array) for array in load_digits(return_X_y=True))
TEST = IMAGES[:400].float() / 16, LABELS[:400]
TRAIN = IMAGES[400:].float() / 16, LABELS[400:]
BATCH = 32
BATCHES = len(TRAIN[0]) // BATCH


def batch_of(step: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of a batch; which records are in it follows from the seed and the step."""
    epoch, number = divmod(step - 1, BATCHES)
    order = torch.randperm(len(TRAIN[0]), generator=torch.Generator().manual_seed(seed + epoch))
    own = order[number * BATCH : (number + 1) * BATCH][hvd.rank() :: hvd.size()]
    return TRAIN[0][own], TRAIN[1][own]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, seed: int) -> float:
    """One step; Horovod averages the gradients over the ranks."""
    torch.manual_seed(seed + step * hvd.size() + hvd.rank())  # dropout is the same in every run
    images, labels = batch_of(step, seed)
    loss = nn.functional.cross_entropy(model.train()(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return hvd.allreduce(loss.detach()).item()


def main() -> None:
    with core.init(config=Path(__file__).with_name("experiment.yaml")) as ctx:
        hvd.init()
        torch.manual_seed(ctx.seed)
        model = nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Dropout(ctx.hparams["dropout"]), nn.Linear(32, 10)
        )
        step, kept = 0, None
        if (latest := ctx.checkpoint.download_latest()) is not None:
            with ctx.checkpoint.restore_path(latest) as path:
                kept = torch.load(path / "state.pt")
            step = kept["step"]
            model.load_state_dict(kept["model"])
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=ctx.hparams["lr"], momentum=0.9),
            named_parameters=model.named_parameters(),
        )
        if kept:
            optimizer.load_state_dict(kept["optimizer"])
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        while not ctx.preempt.should_preempt():
            step += 1
            loss = train_step(model, optimizer, step, ctx.seed)
            ctx.train.report_training_metrics(step, {"loss": loss})
            if step % ctx.hparams["validate_every"] == 0:
                wrong = model.eval()(TEST[0]).argmax(1) != TEST[1]
                ctx.train.report_validation_metrics(step, {"error": wrong.float().mean().item()})
                save(ctx, model, optimizer, step)
        if step % ctx.hparams["validate_every"]:
            save(ctx, model, optimizer, step)
        hvd.shutdown()


def save(ctx: core.Context, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """All ranks come here; what the chief writes is kept."""
    with ctx.checkpoint.store_path(steps_completed=step) as (path, _):
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, path / "state.pt")


if __name__ == "__main__":
    main()
