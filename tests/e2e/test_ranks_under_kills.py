"""A trial of two ranks, killed wherever it can be, ends on the curve of one that nobody killed."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from e2e.installation import Installation
from e2e.user import wait_for

SCRIPT = Path(__file__).parents[1] / "training" / "shared.py"
KILLS = ("rank", "rank", "agent", "rank", "everything", "rank")


@pytest.fixture
def four_slots(tmp_path: Path) -> Iterator[Installation]:
    """Return an installation with four slots that runs."""
    item = Installation(tmp_path / "data", slots=4)
    item.up()
    yield item
    item.down()


def experiment(name: str, **data: Any) -> dict[str, Any]:
    """Return an experiment of one trial on two slots, with dropout, validated at every step."""
    return {
        "name": name,
        "entrypoint": "python3 shared.py",
        "hyperparameters": {"global_batch_size": 8},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 30}},
        "resources": {"slots_per_trial": 2},
        "reproducibility": {"experiment_seed": 7},
        "min_validation_period": {"batches": 1},
        "min_checkpoint_period": {"batches": 2},
        "scheduling_unit": 1,
        "data": {"noise": True, **data},
        "max_restarts": 100,
    }


def kill_one(victims: Sequence[psutil.Process | None], chance: random.Random) -> bool:
    """Kill one of them; return whether there was one to kill."""
    alive = [victim for victim in victims if victim is not None]
    if not alive:
        return False
    try:
        chance.choice(alive).kill()
    except psutil.NoSuchProcess:
        return False
    return True


def two_more_steps(installation: Installation, name: str) -> None:
    """Wait until the trial has trained on a little."""
    before = installation.validations(name)
    wait_for(lambda: installation.validations(name) >= before + 2, "two more steps")


def strike(installation: Installation, target: str, chance: random.Random) -> None:
    """Kill one of the two ranks, the agent, or all of Rung."""
    if target == "everything":
        installation.kill_server()
        installation.up()
    elif target == "agent":
        wait_for(lambda: kill_one([installation.agent], chance), "an agent was killed")
    else:

        def both() -> Sequence[psutil.Process] | None:
            trials = installation.trials()
            return trials if len(trials) == 2 else None

        wait_for(lambda: (found := both()) and kill_one(found, chance), "a rank was killed")


def outcome(installation: Installation, name: str) -> tuple[Any, ...]:
    """Return the trial's validations, its state, and the digest of its best model."""
    result = installation.result(name)
    models = [digest for file, digest in result["content"] if file == "model.pt"]
    return result["state"], result["trials"], result["best"], models


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_two_ranks_under_kills_end_on_the_unbroken_curve(four_slots: Installation) -> None:
    """Whichever rank or agent is killed, all metrics and the best weights are the same bits."""
    code = SCRIPT.parent
    calm = outcome(four_slots, four_slots.submit(experiment("calm"), code))
    name = four_slots.submit(experiment("storm", slow=0.15), code)
    chance = random.Random(4)  # noqa: S311 - repeatable, not secret
    for target in KILLS:
        two_more_steps(four_slots, name)
        strike(four_slots, target, chance)
    storm = outcome(four_slots, name)
    assert storm == calm
    for each in (None, name):
        audit = four_slots.rung("audit", *([each] if each else []), check=False)
        assert audit.returncode == 0, audit.stdout + audit.stderr
