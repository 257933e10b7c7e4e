"""What users ask to delete: decided by what depends on it, before and after the end."""

from collections.abc import Callable

import pytest

from checkpoint_gc.scenario import (
    EXPERIMENT,
    Experiment,
    answered,
    damaged,
    deleted,
    deleted_whole,
    ended,
    exited,
    over,
    pinned,
    released,
    retention,
    run_lost,
    stored,
    submitted,
    trial_id,
    unwanted,
    unwanted_whole,
    validated,
)
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.state import State
from rung.events import Event, Payload, encode
from rung.events.checkpoint import CheckpointRetired
from rung.events.envelope import fact as wrap
from rung.events.experiment import ExperimentRetired
from rung.ledger import Record
from rung.methods.random_search import Options
from rung.runtime import PartitionFold

_THREE: list[Payload] = [submitted(0, 0, 3), stored("a", 1), stored("b", 2), stored("c", 3)]


class Partition:
    """The fold of a partition, as the service runs it, restarted after each fact if wanted."""

    def __init__(
        self, *, restarts: bool = False, processor: Callable[[], CheckpointGC] = CheckpointGC
    ) -> None:
        self.processor = processor
        self.facts: list[Record] = []
        self.decisions: list[Event] = []
        self.restarts = restarts
        self.fold: PartitionFold[State] = PartitionFold(processor())

    def tell(self, *facts: Payload) -> list[Payload]:
        """Fold facts and return the decisions."""
        return [decision for each in facts for decision in self._fold(each)]

    def _fold(self, data: Payload) -> list[Payload]:
        number = len(self.facts)
        event = wrap(data, source="/rung/test", origin="test", sequence=number, time="t")
        record = Record("experiments", 0, number, EXPERIMENT, encode(event))
        self.facts.append(record)
        if self.restarts:
            self.fold = PartitionFold(self.processor())
            self.fold.record(
                [
                    Record("retirements", 0, place, EXPERIMENT, encode(each))
                    for place, each in enumerate(self.decisions)
                ]
            )
            for earlier in self.facts[:-1]:
                assert not self.fold.fold(earlier).new
        folded = self.fold.fold(record)
        assert folded.rejected is None, folded
        self.fold.recorded.appended(len(folded.new))
        self.decisions += folded.new
        return [each.data for each in folded.new]

    @property
    def state(self) -> State | None:
        """The experiment's state; None: it has ended."""
        return self.fold.state(EXPERIMENT)


@pytest.fixture(params=[False, True], ids=["on", "restarted"])
def partition(request: pytest.FixtureRequest) -> Partition:
    """Return a fold that goes on, and one that begins again before each fact."""
    return Partition(restarts=request.param)


def _ids(decisions: list[Payload]) -> list[str]:
    return [each.checkpoint_id for each in decisions if isinstance(each, CheckpointRetired)]


@pytest.mark.parametrize(
    ("name", "goes"), [("a", True), ("b", False), ("c", False), ("unknown", False)]
)
def test_what_a_live_trial_may_resume_from_stays(name: str, *, goes: bool) -> None:
    """The newest two of a trial that may train on cannot be deleted; older ones can."""
    experiment = Experiment()
    experiment.tell(*_THREE)

    assert experiment.then(unwanted(name)) == ([name] if goes else [])
    assert experiment.then(ended()) == []
    assert experiment.then(unwanted(name)) == ([name] if name in {"b", "c"} else [])


def test_a_damaged_one_does_not_protect_an_older_one() -> None:
    """A trial resumes from what is whole: the next one is as needed as if it were newer."""
    experiment = Experiment()
    experiment.tell(*_THREE, damaged("c"))

    assert experiment.then(unwanted("a"), unwanted("b")) == []


def test_what_the_search_holds_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where trials start from each other's checkpoints, none goes before it is released."""
    monkeypatch.setattr(Options, "SHARES", True)
    experiment = Experiment()
    experiment.tell(*_THREE)

    assert experiment.then(unwanted("a")) == []
    assert experiment.then(released("a"), unwanted("a")) == ["a"]


def test_a_pin_counts_unless_the_request_names_it() -> None:
    """The request names that experiment, and not another one that came meanwhile."""
    experiment = Experiment()
    experiment.tell(*_THREE, ended(), pinned("a"))

    assert experiment.then(unwanted("a")) == []
    assert experiment.then(unwanted("a", 0, "another")) == []
    assert experiment.then(unwanted("a", 0, "another", "p0000000")) == ["a"]


