"""How far a trial is in a loop that is not ours, and what is due there.

The loop's owner tells of every batch, epoch and validation; the course reports, says when to
checkpoint and when to leave, and keeps its own state in `course.json` of every checkpoint. What
it is told about the moment goes into the checkpoint of that moment, so a checkpoint is to be
stored after everything else that happens there.
"""

import contextlib
import copy
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rung import core
from rung.loop.exactness import Machine
from rung.torch import exactness, rng
from rung.torch.plan import Progress, due, make_plan
from rung.torch.unit import Batch, Epoch, Record
from rung.torch.waiting import GROUP, DataWait

T = TypeVar("T")
FILE: Final = "course.json"
_ENDLESS: Final = 1 << 60


class Course:
    """The way of one run through its trial."""

    def __init__(
        self,
        run: core.Context,
        framework: str,
        machine: Callable[[], dict[str, str]] = exactness.machine,
    ) -> None:
        """Begin at the trial's beginning; `found` leads on from a checkpoint.

        Args:
            run: what `init` returned.
            framework: name and version, kept with each checkpoint.
            machine: says what results depend on beside the script; by default what torch's do.
        """
        info = run.info.trial
        self.run: Final = run
        self.framework: Final = framework
        self.plan: Final = make_plan(
            info,
            max_length=None if info.length is not None else Epoch(_ENDLESS),
            validation_period=None,
            checkpoint_period=None,
            reporting_period=None,
            checkpoint_policy=None,
            step_zero_validation=None,
        )
        self.progress = Progress()
        self._machine: Final = Machine(framework, machine)
        self._before = Progress()
        self._validation: dict[str, Any] | None = None
        self._wanted = False
        self._overdue = False
        self._stored_at: tuple[int, int] | None = None
        self._wait = DataWait()
        self._fetched = False

    @property
    def complete(self) -> bool:
        """Whether the trial is as long as this run should make it."""
        return self.plan.complete(self.progress)

    @property
    def leaving(self) -> bool:
        """Whether to checkpoint and leave now."""
        return self.complete or self.run.preempt.should_preempt()

    @property
    def epochs(self) -> int | None:
        """At which epoch the run ends; None where its length is counted otherwise."""
        for length in self.plan.lengths:
            if isinstance(length, Epoch) and length.value < _ENDLESS:
                return length.value
        return None

    @property
    def batches(self) -> int | None:
        """At which batch the run ends; None where its length is counted otherwise."""
        for length in self.plan.lengths:
            if isinstance(length, Batch):
                return length.value
        return None

    @property
    def counts_records(self) -> bool:
        """Whether a length or a period of the run is in records."""
        plan = self.plan
        periods = (plan.validation_period, plan.checkpoint_period, plan.reporting_period)
        return any(isinstance(unit, Record) for unit in (*plan.lengths, *periods))

    def fetched(self, following: Callable[[], T]) -> T:
        """Return what `following` does, the data of the next step, and measure the time it takes.

        A loop that gets its data by this has `data_wait_fraction` reported.
        """
        batch = self._wait.batch(following)
        self._fetched = True
        return batch

    def batch_done(self, count: int = 1, records: int = 0) -> None:
        """Take note of batches trained, and of how many records they held."""
        self.alive()
        self._machine.tell_differences()
        if self._fetched:
            self._fetched = False
            self._wait.trained()
        progress = self._forward()
        progress.batches += count
        progress.batch_in_epoch += count
        progress.records += records
        progress.records_in_epoch += records
        self._note(progress)

    def alive(self) -> None:
        """Say that the run makes progress, where a batch is no step: in validations, say."""
        self.run.train.heartbeat()

    def epoch_done(self) -> None:
        """Take note of the end of an epoch."""
        progress = self._forward()
        progress.epochs += 1
        progress.batch_in_epoch = progress.records_in_epoch = 0
        self._note(progress)

    @property
    def report_due(self) -> bool:
        """Whether what happened last ends a reporting period."""
        return due(self.plan.reporting_period, self._before, self.progress)

    @property
    def validation_due(self) -> bool:
        """Whether a validation period ended, or a rung of the search or the length is reached."""
        if self.progress.validated_at == self.progress.moment():
            return False
        return self.complete or self._overdue

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Report metrics of the training set."""
        if metrics:
            self.run.train.report_training_metrics(self.progress.batches, metrics)
        if waited := self._wait.take():
            self.run.train.report_metrics(GROUP, self.progress.batches, waited)

    def validated(self, metrics: Mapping[str, Any]) -> None:
        """Report a validation, and remember whether the policy wants a checkpoint of it.

        All ranks must call this; the chief's metrics count.
        """
        ranks = self.run.distributed
        if ranks.size > 1:
            metrics = ranks.broadcast({name: float(value) for name, value in metrics.items()})
        progress = self.progress
        counted = {"batches": progress.batches, "epochs": progress.epochs}
        if progress.records:  # Keras does not say how many
            counted["records"] = progress.records
        values = counted | self._named(metrics)
        self.run.train.report_validation_metrics(progress.batches, values)
        progress.validated_at = progress.moment()
        self._overdue = False
        self._validation = {name: float(value) for name, value in values.items()}
        better = self._better(values)
        policy = self.plan.policy
        self._wanted |= policy == "all" or (policy == "best" and better)

    def validated_again(self) -> None:
        """Report the last validation once more: the run was killed on its way out."""
        if self._validation is not None:
            self.run.train.report_validation_metrics(self.progress.batches, self._validation)

    @property
    def checkpoint_due(self) -> bool:
        """Whether this moment is to be kept."""
        return self._wanted and self._stored_at != self.progress.moment()

    def store(self, write: Callable[[Path], None]) -> None:
        """Store a checkpoint of this moment, unless there is one; `write` fills its folder.

        The loop waits for `write`, and for the checkpoint before; the folder is digested and
        stored behind the next steps. A run that leaves ends when that is done.
        """
        self._wanted = False
        if self._stored_at == self.progress.moment():
            return
        self._stored_at = self.progress.moment()
        metadata = {"framework": self.framework, "epochs": self.progress.epochs}
        steps = self.progress.batches
        storing = self.run.checkpoint.store_path_async(metadata, steps_completed=steps)
        with storing as (folder, _):
            write(folder)
            text = json.dumps(self._state())  # knows NaN, which a metric may be
            (folder / FILE).write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def found(self) -> Iterator[tuple[Path, bool] | None]:
        """Yield the folder of the checkpoint to go on from, and whether it is this trial's own.

        None where the trial begins. Of another trial's checkpoint only weights are to be taken.
        """
        checkpoint_id = self.run.checkpoint.latest
        if checkpoint_id is None:
            yield None
            return
        with self.run.checkpoint.restore_path(checkpoint_id) as brought:
            # Frameworks read it when their own loop begins, after this: it stays with the run.
            folder = Path(tempfile.mkdtemp(prefix="found-", dir=brought.parent))
            shutil.copytree(brought, folder, copy_function=os.link, dirs_exist_ok=True)
            state = json.loads((folder / FILE).read_text(encoding="utf-8"))
            info = self.run.info
            own = not info.managed or state["trial_id"] == info.trial.trial_id
            if own:
                self.progress = msgspec.convert(state["progress"], Progress)
                self._validation = state["validation"]
                self._stored_at = self.progress.moment()
                if self.run.distributed.is_chief:
                    self._machine.goes_on_from(state.get("machine"))
            yield folder, own

    def _state(self) -> dict[str, Any]:
        return {
            "format": 1,
            "trial_id": self.run.info.trial.trial_id,
            "progress": msgspec.to_builtins(self.progress),
            "validation": self._validation,
            "machine": self._machine.state(),
        }

    def _note(self, progress: Progress) -> None:
        """Remember what became due; a loop may have to put it off to the end of its epoch."""
        self._wanted |= due(self.plan.checkpoint_period, self._before, progress)
        self._overdue |= self.plan.validates(self._before, progress)

    def _forward(self) -> Progress:
        self._before = copy.copy(self.progress)
        return self.progress

    def _named(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics, the searcher's also by the name that the experiment file gives it.

        Frameworks put a prefix before the names of a validation: `val_loss`, `eval_loss`.
        """
        values = dict(metrics)
        wanted = self.plan.metric
        if wanted is not None and wanted not in values:
            for prefix in ("val_", "eval_"):
                if f"{prefix}{wanted}" in values:
                    values[wanted] = values[f"{prefix}{wanted}"]
        return values

    def _better(self, values: Mapping[str, Any]) -> bool:
        metric = self.plan.metric
        if metric is None or metric not in values:
            return True
        value, best = float(values[metric]), self.progress.best
        if math.isnan(value):
            return False
        smaller = self.plan.smaller_is_better
        if best is None or (value < best if smaller else value > best):
            self.progress.best = value
            return True
        return False


def generators_to_json(generators: rng.Generators) -> dict[str, Any]:
    """Return the states of all global generators as JSON values."""
    found = rng.to_json(generators)
    found["torch"] = bytes(generators.torch.numpy()).hex()
    found["cuda"] = [bytes(state.numpy()).hex() for state in generators.cuda]
    return found


def generators_from_json(data: dict[str, Any]) -> rng.Generators:
    """Return what `generators_to_json` was given."""
    cuda = [_tensor(text) for text in data["cuda"]]
    return rng.from_json(data, _tensor(data["torch"]), cuda)


def _tensor(text: str) -> Any:
    import torch  # noqa: PLC0415 - rng has it imported; this keeps the module's own list short

    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
