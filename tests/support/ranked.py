"""Ranks of a run as threads or forks of one process, connected as the processes of a run are."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from rung.core._distributed import DistributedContext
from rung.core.ipc.environment import Place
from servers.process import free_port


def ranked(places: list[Place], work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Do some work on each of the ranks at once; return what came of it by rank."""
    chief = f"127.0.0.1:{free_port()}"

    def one(place: Place) -> Any:
        with DistributedContext(place, chief, _key(place, chief)) as ranks:
            return work(ranks)

    with ThreadPoolExecutor(len(places)) as pool:
        return list(pool.map(one, places))


def forked(places: list[Place], work: Callable[[DistributedContext], Any]) -> list[Any]:
    """Do the same with each rank in a process, which has random generators of its own.

    What a rank raises is raised here.
    """
    chief = f"127.0.0.1:{free_port()}"

    def one(place: Place, answer: Connection) -> None:
        try:
            with DistributedContext(place, chief, _key(place, chief)) as ranks:
                answer.send((work(ranks), None))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test is to have it
            answer.send((None, error))

    processes = multiprocessing.get_context("fork")
    answers = []
    for place in places:
        answer, end = processes.Pipe(duplex=False)
        processes.Process(target=one, args=(place, end), daemon=True).start()
        end.close()
        answers.append(answer)
    found = [answer.recv() for answer in answers]
    for _, error in found:
        if error is not None:
            raise error
    return [result for result, _ in found]


def _key(place: Place, chief: str) -> str:
    """Return the key of a rank's agent; for the chief that of each agent."""
    agents = range(place.cross_size) if place.rank == 0 else [place.cross_rank]
    return ",".join(f"key {chief} of {agent}" for agent in agents)


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
