"""Rows for notebooks: a DataFrame where pandas is installed, else a list of dicts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rung import api


def table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = ()) -> Any:
    """Return rows as a DataFrame if pandas is installed, else as a list of dicts.

    Args:
        rows: values by column; absent ones are missing values.
        columns: those that come first, and are there even without rows.
    """
    names = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    try:
        import pandas as pd  # noqa: PLC0415 - optional, and half a second
    except ImportError:
        return [{name: row.get(name) for name in names} for row in rows]
    return pd.DataFrame.from_records([dict(row) for row in rows], columns=names)


def trial_rows(trials: Sequence[api.Trial], metric: str) -> list[dict[str, Any]]:
    """Return a row for each trial: its state, best value and hyperparameters."""
    return [
        {
            "trial": trial.id,
            "state": trial.state,
            metric: trial.best.value if trial.best else None,
            "steps": trial.best.steps if trial.best else trial.steps_completed,
            **{f"params.{name}": value for name, value in flat(trial.hparams).items()},
            "message": trial.message if trial.state == "errored" else None,
        }
        for trial in trials
    ]


def validation_rows(trials: Sequence[api.Trial]) -> list[dict[str, Any]]:
    """Return a row for each validation of each trial."""
    return [
        {"trial": trial.id, "steps": at.steps, **{k: float(v) for k, v in at.metrics.items()}}
        for trial in trials
        for at in trial.validations
    ]


def flat(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested hyperparameters by dotted names."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
