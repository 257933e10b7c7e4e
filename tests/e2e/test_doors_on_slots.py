"""Scripts of other frameworks, as they are, on two slots of a real installation."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.framework_trials import needs
from support.installation import Installation

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Return a `rung up` with two slots."""
    item = Installation(tmp_path_factory.mktemp("slots") / "data", slots=2, cold=False)
    item.up()
    yield item
    item.down()


def _short(folder: Path, name: str, slots: int) -> Path:
    """Return a copy of an example whose only trial trains for an epoch, without dropout.

    Each of its processes says which of how many it is.
    """
    copy = folder / f"{name}-{slots}"
    shutil.copytree(EXAMPLES / name, copy)
    file = copy / "experiment.yaml"
    config: dict[str, Any] = yaml.safe_load(file.read_text())
    config["searcher"] |= {"max_time": 1, "max_trials": 1}
    config["resources"] = {"slots_per_trial": slots}
    file.write_text(yaml.safe_dump(config))
    script = copy / "train.py"
    text = script.read_text().replace("Dropout(0.2)", "Dropout(0.0)")
    began = "as run:\n"
    said = 'print("process", run.distributed.rank, "of", run.distributed.size, flush=True)'
    assert began in text
    text = text.replace(began, f"{began}        {said}\n", 1)
    quiet = "num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0"
    script.write_text(text.replace("num_labels=10", quiet))
    return copy


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        pytest.param("keras", "val_loss", marks=needs("tensorflow", "keras", "sklearn")),
        pytest.param("tensorflow", "loss", marks=needs("tensorflow", "keras", "sklearn")),
        pytest.param("lightning", "val_loss", marks=needs("lightning", "sklearn")),
        pytest.param(
            "transformers", "eval_loss", marks=needs("transformers", "accelerate", "sklearn")
        ),
    ],
)
def test_an_example_on_two_slots(
    installation: Installation, tmp_path: Path, name: str, metric: str
) -> None:
    """`slots_per_trial: 2` changes nothing else: the validation is that of one slot."""
    found = []
    for slots in (1, 2):
        folder = _short(tmp_path, name, slots)
        file = str(folder / "experiment.yaml")
        answer = installation.rung("submit", file, str(folder), "--json")
        experiment = str(json.loads(answer.stdout)["experiment_id"])
        shown = installation.ended(experiment)
        logs = installation.rung("logs", experiment).stdout
        assert shown["state"] == "completed", logs
        for rank in range(slots):
            of_rank = installation.rung("logs", experiment, "--rank", str(rank)).stdout
            assert f"process {rank} of {slots}" in of_rank
        assert len(re.findall(r"process \d+ of", logs)) == slots
        (trial,) = shown["trials"]
        (validation,) = trial["validations"]
        found.append(validation["metrics"] | {"steps": validation["steps"]})
    alone, together = found
    assert together == pytest.approx(alone, rel=1e-4), metric
