"""`ctx.distributed`: what the ranks of a run have in common."""

from collections.abc import Callable
from typing import Any

import pytest

from rung import core
from rung.core._distributed import DistributedContext
from rung.core._preempt import PreemptContext
from rung.core._train import TargetLength
from rung.core.ipc import environment
from rung.core.ipc.environment import Place, place_of
from rung.core.ipc.protocol import Acknowledged
from support.agent_end import AgentEnd, run_spec
from support.ranked import on_agents, ranked

Managed = Callable[..., tuple[AgentEnd, core.Context]]


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
    assert place_of(place.variables()) == place
    assert place.variables()[environment.RANK_VARIABLE] == "3"
    assert place_of({}) == Place()


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

    def __init__(self, *, preempted: bool, final: bool = False) -> None:
        self.preempted = preempted
        self.final = final
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        """Remember."""
        self.said.append(message)

    def best_validation(self, within_s: float) -> None:
        """There is none."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("asked", [0, 1])
def test_the_chief_decides_when_all_leave(asked: int) -> None:
    """Whoever heard of a preemption first: all ranks get the chief's answer, which it confirms."""
    links = [_Link(preempted=rank == asked) for rank in range(3)]

    def work(ranks: DistributedContext) -> bool:
        target = TargetLength(run_spec())
        return PreemptContext(links[ranks.rank], target, ranks).should_preempt()

    assert ranked(on_agents(3), work) == [asked == 0] * 3
    assert [link.said for link in links] == [[Acknowledged()] if asked == 0 else [], [], []]


def test_the_chief_s_word_is_all_ranks_word() -> None:
    """With the answer come what the chief wishes and whether the search stopped the trial."""
    links = [_Link(preempted=rank == 0, final=rank == 0) for rank in range(3)]

    def work(ranks: DistributedContext) -> Any:
        preempt = PreemptContext(links[ranks.rank], TargetLength(run_spec()), ranks)
        return preempt.agree(ranks.rank), preempt.final

    assert ranked(on_agents(3), work) == [((True, 0), True)] * 3


def test_a_managed_process_of_one_slot_has_the_context(managed: Managed) -> None:
    """`core.init()` gives it, whatever the number of slots."""
    _, context = managed()
    assert context.distributed.size == 1
    assert context.distributed.allgather(5) == [5]
