"""Storage areas: what is retired is deleted where it lies, also once its experiment is closed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from checkpoint_gc.scenario import (
    EXPERIMENT,
    Experiment,
    ended,
    exited,
    over,
    pinned,
    retention,
    so_late,
    stored,
    submitted,
    trial_id,
    unwanted,
    unwanted_whole,
    validated,
)
from rung.checkpoint_gc import CheckpointGC
from rung.checkpoint_gc.deletion import Deletion
from rung.checkpoint_gc.processor import Handles
from rung.events import Payload, encode, fact
from rung.events.checkpoint import CheckpointDeleted, CheckpointRetired
from rung.events.experiment import ExperimentDeleted, ExperimentRetired
from rung.storage import FolderStore

AREA = "teams/vision"
END: tuple[Payload, ...] = (exited(), ended(), over())


def _in_area() -> Payload:
    return structs.replace(submitted(), areas={EXPERIMENT: AREA, "another0": "speech"})


def _reopened(*facts: Payload) -> list[Payload]:
    """Return what is decided on facts about an experiment that is closed."""
    collector = CheckpointGC()
    state = collector.reopened(EXPERIMENT)
    decisions: list[Payload] = []
    for each in facts:
        assert isinstance(each, Handles)
        collector.evolve(state, each)
        for decision in collector.decide(state, each):
            assert isinstance(decision, Handles)
            collector.evolve(state, decision)
            decisions.append(decision)
    return decisions


def _areas(decisions: Sequence[Payload]) -> list[str]:
    found = CheckpointRetired | ExperimentRetired
    return [it.area for it in decisions if isinstance(it, found)]


def test_retirements_name_the_area() -> None:
    """That of the submission, whatever a request says, and after a restart."""
    it = Experiment()
    facts: list[Payload] = [stored("a", 1), validated(1, 3.0), stored("b", 2), validated(2, 2.0)]
    assert it.tell(_in_area(), *facts) == []
    it.restart()
    (retired,) = it.tell(stored("c", 3), validated(3, 1.0))
    assert (retired.checkpoint_id, retired.area) == ("a", AREA)
    foreign = structs.replace(retention(trial_latest=0, trial_best=0), area="speech")
    assert {found.area for found in it.tell(*END, foreign)} == {AREA}


def test_without_an_area_nothing_of_it_is_written() -> None:
    """The same bytes as before there were areas: what is decided anew is what is on record."""
    it = Experiment()
    it.tell(submitted(), stored("a", 1), stored("b", 2), stored("c", 3))
    (retired,) = (it for it in it.history if isinstance(it, CheckpointRetired))
    whole = ExperimentRetired(experiment_id=EXPERIMENT, trials=1)
    for data in (submitted(), retired, whole, unwanted("a"), unwanted_whole(), retention()):
        written = encode(fact(data, source="/t", origin="t", sequence=1, time="2026-01-01"))
        assert b"area" not in written


@pytest.mark.parametrize(
    "request_",
    [
        structs.replace(unwanted("a"), area=AREA),
        structs.replace(retention(trial_best=0, trial_latest=0, a=trial_id(0)), area=AREA),
        structs.replace(unwanted_whole(), area=AREA),
    ],
    ids=lambda it: type(it).__name__,
)
def test_a_closed_experiment_is_found_in_the_area_of_the_request(request_: Payload) -> None:
    """Of one that has ended, nothing is known here any more; the request names its area."""
    assert _areas(_reopened(request_)) == [AREA]


def test_a_scheduled_deletion_remembers_the_area() -> None:
    """From the request until its time has come."""
    wanted = structs.replace(unwanted_whole(until_ms=5), area=AREA)
    assert _areas(_reopened(wanted, so_late(4))) == []
    assert _areas(_reopened(wanted, so_late(5))) == [AREA]


def test_a_closed_experiment_with_pins_remembers_the_area() -> None:
    """Which its pins keep alive."""
    it = Experiment()
    it.tell(_in_area(), stored("a", 1), pinned("a"), *END)
    it.restart()
    (retired,) = it.tell(structs.replace(unwanted("a", 0, *it.state.pinned["a"]), area=AREA))
    assert retired.area == AREA


def _put(store: FolderStore) -> None:
    for area in ("", AREA, "speech"):
        for name in ("a", "b"):
            prefix = f"checkpoints/{EXPERIMENT}/{name}"
            store.area(area).put_bytes(f"{prefix}/manifest.json", b"x")


def _left(store: FolderStore) -> dict[str, list[str]]:
    return {
        area: [it.name.split("/")[2] for it in store.area(area).list("checkpoints/")]
        for area in ("", AREA, "speech")
    }


def _carry_out(store: FolderStore, data: Payload) -> Sequence[Payload]:
    event = fact(data, source="/test", origin="test", sequence=1, time="2026-01-01")
    return asyncio.run(Deletion(store).carry_out(event, EXPERIMENT))


def test_deletions_stay_in_the_area(tmp_path: Path) -> None:
    """Of a checkpoint and of an experiment; objects of the same names elsewhere stay."""
    store = FolderStore(tmp_path)
    _put(store)
    retired = CheckpointRetired(
        experiment_id=EXPERIMENT,
        trial_id=trial_id(0),
        checkpoint_id="a",
        reason="",
        area=AREA,
    )
    assert isinstance(_carry_out(store, retired)[-1], CheckpointDeleted)
    both = ["a", "b"]
    assert _left(store) == {"": both, AREA: ["b"], "speech": both}
    whole = ExperimentRetired(experiment_id=EXPERIMENT, trials=1, area=AREA)
    assert isinstance(_carry_out(store, whole)[-1], ExperimentDeleted)
    assert _left(store) == {"": both, AREA: [], "speech": both}
    assert _carry_out(store, structs.replace(whole, area=""))
    assert _left(store) == {"": [], AREA: [], "speech": both}


@pytest.mark.parametrize("area", ["..", "../..", "/", "speech/", "a/checkpoints"])
def test_what_is_no_area_deletes_nothing(tmp_path: Path, area: str) -> None:
    """Whoever wrote it to the ledger."""
    store = FolderStore(tmp_path)
    _put(store)
    before = _left(store)
    retired = CheckpointRetired(
        experiment_id=EXPERIMENT, trial_id=trial_id(0), checkpoint_id="a", reason="", area=area
    )
    whole = ExperimentRetired(experiment_id=EXPERIMENT, trials=1, area=area)
    assert _carry_out(store, retired) == _carry_out(store, whole) == []
    assert _left(store) == before
