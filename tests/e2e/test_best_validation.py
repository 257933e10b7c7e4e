"""Trials of a real search read the best validation of those before them, also beside kills."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.installation import Installation
from support.user import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

VALUES: Final = [0.25, 0.75, 0.5]
SCRIPT: Final = """
from pathlib import Path
from rung import core

with core.init() as run:
    train, index = run.train, run.info.trial.index
    seen = [train.get_experiment_best_validation()]
    train.report_validation_metrics(1, {{"accuracy": {values}[index]}})
    train.report_validation_metrics(2, {{"accuracy": float("nan")}})
    seen.append(train.get_experiment_best_validation())
    if index == 2:
        train.set_status("asks again and again")
        while not Path({stop!r}).exists():
            assert train.get_experiment_best_validation() == seen[-1]
    train.set_metadata({{"seen": seen}})
"""


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Give an installation whose trials train on without their agent."""
    item = Installation(tmp_path / "data", unattended_s=600.0)
    item.up()
    yield item
    item.rung("down", "--kill")


def test_trials_read_the_best_of_their_search(installation: Installation, tmp_path: Path) -> None:
    """One after the other, before and after their own validation; an agent's death delays it."""
    stop, code = tmp_path / "stop", tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT.format(values=VALUES, stop=str(stop)))
    searcher = {"name": "random", "max_trials": 3, "max_time": 2, "max_concurrent_trials": 1}
    experiment = installation.submit(
        {
            "name": "bests",
            "entrypoint": "python3 train.py",
            "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
            "searcher": searcher | {"metric": "accuracy", "smaller_is_better": False},
            "max_restarts": 0,
        },
        code,
    )
    last = f"/trials/{experiment}.2"

    def asking() -> bool:
        found = installation.get_or_none(last)
        return bool(found and found["status"] == "asks again and again")

    wait_for(asking, "the last trial asks", 120)
    before = installation.agent
    installation.kill_agent()

    def replaced() -> bool:
        agent = installation.agent
        return agent is not None and agent != before

    wait_for(replaced, "there is another agent")
    stop.touch()
    shown = installation.ended(experiment)
    assert [trial["state"] for trial in shown["trials"]] == ["completed"] * 3
    trials = [installation.get(f"/trials/{experiment}.{index}") for index in range(3)]
    assert [trial["run"] for trial in trials] == [1, 1, 1]
    seen = [trial["metadata"]["seen"] for trial in trials]
    assert seen == [[None, 0.25], [0.25, 0.75], [0.75, 0.75]]
    assert installation.get(f"/experiments/{experiment}/best")["value"] == 0.75
