"""An experiment in a script or a notebook."""

import html
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import msgspec

from rung import api
from rung.client._error import ClientError, Conflict, NotFound
from rung.client._inputs import Code, encoded
from rung.client._plot import Plot, curves, history
from rung.client._table import flat, table, trial_rows, validation_rows

if TYPE_CHECKING:
    from rung.client._client import Describing, LogQuery, Resourcing
    from rung.client._sync import Client

Note = Callable[[api.Experiment], None]

_LOG_LINES: Final = 1000
_POINTS: Final = 200
"""How many of each trial are drawn."""
_KINDS: Final = ("training", "validation", "system")
"""Groups of metrics, in the order in which one is looked for; those of scripts come last."""
_TOP: Final = 5
"""How many trials a notebook shows."""


class Logs(list[api.LogLine]):
    """Printed lines; as a text, one after the other."""

    def __str__(self) -> str:
        return "\n".join(line.text for line in self)


@dataclass(frozen=True)
class Best:
    """The best trial of an experiment."""

    trial_id: str
    params: dict[str, Any]
    """Its hyperparameters."""
    metric: str
    value: float
    steps: int
    """After which it was validated with this value."""
    checkpoint: api.Checkpoint | None = field(repr=False)
    """The one of this validation; else the trial's best that is left, else the nearest to it."""
    checkpoint_value: float | None
    """The value at that checkpoint; None without one, and where it was not validated there."""
    checkpoint_note: str | None
    """Which checkpoint it is, where it is not the one of this validation."""
    _client: "Client" = field(repr=False, compare=False)

    def download(self, folder: str | os.PathLike[str]) -> Path:
        """Write the checkpoint's files to a new folder, and return it.

        Raises:
            Conflict: the trial has no checkpoint.
        """
        if self.checkpoint is None:
            raise Conflict(f"trial {self.trial_id} has no checkpoint: its script stored none")
        self._client.download(self.checkpoint.id, Path(folder))
        return Path(folder)


