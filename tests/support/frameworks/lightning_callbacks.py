"""A Lightning trial whose callbacks change the module and have states of their own.

An order names the callbacks, in their order.
"""

import logging
import os
import random
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rung import lightning as rl
from support.frameworks.wild import Position, Wildness
from support.fuse import Fuse
from support.trials import runner

DATA = TensorDataset(torch.linspace(-1, 1, 24).reshape(12, 2))
SCORES = [0.9, 0.5, 0.7, 0.8, 0.6]
"""Of the validation behind each epoch; the second is the best."""


class Module(lightning.LightningModule):  # type: ignore[misc]  # may not be installed
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def training_step(self, batch: Any, _number: int) -> Any:
        """Return a loss."""
        return (self.network(batch[0]) - 1).square().mean()

    def validation_step(self, batch: Any, _number: int) -> None:
        """Log a score."""
        self.log("val_loss", torch.tensor(SCORES[self.current_epoch]))

    def configure_optimizers(self) -> Any:
        """Return an optimizer with a schedule by patience."""
        trained = [each for each in self.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.05)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"},
        }


class Wild(Wildness, lightning.Callback):  # type: ignore[misc]  # as above
    """Changes all that it can."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self.training_begins(trainer.optimizers[0])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch begins."""
        self.epoch_begins(pl_module)

    def on_train_batch_start(self, trainer: Any, *_others: Any) -> None:
        """A step begins."""
        self.step_begins(trainer.optimizers[0])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_others: Any) -> None:
        """A step ends."""
        self.step_ends(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch ends."""
        self.epoch_ends(pl_module)


class Iterating(Position, lightning.Callback):  # type: ignore[misc]  # as above
    """Cannot be kept."""


class Thawing(lightning.Callback):  # type: ignore[misc]  # as above
    """Trains a layer only from the third epoch on, in a group that it adds, and drops out more."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Freeze it."""
        pl_module.network[0].requires_grad_(requires_grad=False)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Thaw it."""
        if trainer.current_epoch == 2:
            pl_module.network[0].requires_grad_(requires_grad=True)
            pl_module.network[1].p = 0.6
            pl_module.network[2].eval()
            group = {"params": pl_module.network[0].parameters(), "lr": 0.01}
            trainer.optimizers[0].add_param_group(group)


class Growing(lightning.Callback):  # type: ignore[misc]  # as above
    """Puts another layer in place of one."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Do it in the second epoch."""
        if trainer.current_epoch == 1:
            pl_module.network[1] = nn.Identity()


class Scaling(lightning.Callback):  # type: ignore[misc]  # as above
    """Has weights in a checkpoint that are not those of training, and takes care of it itself."""

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Double them."""
        kept = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: 2 * tensor for name, tensor in kept.items()}

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Halve them."""
        kept = checkpoint["state_dict"]
        pl_module.load_state_dict({name: tensor / 2 for name, tensor in kept.items()})


class Gathering(lightning.Callback):  # type: ignore[misc]  # as above
    """Tells a state that no checkpoint can hold."""

    def state_dict(self) -> dict[str, Any]:
        """Return a set."""
        return {"seen": {1, 2}}


class Burning(rl.Callback):
    """Asks the fuse before and after what Rung does at a batch."""

    fuse = Fuse(None)

    def on_train_batch_end(self, *args: Any) -> None:
        """One more batch."""
        self.fuse.burn()
        super().on_train_batch_end(*args)
        self.fuse.burn()


def make(name: str) -> Any:  # noqa: PLR0911 - as many kinds
    """Return a callback."""
    match name:
        case "wild":
            return Wild()
        case "early":
            return EarlyStopping("val_loss", patience=2)
        case "thawing":
            return Thawing()
        case "growing":
            return Growing()
        case "ema":
            return EMAWeightAveraging(decay=0.5)
        case "swa":
            return StochasticWeightAveraging(swa_lrs=0.01)
        case "scaling":
            return Scaling()
        case "gathering":
            return Gathering()
        case "best":
            return ModelCheckpoint(monitor="val_loss", save_top_k=1)
        case _:
            return Iterating()


def warm_up() -> None:
    """Pay once for what torch imports at its first step."""
    runner.warm_up()


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run, in a folder of its own where an order says so."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    if order.get("moves"):
        os.chdir(_new_folder())
    with rl.init() as run:
        rung = Burning(run)
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        callbacks = {name: make(name) for name in order["callbacks"]}
        trainer = lightning.Trainer(
            max_epochs=5,
            accelerator="cpu",
            callbacks=[*callbacks.values(), rung],
            logger=False,
            enable_checkpointing="best" in callbacks,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        module, loader = Module(), DataLoader(DATA, batch_size=4, shuffle=True)
        trainer.fit(module, loader, DataLoader(DATA, batch_size=12), **rung.resume)
        result = {
            "weights": [each.detach().tolist() for each in module.parameters()],
            "rate": [group["lr"] for group in trainer.optimizers[0].param_groups],
            "epoch": trainer.current_epoch,
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "states": {name: each.told() for name, each in callbacks.items() if name == "wild"},
        }
        if "best" in callbacks:
            best = callbacks["best"]
            result["best"] = [Path(best.best_model_path).name, float(best.best_model_score)]
            trainer.validate(module, DataLoader(DATA, batch_size=12), "best", verbose=False)
            result["best weights"] = [each.detach().tolist() for each in module.parameters()]
        if order.get("moves"):
            os.chdir("..")
        return result


def _new_folder() -> Path:
    """Return a folder that no other run has."""
    number = len(list(Path().glob("moved-*")))
    folder = Path(f"moved-{number}")
    folder.mkdir()
    for other in Path().glob("moved-*"):
        if other != folder:
            other.rename(f"moved-gone-{other.name}")
    return folder
