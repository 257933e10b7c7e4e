"""The sockets between ranks: who is let in, who is told what."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from rung.core import _rank_connections
from rung.core._rank_connections import GroupClient, GroupServer, RanksApart
from servers.process import free_port

KEY = "key"
Meet = Callable[[int], list[Any]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody stops these ranks, so none of them waits for that."""
    monkeypatch.setattr(_rank_connections, "QUIET_S", 0.0)


@pytest.fixture
def address() -> tuple[str, int]:
    """An address that is free."""
    return "127.0.0.1", free_port()


@pytest.fixture
def meet(address: tuple[str, int]) -> Iterator[Meet]:
    """Return a function that brings so many ranks together, each in a thread's hands."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:

        def together(size: int) -> list[Any]:
            clients = [
                pool.submit(GroupClient, address, KEY, rank, 0, 20.0) for rank in range(1, size)
            ]
            ranks: list[Any] = [
                GroupServer(address, [KEY], size, 20.0),
                *(client.result() for client in clients),
            ]
            for rank in ranks:
                stack.callback(rank.close)
            return ranks

        yield together


def test_the_chief_gathers_in_the_order_of_ranks(meet: Meet) -> None:
    """What each rank gave comes out by rank, whoever came first; the others get nothing."""
    server, first, second = meet(3)
    assert second.gather("gather", "c") is None
    assert first.gather("gather", "b") is None
    assert server.gather("gather", "a") == ["a", "b", "c"]


def test_what_the_chief_gives_reaches_all(meet: Meet) -> None:
    """A broadcast brings anything that can be pickled, also what is large."""
    server, *others = meet(3)
    value = {"path": b"x" * 3_000_000, "n": (1, None)}
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(server.broadcast, "broadcast", value)
        assert [other.broadcast("broadcast", "mine") for other in others] == [value, value]
        assert sent.result() == value


def test_ranks_that_call_different_things_are_told(meet: Meet) -> None:
    """Neither hangs: the one that waits says which rank did what."""
    server, other = meet(2)
    other.gather("gather", 1)
    with pytest.raises(RanksApart, match="rank 1 called gather as its call 1 where this one"):
        server.gather("allgather", 1)


def test_a_rank_that_left_is_missed(meet: Meet) -> None:
    """Who waits for a rank that is gone is told which one."""
    server, other = meet(2)
    other.close()
    with pytest.raises(RanksApart, match="rank 1 is gone"):
        server.gather("gather", 1)


def test_a_stranger_is_not_let_in(address: tuple[str, int]) -> None:
    """Without the key nobody becomes a rank, and nothing that a stranger sends is unpickled."""
    with ThreadPoolExecutor() as pool:
        server = pool.submit(GroupServer, address, [KEY], 2, 20.0)
        with pytest.raises(RanksApart, match="does not reach the chief"):
            GroupClient(address, "wrong", 1, 0, 0.5)
        friend = GroupClient(address, KEY, 1, 0, 20.0)
        server.result().close()
        friend.close()


def test_ranks_of_each_agent_have_its_key(address: tuple[str, int]) -> None:
    """Who has that of another agent, or names one that there is not, is no rank."""
    with ThreadPoolExecutor() as pool:
        server = pool.submit(GroupServer, address, ["own", "second", "third"], 3, 20.0)
        for agent in (0, 1, 3):
            with pytest.raises(RanksApart, match="does not reach the chief"):
                GroupClient(address, "third", 2, agent, 0.2)
        clients = [
            GroupClient(address, "own", 1, 0, 20.0),
            GroupClient(address, "third", 2, 2, 20.0),
        ]
        server.result().close()
        for each in clients:
            each.close()


def test_the_missing_are_named(address: tuple[str, int]) -> None:
    """The chief says which ranks did not come in time."""
    with ThreadPoolExecutor() as pool:
        client = pool.submit(GroupClient, address, KEY, 2, 0, 20.0)
        with pytest.raises(RanksApart, match="these ranks did not connect: 1, 3;"):
            GroupServer(address, [KEY], 4, 0.5)
        client.result().close()


def test_two_of_the_same_rank_are_not_let_in(address: tuple[str, int]) -> None:
    """A second process that claims a rank is sent away."""
    with ThreadPoolExecutor() as pool:
        server = pool.submit(GroupServer, address, [KEY], 3, 20.0)
        first = GroupClient(address, KEY, 1, 0, 20.0)
        double = GroupClient(address, KEY, 1, 0, 20.0)
        second = GroupClient(address, KEY, 2, 0, 20.0)
        first.gather("gather", "first")
        second.gather("gather", "second")
        assert server.result().gather("gather", 0) == [0, "first", "second"]
        with pytest.raises(RanksApart, match="gone"):
            double.broadcast("broadcast", None)
        for each in (server.result(), first, second, double):
            each.close()


def test_a_forked_child_holds_no_connection_open(meet: Meet) -> None:
    """A DataLoader's worker that outlives its rank does not hide that the rank is gone."""
    server, other = meet(2)
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends[1])
        os.read(ends[0], 1)
        os._exit(0)
    try:
        other.close()
        with pytest.raises(RanksApart, match="gone"):
            server.gather("gather", 1)
    finally:
        os.close(ends[1])
        os.waitpid(child, 0)
        os.close(ends[0])


def test_threads_of_one_rank_take_turns(meet: Meet) -> None:
    """Two threads' calls are not mixed up on the wire."""
    server, other = meet(2)

    def speak() -> None:
        for number in range(50):
            other.gather("gather", number)

    threads = [threading.Thread(target=speak) for _ in range(2)]
    for thread in threads:
        thread.start()
    found = [server.gather("gather", None)[1] for _ in range(100)]
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([*range(50), *range(50)])
