"""How far an experiment is: one line for a log file, a small picture for a terminal."""

from typing import TYPE_CHECKING, Any, Final

from rung.cli.output import duration, number, printable, seconds_between, share

if TYPE_CHECKING:
    from rung.client import Experiment

_ORDER: Final = (
    "running", "waiting", "resting", "paused", "stopping",
    "completed", "stopped", "errored", "canceled",
)  # fmt: skip


def line_of(experiment: "Experiment") -> str:
    """Return the state of an experiment in one line."""
    parts = [f"{experiment.id} {experiment.state} {share(experiment.progress)}"]
    if experiment.trials:
        parts.append(f"{len(experiment.trials)} trials: {_counts(experiment)}")
    parts += [f"rungs {rungs}" for rungs in _rungs(experiment).values()]
    parts.append(_best(experiment) or "no validation yet")
    if experiment.eta_seconds is not None:
        parts.append(f"about {duration(experiment.eta_seconds)} left")
    return " | ".join(parts)


def picture_of(experiment: "Experiment") -> Any:
    """Return the state of an experiment for a terminal."""
    from rich.console import Group  # noqa: PLC0415 - a tenth of a second
    from rich.progress_bar import ProgressBar  # noqa: PLC0415 - see above
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    left = experiment.eta_seconds
    head = Table.grid(padding=(0, 2, 0, 0))
    head.add_row(
        Text(f"{printable(experiment.name)} ({experiment.id})", "bold"),
        Text(f"{experiment.method} {experiment.state}"),
        ProgressBar(total=1.0, completed=experiment.progress, width=30),
        Text(share(experiment.progress)),
        Text(duration(seconds_between(experiment.submitted_at, experiment.ended_at))),
        Text("" if left is None else f"about {duration(left)} left", "dim"),
    )
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_row(
        Text("trials", "dim"), Text(f"{len(experiment.trials)}: {_counts(experiment) or 'none'}")
    )
    for name, rungs in _rungs(experiment).items():
        facts.add_row(Text(name, "dim"), Text(rungs))
    best = experiment.best
    if best is not None:
        hparams = next((t.hparams for t in experiment.trials if t.id == best.trial_id), {})
        facts.add_row(
            Text("best", "dim"),
            Text(f"{printable(best.metric)} {number(best.value)} by {best.trial_id}", "green"),
        )
        facts.add_row(Text("", "dim"), Text(printable(hparams)))
    return Group(head, facts)


def _counts(experiment: "Experiment") -> str:
    counts: dict[str, int] = {}
    for trial in experiment.trials:
        counts[trial.state] = counts.get(trial.state, 0) + 1
    known: list[str] = [state for state in _ORDER if state in counts]
    known += sorted(state for state in counts if state not in _ORDER)
    return ", ".join(f"{counts[state]} {state}" for state in known)


def _rungs(experiment: "Experiment") -> dict[str, str]:
    """Return, by bracket, how many trials reached each of its rungs: `27@1 9@3 3@9`."""
    brackets = experiment.plan.brackets if experiment.plan else []
    unit = experiment.plan.time_metric if experiment.plan else ""
    found = {}
    for bracket in brackets:
        if len(bracket.lengths) < 2 and len(brackets) < 2:
            continue
        reached = [
            trial.rung
            for trial in experiment.trials
            if trial.bracket == bracket.bracket and trial.rung is not None
        ]
        counts = [
            f"{sum(1 for rung in reached if rung >= index)}@{length}"
            for index, length in enumerate(bracket.lengths)
        ]
        name = "rungs" if len(brackets) == 1 else f"bracket {bracket.bracket}"
        found[name] = f"{' '.join(counts)} {unit}"
    return found


def _best(experiment: "Experiment") -> str | None:
    best = experiment.best
    if best is None:
        return None
    hparams = next((t.hparams for t in experiment.trials if t.id == best.trial_id), {})
    said = f"best {printable(best.metric)} {number(best.value)} by {best.trial_id}"
    return f"{said} ({printable(hparams)})" if hparams else said
