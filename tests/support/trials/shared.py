"""A trial for any number of slots, as a script; what it draws and when it dies is configured.

noise        dropout, so that each rank draws
wide         so many parameters that a bucket of gradients is added up in pieces
stream       an IterableDataset that can tell where it is, in place of a shuffled list
thaws        its first layer is not trained before step 4, nor after step 8
frozen       trains in evaluation mode, and validates with gradients enabled
per_slot     the loader's batch size is this process's share of `global_batch_size`
die_at       in its first run, rank 1 (or the only one) kills itself in this step
kept         a large table that is not trained, an average of the weights, and a callback that
             speaks with the other ranks when a checkpoint is stored
parts        nobody may bring the parts of a sharded tensor together
look         a callback says what it sees of a checkpoint's files
slow         so many seconds of rest in each step of rank 1
hold         while there is a file of this path, rank 1 waits before step 36; `.held` says so
hasty        an automatic checkpoint is due whenever none is being stored
drags        so many seconds in each step of rank 1, on clocks that stand otherwise
counted      the chief prints how many messages it sent to the other ranks, or awaited of them,
             since the step before
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import tensor
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from rung import torch as rt
from rung.core._rank_connections import GroupServer
from rung.torch.checkpoint.sharded_tensors import Piece, is_shard
from rung.training import straggler
from rung.training.checkpoint_schedule import CheckpointSchedule

HELD_STEP = 36
INPUTS = torch.linspace(-1, 1, 22).reshape(22, 1).repeat(1, 3) ** torch.tensor([1, 2, 3])
TARGETS = INPUTS.sum(1, keepdim=True).sin()


class Stream(IterableDataset[Any]):
    """The records one after another, from where it was."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(INPUTS):
            index, self.position = self.position, self.position + 1
            yield INPUTS[index], TARGETS[index]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Keep the position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take the position back."""
        self.position = state["position"]


class Agreed(rt.Callback):
    """Hears of the same stored checkpoint on all ranks, after the same step."""

    def __init__(self, context: rt.TrialContext) -> None:
        self._ranks = context.distributed
        self._context = context

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Ask the others, and the store."""
        heard = self._ranks.allgather((uuid, self._context.batches))
        if len(set(heard)) != 1:
            raise RuntimeError(f"the ranks heard {heard}")
        self._context.core.checkpoint.get_metadata(uuid)


class Looking(rt.Callback):
    """Says what it sees of a checkpoint's files."""

    def on_checkpoint_write_end(self, path: str) -> None:
        """Look, and leave something there."""
        folder = Path(path)
        found = sorted(
            it.relative_to(folder).as_posix() for it in folder.rglob("*") if it.is_file()
        )
        sys.stdout.write(" ".join(["seen", *found]) + "\n")
        (folder / "note").write_text("looked")


