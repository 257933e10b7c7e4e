"""`rung list`, `rung show`, `rung best`: experiments and trials."""

from collections.abc import Sequence
from typing import Any, Final

import click
import msgspec

from rung.cli.link import Link, experiment_argument, experiment_ids, linked
from rung.cli.output import (
    counted,
    duration,
    flat,
    local_time,
    number,
    print_facts,
    print_json,
    print_table,
    printable,
    seconds_between,
    share,
    size,
)
from rung.client import Checkpoint, Experiment, Trial

_STATES: Final = ("active", "paused", "canceling", "completed", "errored", "canceled")
_SORTS: Final = tuple(
    f"{order}{name}"
    for name in ("submitted", "ended", "name", "state", "actor", "trials")
    for order in ("", "-")
)
_TRIALS_SHOWN: Final = 100


@click.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Those in this state alone.")
@click.option("--label", help="Those with this label alone.")
@click.option("--name", help="Those of this name alone; `*` stands for any text.")
@click.option("--actor", help="Those that this one submitted.")
@click.option("--search", help="Words in the name, labels, description or hyperparameters.")
@click.option("--sort", type=click.Choice(_SORTS), help="By what; with - the greatest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many."
)
@click.option("--cursor", help="Go on where a page ended (`next_cursor` of --json).")
@linked
async def list_(link: Link, **asked: Any) -> None:
    """List experiments, the newest first."""
    async with link.client() as client:
        page = await client.experiments(**asked)
    if link.json:
        print_json(page)
        return
    if not page.items:
        narrowed = any(asked[name] for name in ("state", "label", "name", "actor", "search"))
        hint = "" if narrowed else " `rung submit experiment.yaml folder -f` trains one."
        click.echo(f"No {'such ' if narrowed else ''}experiments.{hint}")
        return
    print_table(
        ["id", "name", "state", "method", "done", "trials", "best", "took", "submitted"],
        [
            (
                item.id,
                item.name,
                item.state,
                item.method,
                share(item.progress),
                item.trial_count,
                f"{item.best.metric} {number(item.best.value)}" if item.best else None,
                duration(seconds_between(item.submitted_at, item.ended_at)),
                local_time(item.submitted_at),
            )
            for item in page.items
        ],
        right=["done", "trials", "took"],
    )
    if page.next_cursor:
        click.echo(f"There are more: --limit, or --cursor {page.next_cursor}", err=True)


@click.command()
@click.argument("name", metavar="ID|TRIAL", shell_complete=experiment_ids)
@click.option("--all", "everything", is_flag=True, help="All trials, however many.")
@linked
async def show(name: str, link: Link, *, everything: bool) -> None:
    """Show an experiment with its trials and checkpoints, or one trial.

    With --json: the API's record; that of an experiment with its `checkpoints`.
    """
    async with link.client() as client:
        if "." in name:
            trial = await client.trial(name)
            print_json(trial) if link.json else _show_trial(trial, trial.checkpoints)
            return
        experiment = await client.experiment(name)
        checkpoints = await client.checkpoints(experiment.id)
    if link.json:
        print_json({**msgspec.structs.asdict(experiment), "checkpoints": checkpoints})
        return
    _show_experiment(experiment, checkpoints)
    trials = experiment.trials if everything else experiment.trials[-_TRIALS_SHOWN:]
    if trials:
        click.echo()
        _print_trials(experiment, trials)
    if len(trials) < len(experiment.trials):
        left = len(experiment.trials) - len(trials)
        them = "is not shown; --all shows it" if left == 1 else "are not shown; --all shows them"
        click.echo(f"{counted(left, 'earlier trial')} {them}", err=True)


