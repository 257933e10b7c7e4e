"""Problems of experiment files, as answers."""

import secrets
from collections.abc import Mapping
from typing import Final

from rung.api import ProblemItem
from rung.config import ExperimentConfig, InvalidExperimentFile, load
from rung.events.errors import InvalidConfig
from rung.gateway.problem import Problem

_SEED_MAX: Final = 2**31


def load_file(
    text: bytes | str, lines: Mapping[str, int | None] | None = None
) -> ExperimentConfig:
    """Return the configuration in an experiment file.

    Args:
        text: of the file.
        lines: of a file that was merged: dotted path of a value → its line in the author's file.

    Raises:
        Problem: it cannot be run.
    """
    try:
        return load(text, today_seed=secrets.randbelow(_SEED_MAX))
    except InvalidExperimentFile as error:
        raise refused_file(error, lines) from None
    except InvalidConfig as error:
        items = [ProblemItem(path=path, message=text) for path, text in error.problems]
        raise refused(items) from None


def refused_file(
    error: InvalidExperimentFile, lines: Mapping[str, int | None] | None = None
) -> Problem:
    """Return the problem of a file, of which each problem has its line."""
    return refused(
        [
            ProblemItem(
                path=item.path,
                message=item.message,
                value=item.value,
                line=item.line if lines is None else lines.get(item.path),
            )
            for item in error.details
        ]
    )


def refused(items: list[ProblemItem]) -> Problem:
    """Return the problem of an experiment file that cannot be run."""
    count = "one problem" if len(items) == 1 else f"{len(items)} problems"
    lines = "; ".join(f"{item.path}: {item.message}".removeprefix(": ") for item in items[:3])
    return Problem(
        422, "invalid-experiment", f"the experiment file has {count}: {lines}", errors=items
    )
