"""A Lightning trial on several slots: the curve of one slot, whatever is killed."""

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rung.core.ipc.protocol import Acknowledged, FromTrial, Reported, Stored
from support.framework_trials import (
    assert_same,
    configured,
    killed_in_a_rank,
    needs,
    trial,
)
from support.frameworks.lightning_fields import FIELDS

pytestmark = [needs("lightning"), pytest.mark.e2e, pytest.mark.timeout(300)]
WITHIN = {"accumulate": 2, "validate": 3}
"""Steps over two batches, and validations within epochs."""


@pytest.mark.parametrize(("slots", "more"), [(2, {}), (4, WITHIN)])
def test_any_number_of_slots_gives_the_same_curve(
    process: "subprocess.Popen[str]", tmp_path: Path, slots: int, more: dict[str, Any]
) -> None:
    """Losses, validations, means of epochs; batches are uneven, the last has one record."""
    outcomes = []
    for number in (1, slots):
        with trial(process, tmp_path / str(number), **FIELDS) as runs:
            assert runs.train(slots=number, plain=True, **more) == 0
            outcomes.append(runs.outcome())
    alone, together = outcomes
    assert alone["validation"][10]["records"] == 42
    assert_same(together, alone)
    mean = pytest.approx(alone["result"]["mean"], rel=1e-4)
    for other in (together["result"], *together["others"]):
        assert other["weights"] == together["result"]["weights"]
        assert other["mean"] == mean


@pytest.mark.parametrize(
    ("kills", "more"),
    [
        pytest.param([(1, 1), (0, 6), (1, 12)], {}, marks=pytest.mark.versions),
        ([(1, 5), (0, 15)], WITHIN),
        ([(3, 6)], {"slots": 4, "width": 2048}),
    ],
)
def test_no_kill_of_a_rank_shows(
    process: "subprocess.Popen[str]",
    tmp_path: Path,
    kills: list[tuple[int, int]],
    more: dict[str, Any],
) -> None:
    """With dropout and noise the curve, weights and each rank's generators are the same bits."""
    outcome = killed_in_a_rank(process, tmp_path, FIELDS, kills, **more)
    for other in outcome["others"]:
        assert other["weights"] == outcome["result"]["weights"]
        assert other["drawn"] != outcome["result"]["drawn"]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 2)])
def test_a_checkpoint_of_n_slots_resumes_on_m(
    process: "subprocess.Popen[str]", tmp_path: Path, before: int, after: int
) -> None:
    """Killed within an epoch and continued on another number, the curve is that of one slot."""
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(plain=True) == 0
        wanted = runs.outcome()
    with trial(process, tmp_path / "moved", **FIELDS) as runs:
        moment, last = 2 * 4 - 1, before - 1
        assert runs.train(moment, slots=before, victim=last, plain=True) == -signal.SIGKILL
        assert runs.train(slots=after, plain=True) == 0
        found = runs.outcome(tolerance=1e-4)
    assert_same(found, wanted)
    assert found["result"]["mean"] == pytest.approx(wanted["result"]["mean"], rel=1e-4)


@pytest.mark.parametrize("before", [2, 1])
def test_a_run_resumes_right_before_a_batch_smaller_than_the_slots(
    process: "subprocess.Popen[str]", tmp_path: Path, before: int
) -> None:
    """The rank that has no record of the epoch's last batch takes part in the epoch's mean."""
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(plain=True, length=1) == 0
        wanted = runs.outcome()
    with trial(process, tmp_path / "killed", **FIELDS) as runs:
        code = runs.train(2 * 5 - 1, slots=before, plain=True, length=1)
        assert code == -signal.SIGKILL
        assert runs.agent.of(Stored)[-1].steps_completed == 4
        assert runs.train(slots=2, plain=True) == 0
        found = runs.outcome(tolerance=1e-4)
    assert_same(found, wanted)
    mean = pytest.approx(wanted["result"]["mean"], rel=1e-4)
    for each in (found["result"], *found["others"]):
        assert each["mean"] == mean


def test_a_stream_is_validated_as_on_one_slot(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """An endless one is cut off where the script says, in validations beside `fit`, too.

    Every rank reads it whole, its sums count once; and what is beside `fit` is not reported.
    """
    outcomes = []
    for slots in (1, 2):
        with trial(process, tmp_path / str(slots), **FIELDS) as runs:
            order: dict[str, Any] = {"endless": True, "trainer": {"limit_val_batches": 2}}
            assert runs.train(slots=slots, plain=True, length=1, beside=slots > 1, **order) == 0
            outcomes.append(runs.outcome())
    alone, together = outcomes
    assert list(alone["validation"]) == [5]
    assert alone["validation"][5]["val_seen"] == 14
    assert_same(together, alone)


def test_a_part_of_a_stream_is_refused(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """The message names the argument to change."""
    with trial(process, tmp_path, **FIELDS) as runs:
        order: dict[str, Any] = {"endless": True, "trainer": {"limit_val_batches": 0.5}}
        assert runs.train(slots=2, plain=True, **order) == 1
        assert "limit_val_batches=0.5" in runs.refusal()


def test_all_ranks_leave_at_the_same_step(
    process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """Asked to make room they store and leave together, and the next run goes on from there."""
    with trial(process, tmp_path / "unbroken", **FIELDS) as runs:
        assert runs.train(slots=2) == 0
        expected = runs.outcome()
    with trial(process, tmp_path / "asked", **FIELDS) as runs:

        def ask(message: FromTrial) -> None:
            if isinstance(message, Reported) and message.kind == "waits":
                runs.agent.preempt()

        runs.agent.on_message = ask
        assert runs.train(slots=2, wait_at=3) == 0
        assert runs.agent.of(Acknowledged)
        left_at = runs.agent.of(Stored)[-1].steps_completed
        assert left_at == 3
        assert list(runs.curve("training")) == list(range(1, left_at + 1))
        assert runs.train(slots=2) == 0
        assert runs.outcome() == expected


@pytest.mark.parametrize(
    ("more", "section", "said"),
    [
        (
            {"trainer": {"strategy": "auto", "num_nodes": 1}},
            {},
            "leave strategy, devices",
        ),
        ({}, {"launcher": "horovod"}, r"use `launcher: torch`"),
        ({}, {"strategy": "fsdp"}, r"use `strategy: ddp`, or rung\.torch"),
    ],
)
def test_what_does_not_go_together_is_refused(
    process: "subprocess.Popen[str]",
    tmp_path: Path,
    more: dict[str, Any],
    section: dict[str, Any],
    said: str,
) -> None:
    """The run fails at once and says what to change."""
    with trial(process, tmp_path, **configured(FIELDS, distributed=section)) as runs:
        assert runs.train(slots=2, **more) == 1
        assert re.search(said, runs.refusal())


@pytest.mark.parametrize("named", [{"strategy": "ddp_spawn"}, {"devices": 1, "num_nodes": 1}])
def test_a_script_may_say_what_rung_says_too(
    process: "subprocess.Popen[str]", tmp_path: Path, named: dict[str, Any]
) -> None:
    """Any strategy named `ddp` is Rung's; how many devices there are, the slots say."""
    with trial(process, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, length=1, trainer=named) == 0
        (other,) = runs.outcome()["others"]
        assert other["weights"] == runs.outcome()["result"]["weights"]
