"""How agents of a gang hear where the others are."""

import asyncio

import msgspec
import pytest

from rung.agent.rendezvous import rendezvous
from rung.agent.rendezvous.keys import BadPublicKey, new_private_key, public_key_of
from rung.agent.rendezvous.rendezvous import GangAddresses, Ports, gang_info, local_info
from rung.events.allocation import AllocationAddressed, Share

PRIVATE = {name: new_private_key() for name in ("a", "b", "c")}
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
        public_key=public_key_of(PRIVATE[agent]),
    )


async def test_all_are_waited_for() -> None:
    """The meeting is there once each agent has spoken, in the order of the shares."""
    addresses = GangAddresses()
    await addresses.take(said("b"))
    waiting = asyncio.create_task(addresses.of("e.0.1", SHARES, pytest.fail))
    await addresses.take(said("a", incarnation=1))
    assert not waiting.done()
    await addresses.take(said("a"))
    found = gang_info(await waiting, 0, PRIVATE["a"])
    assert [part.host for part in found.parts] == ["a.example", "b.example"]
    assert found.chief == "a.example:1"


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
    assert gang_info(await waiting, 1, PRIVATE["b"]).chief == "a.example:1"


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
    assert found.keys != other.keys
    ports.close()


def test_each_agent_shares_a_key_with_the_first() -> None:
    """Both halves give the same; another agent's, or another allocation's, is another."""
    facts = [said(name) for name in PRIVATE]
    found = {name: gang_info(facts, own, PRIVATE[name]).keys for own, name in enumerate(PRIVATE)}
    assert found["a"] == [found["a"][0], *found["b"], *found["c"]]
    assert len(set(found["a"])) == 3
    again = [msgspec.structs.replace(fact, allocation_id="e.0.2") for fact in facts]
    assert not set(gang_info(again, 0, PRIVATE["a"]).keys) & set(found["a"])


def test_what_is_on_record_gives_no_key() -> None:
    """Who reads all facts, and has a key pair of their own, cannot be taken for a rank."""
    facts = [said(name) for name in PRIVATE]
    known = {
        key
        for own, name in enumerate(PRIVATE)
        for key in gang_info(facts, own, PRIVATE[name]).keys
    }
    reader = new_private_key()
    assert not {key for own in range(3) for key in gang_info(facts, own, reader).keys} & known
    assert not any(key in msgspec.json.encode(facts).decode() for key in known)


@pytest.mark.parametrize("public", ["", "no digits", "ab", "00" * 32])
def test_what_is_no_public_key_is_refused(public: str) -> None:
    """It cannot have come from an agent."""
    bad = msgspec.structs.replace(said("a"), public_key=public)
    with pytest.raises(BadPublicKey, match="is no public key"):
        gang_info([bad, said("b")], 1, PRIVATE["b"])
