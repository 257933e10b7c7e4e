"""A Transformers trial in which a callback changes the world.

An order names the change; with `at_epoch` it is made where an epoch begins, not before a step.
With `stream` the data are one.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import IterableDataset

from rung import transformers as rt
from support.frameworks.changing import BY_NAME, Level, Net, Training, make, told
from support.frameworks.transformers_callbacks import Burning
from support.fuse import Fuse
from support.trials import runner

SECOND_EPOCH = 4
"""Its first step."""


class Records(Level):
    """Inputs, and labels that nothing looks at."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.inputs(index), "labels": torch.zeros(1)}


class Passing(IterableDataset[dict[str, torch.Tensor]]):
    """The same as a stream, which changes by itself: each of its passes is another."""

    def __init__(self) -> None:
        self.records = Records()
        self.passes = 0
        self.position = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self.passes += 1
        self.reader = Scaling()
        for index in range(len(self.records)):
            self.position = index
            found = self.records[index]
            yield found | {"x": found["x"] * (1 + 0.1 * self.passes)}


class Scaling:
    """A collator that multiplies the inputs by its scale."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, records: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return a batch."""
        found = {name: torch.stack([it[name] for it in records]) for name in records[0]}
        return found | {"x": found["x"] * self.scale}


class Weighted:
    """A loss of a script, whose attribute has a name that the library uses, too."""

    def __init__(self) -> None:
        self.step = 1.0

    def __call__(self, outputs: Any, _labels: Any, **_more: Any) -> Any:
        """Return the loss."""
        return outputs["logits"].mean() * self.step


class Model(nn.Module):
    """The network as this library wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.noise = 0.0
        self.drawing = np.random.default_rng(3)

    def forward(self, x: Any, labels: Any = None) -> Any:
        """Return the loss."""
        found = self.net(x)
        if self.noise:
            found = found * (1 + self.noise * self.drawing.random())
        return {"loss": found.mean(), "logits": found}


class Weighing(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Weighs the loss by an attribute of its own, and one of a callback."""

    changing: Any = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.loss_weight = 1.0

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        """Return the loss; in an evaluation with the outputs."""
        found = super().compute_loss(*given, **named)
        weight = self.loss_weight * self.changing.factor
        return (found[0] * weight, found[1]) if isinstance(found, tuple) else found * weight


def collator(it: Training) -> None:
    """Scale what is collated."""
    it.trainer.trainer.data_collator.scale += 0.5


def loss_function(it: Training) -> None:
    """Weigh the loss that the trainer was given."""
    it.trainer.trainer.compute_loss_func.step = 0.5


def no_loss_function(it: Training) -> None:
    """Take it away."""
    it.trainer.trainer.compute_loss_func = None


def validation(it: Training) -> None:
    """Make the validation data harder."""
    it.trainer.trainer.eval_dataset["hard"].hardness += 0.5


def noise(it: Training) -> None:
    """Draw from a generator of the model's own."""
    it.trainer.trainer.model.noise = 0.5


def generator(it: Training) -> None:
    """Put one of another kind into its place."""
    drawing = np.random.Generator(np.random.MT19937(1))
    it.trainer.trainer.model.drawing = drawing


def metrics(it: Training) -> None:
    """Measure by another function."""
    it.trainer.trainer.compute_metrics = steep_metrics


def steep_metrics(_found: Any) -> dict[str, float]:
    """Return a metric."""
    return {"steep": 1.0}


KEPT = [
    collator, loss_function, no_loss_function, validation, noise,
]  # fmt: skip
"""What only this library has."""
BY_NAME.update({it.__name__: it for it in (*KEPT, generator, metrics)})


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
        data = trainer.train_dataset
        return Training(
            state.global_step + 1,
            trainer.model.net,
            trainer.optimizer,
            data.records if isinstance(data, Passing) else data,
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
        model, rung = Model(), Burning(run)
        data = Passing() if order.get("stream") else Records()
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        changing = Changing(order["change"], at_epoch=order.get("at_epoch", False))
        trainer = Weighing(
            model,
            transformers.TrainingArguments(
                output_dir="output",
                num_train_epochs=3,
                max_steps=9 if order.get("stream") else -1,
                eval_strategy="no" if order.get("stream") else "steps",
                eval_steps=3,
                per_device_train_batch_size=4,
                learning_rate=0.05,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
            eval_dataset={"easy": Records(), "hard": Records()},
            data_collator=Scaling(),
            compute_loss_func=Weighted(),
            callbacks=[changing, rung],
        )
        changing.trainer = trainer
        trainer.changing = changing
        rung.train(trainer)
        return {
            "told": told(model.net, data.records if isinstance(data, Passing) else data),
            "passes": data.passes if isinstance(data, Passing) else None,
            "around": [trainer.loss_weight, trainer.args.max_grad_norm, changing.factor],
            "drawn": random.random(),  # noqa: S311 - the generator's state
        }
