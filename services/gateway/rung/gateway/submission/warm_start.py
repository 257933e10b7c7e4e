"""Where an experiment starts from, if not from scratch: a checkpoint of another one."""

from typing import Any, NamedTuple

from rung.api import ProblemItem
from rung.gateway.context import check_caught_up
from rung.gateway.problem import Problem
from rung.gateway.projections.experiment import Checkpoint, Experiment
from rung.gateway.projections.read_models import ReadModels
from rung.gateway.serializers.experiments import checkpoint_phase


class Start(NamedTuple):
    """A checkpoint to start from."""

    experiment_id: str
    checkpoint_id: str


async def resolve_start(models: ReadModels, config: dict[str, Any]) -> Start | None:
    """Return the checkpoint that an experiment starts from, None if from scratch.

    Raises:
        Problem: what it names is not there, or no longer; or this server still catches up: then
            a checkpoint that it shows may be retired.
    """
    search: dict[str, Any] = config["searcher"]
    checkpoint_id = search.get("source_checkpoint_uuid")
    trial_id = search.get("source_trial_id")
    if checkpoint_id or trial_id:
        check_caught_up(models)
    if checkpoint_id:
        return await _of_checkpoint(models, str(checkpoint_id))
    return await _of_trial(models, str(trial_id)) if trial_id else None


async def _of_checkpoint(models: ReadModels, checkpoint_id: str) -> Start:
    path = "searcher.source_checkpoint_uuid"
    experiment, found = await models.checkpoint(checkpoint_id) or (None, None)
    if experiment is None or found is None:
        raise _refused(
            path, "there is no such checkpoint; give the whole id of one", checkpoint_id
        )
    phase = checkpoint_phase(found)
    if phase != "stored":
        raise _refused(path, f"this checkpoint is {phase}; choose one that is stored", found.id)
    return Start(experiment.id, found.id)


async def _of_trial(models: ReadModels, trial_id: str) -> Start:
    path = "searcher.source_trial_id"
    experiment = await models.experiment(trial_id.rpartition(".")[0], validations=None)
    if experiment is None or experiment.trial(trial_id) is None:
        raise _refused(path, "there is no such trial; give an id such as k3f9x2ma.17", trial_id)
    newest = _newest(experiment, trial_id)
    if newest is None:
        raise _refused(path, "this trial has no checkpoint left; choose another", trial_id)
    return Start(experiment.id, newest.id)


def _newest(experiment: Experiment, trial_id: str) -> Checkpoint | None:
    left = [
        item
        for item in experiment.checkpoints.values()
        if item.trial_id == trial_id and checkpoint_phase(item) == "stored"
    ]
    return max(left, key=lambda item: (item.steps, item.stored_at), default=None)


def _refused(path: str, message: str, value: str) -> Problem:
    item = ProblemItem(path=path, message=message, value=value[:100])
    return Problem(
        422,
        "invalid-experiment",
        f"the experiment file has one problem: {path}: {message}",
        errors=[item],
    )