def test_after_the_end_requests_name_what_goes(partition: Partition) -> None:
    """The state of an experiment that has ended is gone; a request is decided all the same."""
    partition.tell(*_THREE, ended(), over())
    assert partition.state is None

    [decided] = partition.tell(unwanted("a"))
    assert decided == CheckpointRetired(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(0),
        checkpoint_id="a",
        reason="deleted as requested",
    )
    assert partition.state is not None, "its files are still to be deleted"
    partition.tell(deleted("a"))
    assert partition.state is None
    assert _ids(partition.tell(retention(0, 0, 1, b=trial_id(0)))) == ["b"]
    partition.tell(deleted("b"))
    assert partition.state is None


@pytest.mark.parametrize("before", [True, False])
def test_pins_are_known_after_the_end(partition: Partition, *, before: bool) -> None:
    """Whether it was pinned before the end or after it, a pinned checkpoint stays."""
    end: list[Payload] = [ended(), over()]
    pin: list[Payload] = [pinned("a")]
    partition.tell(*_THREE, *(pin + end if before else end + pin))

    assert partition.tell(unwanted("a")) == []
    assert partition.tell(retention(0, 0, 0, a=trial_id(0), b=trial_id(0))) == [
        CheckpointRetired(
            experiment_id=EXPERIMENT,
            trial_id=trial_id(0),
            checkpoint_id="b",
            reason="not among best 0 of trial, latest 0 of trial, best 0 of experiment",
        )
    ]
    assert partition.tell(unwanted_whole()) == []
    assert partition.state is not None
    assert partition.state.trials == {}
    assert _ids(partition.tell(unwanted("a", 0, "p0000000"))) == ["a"]
    assert partition.tell(deleted("a"), deleted("b")) == []
    assert partition.state is None


def test_later_facts_of_an_experiment_with_pins_decide_nothing(partition: Partition) -> None:
    """Its state stays for the pins alone: what comes late is passed over, as without any."""
    partition.tell(submitted(0, 0, 1), stored("a", 1), pinned("a"), ended(), over())

    late: list[Payload] = [
        stored("z", 9),
        validated(9, 0.1),
        damaged("a"),
        ended(),
        exited(),
        run_lost(),
    ]
    assert partition.tell(*late) == []


def test_an_experiment_is_deleted_once_it_has_ended(partition: Partition) -> None:
    """A request that comes before the end that the gateway saw waits for it."""
    partition.tell(*_THREE, ended())

    assert partition.tell(unwanted_whole(trials=1)) == []
    assert partition.tell(over()) == [ExperimentRetired(experiment_id=EXPERIMENT, trials=1)]
    assert partition.state is not None, "its files are still to be deleted"
    partition.tell(deleted_whole())
    assert partition.state is None


def test_asked_twice_it_is_deleted_again(partition: Partition) -> None:
    """Before and after its files are gone: the sink finds nothing left, which does no harm."""
    partition.tell(*_THREE, ended(), over())

    assert len(partition.tell(unwanted_whole(), unwanted_whole())) == 2
    partition.tell(deleted_whole())
    assert partition.state is None
    assert len(partition.tell(unwanted_whole())) == 1


def test_a_deletion_does_not_overtake_pins(partition: Partition) -> None:
    """An experiment that others start from is deleted if the request names all of these."""
    partition.tell(*_THREE, ended(), pinned("a"))
    assert partition.tell(unwanted_whole("another")) == []
    assert partition.tell(over()) == []
    assert partition.tell(unwanted_whole("another")) == []
    assert len(partition.tell(unwanted_whole("another", "p0000000"))) == 1
    partition.tell(deleted_whole())
    assert partition.state is None


def test_what_a_lost_run_brings_after_the_deletion_goes(partition: Partition) -> None:
    """The state stays for its checkpoints, and each of them is retired when it comes."""
    partition.tell(*_THREE, run_lost(), ended(), over())
    assert len(partition.tell(unwanted_whole())) == 1

    assert _ids(partition.tell(stored("late", 9))) == ["late"]
    refused = f"experiment {EXPERIMENT} is deleted, and checkpoint a with it"
    assert partition.tell(pinned("a"), validated(9, 0.1)) == [answered("a", refused)]
    assert partition.tell(exited(), deleted_whole(), deleted("late")) == []
    assert partition.state is None


def test_a_changed_retention_retires_at_once() -> None:
    """Fewer are kept from then on, in all trials, and newest two of those that may train on."""
    experiment = Experiment()
    four: list[Payload] = [
        stored(f"{trial}{steps}", steps, trial) for trial in (0, 1) for steps in (1, 2, 3, 4)
    ]
    experiment.tell(submitted(0, 0, 4), *four, ended(1))

    assert experiment.then(retention(0, 0, 1)) == ["01", "02", "11", "12", "13"]
    assert experiment.then(stored("05", 5)) == ["03"]
    assert experiment.then(ended(), over()) == ["04"]
