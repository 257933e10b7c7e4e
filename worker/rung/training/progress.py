"""The progress of a trial in a framework's own loop, and what is due there.

The adapter calls the tracker after every batch, epoch and validation; the tracker reports, says
when to checkpoint and when to end, and keeps its own state in `course.json` of every checkpoint.
What is noted of a moment goes into the checkpoint of that moment, so a checkpoint is to be stored
after everything else that happens there.
"""

import contextlib
import copy
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rung import core
from rung.training.checkpoint_schedule import CheckpointSchedule
from rung.training.continuation import is_own, log_place
from rung.training.data_wait import GROUP, DataWait
from rung.training.determinism import Machine
from rung.training.errors import NotResumable
from rung.training.plan import Progress, due, make_plan
from rung.training.units import Batch, Epoch, Record

T = TypeVar("T")
FILE: Final = "course.json"
_ENDLESS: Final = 1 << 60
_trained: Final = weakref.WeakSet[core.Context]()


def begin_training(run: core.Context, call: str) -> None:
    """Note that a run trains, and refuse a second call: checkpoints do not identify the call.

    Args:
        run: what `init` returned.
        call: what the script calls to train.

    Raises:
        NotResumable: the run has trained already.
    """
    if run in _trained:
        raise NotResumable(
            f"this run has called {call} before, and a resumed run could not tell which call to "
            "resume: train in one call, or in one experiment per call, each starting from the "
            "checkpoint of the one before"
        )
    _trained.add(run)


