"""A Transformers trial in which a callback changes the world.

An order names the change; with `at_epoch` it is made where an epoch begins, not before a step.
"""

import dataclasses
import random
from typing import Any

import torch
import transformers
from torch import nn

from rung import transformers as rt
from support.frameworks.changing import Level, Net, Training, make, told
from support.frameworks.transformers_callbacks import Burning
from support.fuse import Fuse
from support.trials import runner

SECOND_EPOCH = 4
"""Its first step."""


class Records(Level):
    """Inputs, and labels that nothing looks at."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.inputs(index), "labels": torch.zeros(1)}


class Model(nn.Module):
    """The network as this library wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Any, labels: Any = None) -> Any:
        """Return the loss."""
        found = self.net(x)
        return {"loss": found.mean(), "logits": found}


class Weighing(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Weighs the loss by an attribute of its own, and one of a callback."""

    changing: Any = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.loss_weight = 1.0

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        """Return the loss."""
        return super().compute_loss(*given, **named) * self.loss_weight * self.changing.factor


@dataclasses.dataclass
class Around:
    """The trainer, as changes see it."""

    trainer: Any

    def change(self) -> None:
        """Weigh the loss, and clip gradients."""
        self.trainer.loss_weight = 0.5
        self.trainer.args.max_grad_norm = 0.01

    def add(self, callback: Any) -> None:
        """Add a callback."""
        self.trainer.add_callback(callback)

    def swap(self, optimizer: Any) -> None:
        """Put another optimizer in the place of the one that is there."""
        self.trainer.optimizer = optimizer


class Changing(transformers.TrainerCallback):  # type: ignore[misc]  # as above
    """Makes a change before a step."""

    def __init__(self, change: str | None = None, *, at_epoch: bool = False) -> None:
        super().__init__()
        self.change = change
        self.at_epoch = at_epoch
        self.factor = 1.0
        self.trainer: Any = None

    def on_step_begin(self, _args: Any, state: Any, *_others: Any, **_more: Any) -> None:
        """Make it."""
        if self.change is not None and not self.at_epoch:
            make(self._training(state), self.change)

    def on_epoch_begin(self, _args: Any, state: Any, *_others: Any, **_more: Any) -> None:
        """Make it."""
        if self.change is not None and self.at_epoch:
            make(self._training(state), self.change, SECOND_EPOCH)

    def _training(self, state: Any) -> Training:
        trainer = self.trainer
        return Training(
            state.global_step + 1,
            trainer.model.net,
            trainer.optimizer,
            trainer.train_dataset,
            None,
            self,
            Around(trainer),
        )


def warm_up() -> None:
    """Pay once for what is imported at first use."""
    runner.warm_up()
    assert transformers.Trainer


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with rt.init() as run:
        model, rung, data = Model(), Burning(run), Records()
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        changing = Changing(order["change"], at_epoch=order.get("at_epoch", False))
        trainer = Weighing(
            model,
            transformers.TrainingArguments(
                output_dir="output",
                num_train_epochs=3,
                per_device_train_batch_size=4,
                learning_rate=0.05,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
            callbacks=[changing, rung],
        )
        changing.trainer = trainer
        trainer.changing = changing
        rung.train(trainer)
        return {
            "told": told(model.net, data),
            "around": [trainer.loss_weight, trainer.args.max_grad_norm, changing.factor],
            "drawn": random.random(),  # noqa: S311 - the generator's state
        }
