"""Keras on several slots: the curve of one, whichever rank is killed."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.framework_trials import (
    assert_same,
    configured,
    killed_again_and_again,
    needs,
    parent,
    trial,
)
from support.frameworks import keras_fields
from support.fuse import after, before, out

pytestmark = [needs("keras", "tensorflow"), pytest.mark.e2e, pytest.mark.timeout(300)]
FIELDS = configured(keras_fields.FIELDS, min_validation_period={"batches": 2})
STEPS = 9
"""Three epochs of three."""
MINUTES = 300_000
"""Far more milliseconds than a process on a busy machine is silent."""
KILLS = {
    "tensorflow": [before(5), after(7), out(3)],
    "torch": [before(2), before(5), after(5), before(9), out(3)],
}
"""When a rank dies: within a step, behind one, on the way out."""


class Backend(NamedTuple):
    """Keras on a backend."""

    name: str
    parent: "subprocess.Popen[str]"
    alone: dict[str, Any]
    """What becomes of the trial on one slot."""


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """A parent that has Keras on a backend and forks ranks."""
    with parent("support.frameworks.keras_ranks", {"KERAS_BACKEND": request.param}) as process:
        alone = trained(process, tmp_path_factory.mktemp("alone"), 1)
        yield Backend(request.param, process, alone)


def trained(process: "subprocess.Popen[str]", folder: Path, slots: int) -> dict[str, Any]:
    """Return what becomes of a trial on so many slots that nobody kills."""
    with trial(process, folder, **FIELDS) as runs:
        assert runs.train(slots=slots, logs=True) == 0
        return runs.outcome()


@pytest.mark.parametrize("slots", [2, 4])
def test_any_number_of_slots_gives_the_same_curve(
    backend: Backend, tmp_path: Path, slots: int
) -> None:
    """Losses, metrics and validations are those of one slot, and the same on all ranks."""
    assert list(backend.alone["training"]) == list(range(1, STEPS + 1))
    found = trained(backend.parent, tmp_path, slots)
    assert_same(found, backend.alone)
    assert found["others"] == [found["result"]] * (slots - 1)
    if backend.name == "tensorflow":
        assert found["result"]["patience"] >= MINUTES, "a busy machine is no dead process"
        assert found["result"]["left_together"], "none is missed by those that still train"


@pytest.mark.versions
def test_no_kill_of_a_rank_shows(backend: Backend, tmp_path: Path) -> None:
    """With noise everywhere, either rank killed: curves and weights are the same bits."""
    found = killed_again_and_again(
        backend.parent,
        tmp_path,
        FIELDS,
        KILLS[backend.name],
        slots=2,
        noise=True,
        source="dataset" if backend.name == "tensorflow" else "noisy",
    )
    assert found["others"] == [found["result"]]


@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True)
def test_epochs_behind_one_that_was_resumed_are_the_same(backend: Backend, tmp_path: Path) -> None:
    """Also where the shuffle of tf.data had read all of its input at the checkpoint."""
    killed_again_and_again(backend.parent, tmp_path, FIELDS, [after(2)], source="dataset")


def test_two_optimizers_in_a_dict_are_averaged(backend: Backend, tmp_path: Path) -> None:
    """Ranks that train with several optimizers stay the same, and are what one slot is."""
    outcomes = []
    for slots in (1, 2):
        with trial(backend.parent, tmp_path / str(slots), **FIELDS) as runs:
            assert runs.train(slots=slots, pair="dict") == 0
            outcomes.append(runs.outcome())
    alone, found = outcomes
    assert_same(found, alone)
    assert found["others"] == [found["result"]]


@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True)
def test_data_that_end_without_notice_end_alike(backend: Backend, tmp_path: Path) -> None:
    """All ranks have the epoch's logs, also where the step behind its last batch finds no data."""
    with trial(backend.parent, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, logs=True, source="sudden") == 0
        assert list(runs.curve("training")) == list(range(1, STEPS + 1))
        chief, other = runs.results()
    assert other == chief
    assert min(chief["logs"]["loss"]) > 0


def test_a_checkpoint_of_n_slots_resumes_on_m(backend: Backend, tmp_path: Path) -> None:
    """On two slots, then on one, then on two again: the curve is that of one slot."""
    with trial(backend.parent, tmp_path, **FIELDS) as runs:
        assert runs.train(before(5), slots=2, victim=1) == -signal.SIGKILL
        assert runs.train(before(7)) == -signal.SIGKILL
        assert runs.train(slots=2) == 0
        assert_same(runs.outcome(tolerance=1e-4), backend.alone)


@pytest.mark.parametrize("backend", ["tensorflow"], indirect=True)
def test_a_rank_that_never_comes_is_missed(backend: Backend, tmp_path: Path) -> None:
    """The others say in a sentence what they waited for, whichever launcher it is."""
    for launcher in ("torch", "tensorflow"):
        fields = configured(FIELDS, distributed={"launcher": launcher})
        with trial(backend.parent, tmp_path / launcher, **fields) as runs:
            assert runs.train(slots=2, late=1) == 1
            said = runs.refusal()
        assert "not all of the run's 2 processes have come to rung.keras.init()" in said


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"source": "apart"}, "read different batches"),
        ({"loss": "sum"}, "sum_over_batch_size"),
        ({"pair": "outside"}, "is not among the model's attributes"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    backend: Backend, tmp_path: Path, order: dict[str, Any], words: str
) -> None:
    """A run that several slots would train otherwise fails at once, and says what to change."""
    with trial(backend.parent, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, **order) == 1
        assert runs.agent.reports("training") == []
        assert words in runs.refusal()


def test_validation_data_that_differ_are_refused(backend: Backend, tmp_path: Path) -> None:
    """Each rank evaluates some of the batches, so some records would count twice, others never."""
    with trial(backend.parent, tmp_path, **FIELDS) as runs:
        assert runs.train(slots=2, validated="apart") == 1
        assert runs.agent.reports("validation") == []
        assert "read different batches" in runs.refusal()


def test_records_of_unknown_batches_are_refused(backend: Backend, tmp_path: Path) -> None:
    """A length in records wants to know how many a batch holds; else it would never be reached."""
    with trial(backend.parent, tmp_path, **FIELDS | {"time_metric": "records"}) as runs:
        assert runs.train(told=None) == 1
        assert "give Callback(run, batch_size=…)" in runs.refusal()