class ExperimentHandle:
    """An experiment; each attribute asks the server.

    `Client.submit` and `Client.handle` return it. Tables are a pandas DataFrame where pandas is
    installed, else lists of dicts with the same keys.
    """

    def __init__(self, client: "Client", experiment_id: str, warnings: list[str]) -> None:
        self._client = client
        self.id = experiment_id
        self.warnings = warnings
        """What the submission warned of."""

    @property
    def experiment_id(self) -> str:
        """Its id."""
        return self.id

    @property
    def url(self) -> str:
        """Its page."""
        return f"{self._client.url}/#/x/{self.id}"

    @property
    def detail(self) -> api.Experiment:
        """All that the API has about it: configuration, plan, trials."""
        return self._client.experiment(self.id)

    @property
    def state(self) -> str:
        """`active`, `paused`, `canceling`, `completed`, `errored` or `canceled`."""
        return self._client.experiment(self.id, trials="none").state

    @property
    def trials(self) -> Any:
        """A table: state, best value, steps and hyperparameters (`params.NAME`) of each trial."""
        detail = self.detail
        metric = _metric(detail)
        return table(trial_rows(detail.trials, metric), ("trial", "state", metric, "steps"))

    @property
    def validations(self) -> Any:
        """A table: each validation of each trial, with all its metrics."""
        return table(validation_rows(self._client.trials(self.id)), ("trial", "steps"))

    @property
    def checkpoints(self) -> list[api.Checkpoint]:
        """Its checkpoints, also deleted ones; `state` tells."""
        return self._client.checkpoints(self.id)

    def curves(self, name: str, *, kind: str | None = None, points: int = 1000) -> Any:
        """Return a table of one metric of all trials: trial, steps, value, time.

        Args:
            name: of the metric.
            kind: `training`, `validation`, `system`, or a group of the script's own; by default
                the first of these that has the metric.
            points: how many of each trial; of more, a selection.

        Raises:
            NotFound: the trials have reported others; the message names them.
        """
        found = self._found_curves(name, kind, points).curves
        rows = [
            {"trial": trial, "steps": step, name: float(value), "time_ms": at}
            for trial, line in found.items()
            for step, value, at in line
        ]
        return table(rows, ("trial", "steps", name, "time_ms"))

    def _found_curves(self, name: str, kind: str | None, points: int) -> api.ExperimentCurves:
        found = self._client.curves(self.id, kind=kind or _KINDS[0], name=name, points=points)
        kinds = sorted((it.kind for it in found.names if it.name == name), key=_place_of_kind)
        if any(found.curves.values()) or not found.names or kind in kinds:
            return found
        if kind is None and kinds:
            return self._client.curves(self.id, kind=kinds[0], name=name, points=points)
        shown = [it for it in found.names if it.kind != "system" or kind == "system"]
        others = ", ".join(f"{it.name} ({it.kind})" for it in shown)
        wanted = name if kind is None else f"{name} ({kind})"
        raise NotFound(f"no trial of {self.id} has reported {wanted}; reported were: {others}")

    def best(self) -> Best:
        """Return the best trial.

        Raises:
            ClientError: no trial was validated yet.
        """
        found = self._client.best(self.id)
        value = found.checkpoint_value
        return Best(
            trial_id=found.trial.id,
            params=found.hparams,
            metric=found.metric,
            value=found.value,
            steps=found.steps,
            checkpoint=found.checkpoint,
            checkpoint_value=None if value is None else float(value),
            checkpoint_note=found.checkpoint_note,
            _client=self._client,
        )

    def download(
        self, folder: str | os.PathLike[str], *, checkpoint_id: str | None = None
    ) -> Path:
        """Write a checkpoint's files, by default the best trial's, to a new folder."""
        if checkpoint_id is None:
            return self.best().download(folder)
        self._client.download(checkpoint_id, Path(folder))
        return Path(folder)

    def logs(self, trial: int | str | None = None, **query: "Unpack[LogQuery]") -> Logs:
        """Return the last 1,000 printed lines, or others; `print` shows them as text.

        Args:
            trial: only of this trial, by its number or id.
            query: as for `Client.logs`; `limit` is how many lines.
        """
        owner = self.id if trial is None else self._trial_id(trial)
        asked: LogQuery = {"order": "newest", "limit": _LOG_LINES, **query}
        lines = self._client.logs(owner, **asked).items
        return Logs(reversed(lines) if asked["order"] == "newest" else lines)

    def wait(
        self,
        timeout: float | None = None,
        *,
        raise_on_error: bool = True,
        note: Note | None = None,
    ) -> Self:
        """Return once the experiment ended; the server may be restarted meanwhile.

        Ctrl-C ends the waiting, not the experiment.

        Args:
            timeout: seconds to wait at most.
            raise_on_error: whether an experiment that errored, or was canceled, is an error.
            note: called with the experiment after each change.

        Raises:
            TimeoutError: it has not ended within the time.
            ExperimentFailed: it errored or was canceled; with the script's traceback.
        """
        ended = self._client.wait(self.id, timeout_s=timeout, note=note)
        if raise_on_error and ended.state != "completed":
            raise self._client.failure(ended)
        return self

    def pause(self) -> None:
        """Request that its trials checkpoint and leave their slots."""
        self._client.ask("pause", self.id)

    def resume(self) -> None:
        """Request that it goes on after a pause."""
        self._client.ask("resume", self.id)

    def cancel(self) -> None:
        """Request that it ends; trials checkpoint first."""
        self._client.ask("cancel", self.id)

    def kill(self) -> None:
        """Request that it ends at once."""
        self._client.ask("kill", self.id)

    def kill_trial(self, trial: int | str) -> None:
        """Request that one trial, by its number or id, ends at once; the search goes on."""
        self._client.kill_trial(self._trial_id(trial))

    def move_trial(self, trial: int | str, *, to: str | None = None) -> None:
        """Request that a trial checkpoints and resumes on another agent."""
        self._client.move(self._trial_id(trial), to=to)

    def extend(
        self, *, trials: int | None = None, max_time: int | None = None
    ) -> "ExperimentHandle":
        """Give the search more trials, or a longer length.

        Returns the experiment that trains them: this one, or a new one if this has ended.

        Args:
            trials: how many there are to be in all.
            max_time: in place of that, how far each is to train.

        Raises:
            ClientError: the search's method cannot have more.
        """
        extended = self._client.extend(self.id, trials=trials, max_time=max_time)
        if extended.experiment_id == self.id:
            return self
        return ExperimentHandle(self._client, extended.experiment_id, [])

    def fork(
        self,
        changes: Mapping[str, Any] | None = None,
        *,
        code: Code | None = None,
        follow_links: bool = False,
        workspace: str | None = None,
        project: str | None = None,
    ) -> "ExperimentHandle":
        """Submit the experiment once more, with changes, and return the new one.

        Args:
            changes: dotted path of a field in its file, such as `searcher.max_trials` → value.
            code: a folder in place of its code.
            follow_links: as for `Client.submit`.
            workspace: where it goes; absent: where this one is, unless the changes say so.
            project: of the workspace.

        Raises:
            InvalidChange: there is no such field.
            Invalid: the experiment is refused; `errors` lists every problem.
        """
        from rung.config.change import changed  # noqa: PLC0415 - a tenth of a second

        detail = self.detail
        values: dict[str, Any] = msgspec.json.decode(encoded(changes or {}))
        file = changed(detail.source, values) if values else detail.source
        if code is None and detail.code_digest is not None:
            code = self._client.code(self.id)
        return self._client.submit(
            file.encode(),
            code,
            follow_links=follow_links,
            parent=self.id,
            workspace=workspace,
            project=project,
        )

    def move(self, *, workspace: str | None = None, project: str | None = None) -> api.Moved:
        """Move it to another workspace, or to another project of its own."""
        return self._client.move_experiment(self.id, workspace=workspace, project=project)

    def code(self, folder: str | os.PathLike[str]) -> Path:
        """Write its code, as it ran, to a new folder, and return that.

        Raises:
            NotFound: it was submitted without code, or the code is gone.
            ClientError: the folder is not empty.
        """
        from rung.config.code_archive import unpack  # noqa: PLC0415 - only for code

        target = Path(folder)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ClientError(f"{target} is not empty; choose another folder")
        archive = self._client.code(self.id)
        target.mkdir(parents=True, exist_ok=True)
        unpack(archive, target.resolve())
        return target

    def describe(self, **wanted: "Unpack[Describing]") -> api.Description:
        """Change its name, description, labels or notes, or archive it, as `Client.describe`."""
        return self._client.describe(self.id, **wanted)

    def set_resources(self, **wanted: "Unpack[Resourcing]") -> api.Resources:
        """Change its pool, priority, weight or limits, as `Client.set_resources`."""
        return self._client.set_resources(self.id, **wanted)

    def change_retention(
        self,
        *,
        save_experiment_best: int | None = None,
        save_trial_best: int | None = None,
        save_trial_latest: int | None = None,
        dry_run: bool = False,
    ) -> api.RetentionAnswer:
        """Change which checkpoints are kept, as `Client.change_retention`; others are deleted."""
        return self._client.change_retention(
            self.id,
            save_experiment_best=save_experiment_best,
            save_trial_best=save_trial_best,
            save_trial_latest=save_trial_latest,
            dry_run=dry_run,
        )

    def restore(self) -> api.Requested:
        """Take its deletion back.

        Raises:
            Conflict: it is not deleted.
            NotFound: it is deleted for good.
        """
        return self._client.restore_experiment(self.id)

    def delete(
        self, *, force: bool = False, dry_run: bool = False, now: bool = False
    ) -> api.ExperimentDeletion:
        """Delete it, once it has ended: its checkpoints, metrics and log lines.

        `restore` takes that back until `restorable_until` of the answer.

        Args:
            force: also if experiments that have ended started from its checkpoints.
            dry_run: only return what would be deleted, and what depends on it.
            now: at once: nothing brings it back.

        Raises:
            Conflict: it has not ended, or something depends on it.
        """
        return self._client.delete_experiment(self.id, force=force, dry_run=dry_run, now=now)

    def plot(self, metric: str | None = None, *, kind: str | None = None) -> Plot:
        """Return a picture: a curve for each trial, or a dot where each was validated once.

        Args:
            metric: its name; the searcher's by default.
            kind: `validation`, `training`, `system`, which is drawn over the seconds since its
                first reading, or another group of metrics; by default `validation`, else the
                first that has the metric.

        Raises:
            NotFound: the trials have reported others; the message names them.
        """
        detail = self.detail
        name = metric or _metric(detail)
        title = f"{detail.name} ({detail.id})"
        best = detail.best.trial_id if detail.best else None
        if kind in {None, "validation"}:
            lines = {
                trial.id: [
                    (float(at.steps), float(at.metrics[name]))
                    for at in trial.validations
                    if name in at.metrics
                ]
                for trial in self._client.trials(self.id)
            }
            if any(len(points) > 1 for points in lines.values()):
                return curves(lines, best=best, metric=name, steps="steps", title=title)
            if any(lines.values()) or metric is None:
                dots = [
                    (trial.id, float(trial.index), lines[trial.id][0][1])
                    for trial in detail.trials
                    if lines.get(trial.id)
                ]
                return history(dots, smaller_is_better=_smaller(detail), metric=name, title=title)
        found = self._found_curves(name, kind, _POINTS)
        timed = found.kind == "system"
        begun = min((at for line in found.curves.values() for *_, at in line), default=0)
        lines = {
            trial: [
                ((at - begun) / 1000 if timed else float(step), float(value))
                for step, value, at in line
            ]
            for trial, line in found.curves.items()
        }
        steps = "seconds" if timed else "steps"
        return curves(lines, best=best, metric=name, steps=steps, title=title)

    def _trial_id(self, trial: int | str) -> str:
        return f"{self.id}.{trial}" if isinstance(trial, int) else trial

    def __repr__(self) -> str:
        return f"<experiment {self.id}>"

    def _repr_html_(self) -> str:
        """Return state, best trials and a link, for a notebook."""
        return summary_html(self._client.experiment(self.id, trials="top"), self.url)


