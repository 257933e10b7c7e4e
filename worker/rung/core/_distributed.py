"""The ranks of a run, and messages between them: `ctx.distributed`.

A run of n slots is n processes, the *ranks*, counted from 0 over all agents; rank 0 is the chief.
Every rank runs the same script. All ranks must make the same calls in the same order, as with any
collective; a call that differs from the chief's raises an error. The messages are few and small (a
decision, a metric, a path): tensors are exchanged by the framework's own collectives.

Only the chief's reports count: on other ranks reports are dropped, a stored checkpoint is
discarded unless it is sharded, and `should_preempt` returns what the chief's agent asked for.
"""

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

from rung.core._rank_connections import Address, GroupClient, GroupServer, RanksApart
from rung.core.ipc import environment
from rung.core.ipc.environment import Place, place_of

JOIN_S: Final = 600.0
"""How long the ranks wait for each other at the start."""


class Group(Protocol):
    """The connections between ranks: a server on the first, clients on the others."""

    def gather(self, call: str, value: Any) -> list[Any] | None:
        """Return the values of all ranks, in their order, on the chief; None elsewhere."""
        ...

    def broadcast(self, call: str, value: Any) -> Any:
        """Return the value of the chief, on every rank."""
        ...

    def close(self) -> None:
        """Close the connections to the other ranks."""
        ...


