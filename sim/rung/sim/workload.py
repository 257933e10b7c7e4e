"""What is simulated: the examples of every search method, and a storm of faults."""

from typing import Any, Final

import msgspec

from rung.methods import table as methods
from rung.sim.scenario import Scenario
from rung.sim.world import Faults

METHODS: Final[dict[str, dict[str, Any]]] = {
    example: {"name": name, **fields}
    for name, options in methods.METHODS.items()
    for example, fields in options.EXAMPLES.items()
}
"""The examples of every method."""

ORDER_FREE: Final = tuple(
    example
    for options in methods.METHODS.values()
    if options.ORDER_FREE
    for example in options.EXAMPLES
)
"""Those whose result does not depend on the order in which reports arrive."""

STORM: Final = Faults(
    processor_crash=0.01,
    relay_crash=0.02,
    sink_crash=0.02,
    projection_crash=0.01,
    shared_crash=0.5,
    late=0.3,
    refusal=0.05,
    agent_crash=0.01,
    trial_crash=0.02,
    repeat=0.1,
    pause=0.6,
    damage=0.1,
)

SLOT_HOURS: Final = 0.0004
"""A limit that most searches reach: 1.44 seconds of one slot."""


def expanded(method: str) -> dict[str, Any]:
    """Return an expanded experiment configuration for one of `METHODS`."""
    constants = methods.METHODS[METHODS[method]["name"]].SPACE == "constants"
    space: dict[str, Any] = {
        "lr": {"type": "log", "base": 10.0, "minval": -3.0, "maxval": 0.0, "count": 3},
        "model": {"width": {"type": "int", "minval": 1, "maxval": 64, "count": 3}},
    }
    return {
        "name": method,
        "entrypoint": "true",
        "hyperparameters": {"lr": 0.1} if constants else space,
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


def changed(method: str) -> Scenario:
    """Return the method's search under every kind of fault, and changed by users on its way."""
    faults = msgspec.structs.replace(STORM, change=0.8)
    return Scenario(config=expanded(method), faults=faults)


def poisoned(method: str, *, changes: bool = False) -> Scenario:
    """Return the method's search under every kind of fault, with facts that cannot be folded.

    Args:
        method: one of `METHODS`.
        changes: whether users change it on its way.
    """
    faults = msgspec.structs.replace(STORM, poison=0.01, change=0.8 if changes else 0.0)
    return Scenario(config=expanded(method), faults=faults)


def limited(method: str) -> Scenario:
    """Return the method's search under every kind of fault, with few slot-hours."""
    config = expanded(method)
    config["resources"]["max_slot_hours"] = SLOT_HOURS
    return Scenario(config=config, faults=STORM)
