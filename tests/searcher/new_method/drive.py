"""Runs searches of a method that is in the table under the name `copying`; prints what came of it.

Run by `test_new_method.py`, in a process that has that method.
"""

import logging
from typing import Any

import msgspec
import structlog

from rung.config import InvalidExperimentFile, json_schema, load
from rung.events.checkpoint import CheckpointReleased
from rung.events.trial import RunRequested, TrialPromoted
from rung.searcher.simulate import simulate
from rung.sim import run
from rung.sim.scenario import Scenario as Simulation
from rung.sim.workload import METHODS, STORM, expanded
from support.searcher.scenario import Scenario, config

SEEDS = 20

FILE = """
entrypoint: python3 train.py
searcher: {name: copying, metric: loss, time_metric: epochs, max_time: 4, interval: INTERVAL,
           population: 1e1}
hyperparameters: {lr: {type: double, minval: 0.1, maxval: 1.0}}
"""


def by_hand() -> dict[str, Any]:
    """Have the worse of two trials copy the better; return what was decided."""
    scenario = Scenario(config("copying", population=2, interval=4, max_time=12))
    scenario.store(0, 400, "c0")
    scenario.train(0, 0.1)
    scenario.store(1, 400, "c1")
    copied = scenario.train(1, 0.9)
    more = scenario.store(0, 600, "c0-newer") + scenario.store(0, 800, "c0-newest")
    more += scenario.train(0, 0.05)
    restarted = scenario.lose(1)
    stored = scenario.store(1, 500, "c1-own")
    promoted = next(it for it in copied if isinstance(it, TrialPromoted))
    return {
        "promoted": msgspec.to_builtins(promoted),
        "restore": [it.spec.restore for it in copied if isinstance(it, RunRequested)],
        "hparams": [it.spec.hparams for it in copied if isinstance(it, RunRequested)],
        "restarted": [it.spec.restore for it in restarted if isinstance(it, RunRequested)],
        "released": [it.checkpoint_id for it in more if isinstance(it, CheckpointReleased)],
        "released_then": [it.checkpoint_id for it in stored if isinstance(it, CheckpointReleased)],
        "donor": scenario.experiment.trials[0].hparams,
    }


def from_file() -> dict[str, Any]:
    """Read experiment files; return the section and what is refused."""
    try:
        load(FILE.replace("INTERVAL", "9"), today_seed=1)
    except InvalidExperimentFile as error:
        refused = [str(problem.message) for problem in error.details]
    try:
        load(FILE.replace("INTERVAL", "0"), today_seed=1)
    except InvalidExperimentFile as error:
        refused += [f"{problem.path} {problem.message}" for problem in error.details]
    configured = load(FILE.replace("INTERVAL", "2"), today_seed=1).expanded()
    found = simulate(configured, lambda _, hparams, time: hparams["lr"] / time, slots=3)
    return {
        "searcher": configured["searcher"],
        "refused": refused,
        "described": "After how much training trials compare." in str(json_schema()),
        "ended": None if found.ended is None else found.ended.reason,
        "copies": sum(isinstance(it, TrialPromoted) and bool(it.parent) for it in found.decisions),
        "released": sum(isinstance(it, CheckpointReleased) for it in found.decisions),
    }


def simulated() -> dict[str, Any]:
    """Simulate searches with and without faults; return how they ended and what was copied.

    Without damaged checkpoints the simulated agents assert that none is gone that they are to
    start from. On one slot a run waits long while the donor trains on, and has newer checkpoints.
    """
    assert "copying" in METHODS
    calm = Simulation(config=expanded("copying"))
    waiting = Simulation(config=expanded("copying"), agents=(1,))
    whole = msgspec.structs.replace(STORM, damage=0.0)
    storms = [Simulation(config=expanded("copying"), faults=it) for it in (whole, STORM)]
    outcomes = [run(it, seed) for it in (calm, waiting, *storms) for seed in range(SEEDS)]
    return {
        "states": sorted({outcome.state for outcome in outcomes}),
        "copies": [
            sum(len(trial.get("parents", [])) for trial in outcome.trials.values())
            for outcome in outcomes
        ],
        "retained": [len(outcome.retained) for outcome in outcomes],
    }


def main() -> None:
    """Print all of it as JSON."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = {"by_hand": by_hand(), "from_file": from_file(), "simulated": simulated()}
    print(msgspec.json.encode(found).decode())  # noqa: T201 - that is what it is for


if __name__ == "__main__":
    main()
