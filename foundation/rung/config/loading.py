"""Reads an experiment file: everything that is wrong with it at once, or a configuration."""

import functools
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from rung.config import ignored, validators
from rung.config.errors import at, problems_of
from rung.config.problem import InvalidExperimentFile, Problem
from rung.config.sections.experiment import SEED_MAX, Experiment
from rung.config.yaml import document
from rung.config.yaml.tree import DEPTH_MAX, levels_of

UNCATEGORIZED: Final = "Uncategorized"
PREEMPTION_TIMEOUT: Final = 3600

_ADJECTIVES: Final = (
    "amber", "brisk", "calm", "clever", "crisp", "eager", "fair", "gentle", "keen", "lively",
    "lucid", "mellow", "nimble", "patient", "quick", "quiet", "ready", "steady", "sunny", "swift",
)  # fmt: skip
_NOUNS: Final = (
    "badger", "beech", "cedar", "crane", "egret", "falcon", "finch", "fjord", "heron", "lark",
    "linden", "lynx", "maple", "marten", "otter", "raven", "reed", "sorrel", "swallow", "willow",
    "wren",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExperimentConfig:
    """A valid configuration."""

    settings: Experiment
    """What the file says."""
    seed: int
    """The experiment's seed: the file's, or the one drawn for it."""
    warnings: list[str]
    """What its author should know, one sentence each."""

    def expanded(self) -> dict[str, Any]:
        """Return every field with its value, in JSON's own types; an independent copy.

        Reading it again gives the same.
        """
        fields = self.settings.model_dump()
        fields["name"] = self.settings.name or _name(self.seed)
        fields["workspace"] = self.settings.workspace or UNCATEGORIZED
        fields["project"] = self.settings.project or UNCATEGORIZED
        fields["searcher"] = self.settings.searcher.expanded()
        fields["reproducibility"]["experiment_seed"] = self.seed
        if self.settings.preemption_timeout is None:
            fields["preemption_timeout"] = PREEMPTION_TIMEOUT
        return fields


def load(text: str | bytes, *, today_seed: int) -> ExperimentConfig:
    """Return the configuration that an experiment file describes.

    Args:
        text: YAML, or JSON, which is YAML as well.
        today_seed: the experiment's seed if the file gives none.

    Raises:
        InvalidExperimentFile: with everything that is wrong.
    """
    source = document.read(text)
    problems = list(source.problems)
    try:
        settings = Experiment.model_validate(source.tree)
    except ValidationError as error:
        found = problems_of(error, source.tree, source.lines)
        told = {problem.path for problem in problems if problem.value is not None}
        problems += [problem for problem in found if problem.path not in told]
    told = {problem.path for problem in problems}
    for path, message in validators.check(source.tree):
        problem = at(path, message, source.lines)
        if problem.path not in told:
            problems.append(problem)
    if problems:
        raise InvalidExperimentFile(sorted(problems, key=_line))
    given = settings.reproducibility.experiment_seed
    config = ExperimentConfig(
        settings=settings,
        seed=today_seed % (SEED_MAX + 1) if given is None else given,
        warnings=ignored.warnings_of(source.tree, settings.hyperparameters, _plain()),
    )
    if levels_of(config.expanded()) > DEPTH_MAX:
        message = f"nested more than {DEPTH_MAX} levels deep once each constant has type and value"
        raise InvalidExperimentFile([at(("hyperparameters",), message, source.lines)])
    return config


@functools.cache
def _plain() -> dict[str, Any]:
    searcher = {"name": "single", "metric": "-"}
    return Experiment.model_validate({"entrypoint": "-", "searcher": searcher}).model_dump()


def _line(problem: Problem) -> float:
    return problem.line or float("inf")


def _name(seed: int) -> str:
    adjective = _ADJECTIVES[seed % len(_ADJECTIVES)]
    noun = _NOUNS[seed // len(_ADJECTIVES) % len(_NOUNS)]
    return f"{adjective}-{noun}"
