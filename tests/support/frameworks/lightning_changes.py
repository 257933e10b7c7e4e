"""A Lightning trial in which a callback changes the world; an order names the change."""

import dataclasses
import functools
import logging
import random
from collections.abc import Iterator
from typing import Any, Final

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from rung import lightning as rl
from support.frameworks.changing import CHANGED_AT, Level, Net, Training, make, told
from support.fuse import Fuse
from support.trials import runner


class Records(Level):
    """Inputs alone, which a generator of their own may weigh."""

    draws = False

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(4)

    def __getitem__(self, index: int) -> torch.Tensor:
        found = self.inputs(index)
        return found * torch.rand(1, generator=self.generator) if self.draws else found


class Scaled:
    """A collate function that has a number."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, records: list[torch.Tensor]) -> torch.Tensor:
        """Return a batch."""
        return torch.stack(records) * self.scale


VALIDATION: Final = Records()
COLLATING: Final = Scaled()
VALIDATION_COLLATING: Final = Scaled()
"""What loaders alone refer to: a run is a process of its own."""


class Hardest(Sampler[int]):
    """Draws by weights."""

    def __init__(self) -> None:
        self.weights = torch.ones(12)

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        yield from torch.multinomial(self.weights, 12, replacement=True).tolist()


class Data(lightning.LightningDataModule):  # type: ignore[misc]  # may not be installed
    """Makes the loader, and has a number that scales what it gives."""

    def __init__(self, records: Records, sampler: Sampler[int]) -> None:
        super().__init__()
        self.records = records
        self.sampler = sampler
        self.gain = 1.0

    def train_dataloader(self) -> Any:
        """Return the loader."""
        return DataLoader(
            self.records,
            batch_size=4,
            sampler=self.sampler,
            collate_fn=functools.partial(COLLATING),
        )

    def val_dataloader(self) -> Any:
        """Return that of data that the module does not have."""
        return DataLoader(VALIDATION, batch_size=6, collate_fn=VALIDATION_COLLATING)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale a batch."""
        return batch * self.gain


class Module(lightning.LightningModule):  # type: ignore[misc]  # as above
    """Trains the network."""

    def __init__(self, changing: "Changing", data: Data) -> None:
        super().__init__()
        self.net = Net()
        self.changing = changing
        self.records = data.records  # as a module that makes its loaders itself has them
        self.sampler = data.sampler
        self.chance: dict[str, Any] = {
            "numpy": np.random.default_rng(3),
            "python": random.Random(3),  # noqa: S311 - reproducible
        }

    def training_step(self, batch: Any, _number: int) -> Any:
        """Train."""
        factor = self.changing.factor
        if Records.draws:
            factor *= sum(float(each.random()) for each in self.chance.values())
        return self.net(batch).mean() * factor

    def validation_step(self, batch: Any, _number: int) -> None:
        """Log what shows the data."""
        self.log("loss", batch.sum())

    def configure_optimizers(self) -> Any:
        """Return one with two groups."""
        net = self.net
        optimizer = torch.optim.SGD(
            [{"params": net.head.parameters()}, {"params": net.body.parameters()}],
            0.05,
            momentum=0.9,
        )
        if self.changing.change != rescheduled.__name__:
            return optimizer
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


@dataclasses.dataclass
class Around:
    """The trainer, as changes see it."""

    trainer: Any

    def change(self) -> None:
        """Clip gradients, and scale the data."""
        self.trainer.gradient_clip_val = 0.01
        self.trainer.datamodule.gain = 1.5

    def add(self, callback: Any) -> None:
        """Add a callback."""
        self.trainer.callbacks.append(callback)

    def swap(self, optimizer: Any) -> None:
        """Put another optimizer in the place of the one that is there."""
        self.trainer.strategy.optimizers = [optimizer]


def validated(_trainer: Any) -> None:
    """Change validation data, which only their loader refers to."""
    VALIDATION.hardness = 0.3
    VALIDATION_COLLATING.scale = 2.0


def collated(_trainer: Any) -> None:
    """Change what makes batches of records."""
    COLLATING.scale = 1.5


def drawn_weights(_trainer: Any) -> None:
    """Weigh records and losses, in each step, by generators of the script's own."""


def rescheduled(trainer: Any) -> None:
    """Go over to another schedule."""
    [config] = trainer.lr_scheduler_configs
    config.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(trainer.optimizers[0], 4)


OWN_KEPT: Final = [validated, collated, drawn_weights]
OWN_REFUSED: Final = [rescheduled]
_OWN: Final = {each.__name__: each for each in (*OWN_KEPT, *OWN_REFUSED)}
"""Changes that are Lightning's alone."""


class Changing(lightning.Callback):  # type: ignore[misc]  # as above
    """Makes a change before a step."""

    def __init__(self, change: str | None = None) -> None:
        super().__init__()
        self.change = change
        self.factor = 1.0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make it."""
        if self.change in _OWN:
            if trainer.global_step + 1 == CHANGED_AT:
                _OWN[self.change](trainer)
        elif self.change is not None:
            module = trainer.datamodule
            make(
                Training(
                    trainer.global_step + 1,
                    pl_module.net,
                    trainer.optimizers[0],
                    module.records,
                    module.sampler,
                    self,
                    Around(trainer),
                ),
                self.change,
            )


class Burning(rl.Callback):
    """Asks the fuse before and after what Rung does at a batch."""

    fuse = Fuse(None)

    def on_train_batch_end(self, *given: Any) -> None:
        """One more batch."""
        self.fuse.burn()
        super().on_train_batch_end(*given)
        self.fuse.burn()


def warm_up() -> None:
    """Pay once for what torch imports at its first step."""
    runner.warm_up()


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    Records.draws = order["change"] == drawn_weights.__name__
    with rl.init() as run:
        changing, rung = Changing(order["change"]), Burning(run)
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        trainer = lightning.Trainer(
            max_epochs=5,
            accelerator="cpu",
            callbacks=[changing, rung],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = Data(Records(), Hardest())
        module = Module(changing, data)
        trainer.fit(module, datamodule=data, **rung.resume)
        return {
            "told": told(module.net, data.records),
            "around": [trainer.gradient_clip_val, data.gain, changing.factor],
            "loaders": [VALIDATION.hardness, COLLATING.scale, VALIDATION_COLLATING.scale],
            "weights": data.sampler.weights.tolist(),  # type: ignore[attr-defined]  # a Hardest
            "groups": [
                {name: value for name, value in each.items() if name != "params"}
                for each in trainer.optimizers[0].param_groups
            ],
            "drawn": random.random(),  # noqa: S311 - the generator's state
        }
