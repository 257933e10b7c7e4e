"""How agents of a gang hear where the others are."""

import asyncio

import msgspec
import pytest

from rung.agent.rendezvous import rendezvous
from rung.agent.rendezvous.rendezvous import GangAddresses, Ports, gang_info, local_info
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
    addresses = GangAddresses()
    await addresses.take(said("b"))
    waiting = asyncio.create_task(addresses.of("e.0.1", SHARES, pytest.fail))
    await addresses.take(said("a", incarnation=1))
    assert not waiting.done()
    await addresses.take(said("a"))
    found = gang_info(await waiting)
    assert [part.host for part in found.parts] == ["a.example", "b.example"]
    assert (found.chief, found.key) == ("a.example:1", "k")


async def test_who_is_silent_is_named_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may take any time for its data; now and then the log says who does."""
    monkeypatch.setattr(rendezvous, "NOTED_EVERY_S", 0.02)
    addresses = GangAddresses()
    await addresses.take(said("a"))
    notes: asyncio.Queue[str] = asyncio.Queue()
    waiting = asyncio.create_task(addresses.of("e.0.1", SHARES, notes.put_nowait))
    for _ in range(3):
        assert (await notes.get()).endswith("do not have the run's data yet: b")
    await addresses.take(said("b"))
    assert gang_info(await waiting).chief == "a.example:1"


async def test_what_is_expected_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is said of others meanwhile, the parts of a run that waits are known."""
    monkeypatch.setattr(rendezvous, "_KEPT", 2)
    addresses = GangAddresses()
    addresses.expect("e.0.1")
    for agent in ("a", "b"):
        await addresses.take(said(agent))
    for number in range(4):
        await addresses.take(msgspec.structs.replace(said("a"), allocation_id=f"e.{number}.2"))
    found = await addresses.of("e.0.1", SHARES, pytest.fail)
    assert [each.agent_id for each in found] == ["a", "b"]
    assert len(addresses._addresses) == 3


def test_ranks_of_one_agent_meet_on_the_loopback() -> None:
    """Nobody else needs to know; each run has a key of its own."""
    ports = Ports(3)
    found, other = local_info(ports), local_info(ports)
    assert found.chief == f"127.0.0.1:{ports.numbers[0]}"
    assert len(set(ports.numbers)) == 4
    assert found.key != other.key
    ports.close()
