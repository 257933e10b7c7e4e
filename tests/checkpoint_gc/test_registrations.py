"""Versions of models and deletions of their checkpoints, decided by both processors."""

import random
from collections import deque

import pytest
from msgspec.json import decode, encode

from checkpoint_gc.scenario import (
    EXPERIMENT,
    Experiment,
    deleted,
    deleted_whole,
    ended,
    exited,
    over,
    retention,
    run_lost,
    stored,
    submitted,
    trial_id,
    unwanted,
    unwanted_whole,
)
from checkpoint_gc.test_deletion import Partition
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.state import State as Retained
from rung.events import Payload, changes
from rung.events.checkpoint import CheckpointHeld, CheckpointHoldRefused, CheckpointRetired
from rung.events.directory import (
    ADMIN,
    DEFAULT,
    ChangeRefused,
    ChangeRequested,
    DirectoryChanged,
    HoldAnswered,
    HoldReleased,
    HoldRequested,
)
from rung.events.experiment import ExperimentDeleted, ExperimentRetired
from rung.gateway.directory.processor import DirectoryProcessor
from rung.gateway.directory.state import State as Company


def asked(change: changes.Change, number: int) -> ChangeRequested:
    """Somebody asks for a change."""
    return ChangeRequested(request_id=f"r{number}", by=ADMIN, at_ms=number, change=change)


def registration(checkpoint_id: str, number: int, model_id: str = "m") -> ChangeRequested:
    """Somebody registers a checkpoint."""
    change = changes.RegisterVersion(
        model_version_id=f"v{number}",
        model_id=model_id,
        experiment_id=EXPERIMENT,
        trial_id=trial_id(0),
        checkpoint_id=checkpoint_id,
    )
    return asked(change, number)


def hold(checkpoint_id: str, number: int = 1) -> HoldRequested:
    """The directory wants a checkpoint to stay for version `v<number>`."""
    return HoldRequested(
        request_id=f"r{number}",
        by=ADMIN,
        experiment_id=EXPERIMENT,
        checkpoint_id=checkpoint_id,
        model_version_id=f"v{number}",
        request=registration(checkpoint_id, number),
    )


def release(checkpoint_id: str, number: int = 1) -> HoldReleased:
    """Version `v<number>` is deleted."""
    return HoldReleased(
        request_id="r0",
        by=ADMIN,
        experiment_id=EXPERIMENT,
        checkpoint_id=checkpoint_id,
        model_version_id=f"v{number}",
    )


def answers(experiment: Experiment) -> list[type[Payload]]:
    """Return how holds were answered so far."""
    kinds = CheckpointHeld | CheckpointHoldRefused
    return [type(it) for it in experiment.history if isinstance(it, kinds)]


def test_retention_keeps_what_is_registered_until_the_last_version_is_deleted() -> None:
    """A hold goes before all rules; with the last release the rules decide at once."""
    experiment = Experiment()
    experiment.tell(submitted(0, 0, 1), stored("a", 1), hold("a"), hold("a", 2))
    assert experiment.then(stored("b", 2), stored("c", 3), ended()) == ["b"]
    assert experiment.then(release("a")) == []
    experiment.restart()
    assert experiment.then(release("a", 2)) == ["a"]


@pytest.mark.parametrize("closed", [False, True])
def test_nobody_deletes_what_is_registered(*, closed: bool) -> None:
    """Neither alone nor with its experiment, whatever the request names."""
    partition = Partition()
    end: list[Payload] = [exited(), ended(), over()]
    partition.tell(submitted(), stored("a", 1), *(end if closed else []), hold("a"))
    assert partition.tell(unwanted("a", 0, "v1", EXPERIMENT)) == []
    assert partition.tell(*([] if closed else end)) == []
    assert partition.tell(unwanted_whole("v1", EXPERIMENT), unwanted_whole(until_ms=1)) == []
    assert partition.tell(retention(0, 0, 0, a=trial_id(0))) == []
    assert partition.state is not None

    assert partition.tell(release("a")) == []
    assert partition.state is None
    assert [type(it) for it in partition.tell(unwanted_whole())] == [ExperimentRetired]


@pytest.mark.parametrize(
    "before",
    [
        [unwanted("a")],
        [over(), unwanted_whole()],
        [over(), unwanted_whole(until_ms=10)],
        [unwanted_whole()],
    ],
    ids=["deleted", "whole", "scheduled", "waiting"],
)
def test_a_hold_of_what_goes_is_refused(before: list[Payload]) -> None:
    """Also of an experiment whose deletion can still be taken back, or waits for its end."""
    experiment = Experiment()
    experiment.tell(submitted(), stored("a", 1), stored("b", 2), exited(), ended(), *before)
    experiment.tell(hold("a"))

    assert answers(experiment) == [CheckpointHoldRefused]
    assert experiment.state.registered == {}


def test_a_deletion_that_was_dropped_at_the_end_does_not_count() -> None:
    """It waited for the end, and was dropped then, because of a version."""
    partition = Partition()
    partition.tell(submitted(), stored("a", 1), run_lost(), ended(), hold("a"))
    assert partition.tell(unwanted_whole(), over()) == []

    (held,) = partition.tell(hold("a", 2))
    assert isinstance(held, CheckpointHeld)


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_retired_is_known_until_its_files_are_gone(*, whole: bool) -> None:
    """So a deletion that was refused and comes later cannot meet a hold that came between."""
    partition = Partition()
    partition.tell(submitted(), stored("a", 1), exited(), ended(), over())
    assert partition.state is None
    partition.tell(unwanted_whole() if whole else unwanted("a"))
    (refused,) = partition.tell(hold("a"))
    assert isinstance(refused, CheckpointHoldRefused)

    partition.tell(deleted_whole() if whole else deleted("a"))
    assert partition.state is None
    (held,) = partition.tell(hold("a", 2))
    assert isinstance(held, CheckpointHeld), "that it is not there is found by the sink"


