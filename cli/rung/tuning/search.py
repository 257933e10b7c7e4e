"""`rung.tune`: searches the hyperparameters of a Python function."""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import click

from rung.client import Client, Conflict, Experiment, ExperimentHandle, Unreachable
from rung.events import RungError
from rung.function.code_folder import ENTRYPOINT
from rung.methods.asha import DIVISOR
from rung.methods.rungs import rungs_within
from rung.methods.table import options_named
from rung.tuning.display import Show, shown
from rung.tuning.installation import Installation, installation
from rung.tuning.packing import name_of, packed, takes_run
from rung.tuning.result import TuneResult
from rung.tuning.space import hyperparameters

FAILURES_MAX: Final = 3
"""So many failed trials, and none with a result, end the search."""
_RUNGS_MAX: Final = 5

Function = Callable[..., Any]


class InvalidSearch(RungError):
    """A search that cannot be as it was asked for; the message says what to write."""


def tune(  # noqa: PLR0913 - a search has so many sides, each with a default
    function: Function,
    space: Mapping[str, Any],
    *,
    metric: str = "loss",
    mode: Literal["min", "max"] | None = None,
    trials: int = 50,
    length: int | None = None,
    method: str | Mapping[str, Any] | None = None,
    slots: int = 1,
    concurrent: int | None = None,
    seed: int | None = None,
    name: str | None = None,
    code: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
    client: Client | None = None,
    wait: bool = True,
    quiet: bool = False,
) -> TuneResult:
    """Search the hyperparameters of a function and return the result.

    The search is an experiment as any other: it runs on the Rung that the environment names
    (`RUNG_URL`, `RUNG_DATA`, or `~/.rung`), and is on its page. If none runs on this machine, one
    is started, which ends with this process.

    Ctrl-C pauses the search, so that nothing trains any more and nothing is lost:
    `rung resume ID` continues it. If this process is killed, a search on a Rung of its own
    goes on; one on a Rung that this call started stops, and goes on when Rung is started again.

    Args:
        function: `train(params)`, which returns the metric, or several by name; or
            `train(params, run)`, which reports it (`run.report(loss=…)`) in `for step in run:`,
            may be stopped early, and can store checkpoints.
        space: parameters by name: `rung.uniform`, `rung.loguniform`, `rung.randint`, a list or
            `rung.choice` for a choice, a value for itself, a dict for a group, or a map as in an
            experiment file.
        metric: the name of what is optimised.
        mode: `min` if smaller is better, else `max`; by default `min`, with a warning if the
            metric's name says otherwise.
        trials: how many to train; a grid has as many as it has points.
        length: how many steps, such as epochs, `for step in run:` has.
        method: `random`, `asha`, `adaptive_asha`, `hyperband`, `grid`, or the section `searcher`
            of an experiment file; by default `asha` with a length, else `random`.
        slots: of each trial.
        concurrent: how many trials train at once; 0: as many as there are slots.
        seed: of the search and, through it, of each trial.
        name: of the experiment; by default the function's.
        code: a folder to send with the function, which runs in a copy of it. By default the
            folder of the modules that the function uses, if they are not installed.
        config: further fields of an experiment file.
        client: of the Rung to use.
        wait: whether to wait for the end.
        quiet: whether to show no progress.

    Raises:
        ExperimentFailed: no trial had a result; with the traceback of the function.
        InvalidFunction: the function, or what it captures, cannot be sent.
        InvalidSpace: something in the space is neither a parameter nor a value.
        InvalidSearch: the options do not fit together.
        ClientError: the experiment was refused.
    """
    if mode not in {None, "min", "max"}:
        raise InvalidSearch(f"mode={mode!r}: write 'min' if a smaller value is better, or 'max'")
    fields = {
        "name": name or name_of(function),
        "entrypoint": ENTRYPOINT,
        "hyperparameters": hyperparameters(space),
        "searcher": {
            "metric": metric,
            **({} if mode is None else {"smaller_is_better": mode == "min"}),
            **_searcher(method, trials, length, reports=takes_run(function)),
            **({} if concurrent is None else {"max_concurrent_trials": concurrent}),
        },
        "resources": {"slots_per_trial": slots},
        "max_restarts": 0,
        **({} if seed is None else {"reproducibility": {"experiment_seed": seed}}),
    }
    archive = packed(function, None if code is None else Path(code).expanduser())
    own = installation() if client is None else None
    client = own.client() if own is not None else client
    assert client is not None
    experiment = client.submit(_merged(fields, config or {}), archive.data)
    for warning in experiment.warnings:
        click.echo(f"rung: warning: {warning}", err=True)
    if not quiet:
        click.echo(f"rung: experiment {experiment.id}; its page: {experiment.url}", err=True)
    if wait:
        _wait(client, experiment, own, quiet=quiet)
    return TuneResult(experiment)