def summary_html(experiment: api.Experiment, url: str) -> str:
    """Return an experiment with its best trials as HTML."""
    metric, smaller = _metric(experiment), _smaller(experiment)
    ranked = sorted(
        (trial for trial in experiment.trials if trial.best),
        key=lambda trial: (trial.best.value if trial.best else 0.0) * (1 if smaller else -1),
    )
    rows = [_row(trial) for trial in ranked[:_TOP]]
    cells = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    count = experiment.trial_count
    facts = [
        experiment.method,
        experiment.state,
        f"{experiment.progress:.0%}",
        f"{count} trial{'' if count == 1 else 's'}",
        experiment.reason or "",
    ]
    line = html.escape(" · ".join(fact for fact in facts if fact))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("trial", "state", metric, ""))
    body = f"<table><tr>{head}</tr>{cells}</table>" if rows else ""
    name = html.escape(f"{experiment.name} ({experiment.id})")
    return f'<p><a href="{html.escape(url)}"><b>{name}</b></a><br>{line}</p>{body}'


def _place_of_kind(kind: str) -> int:
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def _row(trial: api.Trial) -> list[str]:
    params = ", ".join(f"{name}={_short(value)}" for name, value in flat(trial.hparams).items())
    return [trial.id, trial.state, f"{trial.best.value:.5g}" if trial.best else "", params]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _metric(experiment: api.Experiment) -> str:
    return str((experiment.config.get("searcher") or {}).get("metric", "metric"))


def _smaller(experiment: api.Experiment) -> bool:
    return bool((experiment.config.get("searcher") or {}).get("smaller_is_better", True))