class SingleProcess:
    """A group of one process."""

    def gather(self, call: str, value: Any) -> list[Any] | None:  # noqa: ARG002 - the group's
        """Return the value as a list."""
        return [value]

    def broadcast(self, call: str, value: Any) -> Any:  # noqa: ARG002 - the group's
        """Return the value."""
        return value

    def close(self) -> None:
        """Do nothing: there are no connections."""


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
        """Connect to the other ranks.

        Args:
            place: of this process.
            chief: `host:port` at which the chief listens.
            key: by which this process proves that it belongs to the run. Where each agent has
                another, the chief gets that of each, separated by commas.

        Raises:
            RanksApart: not all ranks connected in time.
        """
        self.rank: Final = place.rank
        self.size: Final = place.size
        self.local_rank: Final = place.local_rank
        self.local_size: Final = place.local_size
        self.cross_rank: Final = place.cross_rank
        self.cross_size: Final = place.cross_size
        self._chief, self._keys = chief, key.split(",")
        self._others: list[Group] = []
        self._all: Group = SingleProcess()
        self._local: Group = SingleProcess()
        if place.size > 1:
            self._all = self._connect(self._keys)
            if place.cross_size == 1:
                self._local = self._all
            elif place.local_size > 1:
                key = self._keys[0]
                address = _abstract(key, place.cross_rank)
                local = place.local_rank, place.local_size
                self._local = _connect_group(address, [key], *local, agent=0)

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def is_local_chief(self) -> bool:
        """Whether this is the first process of the run on this agent."""
        return self.local_rank == 0

    def get_rank(self) -> int:
        """Return `rank`."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return `local_rank`."""
        return self.local_rank

    def get_size(self) -> int:
        """Return `size`."""
        return self.size

    def get_local_size(self) -> int:
        """Return `local_size`."""
        return self.local_size

    def get_cross_rank(self) -> int:
        """Return `cross_rank`."""
        return self.cross_rank

    def get_num_agents(self) -> int:
        """Return `cross_size`."""
        return self.cross_size

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of a process of torchrun or Rung; needs torch's process group.

        Args:
            chief_ip: the chief's address for other machines; `MASTER_ADDR` by default.
        """
        if _managed():
            return cls._of_agent()
        from torch import distributed  # noqa: PLC0415 - only for scripts that have it

        def broadcast(value: Any) -> Any:
            values = [value]
            distributed.broadcast_object_list(values, 0)
            return values[0]

        place = _place_of_launcher(distributed.get_rank(), distributed.get_world_size())
        return cls._from_broadcast(place, chief_ip or os.environ.get("MASTER_ADDR"), broadcast)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of a process of DeepSpeed's launcher, which sets up torch's group."""
        return cls.from_torch_distributed(chief_ip)

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> Self:
        """Return the context of a process of horovodrun or of Rung.

        Args:
            hvd: Horovod's module for the framework, initialised.
            chief_ip: the chief's address for other machines.
        """
        if _managed():
            return cls._of_agent()
        place = Place(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
        )
        return cls._from_broadcast(place, chief_ip, lambda value: hvd.broadcast_object(value, 0))

    @classmethod
    def from_tf_config(cls) -> tuple[Self, Any]:
        """Return the context of a process that `TF_CONFIG` describes, and TensorFlow's strategy.

        In unmanaged runs the chief listens at the port after that of its TensorFlow server.
        """
        import tensorflow as tf  # noqa: PLC0415 - only for scripts that have it

        if _managed():
            context = cls._of_agent()
        else:
            place, chief = _place_of_tf_config(os.environ.get("TF_CONFIG", ""))
            context = cls(place, chief, _key_of(os.environ["TF_CONFIG"]))
        strategy = tf.distribute
        several = context.size > 1
        made = strategy.MultiWorkerMirroredStrategy() if several else strategy.get_strategy()
        return context, made

    @classmethod
    def _of_agent(cls) -> Self:
        """Return the context of this process, from the variables of its agent."""
        chief = os.environ.get(environment.CHIEF_VARIABLE, "")
        key = os.environ.get(environment.KEY_VARIABLE, "")
        return cls(place_of(os.environ), chief, key)

    @classmethod
    def _from_broadcast(
        cls, place: Place, chief_ip: str | None, broadcast: Callable[[Any], Any]
    ) -> Self:
        """Return the context of a process, with the chief's address broadcast by the framework."""
        if place.size == 1:
            return cls(place)
        own: tuple[str, str] | None = None
        if place.rank == 0:
            host = chief_ip or ("127.0.0.1" if place.cross_size == 1 else socket.gethostname())
            own = (f"{host}:{_free_port()}", secrets.token_hex(16))
        chief, key = broadcast(own)
        return cls(place, chief, key)

    def gather(self, stuff: Any) -> list[Any] | None:
        """Return the values of all ranks, in their order, on the chief; None elsewhere."""
        return self._all.gather("gather", stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Return the chief's value, on every rank."""
        return self._all.broadcast("broadcast", stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Return the values of all ranks, in their order, on every rank."""
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

    def new_group(self, purpose: str) -> Group:
        """Return separate connections between all ranks, for a thread; all ranks must call this.

        Calls of this group are not ordered with those of the script.

        Raises:
            RanksApart: not all ranks connected in time.
        """
        if self.size == 1:
            return SingleProcess()
        self.barrier()  # without a time limit
        # The chief's address again: no other is known to be reachable between the agents. A rank
        # that connects while the chief still listens there for another group has another key, is
        # refused, and retries.
        group = self._connect([f"{key}/{purpose}" for key in self._keys])
        self._others.append(group)
        return group

    def _connect(self, keys: Sequence[str]) -> Group:
        return _connect_group(_tcp(self._chief), keys, self.rank, self.size, agent=self.cross_rank)

    def close(self) -> None:
        """Close the connections to the other ranks."""
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
    """Return the context of this process, from the variables of its agent."""
    return DistributedContext._of_agent()  # noqa: SLF001 - this module's


def _managed() -> bool:
    return environment.ALLOCATION_VARIABLE in os.environ


def _place_of_launcher(rank: int, size: int) -> Place:
    """Return the ranks and sizes that torchrun or DeepSpeed's launcher gave this process."""

    def given(*names: str, default: int) -> int:
        return next((int(os.environ[name]) for name in names if name in os.environ), default)

    local_size = given("LOCAL_WORLD_SIZE", "LOCAL_SIZE", default=size)
    return Place(
        rank=rank,
        size=size,
        local_rank=given("LOCAL_RANK", default=rank % local_size),
        local_size=local_size,
        cross_rank=given("GROUP_RANK", "CROSS_RANK", default=rank // local_size),
        cross_size=given("GROUP_WORLD_SIZE", "CROSS_SIZE", default=-(-size // local_size)),
    )


def _place_of_tf_config(text: str) -> tuple[Place, str]:
    """Return the ranks and sizes that `TF_CONFIG` gives this process, and the chief's address.

    Raises:
        RanksApart: it is missing or not valid.
    """
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        workers: list[str] = [*cluster.get("chief", []), *cluster.get("worker", [])]
        rank = int(task["index"])
        if task["type"] == "worker":
            rank += len(cluster.get("chief", []))
        hosts = [worker.rpartition(":")[0] for worker in workers]
        host, port = hosts[0], int(workers[0].rpartition(":")[2]) + 1
        machines = list(dict.fromkeys(hosts))
        return Place(
            rank=rank,
            size=len(workers),
            local_rank=hosts[:rank].count(hosts[rank]),
            local_size=hosts.count(hosts[rank]),
            cross_rank=machines.index(hosts[rank]),
            cross_size=len(machines),
        ), f"{host}:{port}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RanksApart(
            f"TF_CONFIG must have `cluster` with `worker` addresses and `task` with `type` and "
            f"`index`, not {text!r:.200}"
        ) from error


def _key_of(text: str) -> str:
    """Derive a key from the cluster's addresses, which all its processes know."""
    cluster = json.dumps(json.loads(text)["cluster"], sort_keys=True)
    return hashlib.sha256(cluster.encode()).hexdigest()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _allgather(group: Group, stuff: Any) -> list[Any]:
    together = group.gather("allgather", stuff)
    everything: list[Any] = group.broadcast("allgather", together)
    return everything


def _connect_group(
    address: Address, keys: Sequence[str], rank: int, size: int, *, agent: int
) -> Group:
    if rank == 0:
        return GroupServer(address, keys, size, JOIN_S)
    return GroupClient(address, keys[0], rank, agent, JOIN_S)


def _tcp(chief: str) -> Address:
    host, _, port = chief.rpartition(":")
    return host.strip("[]"), int(port)


def _abstract(key: str, cross_rank: int) -> Address:
    """Return the name of an abstract Unix socket, which leaves no file behind."""
    name = hashlib.sha256(f"{key}/{cross_rank}".encode()).hexdigest()[:32]
    return f"\0rung-ranks-{name}"
