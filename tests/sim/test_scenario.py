"""Simulated searches: many seeds, every kind of fault, the real deciders."""

import os
from typing import Any

import pytest

from rung.sim import run
from rung.sim.scenario import Outcome
from rung.sim.workload import METHODS, ORDER_FREE, calm, stormy

SEEDS = int(os.environ.get("RUNG_SIM_SEEDS", "60"))


def _found(outcome: Outcome) -> dict[str, Any]:
    """Return what must not depend on faults: a trial's draw, its end, and its metrics."""
    return {"state": outcome.state, "trials": outcome.trials}


@pytest.mark.sim
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_search_ends_and_audits_under_faults(method: str) -> None:
    """Whatever dies or is repeated: the search ends, once, and every decision is decided again.

    `rung.sim.run` checks that; a failure names its seed, and `python -m rung.sim` repeats it.
    """
    for seed in range(SEEDS):
        try:
            outcome = run(stormy(method), seed)
        except AssertionError as error:
            raise AssertionError(f"--method {method} --seed {seed}: {error}") from error
        assert outcome.state == "completed", f"--method {method} --seed {seed}"


@pytest.mark.sim
@pytest.mark.parametrize("method", ORDER_FREE)
def test_faults_change_nothing_of_an_order_free_search(method: str) -> None:
    """Trials, hyperparameters, states and metrics equal those of the undisturbed search."""
    expected = _found(run(calm(method), 0))
    for seed in range(SEEDS):
        assert _found(run(stormy(method), seed)) == expected, f"--method {method} --seed {seed}"


@pytest.mark.sim
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_seed_is_repeatable(method: str) -> None:
    """One seed gives one history, to the millisecond."""
    assert run(stormy(method), 3) == run(stormy(method), 3)
