"""Examples of the fields of the experiment file, each a part of one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

EXAMPLES: Final[list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("examples.yaml").read_text()
)

_PLAIN: Final[Mapping[str, Any]] = {
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
}
_RANDOM: Final = {"name": "random", "metric": "loss", "max_trials": 20}
_GRID: Final = {"name": "grid", "metric": "loss"}


def in_file(example: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment file with an example in it, and else only what is required.

    The search is one that the example's hyperparameters allow.
    """
    ranges = [it for it in example.get("hyperparameters", {}).values() if isinstance(it, dict)]
    if any("count" in it for it in ranges):
        return {**_PLAIN, "searcher": _GRID, **example}
    if any("type" in it for it in ranges):
        return {**_PLAIN, "searcher": _RANDOM, **example}
    return {**_PLAIN, **example}


def flow(example: Mapping[str, Any]) -> str:
    """Return an example on one line: `resources: {priority: 10}`."""
    text = yaml.safe_dump(
        dict(example), default_flow_style=True, sort_keys=False, width=1000
    ).strip()
    return text if len(example) > 1 else text[1:-1]
