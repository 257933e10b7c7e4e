"""A training with no setting at all: killed, it loses no more than its log says."""

import re
from pathlib import Path
from typing import Any

import pytest

from support.installation import Installation
from support.user import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
_UNSET = Path(__file__).parent / "unset"
_CHOSEN = re.compile(r"a checkpoint every ([\d.]+ \w+): one holds training for")
_STEPS = 700
"""Take longer than the half minute after which the first checkpoint comes."""


def test_kill_9_loses_what_the_period_says(installation: Installation) -> None:
    """It goes on from a checkpoint that it was not asked for, and the disk holds one per trial."""
    experiment = installation.submit(
        {
            "name": "unset",
            "entrypoint": "python3 train.py",
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": _STEPS}},
        },
        _UNSET,
    )

    def stored() -> list[dict[str, Any]]:
        answer = installation.get_or_none(f"/experiments/{experiment}/checkpoints")
        return [item for item in answer["items"] if item["state"] == "stored"] if answer else []

    [first] = wait_for(stored, "a checkpoint was stored", 120.0)
    said = wait_for(
        lambda: _CHOSEN.search(_log(installation, experiment)), "the period is in the log", 30.0
    )
    assert said[1] == "60 s"
    [process] = installation.trials()
    process.kill()
    [trial] = installation.ended(experiment)["trials"]
    assert trial["state"] == "completed"
    assert trial["restarts"] == 1
    begun = [
        int(batch)
        for batch in re.findall(r"begins at batch (\d+)", _log(installation, experiment))
    ]
    assert begun == [0, first["steps_completed"]]
    assert 0 < first["steps_completed"] < _STEPS
    wait_for(lambda: len(stored()) == 1, "the disk holds what the policy keeps")
    [last] = stored()
    assert last["steps_completed"] == _STEPS
    manifests = (installation.folder / "objects" / "checkpoints").rglob("manifest.json")
    assert [path.parent.name for path in manifests] == [last["id"]]


def _log(installation: Installation, experiment: str) -> str:
    return installation.rung("logs", experiment, check=False).stdout
