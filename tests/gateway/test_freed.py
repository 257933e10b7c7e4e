"""What a retention would free is exactly what checkpoint-gc retires upon it."""

import zlib
from copy import deepcopy
from itertools import product
from typing import NamedTuple

import pytest
from msgspec import structs

from rung import api
from rung.checkpoint_gc.processor import CheckpointGC
from rung.checkpoint_gc.state import State
from rung.events import Payload, decision, decode, topic
from rung.events.checkpoint import CheckpointReleased, CheckpointRetired
from rung.events.experiment import ExperimentEnded, RetentionChanged
from rung.events.trial import TrialClosed, TrialValidated
from rung.gateway.projections.experiment import Experiment
from rung.gateway.projections.experiment_fold import evolve
from rung.gateway.routes.changes.deletion import superfluous
from rung.ledger.effective import is_new_fact
from support.gateway.scenario import EXPERIMENT, History, play
from support.runtime.bare import Bare

POLICIES = [
    api.Retention(save_experiment_best=best, save_trial_best=of_trial, save_trial_latest=latest)
    for best, of_trial, latest in product((0, 2), (0, 1, 3), (0, 1, 2))
]


class Both(NamedTuple):
    """An experiment as the gateway and as checkpoint-gc have it."""

    shown: Experiment
    state: State


def _folded(history: History, share: float) -> Both:
    """Fold a part of a history in both."""
    shown, processor = Experiment(EXPERIMENT), Bare(CheckpointGC())
    state, marks = processor.initial(EXPERIMENT), dict[str, int]()
    written = sorted((*history.facts, *history.decisions), key=lambda it: it.moment)
    for position, it in enumerate(written[: int(len(written) * share)]):
        event = decode(it.record.value)
        if event.causeposition is None and not is_new_fact(event, marks):
            continue
        if isinstance(event.data, TrialValidated):
            trial = shown.trial(event.data.trial_id)
            if trial is None or event.data.run <= trial.over:
                continue
            event = structs.replace(event, data=_repeatable(event.data))
        evolve(shown, event)
        relayed = isinstance(event.data, TrialClosed | CheckpointReleased | ExperimentEnded)
        if event.topic != topic.EXPERIMENTS and not relayed:
            continue
        processor.evolve(state, event.data)
        for index, data in enumerate(processor.decide(state, event.data)):
            processor.evolve(state, data)
            retired = decision(data, source="/rung/x", cause=event, position=position, index=index)
            evolve(shown, retired)
    return Both(shown, state)


def _repeatable(data: TrialValidated) -> TrialValidated:
    """Return what a run reports that is resumed as if nothing had happened."""
    value = zlib.crc32(f"{data.trial_id} {data.steps_completed}".encode()) / 2**32
    return structs.replace(data, metrics=data.metrics | {"error": value})


def _retired(both: Both, wanted: api.Retention, named: dict[str, str]) -> set[str]:
    """Return what checkpoint-gc retires upon a change."""
    processor = CheckpointGC()
    state = deepcopy(both.state)
    if processor.ended(state):
        state = processor.reopened(EXPERIMENT)
    fact = RetentionChanged(
        experiment_id=EXPERIMENT,
        save_experiment_best=wanted.save_experiment_best,
        save_trial_best=wanted.save_trial_best,
        save_trial_latest=wanted.save_trial_latest,
        superfluous=named,
    )
    processor.evolve(state, fact)
    decisions: list[Payload] = processor.decide(state, fact)
    return {it.checkpoint_id for it in decisions if isinstance(it, CheckpointRetired)}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_to_go_goes(seed: int) -> None:
    """At any moment of a search whose agents fail and lag behind, for any policy."""
    history = play(seed)
    found = 0
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        both = _folded(history, share)
        for policy in POLICIES:
            said = {each.id: each.trial_id for each in superfluous(both.shown, policy)}
            assert _retired(both, policy, said) == said.keys(), (share, policy)
            found += len(said)
    assert found
