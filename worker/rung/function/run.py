"""`run`, the second parameter of a function: reports, checkpoints, early stopping."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rung import core


class NoResult(Exception):
    """A function that did not return or report what the search needs."""


class Leaving(BaseException):
    """Ends a function that has a loop of its own and was asked to leave."""


class Run:
    """The trial that calls the function.

    Attributes:
        params: the hyperparameters.
        step: how many steps are done, the one that is under way included.
        context: the trial's `rung.core.Context`, for what is not here.
    """

    def __init__(self, context: core.Context) -> None:
        self.context = context
        self.params = context.hparams
        self.step = 0
        self._looping = False
        self._ending = False
        self._validated: int | None = None
        self._other: dict[str, None] = {}
        self._stack = contextlib.ExitStack()
        self._resumed: Path | None = None
        self._looked = False
        trial = context.info.trial
        self._metric = str((trial.config.get("searcher") or {}).get("metric", "loss"))

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        return self.context.info.trial.trial_id

    @property
    def seed(self) -> int:
        """The trial's seed; Python's, NumPy's and torch's generators were seeded with it."""
        return self.context.seed

    @property
    def length(self) -> int | None:
        """How many steps to train at most: the `length` of `rung.tune`, or a part of it."""
        return self.context.info.trial.length

    @property
    def resumed(self) -> Path | None:
        """The folder with the files of the newest checkpoint, None at the first start.

        Once this was read, the loop over the run begins after the checkpoint's step.
        """
        if not self._looked:
            self._looked = True
            latest = self.context.checkpoint.download_latest()
            if latest is not None:
                restored = self.context.checkpoint.restore_path(latest)
                self._resumed = self._stack.enter_context(restored)
                self.step = self.context.checkpoint.get_metadata(latest)["steps_completed"]
        return self._resumed

    @property
    def ending(self) -> bool:
        """Whether the loop ends after this step: a checkpoint belongs here."""
        self._ending = self._ending or self.context.preempt.should_preempt()
        return self._ending

    def __iter__(self) -> Iterator[int]:
        """Yield the steps that are left, counted from 0, until the trial is to end.

        Raises:
            TypeError: the search has no length.
        """
        if self.length is None:
            raise TypeError(
                "this search has no length to loop over: call `rung.tune(…, length=30)`,"
                " or use a loop of your own"
            )
        self._looping = True
        while self.step < self.length and not self.ending:
            self.step += 1
            yield self.step - 1

    def report(
        self,
        metrics: float | Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        **named: Any,
    ) -> None:
        """Report metrics of this step.

        With the search's metric among them they are a validation, by which the search decides;
        else they are shown with the training metrics.

        Args:
            metrics: the search's metric, or several by name.
            step: how many steps are done; by default the loop's, or in a loop of your own the
                number of this report.
            named: metrics by name.
        """
        if self._ending and not self._looping:
            raise Leaving
        if isinstance(metrics, Mapping):
            values = {**metrics, **named}
        else:
            values = dict(named) if metrics is None else {self._metric: metrics, **named}
        if step is not None:
            self.step = step
        elif not self._looping:
            self.step += 1
        self._send(values)
        if not self._looping:
            self._ending = self.ending

    @contextlib.contextmanager
    def checkpoint(self) -> Iterator[Path]:
        """Yield a folder to write to; after the block it is stored while training goes on."""
        store = self.context.checkpoint.store_path_async
        with store(steps_completed=self.step) as (folder, _):
            yield folder

    def finish(self, returned: Any) -> None:
        """Report what the function returned, and check that the metric was reported.

        Raises:
            NoResult: the search's metric is not among what it returned, or was never reported.
        """
        self.close()
        if returned is not None and self._validated != max(self.step, 1):
            self.step = max(self.step, 1)
            values = dict(returned) if isinstance(returned, Mapping) else {self._metric: returned}
            if self._metric not in values:
                raise NoResult(
                    f"the function returned {', '.join(map(repr, values)) or 'nothing'} and not"
                    f" {self._metric!r}, the metric of the search"
                )
            self._send(values)
        if self._validated is None and not self._ending:
            raise NoResult(self._missing())

    def close(self) -> None:
        """Remove the files of the checkpoint that the trial began with."""
        self._stack.close()

    def _send(self, values: Mapping[str, Any]) -> None:
        if self._metric in values:
            self.context.train.report_validation_metrics(self.step, values)
            self._validated = self.step
        else:
            self._other.update(dict.fromkeys(values))
            self.context.train.report_training_metrics(self.step, values)

    def _missing(self) -> str:
        if self._other:
            given = ", ".join(map(repr, self._other))
            return f"the function reported {given} and never {self._metric!r}, the metric"
        return (
            f"the function returned nothing and reported nothing: return {self._metric!r} as a"
            f" number, or call `run.report({self._metric}=…)`"
        )