class ProgressTracker:
    """The progress of a trial in one run."""

    def __init__(
        self,
        run: core.Context,
        framework: str,
        machine: Callable[[], dict[str, str]],
        *,
        each_epoch: bool = True,
    ) -> None:
        """Begin at the trial's beginning; `found` continues from a checkpoint.

        Args:
            run: what `init` returned.
            framework: name and version, stored with each checkpoint.
            machine: returns properties of the machine on which results depend.
            each_epoch: as of `make_plan`.
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
            each_epoch=each_epoch,
        )
        self.progress = Progress()
        self._machine: Final = Machine(framework, machine)
        self._before = Progress()
        self._validation: dict[str, Any] | None = None
        self._wanted = False
        self._overdue = False
        self._schedule: Final = CheckpointSchedule(
            automatic=self.plan.automatic and run.info.managed and run.distributed.is_chief
        )
        self._stored_at: tuple[int, int] | None = None
        self._wait = DataWait()
        self._fetched = False

    @property
    def complete(self) -> bool:
        """Whether the run has reached its length."""
        return self.plan.complete(self.progress)

    @property
    def leaving(self) -> bool:
        """Whether to checkpoint and exit now; to be read before `checkpoint_due`.

        All ranks must read it, and get the chief's answer, after which a checkpoint may be due.
        """
        if self.complete:
            return True
        run, schedule = self.run, self._schedule
        leave, overdue = run.preempt.agree(schedule.due(storing=run.checkpoint.storing))
        schedule.tell(run.train, self.progress.batches)
        self._wanted |= overdue
        return leave

    @property
    def epochs(self) -> int | None:
        """The epoch at which the run ends; None where its length has another unit."""
        for length in self.plan.lengths:
            if isinstance(length, Epoch) and length.value < _ENDLESS:
                return length.value
        return None

    @property
    def batches(self) -> int | None:
        """The batch at which the run ends; None where its length has another unit."""
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
        """Return the data of the next step from `following`, and measure the time that it takes.

        `data_wait_fraction` is reported for loops that fetch their data by this.
        """
        batch = self._wait.batch(following)
        self._fetched = True
        return batch

    def batch_done(self, count: int = 1, records: int = 0) -> None:
        """Count trained batches and their records."""
        self.alive()
        self._machine.log_differences()
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
        """Report progress without a step, for example within a validation."""
        self.run.train.heartbeat()

    def epoch_done(self) -> None:
        """Count an epoch."""
        progress = self._forward()
        progress.epochs += 1
        progress.batch_in_epoch = progress.records_in_epoch = 0
        self._note(progress)

    @property
    def report_due(self) -> bool:
        """Whether the last batch or epoch ended a reporting period."""
        return due(self.plan.reporting_period, self._before, self.progress)

    @property
    def validation_due(self) -> bool:
        """Whether a validation period ended, or a rung or the length was reached."""
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
        """Report a validation, and note whether the policy requires a checkpoint of it.

        All ranks must call this; the chief's metrics count.
        """
        ranks = self.run.distributed
        if ranks.size > 1:
            metrics = ranks.broadcast({name: float(value) for name, value in metrics.items()})
        progress = self.progress
        counted = {"batches": progress.batches, "epochs": progress.epochs}
        if progress.records:  # not known with Keras
            counted["records"] = progress.records
        values = counted | self._named(metrics)
        self.run.train.report_validation_metrics(progress.batches, values)
        self._overdue = False
        self._validation = {name: float(value) for name, value in values.items()}
        self._wanted |= self.plan.validated(progress, values)

    def report_validation_again(self) -> None:
        """Report the last validation again: the run was killed before it had exited."""
        if self._validation is not None:
            self.run.train.report_validation_metrics(self.progress.batches, self._validation)

    @property
    def checkpoint_due(self) -> bool:
        """Whether to store a checkpoint now."""
        return self._wanted and self._stored_at != self.progress.moment()

    def store(self, write: Callable[[Path], None], began: float | None = None) -> None:
        """Store a checkpoint of this moment, unless there is one.

        Nor is one stored only to leave where the search has stopped the trial and it has one.
        The loop waits for `write`, and for the checkpoint before; the folder is digested and
        stored behind the next steps. A run that leaves ends when that is done.

        Args:
            write: fills the folder.
            began: when the framework began to save, by `time.monotonic`; None: with `write`.
        """
        wanted, self._wanted = self._wanted, False
        needless = self.run.preempt.final and self._stored_at is not None and not wanted
        if needless or self._stored_at == self.progress.moment():
            return
        self._stored_at = self.progress.moment()
        metadata = {"framework": self.framework, "epochs": self.progress.epochs}
        steps = self.progress.batches
        self.run.checkpoint.wait()
        storing = self.run.checkpoint.store_path_async(metadata, steps_completed=steps)
        with self._schedule.holding(began), storing as (folder, _):
            write(folder)
            text = json.dumps(self._state())  # knows NaN, which a metric may be
            (folder / FILE).write_text(text, encoding="utf-8")

    @contextlib.contextmanager
    def found(self) -> Iterator[tuple[Path, bool] | None]:
        """Yield the folder of the checkpoint to resume from, and whether it is resumed whole.

        None if there is none. Of one that is not, only weights are to be used.
        """
        checkpoint_id = self.run.checkpoint.download_latest()
        if checkpoint_id is None:
            yield None
            return
        with self.run.checkpoint.restore_path(checkpoint_id) as brought:
            # A copy, because frameworks read it when their own loop begins, after this block.
            folder = Path(tempfile.mkdtemp(prefix="found-", dir=brought.parent))
            shutil.copytree(brought, folder, copy_function=os.link, dirs_exist_ok=True)
            state = json.loads((folder / FILE).read_text(encoding="utf-8"))
            own = is_own(self.run, state["trial_id"])
            if own:
                self.progress = msgspec.convert(state["progress"], Progress)
                self._validation = state["validation"]
                self._stored_at = self.progress.moment()
                log_place(self.run, self.progress.batches, checkpoint_id)
                if self.run.distributed.is_chief:
                    self._machine.resume_from(state.get("machine"))
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
        """Note what became due; a loop may have to postpone it to the end of its epoch."""
        self._wanted |= due(self.plan.checkpoint_period, self._before, progress)
        self._overdue |= self.plan.validates(self._before, progress)

    def _forward(self) -> Progress:
        self._before = copy.copy(self.progress)
        return self.progress

    def _named(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics, with the searcher's also by its name in the experiment file.

        Frameworks prefix the names of validation metrics: `val_loss`, `eval_loss`.
        """
        values = dict(metrics)
        wanted = self.plan.metric
        if wanted is not None and wanted not in values:
            for prefix in ("val_", "eval_"):
                if f"{prefix}{wanted}" in values:
                    values[wanted] = values[f"{prefix}{wanted}"]
        return values
