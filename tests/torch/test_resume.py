"""A trial killed at any moment and started again is bit for bit the one that was never killed."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Acknowledged, Damaged, Restored, Stored
from rung.storage import open_store
from support.agent_end import agent_end
from support.soak import thinned
from support.trials.runs import Runs

pytestmark = pytest.mark.e2e

LENGTH = 15
CONFIG = {
    "searcher": {"metric": "loss", "smaller_is_better": True},
    "scheduling_unit": 1,
    "min_validation_period": {"batches": 4},
    "min_checkpoint_period": {"batches": 3},
    "checkpoint_policy": "none",
    "perform_initial_validation": True,
}


def trial(parent: "subprocess.Popen[str]", folder: Path, **changes: Any) -> Iterator[Runs]:
    """Yield the runs of a trial."""
    fields = {"length": LENGTH, "config": CONFIG, "seed": 5, "hparams": {"lr": 0.01}} | changes
    with agent_end(folder, **fields) as agent:
        yield Runs(parent, agent, folder)


@pytest.fixture(scope="module", params=[0, 2])
def unbroken(
    request: pytest.FixtureRequest,
    parent: "subprocess.Popen[str]",
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[int, dict[str, Any]]:
    """The number of workers and what becomes of a trial that nobody kills."""
    workers: int = request.param
    return workers, never_killed(parent, tmp_path_factory.mktemp("unbroken"), workers)


@pytest.fixture(scope="module")
def alone(
    parent: "subprocess.Popen[str]", tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What becomes of a trial without workers that nobody kills."""
    return never_killed(parent, tmp_path_factory.mktemp("alone"), 0)


def never_killed(parent: "subprocess.Popen[str]", folder: Path, workers: int) -> dict[str, Any]:
    """Train a trial in one go and return what becomes of it."""
    outcome: dict[str, Any] = {}
    for runs in trial(parent, folder):
        assert runs.train(workers) == 0
        outcome = runs.outcome()
    return outcome


def test_the_unbroken_run_is_what_was_asked_for(unbroken: tuple[int, dict[str, Any]]) -> None:
    """Every step is reported; validations come at the start, each period, and the length."""
    _, outcome = unbroken
    assert list(outcome["losses"]) == list(range(1, LENGTH + 1))
    assert list(outcome["validations at"]) == [0, 4, 8, 12, 15]
    last = outcome["validations at"][15]
    assert (last["batches"], last["epochs"], last["records"]) == (15, 2.5, 60)
    assert outcome["validations"] == 5


@pytest.mark.parametrize("step", thinned(range(1, LENGTH + 1), 5))
def test_killed_at_every_step_it_goes_on_as_if_nothing_had_happened(
    unbroken: tuple[int, dict[str, Any]],
    parent: "subprocess.Popen[str]",
    tmp_path: Path,
    step: int,
) -> None:
    """Losses, validations, weights, optimizer and generators are those of the unbroken run."""
    workers, expected = unbroken
    moments = step + _moments_before(step)
    for runs in trial(parent, tmp_path):
        assert runs.train(workers, moments) == -signal.SIGKILL
        assert max(runs.losses(), default=0) == step - 1
        assert runs.train(workers) == 0
        assert runs.outcome() == expected


@pytest.mark.parametrize("moment", thinned(range(1, LENGTH + 18), 2))
def test_killed_at_any_other_moment_too(
    alone: dict[str, Any], parent: "subprocess.Popen[str]", tmp_path: Path, moment: int
) -> None:
    """Also after validations, with half a checkpoint, and right behind a whole one; twice.

    Killed behind the last checkpoint, a trial is validated once more; nothing else differs.
    """
    for runs in trial(parent, tmp_path):
        first = runs.train(0, moment)
        second = runs.train(0, moment // 2 + 1) if first else 0
        if second:
            assert runs.train(0) == 0
        outcome = runs.outcome()
        assert outcome["validations"] in {5, 6}
        assert outcome | {"validations": 5} == alone


def _moments_before(step: int) -> int:
    """Return how many moments other than steps lie before a step's."""
    done = step - 1
    return 1 + done // 4 + 2 * (done // 3)


def test_a_damaged_checkpoint_is_skipped_and_the_result_is_the_same(
    unbroken: tuple[int, dict[str, Any]], parent: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """With a flipped bit in the newest checkpoint, the one before it gives the same trial."""
    workers, expected = unbroken
    for runs in trial(parent, tmp_path):
        assert runs.train(workers, 8 + _moments_before(8)) == -signal.SIGKILL
        stored = [message.checkpoint_id for message in runs.agent.of(Stored)]
        store = open_store(runs.agent.objects_url)
        name = f"checkpoints/exp00000/{stored[-1]}/training.pt"
        data = store.read(name)
        store.put_bytes(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
        assert runs.train(workers) == 0
        [damaged] = runs.agent.of(Damaged)
        assert damaged.checkpoint_id == stored[-1]
        assert "training.pt has the digest" in damaged.reason
        assert runs.agent.of(Restored) == [Restored(stored[-2], 3)]
        assert runs.outcome() == expected


def test_a_promotion_goes_on_as_if_the_length_had_been_longer(
    unbroken: tuple[int, dict[str, Any]], parent: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Trained to 6, then to 15: the weights of the trial that was trained to 15 at once.

    Only the validation at 6 is more; and the callback that counts validations counted it.
    """
    workers, expected = unbroken
    for runs in trial(parent, tmp_path):
        assert runs.train(workers, length=6) == 0
        assert list(runs.validations()) == [0, 4, 6]
        assert runs.train(workers, length=LENGTH) == 0
        outcome = runs.outcome()
        assert outcome["weights"] == expected["weights"]
        assert outcome["losses"] == expected["losses"]
        assert runs.agent.of(Acknowledged) == []


def test_a_run_that_was_killed_on_its_way_out_says_so_again(
    unbroken: tuple[int, dict[str, Any]], parent: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Started again at its length, a run trains nothing, validates once more, and leaves."""
    workers, expected = unbroken
    for runs in trial(parent, tmp_path):
        assert runs.train(workers) == 0
        before = len(runs.agent.messages)
        assert runs.train(workers) == 0
        again = runs.agent.messages[before:]
        assert [type(message).__name__ for message in again] == ["Restored", "Reported"]
        assert runs.validations() == expected["validations at"]
