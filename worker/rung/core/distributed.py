"""The ranks of a run and what they say to each other: `ctx.distributed`.

A run of n slots is n processes, the *ranks*, counted from 0 over all agents; rank 0 is the chief.
Every rank runs the same script. What is called here is called by all ranks, in the same order, as
with any collective; who calls another than the chief is told so. The words are few and small
(a decision, a metric, a path): tensors go by the framework's own collectives.

Of what a run reports, only the chief's counts: on other ranks, reports go nowhere, a checkpoint
that is stored is thrown away unless it is sharded, and `should_preempt` answers what the chief
heard.
"""

import hashlib
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

from msgspec import Struct

from rung.core import protocol
from rung.core.star import Address, Hub, Spoke

JOIN_S: Final = 600.0
"""How long the ranks wait for each other at the start."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a process is among the processes of its run."""

    rank: int = 0
    """Counted over all agents, from 0."""
    size: int = 1
    local_rank: int = 0
    """Counted over the processes on this agent."""
    local_size: int = 1
    cross_rank: int = 0
    """Counted over the agents."""
    cross_size: int = 1

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell a process its place."""
        return {name: str(getattr(self, field)) for name, field in _FIELDS.items()}

    @property
    def last_on_agent(self) -> bool:
        """Whether no other process of this agent has a higher rank."""
        return self.local_rank == self.local_size - 1


_FIELDS: Final = {
    protocol.RANK_VARIABLE: "rank",
    protocol.SIZE_VARIABLE: "size",
    protocol.LOCAL_RANK_VARIABLE: "local_rank",
    protocol.LOCAL_SIZE_VARIABLE: "local_size",
    protocol.CROSS_RANK_VARIABLE: "cross_rank",
    protocol.CROSS_SIZE_VARIABLE: "cross_size",
}


def place_from(environment: Mapping[str, str]) -> Place:
    """Return the place that the agent's environment variables tell; alone where there are none."""
    given = {field: environment.get(name) for name, field in _FIELDS.items()}
    return Place(**{field: int(value) for field, value in given.items() if value})


class Group(Protocol):
    """A hub or a spoke."""

    def gather(self, call: str, value: Any) -> list[Any] | None:
        """Give the chief what each rank has, in the order of the ranks; None elsewhere."""
        ...

    def broadcast(self, call: str, value: Any) -> Any:
        """Return what the chief gave, on every rank."""
        ...

    def close(self) -> None:
        """Let go of the other ranks."""
        ...


class Alone:
    """A group of one."""

    def gather(self, call: str, value: Any) -> list[Any] | None:  # noqa: ARG002 - the group's
        """Return what was given."""
        return [value]

    def broadcast(self, call: str, value: Any) -> Any:  # noqa: ARG002 - the group's
        """Return what was given."""
        return value

    def close(self) -> None:
        """Nothing is held open."""


class DistributedContext:
    """The ranks of a run; of one process where it has one slot.

    Attributes:
        rank: of this process, counted over all agents from 0.
        size: how many processes the run has.
        local_rank: of this process, counted over the processes on its agent.
        local_size: how many processes the run has on this agent.
        cross_rank: of this process's agent, counted over the agents of the run.
        cross_size: how many agents the run is on.
    """

    def __init__(self, place: Place, chief: str = "", key: str = "") -> None:
        """Meet the other ranks.

        Args:
            place: of this process.
            chief: `host:port` at which the chief listens.
            key: what only the processes of this run know.

        Raises:
            RanksApart: not all ranks came in time.
        """
        self.rank: Final = place.rank
        self.size: Final = place.size
        self.local_rank: Final = place.local_rank
        self.local_size: Final = place.local_size
        self.cross_rank: Final = place.cross_rank
        self.cross_size: Final = place.cross_size
        self._chief, self._key = chief, key
        self._others: list[Group] = []
        self._all: Group = Alone()
        self._local: Group = Alone()
        if place.size > 1:
            self._all = _meet(_tcp(chief), key, place.rank, place.size)
            if place.cross_size == 1:
                self._local = self._all
            elif place.local_size > 1:
                address = _abstract(key, place.cross_rank)
                self._local = _meet(address, key, place.local_rank, place.local_size)

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def is_local_chief(self) -> bool:
        """Whether this is the first process of the run on this agent."""
        return self.local_rank == 0

    def gather(self, stuff: Any) -> list[Any] | None:
        """Give the chief what each rank has, in the order of the ranks; None elsewhere."""
        return self._all.gather("gather", stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Return what the chief gave, on every rank."""
        return self._all.broadcast("broadcast", stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Return what each rank gave, in the order of the ranks, on every rank."""
        return _allgather(self._all, stuff)

    def barrier(self) -> None:
        """Return once every rank has called this."""
        self.allgather(None)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """As `gather`, among the processes on this agent."""
        return self._local.gather("gather_local", stuff)

    def broadcast_local(self, stuff: Any) -> Any:
        """As `broadcast`, among the processes on this agent: from the first of them."""
        return self._local.broadcast("broadcast_local", stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """As `allgather`, among the processes on this agent."""
        return _allgather(self._local, stuff)

    def apart(self, purpose: str) -> Group:
        """Return connections of their own between all ranks, for a thread; all must call this.

        What is said there is in no order with what the script says.

        Raises:
            RanksApart: not all ranks came in time.
        """
        if self.size == 1:
            return Alone()
        self.barrier()  # which waits for a rank as long as it takes
        # The chief's address again: no other is known to be open between the agents. Who comes
        # early, while the ranks still meet there for another purpose, has another key, and tries
        # again.
        group = _meet(_tcp(self._chief), f"{self._key}/{purpose}", self.rank, self.size)
        self._others.append(group)
        return group

    def close(self) -> None:
        """Let go of the other ranks."""
        for group in self._others:
            group.close()
        self._local.close()
        self._all.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def from_environment() -> DistributedContext:
    """Return the context of this process, from what its agent set."""
    chief = os.environ.get(protocol.CHIEF_VARIABLE, "")
    key = os.environ.get(protocol.KEY_VARIABLE, "")
    return DistributedContext(place_from(os.environ), chief, key)


def _allgather(group: Group, stuff: Any) -> list[Any]:
    together = group.gather("allgather", stuff)
    everything: list[Any] = group.broadcast("allgather", together)
    return everything


def _meet(address: Address, key: str, rank: int, size: int) -> Group:
    if rank == 0:
        return Hub(address, key, size, JOIN_S)
    return Spoke(address, key, rank, JOIN_S)


def _tcp(chief: str) -> Address:
    host, _, port = chief.rpartition(":")
    return host.strip("[]"), int(port)


def _abstract(key: str, cross_rank: int) -> Address:
    """Return the name of a Unix socket that has no file, so that none is left behind."""
    name = hashlib.sha256(f"{key}/{cross_rank}".encode()).hexdigest()[:32]
    return f"\0rung-ranks-{name}"