@click.command()
@experiment_argument
@linked
async def best(experiment_id: str, link: Link) -> None:
    """Show an experiment's best trial, its hyperparameters and its checkpoint."""
    async with link.client() as client:
        found = await client.best(experiment_id)
    if link.json:
        print_json(found)
        return
    checkpoint = found.checkpoint
    print_facts(
        [
            (found.metric, found.value),
            ("trial", f"{found.trial.id} ({found.trial.state})"),
            ("batches", found.steps),
            ("checkpoint", checkpoint and f"{checkpoint.id} ({size(checkpoint.size_bytes)})"),
        ]
    )
    click.echo()
    print_table(["hyperparameter", "value"], flat(found.hparams))
    if checkpoint is not None:
        click.echo(f"\n`rung download {checkpoint.id}` fetches it.")


def _show_experiment(experiment: Experiment, checkpoints: Sequence[Checkpoint]) -> None:
    unit = experiment.plan.time_metric if experiment.plan else "units"
    trained = f"{number(experiment.units_trained)} {unit}"
    if experiment.units_full:
        trained += f", {share(experiment.units_trained / experiment.units_full)} of all in full"
    best_trial = experiment.best
    stored = [item for item in checkpoints if item.state == "stored"]
    left = experiment.eta_seconds
    print_facts(
        [
            ("experiment", experiment.id),
            ("name", experiment.name),
            ("state", experiment.state),
            ("reason", experiment.reason or None),
            ("method", experiment.method),
            ("progress", share(experiment.progress)),
            ("left", None if left is None else f"about {duration(left)}"),
            ("trained", trained),
            ("labels", experiment.labels or None),
            ("project", f"{experiment.workspace}/{experiment.project}"),
            ("submitted", local_time(experiment.submitted_at)),
            ("took", duration(seconds_between(experiment.submitted_at, experiment.ended_at))),
            ("checkpoints", f"{len(stored)} stored, {len(checkpoints) - len(stored)} gone"),
            (
                "best",
                best_trial
                and f"{best_trial.metric} {number(best_trial.value)} by {best_trial.trial_id}",
            ),
        ]
    )


def _print_trials(experiment: Experiment, trials: Sequence[Trial]) -> None:
    brackets = experiment.plan is not None and len(experiment.plan.brackets) > 1
    columns = ["trial", "state", "rung", "trained", "best", "restarts", "hyperparameters", "why"]
    if brackets:
        columns.insert(2, "bracket")
    rows = []
    for trial in trials:
        row: list[Any] = [
            trial.id,
            trial.state,
            trial.rung,
            f"{number(trial.units)}/{printable(trial.length)}",
            number(trial.best.value) if trial.best else None,
            trial.restarts,
            trial.hparams,
            trial.reason,
        ]
        if brackets:
            row.insert(2, trial.bracket)
        rows.append(row)
    print_table(columns, rows, right=["rung", "bracket", "trained", "best", "restarts"])


def _show_trial(trial: Trial, checkpoints: Sequence[Checkpoint]) -> None:
    print_facts(
        [
            ("trial", trial.id),
            ("state", trial.state),
            ("reason", trial.reason),
            ("last run", trial.message),
            ("run", trial.run),
            ("restarts", trial.restarts),
            ("bracket", trial.bracket),
            ("rung", trial.rung),
            ("trained", f"{number(trial.units)} of {printable(trial.length)}"),
            ("batches", trial.steps_completed),
            ("seed", trial.seed),
            ("started from", trial.parent),
            ("best", trial.best and f"{number(trial.best.value)} at {trial.best.steps} batches"),
            *((name, printable(value)) for name, value in flat(trial.hparams)),
        ]
    )
    if trial.validations:
        click.echo()
        print_table(
            ["batches", "validation"],
            [(item.steps, item.metrics) for item in trial.validations],
            right=["batches"],
        )
    if checkpoints:
        click.echo()
        print_table(
            ["checkpoint", "state", "batches", "size"],
            [
                (item.id, item.state, item.steps_completed, size(item.size_bytes))
                for item in checkpoints
            ],
            right=["batches", "size"],
        )
