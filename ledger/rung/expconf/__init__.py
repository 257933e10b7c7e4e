"""The experiment file: fields, types, limits and defaults, and the code folder beside it.

Field names, meanings and defaults are those of Determined's experiment configuration (expconf
v0), so that its users bring their files along.
"""

from rung.expconf.experiment import Experiment
from rung.expconf.load import ExperimentConfig, load
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
