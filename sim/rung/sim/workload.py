"""What is searched for in simulations: one small search per method, and a storm of faults."""

from typing import Any, Final

from rung.sim.scenario import Scenario
from rung.sim.world import Faults

METHODS: Final[dict[str, dict[str, Any]]] = {
    "single": {"name": "single", "max_time": 6},
    "grid": {"name": "grid", "max_time": 5, "max_concurrent_trials": 3},
    "random": {"name": "random", "max_time": 5, "max_trials": 8, "max_concurrent_trials": 3},
    "hyperband": {"name": "hyperband", "max_time": 9, "divisor": 3, "max_concurrent_trials": 5},
    "asha": {
        "name": "async_halving",
        "stop_once": True,
        "num_rungs": 3,
        "divisor": 3,
        "max_trials": 9,
        "max_time": 9,
        "max_concurrent_trials": 4,
    },
    "asha-promotion": {
        "name": "async_halving",
        "stop_once": False,
        "num_rungs": 3,
        "divisor": 3,
        "max_trials": 9,
        "max_time": 9,
        "max_concurrent_trials": 4,
    },
    "adaptive_asha": {
        "name": "adaptive_asha",
        "mode": "standard",
        "divisor": 3,
        "max_rungs": 3,
        "bracket_rungs": [],
        "max_trials": 12,
        "max_time": 9,
        "max_concurrent_trials": 4,
    },
}

ORDER_FREE: Final = ("single", "grid", "random", "hyperband")
"""Methods whose result does not depend on the order in which reports arrive."""

STORM: Final = Faults(
    decider_crash=0.01,
    forwarder_crash=0.02,
    agent_crash=0.01,
    trial_crash=0.02,
    repeat=0.1,
    pause=0.6,
    damage=0.1,
)


def expanded(method: str) -> dict[str, Any]:
    """Return an expanded experiment configuration for one of `METHODS`."""
    single = method == "single"
    space: dict[str, Any] = {
        "lr": {"type": "log", "base": 10.0, "minval": -3.0, "maxval": 0.0, "count": 3},
        "model": {"width": {"type": "int", "minval": 1, "maxval": 64, "count": 3}},
    }
    return {
        "name": method,
        "entrypoint": "true",
        "hyperparameters": {"lr": 0.1} if single else space,
        "searcher": {
            "metric": "loss",
            "smaller_is_better": True,
            "time_metric": "batches",
            "source_trial_id": None,
            "source_checkpoint_uuid": None,
            **METHODS[method],
        },
        "resources": {
            "slots_per_trial": 1,
            "max_slots": None,
            "priority": 42,
            "resource_pool": "default",
        },
        "checkpoint_storage": {
            "save_experiment_best": 0,
            "save_trial_best": 1,
            "save_trial_latest": 1,
        },
        "max_restarts": 1000,
        "reproducibility": {"experiment_seed": 11},
    }


def calm(method: str) -> Scenario:
    """Return the method's search without faults."""
    return Scenario(config=expanded(method))


def stormy(method: str) -> Scenario:
    """Return the method's search under every kind of fault."""
    return Scenario(config=expanded(method), faults=STORM)
