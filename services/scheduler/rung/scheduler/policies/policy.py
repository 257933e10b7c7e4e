"""The protocol of a scheduling policy: order, fit and preemption of one resource pool."""

from collections.abc import Sequence
from typing import Protocol

from rung.scheduler.policies.planning import Start
from rung.scheduler.queue import Demand, Queue, Rank
from rung.scheduler.state import State


class Policy(Protocol):
    """Decides which requests start where, and which allocations yield.

    A policy is a frozen `msgspec.Struct` that forbids unknown fields: its fields are the options
    that `pool.configured` gives it, each with a default. A new one is made for each fact, and
    keeps nothing; all that it uses is in the pool. Its methods read the pool and change nothing,
    use neither clock nor chance, and break each tie by an id or an arrival, so that the same pool
    gives the same decisions anywhere. `planning` has the parts that most policies share.
    """

    def rank(self, demand: Demand) -> Rank:
        """Return the key by which requests and allocations are sorted, the smallest first.

        It depends on the demand alone and grows with its arrival, all else being equal. What
        changes with the pool, such as the slots that an owner holds, is no part of it: `starts`
        orders by that (see `Walk`).
        """

    def starts(self, pool: State, queue: Queue) -> list[Start]:
        """Return what starts now, in order, each with idle slots of its own.

        Afterwards nothing may wait that would start if it were asked again. Nothing starts by
        which an experiment would hold more than the `max_slots` of the request.

        Args:
            pool: its agents, what runs, and the slots that each experiment holds.
            queue: what waits for slots, or what waits and needs none.
        """

    def yielding(self, pool: State, starts: Sequence[Start], asked: Sequence[str]) -> list[str]:
        """Return the running allocations that are to checkpoint and to give their slots back.

        Asked again before any of them left, it returns none. The trial of each comes back with
        its next run, which has the arrival that this one had.

        Args:
            pool: `pool.staying` are those that hold slots and stay, sorted by rank.
            starts: what starts now.
            asked: allocations that are asked to yield now for another reason.
        """
