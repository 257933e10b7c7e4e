"""A Transformers trial whose callbacks change the model and have states of their own.

An order names the callbacks, in their order; with `logs` a step logs a metric of its own, and
`odd` names a part that has a state which no checkpoint can contain.
"""

import random
from typing import Any

import structlog.testing
import torch
import transformers
from torch import nn
from transformers.trainer_callback import ExportableState

from rung import transformers as rt
from support.frameworks.wild import Factor, Position, Wildness
from support.fuse import Fuse, after, before
from support.trials import runner


class Net(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def forward(self, x: Any, labels: Any = None) -> Any:
        """Return the loss, and what is predicted."""
        out = self.net(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Logging(transformers.Trainer):  # type: ignore[misc]  # may not be installed
    """Logs a metric of its own within each other step."""

    logs = False

    def compute_loss(self, model: Any, *others: Any, **more: Any) -> Any:
        """Return the loss."""
        step = self.state.global_step
        if self.logs and model.training and step % 2:
            self.log({"own": float(step)})
        return super().compute_loss(model, *others, **more)


class Wild(Wildness, transformers.TrainerCallback):  # type: ignore[misc]  # as above
    """Changes all that it can."""

    def on_train_begin(self, *_others: Any, optimizer: Any, **_more: Any) -> None:
        """Begin."""
        self.training_begins(optimizer)

    def on_epoch_begin(self, *_others: Any, model: Any, **_more: Any) -> None:
        """An epoch begins."""
        self.epoch_begins(model)

    def on_step_begin(self, *_others: Any, optimizer: Any, **_more: Any) -> None:
        """A step begins."""
        self.step_begins(optimizer)

    def on_step_end(self, *_others: Any, model: Any, **_more: Any) -> None:
        """A step ends."""
        self.step_ends(model)


class Iterating(Position, transformers.TrainerCallback):  # type: ignore[misc]  # as above
    """Cannot be kept."""


class Exporting(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # as above
    """Exports what JSON does not give back."""

    def state(self) -> dict[str, Any]:
        """Return it."""
        return {"args": {}, "attributes": {"seen": {"words": {1, 2}}}}


class Extra(nn.Identity):
    """Has a state that is no tensor."""

    def get_extra_state(self) -> Any:
        """Return it."""
        return {1, 2}

    def set_extra_state(self, _state: Any) -> None:
        """Take it."""


def schedule(optimizer: Any) -> Any:
    """Return a schedule with a state that only pickle reads."""
    made: Any = torch.optim.lr_scheduler.ConstantLR(optimizer)
    made.factor = Factor()
    return made


class Collating:
    """A collator with a generator that nothing draws from."""

    def __init__(self) -> None:
        self.drawing = random.Random(3)  # noqa: S311 - a test's own

    def __call__(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch."""
        return {name: torch.stack([it[name] for it in records]) for name in records[0]}


class Thawing(transformers.TrainerCallback):  # type: ignore[misc]  # as above
    """Trains a layer only from the third epoch on, and drops out more."""

    def on_epoch_begin(self, _args: Any, state: Any, *_others: Any, model: Any, **_: Any) -> None:
        """Thaw it."""
        if state.epoch == 2:
            model.net[0].requires_grad_(requires_grad=True)
            model.net[1].p = 0.6


class Regrouping(transformers.TrainerCallback):  # type: ignore[misc]  # as above
    """Puts a parameter into another group."""

    def on_step_begin(
        self, _args: Any, state: Any, *_others: Any, optimizer: Any, **_: Any
    ) -> None:
        """Do it in the third step."""
        if state.global_step == 2:
            first, second = optimizer.param_groups
            second["params"].append(first["params"].pop())


class Burning(rt.Callback):
    """Asks the fuse before each step, and behind each checkpoint."""

    fuse = Fuse(None)

    def on_step_end(self, args: Any, state: Any, *others: Any, **more: Any) -> None:
        """One more step."""
        self.fuse.reach(before(state.global_step))
        super().on_step_end(args, state, *others, **more)

    def on_step_begin(self, _args: Any, state: Any, *_others: Any, **_more: Any) -> None:
        """The next step, after a checkpoint that may have been made."""
        self.fuse.reach(after(state.global_step))


def make(name: str) -> Any:
    """Return a callback."""
    match name:
        case "wild":
            return Wild()
        case "thawing":
            return Thawing()
        case "regrouping":
            return Regrouping()
        case "early":
            return transformers.EarlyStoppingCallback(100)
        case "exporting":
            return Exporting()
        case _:
            return Iterating()


def warm_up() -> None:
    """Pay once for what is imported at first use."""
    runner.warm_up()
    assert transformers.Trainer


def train(order: dict[str, Any]) -> dict[str, Any]:
    """Train as a run."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with rt.init() as run:
        model, rung = Net(), Burning(run)
        model.net[0].requires_grad_(requires_grad="thawing" not in order["callbacks"])
        rung.fuse = Fuse(order["moment"], run.checkpoint.wait)
        inputs = torch.linspace(-1, 1, 24).reshape(12, 2)
        data = [{"x": each, "labels": torch.ones(1)} for each in inputs]
        callbacks = {name: make(name) for name in order["callbacks"] if name != "rung"}
        odd = order.get("odd")
        if odd == "model":
            model.net.append(Extra())
        listed = [rung if name == "rung" else callbacks[name] for name in order["callbacks"]]
        trainer = Logging(
            model,
            transformers.TrainingArguments(
                output_dir="output",
                num_train_epochs=4,
                per_device_train_batch_size=4,
                learning_rate=0.05,
                logging_steps=1,
                eval_strategy="epoch",
                save_strategy="no",
                metric_for_best_model="loss",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=data,
            eval_dataset=data,
            data_collator=Collating() if odd == "collator" else None,
            callbacks=listed,
        )
        if odd == "scheduler":
            trainer.create_optimizer()
            trainer.lr_scheduler = schedule(trainer.optimizer)
        trainer.logs = order.get("logs", False)
        with structlog.testing.capture_logs() as log:
            rung.train(trainer)
        return {
            "warnings": [it["event"] for it in log if it["log_level"] == "warning" and odd],
            "weights": [each.detach().tolist() for each in model.parameters()],
            "rate": trainer.optimizer.param_groups[0]["lr"] if trainer.optimizer else None,
            "drawn": random.random(),  # noqa: S311 - the generator's state
            "states": {name: each.told() for name, each in callbacks.items() if name == "wild"},
        }
