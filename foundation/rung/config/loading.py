"""Loads an experiment file: returns its configuration, or raises all of its problems at once."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from rung.config import space_spelling, validators, warning
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
    """The fields of the file."""
    seed: int
    """The experiment's seed: the file's, or the one drawn for it."""
    warnings: list[str]
    """For the author, one sentence each."""

    def expanded(self) -> dict[str, Any]:
        """Return a copy of all fields, in JSON's types, with every default filled in.

        Loading it again returns the same.
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
    """Return the configuration in an experiment file, which is YAML or JSON.

    `today_seed` is the experiment's seed if the file gives none.

    Raises:
        InvalidExperimentFile: with all problems.
    """
    source = document.read(text)
    problems = list(source.problems)
    foreign = space_spelling.foreign(source.tree.get("hyperparameters"))
    spelled = [at(path, message, source.lines) for path, message in foreign]
    try:
        settings = Experiment.model_validate(source.tree)
    except ValidationError as error:
        found = problems_of(error, source.tree, source.lines)
        known = {problem.path for problem in problems if problem.value is not None}
        problems += [problem for problem in found if problem.path not in known]
    known = {problem.path for problem in problems}
    between = [at(path, message, source.lines) for path, message in validators.check(source.tree)]
    problems += [problem for problem in between if problem.path not in known]
    problems = [*spelled, *(problem for problem in problems if not _within(problem, spelled))]
    if problems:
        raise InvalidExperimentFile(sorted(problems, key=_line))
    given = settings.reproducibility.experiment_seed
    config = ExperimentConfig(
        settings=settings,
        seed=today_seed % (SEED_MAX + 1) if given is None else given,
        warnings=warning.warnings_of(source.tree, settings.hyperparameters, _plain()),
    )
    if levels_of(config.expanded()) > DEPTH_MAX:
        message = f"nested more than {DEPTH_MAX} levels deep once each constant has type and value"
        raise InvalidExperimentFile([at(("hyperparameters",), message, source.lines)])
    return config


@functools.cache
def _plain() -> dict[str, Any]:
    searcher = {"name": "single", "metric": "-"}
    return Experiment.model_validate({"entrypoint": "-", "searcher": searcher}).model_dump()


def _within(problem: Problem, others: Iterable[Problem]) -> bool:
    """Return whether a problem is at the path of another one, or below it."""
    return any(
        problem.path == other.path or problem.path.startswith((f"{other.path}.", f"{other.path}["))
        for other in others
    )


def _line(problem: Problem) -> float:
    return problem.line or float("inf")


def _name(seed: int) -> str:
    adjective = _ADJECTIVES[seed % len(_ADJECTIVES)]
    noun = _NOUNS[seed // len(_ADJECTIVES) % len(_NOUNS)]
    return f"{adjective}-{noun}"
