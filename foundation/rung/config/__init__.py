"""The experiment file: fields, types, limits and defaults, and the code folder beside it.

Field names, meanings and defaults are those of Determined's experiment configuration (expconf
v0), so that its users bring their files along.

The names below are imported at first use, because building the models takes a third of a second,
which a process that only packs code (`rung.config.code_folder`) need not spend.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rung.config.loading import ExperimentConfig, load
    from rung.config.problem import InvalidExperimentFile, Problem
    from rung.config.sections.experiment import Experiment, json_schema

__all__ = [
    "Experiment",
    "ExperimentConfig",
    "InvalidExperimentFile",
    "Problem",
    "json_schema",
    "load",
]

_HOMES: Final = {
    "Experiment": "rung.config.sections.experiment",
    "ExperimentConfig": "rung.config.loading",
    "InvalidExperimentFile": "rung.config.problem",
    "Problem": "rung.config.problem",
    "json_schema": "rung.config.sections.experiment",
    "load": "rung.config.loading",
}


def __getattr__(name: str) -> Any:
    """Return one of the names of this package."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
