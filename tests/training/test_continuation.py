"""Which checkpoints a run resumes whole."""

from types import SimpleNamespace
from typing import Any

import pytest

from rung.training.continuation import is_own

CONTINUED = {"reproducibility": {"continue_source": True}}
STARTED = {"reproducibility": {"continue_source": False}}


@pytest.mark.parametrize(
    ("config", "managed", "trained_by", "own"),
    [
        ({}, True, "k3v9x2ab.0", True),
        ({}, True, "zzzzzzzz.0", False),
        (STARTED, True, "zzzzzzzz.0", False),
        (CONTINUED, True, "zzzzzzzz.0", True),
        ({}, False, "", True),
    ],
)
def test_own(config: dict[str, Any], managed: bool, trained_by: str, own: bool) -> None:  # noqa: FBT001 - parameters
    """Its own, that of the trial which it continues, and any of a script without an agent."""
    trial = SimpleNamespace(trial_id="k3v9x2ab.0", config=config)
    run: Any = SimpleNamespace(info=SimpleNamespace(managed=managed, trial=trial))
    assert is_own(run, trained_by) == own
