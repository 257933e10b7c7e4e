"""A Lightning trial in which a callback changes the world; an order names the change."""

import dataclasses
import logging
import random
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, Sampler

from rung import lightning as rl
from support.frameworks.changing import Level, Net, Training, make, told
from support.fuse import Fuse
from support.trials import runner


class Records(Level):
    """Inputs alone."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.inputs(index)


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
        return DataLoader(self.records, batch_size=4, sampler=self.sampler)

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

    def training_step(self, batch: Any, _number: int) -> Any:
        """Train."""
        return self.net(batch).mean() * self.changing.factor

    def configure_optimizers(self) -> Any:
        """Return one with two groups."""
        net = self.net
        return torch.optim.SGD(
            [{"params": net.head.parameters()}, {"params": net.body.parameters()}],
            0.05,
            momentum=0.9,
        )


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
        if self.change is not None:
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
            "weights": data.sampler.weights.tolist(),  # type: ignore[attr-defined]  # a Hardest
            "groups": [
                {name: value for name, value in each.items() if name != "params"}
                for each in trainer.optimizers[0].param_groups
            ],
            "drawn": random.random(),  # noqa: S311 - the generator's state
        }
