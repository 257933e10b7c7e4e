"""Ranks of a run as threads of one process, connected as the processes of a run are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rung.core._distributed import DistributedContext
from rung.core.ipc.environment import Place
from servers.process import free_port


def ranked(places: list[Place], work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Do some work on each of the ranks at once; return what came of it by rank."""
    chief = f"127.0.0.1:{free_port()}"

    def one(place: Place) -> Any:
        with DistributedContext(place, chief, f"key {chief}") as ranks:
            return work(ranks)

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places))


def on_agents(*sizes: int) -> list[Place]:
    """Return the places of ranks on agents with so many slots each."""
    return [
        Place(
            rank=sum(sizes[:agent]) + local,
            size=sum(sizes),
            local_rank=local,
            local_size=size,
            cross_rank=agent,
            cross_size=len(sizes),
        )
        for agent, size in enumerate(sizes)
        for local in range(size)
    ]
