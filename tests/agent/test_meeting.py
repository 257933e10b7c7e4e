"""How agents of a gang hear where the others are."""

import asyncio

import pytest

from rung.agent import meeting
from rung.agent.meeting import Introductions, NotMet, Ports, alone, met
from rung.events.allocation import AllocationAddressed, Share

SHARES = [Share(agent_id=name, incarnation=2, slots=[0]) for name in ("a", "b")]


def said(agent: str, incarnation: int = 2) -> AllocationAddressed:
    """Return what an agent says of itself."""
    return AllocationAddressed(
        pool="default",
        allocation_id="e.0.1",
        agent_id=agent,
        incarnation=incarnation,
        host=f"{agent}.example",
        ports=[1, 2],
        key="k" if agent == "a" else "",
    )


async def test_all_are_waited_for() -> None:
    """The meeting is there once each agent has spoken, in the order of the shares."""
    heard = Introductions()
    await heard.hear(said("b"))
    waiting = asyncio.create_task(heard.of("e.0.1", SHARES))
    await heard.hear(said("a", incarnation=1))
    assert not waiting.done()
    await heard.hear(said("a"))
    found = met(await waiting)
    assert [part.host for part in found.parts] == ["a.example", "b.example"]
    assert (found.chief, found.key) == ("a.example:1", "k")


async def test_who_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while the run fails, saying which agents did not speak."""
    monkeypatch.setattr(meeting, "PATIENCE_S", 0.05)
    heard = Introductions()
    await heard.hear(said("a"))
    with pytest.raises(NotMet, match=r"how they can be reached: b$"):
        await heard.of("e.0.1", SHARES)


def test_ranks_of_one_agent_meet_on_the_loopback() -> None:
    """Nobody else needs to know; each run has a key of its own."""
    ports = Ports(3, loopback=True)
    found, other = alone(ports), alone(ports)
    assert found.chief == f"127.0.0.1:{ports.numbers[0]}"
    assert len(set(ports.numbers)) == 4
    assert found.key != other.key
    ports.close()
