"""Simulation: the services on a ledger in memory, with simulated agents and a virtual clock.

Everything follows from one seed: arrival orders, latencies, faults. `python -m rung.sim --seed N`
runs one seed again and prints what went wrong, if anything did.
"""

from rung.sim.scenario import Scenario, run
from rung.sim.world import Faults, World

__all__ = ["Faults", "Scenario", "World", "run"]
