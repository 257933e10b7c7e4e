"""The experiment file: fields, types, limits and defaults, and the code folder beside it.

Field names, meanings and defaults are those of Determined's experiment configuration (expconf
v0), so that its users bring their files along.

The names below are imported at first use: whoever only packs code (`rung.expconf.code`) does not
pay for building the models, a third of a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rung.expconf.experiment import Experiment
    from rung.expconf.loading import ExperimentConfig, load
    from rung.expconf.problem import InvalidExperimentFile, Problem
    from rung.expconf.schema import json_schema

__all__ = [
    "Experiment",
    "ExperimentConfig",
    "InvalidExperimentFile",
    "Problem",
    "json_schema",
    "load",
]

_HOMES: Final = {
    "Experiment": "rung.expconf.experiment",
    "ExperimentConfig": "rung.expconf.loading",
    "InvalidExperimentFile": "rung.expconf.problem",
    "Problem": "rung.expconf.problem",
    "json_schema": "rung.expconf.schema",
    "load": "rung.expconf.loading",
}


def __getattr__(name: str) -> Any:
    """Return one of the names of this package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