def _searcher(
    method: str | Mapping[str, Any] | None, trials: int, length: int | None, *, reports: bool
) -> dict[str, Any]:
    """Return the section `searcher` without the metric.

    Raises:
        InvalidSearch: the method does not fit the function.
    """
    if length is not None and not reports:
        raise InvalidSearch(
            f"length={length}: a function of `params` alone reports nothing on its way; write"
            " `def train(params, run)` with `for step in run: …; run.report(…)`"
        )
    given: dict[str, Any] = dict(method) if isinstance(method, Mapping) else {"name": method}
    given["name"] = given.get("name") or ("random" if length is None else "async_halving")
    options = options_named(given["name"])
    if options is None:
        return given  # refused where it is submitted, with the names that there are
    fields = set(options.__struct_fields__)
    if options.NEEDS_TIME and length is None and not {"max_time", "max_length"} & given.keys():
        raise InvalidSearch(
            f"method={given['name']!r} compares trials on their way: write `def train(params,"
            " run)` with `for step in run: …; run.report(…)`, and give a length"
        )
    if "max_length" not in given:
        given.setdefault("time_metric", "steps")
        time = (1 if not reports else None) if length is None else length
        if time is not None:
            given.setdefault("max_time", time)
    if "max_trials" in fields:
        given.setdefault("max_trials", trials)
    if "num_rungs" in fields and length is not None:
        divisor = given.get("divisor", DIVISOR)
        given.setdefault("num_rungs", rungs_within(length, divisor, _RUNGS_MAX))
    return given


def _merged(fields: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with others, section by section."""
    merged = dict(fields)
    for name, value in more.items():
        before = merged.get(name)
        inner = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = {**before, **value} if inner and before is not None else value
    return merged


class _AllFail(Exception):
    """Every trial fails."""


def _wait(
    client: Client, experiment: ExperimentHandle, own: Installation | None, *, quiet: bool
) -> None:
    """Show an experiment until it ended.

    Raises:
        ExperimentFailed: no trial had a result.
        KeyboardInterrupt: Ctrl-C, after the experiment was paused.
    """
    try:
        with shown(experiment.url, quiet=quiet) as show:
            ended = _watched(client, experiment, own, show)
    except KeyboardInterrupt:
        _pause(experiment)
        raise
    if ended.state != "completed" or ended.best is None:
        raise client.failure(ended)
    if not quiet:
        best = ended.best
        click.echo(f"rung: best {best.metric} {best.value:.5g} by {best.trial_id}", err=True)


def _watched(
    client: Client, experiment: ExperimentHandle, own: Installation | None, show: Show
) -> Experiment:
    """Return an experiment once it ended, or every trial fails and it was killed."""

    def note(found: Experiment) -> None:
        show(found)
        failed = found.trial_states.get("errored", 0)
        if failed >= FAILURES_MAX and found.best is None and found.ended_at is None:
            raise _AllFail

    while True:
        try:
            return client.wait(experiment.id, note=note, trials="top")
        except _AllFail:
            with contextlib.suppress(Conflict):  # it has ended by itself meanwhile
                experiment.kill()
            raise client.failure(client.wait(experiment.id)) from None
        except Unreachable:
            if own is None or not own.is_here:
                raise
            own.ensure()


def _pause(experiment: ExperimentHandle) -> None:
    """Pause an experiment after Ctrl-C, and say how it goes on."""
    try:
        experiment.pause()
    except RungError as error:
        click.echo(f"rung: experiment {experiment.id} goes on: {error}", err=True)
        return
    click.echo(
        f"rung: experiment {experiment.id} is paused, and nothing is lost: `rung resume"
        f" {experiment.id}` continues it, `rung cancel {experiment.id}` ends it",
        err=True,
    )
    sys.stderr.flush()