class Installation:
    """Both processors, the relay and the sink, each at its own pace, and the store."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.directory = DirectoryProcessor()
        self.state = self.directory.initial("directory")
        self.collector = CheckpointGC()
        self.experiment = self.collector.initial(EXPERIMENT)
        self.store = {"a", "b", "c"}
        self.requests: deque[Payload] = deque()
        self.experiments: deque[Payload] = deque()
        self.relayed: deque[Payload] = deque()
        self.retirements: deque[Payload] = deque()
        self.answered: dict[str, list[Payload]] = {}

    def ask(self, request: ChangeRequested) -> None:
        """Write a request."""
        self.requests.append(request)

    def kill(self) -> None:
        """Both processors go on from their snapshots."""
        self.state = decode(encode(self.state), type=Company)
        self.experiment = decode(encode(self.experiment), type=Retained)

    def step(self) -> bool:
        """Have a part that has something to do go on; return whether one had."""
        parts = [
            (self.requests, self.direct),
            (self.relayed, self.experiments.append),
            (self.experiments, self.collect),
            (self.retirements, self.carry_out),
        ]
        busy = [(queue, act) for queue, act in parts if queue]
        if not busy:
            return False
        if self.draw.random() < 0.1:
            self.kill()
        queue, act = self.draw.choice(busy)
        act(queue.popleft())
        self.check()
        return True

    def check(self) -> None:
        """No version is there whose checkpoint is not."""
        versions = self.state.model_versions.values()
        assert {it.checkpoint_id for it in versions} <= self.store

    def direct(self, fact: Payload) -> None:
        """The directory decides."""
        assert isinstance(fact, ChangeRequested | HoldAnswered)
        self.directory.evolve(self.state, fact)
        for decision in self.directory.decide(self.state, fact):
            assert isinstance(
                decision, DirectoryChanged | ChangeRefused | HoldRequested | HoldReleased
            )
            self.directory.evolve(self.state, decision)
            if isinstance(decision, HoldRequested | HoldReleased):
                self.relayed.append(decision)
            else:
                self.answered.setdefault(decision.request_id, []).append(decision)

    def collect(self, fact: Payload) -> None:
        """checkpoint-gc decides."""
        state = self.experiment
        if self.collector.ended(state):  # as the runtime does
            if not isinstance(fact, self.collector.reopened_by):
                return
            state = self.experiment = self.collector.reopened(EXPERIMENT)
        assert isinstance(fact, CheckpointGC.handles)
        self.collector.evolve(state, fact)
        for decision in self.collector.decide(state, fact):
            assert isinstance(decision, CheckpointGC.handles)
            self.collector.evolve(state, decision)
            self.retirements.append(decision)

    def carry_out(self, decision: Payload) -> None:
        """The sink acts."""
        match decision:
            case CheckpointRetired():
                if self.draw.random() < 0.6:  # a dead letter that is tried again later
                    self.retirements.append(decision)
                    return
                self.store.discard(decision.checkpoint_id)
                self.experiments.append(deleted(decision.checkpoint_id))
            case ExperimentRetired():
                if self.draw.random() < 0.6:
                    self.retirements.append(decision)
                    return
                self.store.clear()
                self.experiments.append(ExperimentDeleted(experiment_id=EXPERIMENT))
            case CheckpointHeld():
                lost = "" if decision.checkpoint_id in self.store else "not in the store"
                answer = HoldAnswered(request=decision.request, refused=lost)
                self.requests.append(answer)
                if self.draw.random() < 0.2:  # imported decisions are carried out again
                    self.retirements.append(decision)
            case CheckpointHoldRefused():
                answer = HoldAnswered(request=decision.request, refused=decision.reason)
                self.requests.append(answer)
            case _:
                pass


@pytest.mark.parametrize("seed", range(300))
def test_no_order_leaves_a_version_without_its_checkpoint(seed: int) -> None:
    """Each request is answered once; at the end holds are what versions need, and no more."""
    it = Installation(seed)
    create = changes.CreateModel(model_id="m", workspace_id=DEFAULT, name="digits")
    it.ask(asked(create, 1))
    life: list[Payload] = [
        *(submitted(0, 0, 3), stored("a", 1), stored("b", 2), stored("c", 3)),
        *(exited(), ended(), over()),
    ]
    for fact in life[: it.draw.randrange(5, 8)]:
        it.collect(fact)
        life = life[1:]
    wishes: list[Payload] = [
        *(registration(it.draw.choice("abc"), number) for number in range(2, 6)),
        asked(changes.RemoveVersion(model_version_id="v2"), 10),
        asked(changes.RemoveVersion(model_version_id="v3"), 11),
        asked(changes.ArchiveModel(model_id="m", archived=it.draw.random() < 0.5), 12),
        asked(changes.RemoveModel(model_id="m"), 13),
        *(unwanted(name) for name in "abc"),
        unwanted_whole(),
    ]
    it.draw.shuffle(wishes)
    for wish in wishes:
        (it.requests if isinstance(wish, ChangeRequested) else it.experiments).append(wish)
        if life and it.draw.random() < 0.5:
            it.experiments.append(life.pop(0))
        for _ in range(it.draw.randrange(12)):
            it.step()
    while it.step():
        pass

    assert {key: len(found) for key, found in it.answered.items()} == dict.fromkeys(
        [f"r{number}" for number in (1, 2, 3, 4, 5, 10, 11, 12, 13)], 1
    )
    held = {v for versions in it.experiment.registered.values() for v in versions}
    assert held == set(it.state.model_versions)
