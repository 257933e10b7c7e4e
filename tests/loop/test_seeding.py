"""The start of a run in a framework's script."""

import random
from pathlib import Path

import pytest

from rung.events import RungError
from rung.loop import OneProcessOnly, started


@pytest.fixture(autouse=True)
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, not as a run of Rung's."""
    monkeypatch.chdir(tmp_path)
    for name in ("RUNG_ALLOCATION", "RUNG_SIZE"):
        monkeypatch.delenv(name, raising=False)


def _drawn() -> float:
    with started(hparams={}, config=None, seed=4, restore=None, storage=None) as run:
        assert run.seed == 4
        return random.random()  # noqa: S311 - what the seed makes of it


def test_generators_are_seeded() -> None:
    """The same seed draws the same numbers; a run of one process says so or nothing."""
    assert _drawn() == _drawn()


def test_one_process_is_no_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """`RUNG_SIZE=1` is what a run of one slot gets."""
    monkeypatch.setenv("RUNG_SIZE", "1")
    assert _drawn() == _drawn()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train the whole model; the field to change is named."""
    monkeypatch.setenv("RUNG_SIZE", "2")
    with pytest.raises(OneProcessOnly, match=r"resources\.slots_per_trial: 2") as refused:
        _drawn()
    assert isinstance(refused.value, RungError)
