"""Killing every process at random moments changes nothing of what a search finds.

Arrival order may change what an asynchronous search decides, so the comparison is made where the
result does not depend on it: `hyperband` (synchronous), `grid`, and promotion ASHA with one trial
at a time, which fixes the order of arrival.
"""

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest

from support.installation import Installation
from support.user import config, wait_for

KILLS = int(os.environ.get("RUNG_KILLS", "12"))
"""Of the search by hyperband; `make soak` sets fifty."""
HYPERBAND = {
    "name": "hyperband",
    "max_time": 27,
    "divisor": 3,
    "time_metric": "batches",
    "max_concurrent_trials": 4,
}
GRID = {"name": "grid", "max_length": {"batches": 12}, "max_concurrent_trials": 2}
ASHA = {
    "name": "async_halving",
    "stop_once": False,
    "num_rungs": 3,
    "divisor": 3,
    "max_trials": 6,
    "max_time": 9,
    "time_metric": "batches",
    "max_concurrent_trials": 1,
}


def _storm(installation: Installation, experiment: str, kills: int, chance: random.Random) -> int:
    """Kill something so many times, or until the search has ended; return how many times it was.

    Trials mostly sleep: on a busy machine they get on, and who is to kill them does not.
    """
    killed = 0

    def over() -> bool:
        shown = installation.get_or_none(f"/experiments/{experiment}")
        return bool(shown and shown["ended_at"])

    while killed < kills and not over():
        wanted = installation.validations(experiment) + chance.randint(0, 1)
        killed += _kill_something(installation, chance, over)
        wait_for(
            lambda: installation.validations(experiment) >= wanted or over(),  # noqa: B023 - called here
            f"{wanted} validations",
        )
    return killed


def _kill_something(
    installation: Installation, chance: random.Random, over: Callable[[], bool]
) -> bool:
    """Kill the whole of Rung, its agent, or a trial, if there is one before the search is over."""
    target = chance.choice(["up", "agent", "trial", "trial"])
    if target == "up":
        installation.kill_server()
        installation.up()
        return True
    if target == "agent":
        return wait_for(lambda: _killed([installation.agent], chance), "an agent was killed")

    def found() -> str:
        if _killed(installation.trials(), chance):
            return "killed"
        return "over" if over() else ""

    return wait_for(found, "a trial was killed") == "killed"


def _killed(victims: Sequence[psutil.Process | None], chance: random.Random) -> bool:
    """Kill one of them; return whether that was before it ended by itself."""
    alive = [victim for victim in victims if victim is not None]
    if not alive:
        return False
    try:
        chance.choice(alive).kill()
    except psutil.NoSuchProcess:
        return False
    return True


@pytest.mark.e2e
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "searcher", "kills"),
    [("hyperband", HYPERBAND, KILLS), ("grid", GRID, 5), ("asha", ASHA, 5)],
)
def test_a_search_under_kills_finds_the_same(
    installation: Installation, name: str, searcher: dict[str, Any], kills: int
) -> None:
    """Trials, hyperparameters, metrics and best checkpoint are those of the run without kills."""
    calm = installation.result(installation.submit(config(f"{name}-calm", searcher)))
    chance = random.Random(kills)  # noqa: S311 - repeatable, not secret
    killed = 0
    while killed < kills:  # one search is enough, if it does not end before
        experiment = installation.submit(config(f"{name}-storm-{killed}", searcher))
        killed += _storm(installation, experiment, kills - killed, chance)
        storm = installation.result(experiment)

        for stormy_trial, calm_trial in zip(storm["trials"], calm["trials"], strict=True):
            assert stormy_trial == calm_trial
        assert storm == calm
        installation.rung("audit", experiment)
    installation.rung("audit")