class Average:
    """A moving average of the weights, sharded as they are."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.values: Any = {name: it.detach().clone() for name, it in model.named_parameters()}

    def parameters(self) -> Iterator[Any]:
        """Yield the averages."""
        yield from self.values.values()

    @torch.no_grad()
    def update_parameters(self, _model: nn.Module) -> None:
        """Move nearer to the weights of now."""
        for name, now in self._model.named_parameters():
            self.values[name].lerp_(now.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        """Keep the averages."""
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        for name, value in self.values.items():
            value.copy_(state[name])


class Standing:
    """In place of `time`, a clock that the trial turns."""

    now_s = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        """Return the time."""
        return cls.now_s


class SharedTrial(rt.Trial):
    """A small network; 22 records in batches of 8, so the last one is uneven."""

    def __init__(self, context: rt.TrialContext) -> None:
        self.context = context
        self.options: dict[str, Any] = context.get_experiment_config().get("data") or {}
        noise = 0.3 if self.options.get("noise") else 0.0
        width = 2048 if self.options.get("wide") else 16
        model = nn.Sequential(
            nn.Linear(3, width), nn.Tanh(), nn.Dropout(noise), nn.Linear(width, 1)
        )
        if self.options.get("kept"):
            model.register_parameter(
                "table", nn.Parameter(torch.ones(1 << 18), requires_grad=False)
            )
        self.model = context.wrap_model(model)
        self.ema: AveragedModel | Average | None = None
        strategy = (context.get_experiment_config().get("distributed") or {}).get("strategy")
        if self.options.get("kept"):
            self.ema = Average(model) if strategy == "fsdp" else AveragedModel(self.model)
            context.keep("ema", self.ema)
        self.optimizer = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=0.01)
        )

    def build_callbacks(self) -> dict[str, rt.Callback]:
        """Listen to what is stored."""
        hooks: dict[str, rt.Callback] = {}
        if self.options.get("kept"):
            hooks["agreed"] = Agreed(self.context)
        if self.options.get("look"):
            hooks["looking"] = Looking()
        return hooks

    def build_training_data_loader(self) -> DataLoader[Any]:
        """Return the records in batches of 8 of all slots, or of this one's share."""
        size = self.context.get_per_slot_batch_size() if self.options.get("per_slot") else 8
        if self.options.get("stream"):
            return DataLoader(rt.stream(Stream(), shards_itself=False), batch_size=size)
        return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=size, shuffle=True)

    def build_validation_data_loader(self) -> DataLoader[Any]:
        """Return the records in uneven batches."""
        return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=5, shuffle=True)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        """Train, rest, or die."""
        ranks, run = self.context.distributed, self.context.core.info.trial.run
        if self.options.get("counted") and ranks.is_chief:
            sys.stdout.write(f"before step {batch_idx + 1}: {Counted.calls}\n")
            Counted.calls = 0
        victim = min(1, ranks.size - 1)
        if run == 1 and ranks.rank == victim and batch_idx + 1 == self.options.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if ranks.rank == 1:
            time.sleep(float(self.options.get("slow", 0)))
            if "hold" in self.options and batch_idx + 1 >= HELD_STEP:
                wait_while(Path(self.options["hold"]))
            Standing.now_s += float(self.options.get("drags", 0))
        if self.options.get("frozen"):
            self.model.eval()
        if self.options.get("thaws"):
            for parameter in list(self.model.parameters())[:2]:
                parameter.requires_grad_(3 <= batch_idx < 8)
        loss = (self.model(batch[0]) - batch[1]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        metrics = {"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]}
        if self.ema is not None:
            self.ema.update_parameters(self.model)
            average: Any = next(self.ema.parameters()).detach().mean()
            metrics["average"] = average.full_tensor() if is_shard(average) else average
        return metrics

    def evaluate_batch(self, batch: Any) -> Mapping[str, Any]:
        """Return the mean error, which is to be weighted by records."""
        torch.set_grad_enabled(bool(self.options.get("frozen")))
        return {"loss": (self.model(batch[0]) - batch[1]).square().mean().detach()}


def wait_while(hold: Path) -> None:
    """Wait while a file is there, and say so beside it."""
    while hold.exists():
        hold.with_suffix(".held").touch()
        time.sleep(0.05)


def refuse_wholes() -> None:
    """Let whoever brings a sharded tensor together fail."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a rank holds a whole tensor")

    places: list[tuple[Any, str]] = [
        (tensor.DTensor, "full_tensor"),
        (tensor, "distribute_tensor"),
        (Piece, "whole"),
    ]
    for owner, name in places:
        setattr(owner, name, refuse)


class Counted(GroupServer):
    """The chief's end of the connections between ranks, which counts its calls."""

    calls = 0

    def gather(self, call: str, value: Any) -> list[Any]:
        """Count, and gather."""
        Counted.calls += 1
        return super().gather(call, value)

    def broadcast(self, call: str, value: Any) -> Any:
        """Count, and broadcast."""
        Counted.calls += 1
        return super().broadcast(call, value)


def hurry() -> None:
    """Have a checkpoint due by the clock of the chief, which no other rank has."""

    def due(self: CheckpointSchedule, *, storing: bool) -> bool:
        return self._automatic and not storing

    CheckpointSchedule.due = due  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with rt.init() as made:
        options = made.get_experiment_config().get("data") or {}
        if options.get("parts"):
            refuse_wholes()
        if options.get("drags"):
            vars(straggler)["time"] = Standing
        if options.get("hasty"):
            hurry()
        if options.get("counted") and made.distributed.is_chief:
            made.distributed._all.__class__ = Counted
        rt.Trainer(SharedTrial(made), made).fit()
