"""`ctx.distributed`: what the ranks of a run have in common."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from core.agent_end import AgentEnd, run_spec
from rung import core
from rung.core import protocol
from rung.core.distributed import DistributedContext, Place, place_from
from rung.core.goal import Goal
from rung.core.preempt import PreemptContext
from rung.core.protocol import Acknowledged
from servers.process import free_port

Managed = Callable[..., tuple[AgentEnd, core.Context]]


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


def test_a_process_alone_is_its_own_chief() -> None:
    """With one slot every call answers at once, with what was given; nothing is opened."""
    ranks = DistributedContext(Place())
    assert (ranks.rank, ranks.size, ranks.local_size, ranks.cross_size) == (0, 1, 1, 1)
    assert ranks.is_chief
    assert ranks.gather("a") == ["a"]
    assert ranks.allgather("a") == ["a"]
    assert ranks.broadcast("a") == "a"
    assert ranks.broadcast_local("a") == "a"
    assert ranks.allgather_local("a") == ["a"]
    ranks.barrier()


def test_a_place_travels_in_the_environment() -> None:
    """What the agent sets is what the process reads; without it, it is alone."""
    place = on_agents(2, 3)[3]
    assert place_from(place.variables()) == place
    assert place.variables()[protocol.RANK_VARIABLE] == "3"
    assert place_from({}) == Place()


@pytest.mark.parametrize("sizes", [(3,), (2, 2), (1, 1, 1)])
def test_all_ranks_find_each_other(sizes: tuple[int, ...]) -> None:
    """On one agent or several, all words reach whom they are for, in the order of ranks."""

    def work(ranks: DistributedContext) -> Any:
        ranks.barrier()
        return (
            ranks.gather(ranks.rank),
            ranks.broadcast(f"from {ranks.rank}"),
            ranks.allgather(ranks.rank * 10),
        )

    everyone = list(range(sum(sizes)))
    said = ranked(on_agents(*sizes), work)
    assert [gathered for gathered, _, _ in said] == [everyone, *[None] * (len(everyone) - 1)]
    assert {given for _, given, _ in said} == {"from 0"}
    assert [together for _, _, together in said] == [[10 * r for r in everyone]] * len(everyone)


def test_local_words_stay_on_their_agent() -> None:
    """The `_local` calls are among the ranks of one agent, without the others taking part."""

    def work(ranks: DistributedContext) -> Any:
        if ranks.cross_rank == 0:
            return None
        return (
            ranks.gather_local(ranks.rank),
            ranks.broadcast_local(ranks.rank),
            ranks.allgather_local(ranks.rank),
        )

    said = ranked(on_agents(2, 3), work)
    assert said == [None, None, ([2, 3, 4], 2, [2, 3, 4]), *[(None, 2, [2, 3, 4])] * 2]


class _Link:
    """A link that remembers."""

    def __init__(self, *, preempted: bool) -> None:
        self.preempted = preempted
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        """Remember."""
        self.said.append(message)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("asked", [0, 1])
def test_the_chief_decides_when_all_leave(asked: int) -> None:
    """Whoever heard of a preemption first: all ranks get the chief's answer, which it confirms."""
    links = [_Link(preempted=rank == asked) for rank in range(3)]

    def work(ranks: DistributedContext) -> bool:
        goal = Goal(run_spec())
        return PreemptContext(links[ranks.rank], goal, ranks).should_preempt()

    assert ranked(on_agents(3), work) == [asked == 0] * 3
    assert [link.said for link in links] == [[Acknowledged()] if asked == 0 else [], [], []]


def test_a_managed_process_of_one_slot_has_the_context(managed: Managed) -> None:
    """`core.init()` gives it, whatever the number of slots."""
    _, context = managed()
    assert context.distributed.size == 1
    assert context.distributed.allgather(5) == [5]
