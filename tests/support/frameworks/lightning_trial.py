"""A Lightning trial with dropout, noise, a scheduler, and metrics that Lightning averages.

Its module and an early stop keep counts of their own, beside and behind Rung's callback.

A plain one draws nothing: what it trains must not depend on the number of slots. Its 21 records
make uneven batches, the last of a single record. One with a width has so many units, and no
batch normalisation, which wants two records of each rank.
"""

import hashlib
import io
import itertools
import logging
import random
from collections.abc import Iterator
from typing import Any

import lightning
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, LearningRateFinder
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from rung import lightning as rl
from rung.torch import stream
from support.fuse import Fuse
from support.trial_notes import Notes
from support.trials import runner
from support.trials.noisy import NoisyData

INPUTS = torch.linspace(-1, 1, 21 * 4).reshape(21, 4)
PLAIN = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True).sin())


class Endless(IterableDataset[Any]):
    """The plain records, again and again."""

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(iter(PLAIN))


class Pair:
    """A batch whose records nobody can count."""

    def __init__(self, records: list[Any]) -> None:
        self.parts = [torch.stack(part) for part in zip(*records, strict=True)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.parts)


class Module(lightning.LightningModule):  # type: ignore[misc]  # may not be installed
    """A small network."""

    def __init__(self, *, plain: bool, every: int | None = None, width: int | None = None) -> None:
        super().__init__()
        self.automatic_optimization = every is None
        self.every = every
        normalising = [] if plain or width else [nn.BatchNorm1d(8)]
        drawing = [] if plain else [*normalising, nn.Dropout(0.3)]
        units = width or 8
        self.network = nn.Sequential(nn.Linear(4, units), *drawing, nn.ReLU(), nn.Linear(units, 1))
        self.validated: list[torch.Tensor] = []
        self.measured = torchmetrics.MeanMetric()
        self.own = torchmetrics.MeanMetric()
        self.lr = 0.01
        self.period: dict[str, Any] = {"interval": "step"}
        self.register_buffer("trail", torch.zeros(units, 4))
        self.register_buffer("ends", torch.zeros(2))

    def on_train_epoch_start(self) -> None:
        """Begin a mean that Lightning knows nothing of."""
        self.own.reset()

    def on_train_batch_end(self, *_others: Any) -> None:
        """Follow the weights."""
        self.trail.lerp_(next(self.network.parameters()).detach(), 0.1)

    def on_validation_end(self) -> None:
        """Count validations."""
        self.ends[0] += not self.trainer.sanity_checking

    def on_train_epoch_end(self) -> None:
        """Count epochs."""
        self.ends[1] += 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Train, and log by step and by epoch."""
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        self.measured.update(loss.detach(), len(inputs))
        self.own.update(loss.detach())
        self.log("measured", self.measured, on_step=False, on_epoch=True)
        if self.every is not None:
            self.manual_backward(loss)
            if (batch_idx + 1) % self.every == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Validate, and log what training logged too."""
        inputs, targets = batch
        errors = (self.network(inputs) - targets).square().detach()
        self.log("val_loss", errors.mean())
        self.log("val_seen", float(len(inputs)), reduce_fx="sum")
        self.validated.append(errors)

    def on_validation_epoch_end(self) -> None:
        """Log once more what this process found, all at once."""
        self.log("val_late", torch.cat(self.validated).mean())
        self.log("val_worst", torch.cat(self.validated).max(), reduce_fx="max")
        self.validated.clear()

    def configure_optimizers(self) -> Any:
        """Return an optimizer with a schedule, by step unless the order says another."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, **self.period},
        }


class Burning(rl.Callback):
    """Asks the fuse before and after what Rung does at a batch; remembers epochs' means."""

    fuse = Fuse(None)
    means: dict[int, list[float]]
    wait_at: int | None = None
    """The step in which to say so, and wait for being asked to leave."""

    def on_train_batch_end(self, *args: Any) -> None:
        """One more batch."""
        self.fuse.burn()
        run, step = self._tracker.run, self._tracker.progress.batches + 1
        if step == self.wait_at:
            run.train.report_metrics("waits", step, {"so": 1.0})
            while not run.preempt.should_preempt(auto_ack=False):
                pass
        super().on_train_batch_end(*args)
        self.fuse.burn()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember the means that Lightning and torchmetrics made."""
        self.means[trainer.current_epoch] = [
            float(trainer.callback_metrics[name]) for name in ("train_loss_epoch", "measured")
        ]
        super().on_train_epoch_end(trainer, pl_module)


def warm_up() -> None:
    """Pay once for what torch imports at its first step."""
    runner.warm_up()


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with rl.init() as run:
        notes = Notes(run, order)
        plain = order.get("plain", False)
        module = Module(plain=plain, every=order.get("every"), width=order.get("width"))
        module.period |= order.get("schedule", {})
        rung = Burning(run)
        rung.fuse, rung.means = Fuse(order["moment"], run.checkpoint.wait), {}
        rung.wait_at = order.get("wait_at")
        early = EarlyStopping("val_loss", patience=100)
        trainer = lightning.Trainer(
            max_epochs=5,
            accelerator="cpu",
            callbacks=[rung, early, *([LearningRateFinder()] if order.get("finder") else [])],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accumulate_grad_batches=order.get("accumulate", 1),
            val_check_interval=order.get("validate"),
            **order.get("trainer", {}),
        )
        data: Any = PLAIN if plain else NoisyData()
        collate = Pair if order.get("uncounted") else None
        train: Any = DataLoader(
            data, batch_size=5 if plain else 4, shuffle=True, collate_fn=collate
        )
        if order.get("named"):
            train = {"one": train, "two": train}
        validation: Any = DataLoader(
            stream(Endless(), shards_itself=False) if order.get("endless") else data, batch_size=7
        )
        if order.get("beside"):
            trainer.validate(module, validation, verbose=False)
        for _ in range(order.get("fits", 1)):
            trainer.fit(module, train, validation, **rung.resume)
        if order.get("beside"):
            trainer.validate(module, validation, verbose=False)
        buffer = io.BytesIO()
        torch.save([module.state_dict(), trainer.optimizers[0].state_dict()], buffer)
        return {
            "weights": hashlib.sha256(buffer.getvalue()).hexdigest(),
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "own": float(module.own.compute()),
            "early": [early.wait_count, float(early.best_score)],
            "mean": rung.means.get(max(rung.means)) if rung.means else None,
        } | notes.told()
