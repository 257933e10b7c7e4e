"""The start of a run in a framework's script."""

import random
from pathlib import Path

import pytest

from rung.training import seeded_run


@pytest.fixture(autouse=True)
def by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, not as a run of Rung's."""
    monkeypatch.chdir(tmp_path)
    for name in ("RUNG_ALLOCATION", "RUNG_SIZE"):
        monkeypatch.delenv(name, raising=False)


def _drawn() -> float:
    with seeded_run(hparams={}, config=None, seed=4, restore=None, storage=None) as run:
        assert run.seed == 4
        return random.random()  # noqa: S311 - what the seed makes of it


def test_generators_are_seeded() -> None:
    """The same seed draws the same numbers."""
    assert _drawn() == _drawn()
