"""Upcasters: pure functions from the data of an older type to those of the next one.

When a type gets a new version, or is replaced by another one, its entry here maps the old type
string to a function that returns the next type string and its data; the old schema stays in
`tests/events/schemas/`.

Relays once wrote types of their own; now they keep the type of the decision. Fields that the old
types did not have are empty.
"""

from collections.abc import Callable
from typing import Any, Final

from rung.events.trial import allocation_id_of, run_of

Data = dict[str, Any]
Upcaster = Callable[[Data], tuple[str, Data]]


def _allocation_requested(old: Data) -> tuple[str, Data]:
    return "rung.run.requested.v1", {"reason": "", **old}


def _allocation_withdrawn(old: Data) -> tuple[str, Data]:
    found = run_of(old["allocation_id"])
    if found is None:
        raise ValueError(f"{old['allocation_id']!r} is no allocation's id")
    trial_id, run = found
    experiment_id = trial_id.rpartition(".")[0]
    about = {"experiment_id": experiment_id, "trial_id": trial_id, "run": run, "reason": ""}
    return "rung.run.withdrawn.v1", {**about, **old}


def _run_ended(old: Data) -> tuple[str, Data]:
    about = {"pool": "", "allocation_id": allocation_id_of(old["trial_id"], old["run"])}
    if old["outcome"] not in {"lost", "dropped"}:
        raise ValueError(f"a run that ended as {old['outcome']!r}")
    return f"rung.allocation.{old['outcome']}.v1", {**about, **old}


def _trial_ended(old: Data) -> tuple[str, Data]:
    """Return a closed trial; its real state is in the decision on `searches` alone."""
    unknown = {"state": "completed", "reason": "", "restarts": 0}
    return "rung.trial.closed.v1", {**unknown, **old}


def _hold_ended(old: Data) -> tuple[str, Data]:
    return "rung.checkpoint.released.v1", old


UPCASTERS: Final[dict[str, Upcaster]] = {
    "rung.allocation.requested.v1": _allocation_requested,
    "rung.allocation.withdrawn.v1": _allocation_withdrawn,
    "rung.run.ended.v1": _run_ended,
    "rung.trial.ended.v1": _trial_ended,
    "rung.checkpoint.hold_ended.v1": _hold_ended,
}
"""Old type string → function from the old data to the next type string and its data."""
