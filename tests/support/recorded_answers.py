"""Answers as a gateway gave them, for tests of whoever reads them."""

from collections import Counter
from typing import Any


def trial(index: int = 0, state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return a trial."""
    return {
        "id": f"k3v9x2ab.{index}",
        "experiment_id": "k3v9x2ab",
        "index": index,
        "bracket": 0,
        "rung": 1,
        "state": state,
        "hparams": {"lr": 0.01, "opt": {"name": "[bold]adam", "wd": None}},
        "seed": 5,
        "run": 2,
        "restarts": 1,
        "length": 16,
        "units": 16,
        "steps_completed": 1600,
        "validations": [{"steps": 1600, "metrics": {"error": 0.125, "epochs": 16, "x": "NaN"}}],
        "best": {"value": 0.125, "steps": 1600},
        "reason": "trained to 16",
        "message": "left as asked",
        "parent": None,
        "status": None,
        "metadata": None,
        "progress": None,
    } | more


def checkpoint(name: str = "k3v9x2ab.0.1.1600", **more: Any) -> dict[str, Any]:
    """Return a checkpoint."""
    return {
        "id": name,
        "experiment_id": "k3v9x2ab",
        "trial_id": "k3v9x2ab.0",
        "run": 1,
        "state": "stored",
        "steps_completed": 1600,
        "metrics": {"error": 0.125},
        "size_bytes": 2048,
        "file_count": 1,
        "digest": "ab" * 32,
        "stored_at": "2026-01-31T12:00:00.000Z",
        "deleted_at": None,
        "reason": None,
        "pinned_by": [],
    } | more


def summary(state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return an experiment as a list shows it."""
    ended = state in {"completed", "errored", "canceled"}
    return {
        "id": "k3v9x2ab",
        "name": "digits [red]",
        "state": state,
        "method": "adaptive_asha",
        "progress": 1.0 if ended else 0.5,
        "labels": ["a"],
        "workspace": "W",
        "project": "P",
        "submitted_at": "2026-01-31T12:00:00.000Z",
        "ended_at": "2026-01-31T12:01:05.000Z" if ended else None,
        "reason": "2 trials" if ended else None,
        "trial_count": 2,
        "best": {"trial_id": "k3v9x2ab.0", "metric": "error", "value": 0.125, "steps": 1600},
        "units_trained": 20,
        "units_full": 32,
        "eta_seconds": None if ended else 75.0,
        "failures": [],
        "late_failures": [],
        "checkpoint_count": 1,
        "checkpoint_bytes": 2048,
        "archived": False,
        "workspace_id": "w1",
        "project_id": "p1",
        "owner": "anna",
        "owner_id": "u1",
        "restorable_until": None,
    } | more


def failure(cause: str = "KeyError: 'x'", trials: int = 3, index: int = 4) -> dict[str, Any]:
    """Return a cause for which trials errored."""
    trial_id = f"k3v9x2ab.{index}"
    logs = f"/api/v1/trials/{trial_id}/logs"
    return {"cause": cause, "trials": trials, "trial_id": trial_id, "logs": logs}


def experiment(state: str = "completed", **more: Any) -> dict[str, Any]:
    """Return an experiment with two trials in two brackets."""
    found = (
        summary(state)
        | {
            "config": {"name": "digits"},
            "source": "name: digits",
            "code_digest": None,
            "actor": None,
            "parent": None,
            "description": "",
            "notes": "",
            "storage": "",
            "retention": {
                "save_experiment_best": 0,
                "save_trial_best": 1,
                "save_trial_latest": 1,
            },
            "plan": {
                "method": "adaptive_asha",
                "time_metric": "epochs",
                "brackets": [
                    {"bracket": 0, "lengths": [4, 16], "trials": 1},
                    {"bracket": 1, "lengths": [16], "trials": 1},
                ],
            },
            "trials": [trial(0), trial(1, "stopped", bracket=1, rung=None, best=None)],
        }
        | more
    )
    trials = found["trials"]
    counts = {
        "trial_count": len(trials),
        "trial_states": dict(Counter(it["state"] for it in trials)),
        "unplaced": None,
        "checkpoint_states": {"stored": 1, "deleted": 1},
        "rungs": [
            {
                "bracket": plan["bracket"],
                "trials": sum(it["bracket"] == plan["bracket"] for it in trials),
                "reached": [
                    sum(
                        it["bracket"] == plan["bracket"]
                        and it["rung"] is not None
                        and it["rung"] >= rung
                        for it in trials
                    )
                    for rung in range(len(plan["lengths"]))
                ],
            }
            for plan in (found["plan"] or {"brackets": []})["brackets"]
        ],
    }
    return found | counts | more


def best(**more: Any) -> dict[str, Any]:
    """Return an experiment's best trial."""
    return {
        "trial": trial(0),
        "metric": "error",
        "smaller_is_better": True,
        "value": 0.125,
        "steps": 1600,
        "hparams": trial()["hparams"],
        "checkpoint": checkpoint(),
        "checkpoint_value": 0.125,
        "checkpoint_note": None,
    } | more
