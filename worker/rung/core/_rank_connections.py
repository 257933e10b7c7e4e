"""Connections between the ranks of a run: one from each rank to the chief.

The chief (the server) listens, the others (the clients) connect as soon as it does. Both prove
knowledge of a key before a message is accepted, which the chief shares with all ranks of one
agent; messages are pickled, because scripts send
arbitrary objects. A frame contains the name and number of its call, so that ranks that make
different calls get an error and do not hang.

The connection of a rank that dies is closed. The agent then stops the other ranks at once; ranks
that waited for it delay their error until then, so that only the first failure is reported.
"""

import contextlib
import hmac
import os
import pickle
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Final

from rung.events import RungError

Address = tuple[str, int] | str
"""Host and port, or the name of a Unix socket."""

_HEAD: Final = struct.Struct("!Q")
_RANK: Final = struct.Struct("!II")
"""Rank, and the index of its agent, which tells its key."""
_NONCE: Final = 32
_PROOF: Final = 32
_RETRY_S: Final = 0.02
_HANDSHAKE_S: Final = 10.0
QUIET_S: Final = 10.0
"""How long a rank waits to be stopped by its agent before it raises that another rank is gone."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class RanksApart(RungError):
    """The ranks of a run cannot connect, or make different calls; the message says which."""


class _PeerConnection:
    """A connection to another rank."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self._socket = connection
        self._rank = rank
        _open_peers.add(self)

    def send(self, data: bytes) -> None:
        """Send a frame.

        Raises:
            RanksApart: the other rank is gone.
        """
        try:
            self._socket.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            self._raise_gone(error)

    def receive(self, call: str, number: int) -> Any:
        """Return the value that the other rank gave to the call.

        Raises:
            RanksApart: it is gone, or made another call.
        """
        try:
            (size,) = _HEAD.unpack(_exactly(self._socket, _HEAD.size))
            data = _exactly(self._socket, size)
        except (OSError, EOFError) as error:
            self._raise_gone(error)
        theirs, their_number, value = pickle.loads(data)  # noqa: S301 - it proved to be a rank of this run
        if (theirs, their_number) != (call, number):
            raise RanksApart(
                f"rank {self._rank} called {theirs} as its call {their_number} where this one "
                f"called {call} as its call {number}; all ranks must make the same calls in the "
                "same order"
            )
        return value

    def close(self) -> None:
        """Close the connection."""
        _open_peers.discard(self)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

    def forget(self) -> None:
        """Close the descriptor in a forked child."""
        self._socket.close()

    def _raise_gone(self, error: Exception) -> None:
        time.sleep(QUIET_S)  # the agent stops this process meanwhile, if the other one failed
        raise RanksApart(
            f"rank {self._rank} is gone while this one waited for it ({error}); did it leave the "
            "training earlier than the others?"
        ) from error


class GroupServer:
    """The chief's side of a group."""

    def __init__(self, address: Address, keys: Sequence[str], size: int, within_s: float) -> None:
        """Listen until all ranks have connected.

        Args:
            address: at which to listen.
            keys: one for all ranks, or one of each agent.
            size: how many ranks there are, this one included.
            within_s: the time limit, seconds.

        Raises:
            RanksApart: the address is not available, or some ranks did not connect in time.
        """
        self._calls = 0
        self._lock = threading.Lock()
        with _listening(address) as listener:
            self._peers = _join(listener, keys, size, time.monotonic() + within_s)

    def gather(self, call: str, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        with self._lock:
            self._calls += 1
            return [value, *(peer.receive(call, self._calls) for peer in self._peers)]

    def broadcast(self, call: str, value: Any) -> Any:
        """Send the value to every rank, and return it."""
        with self._lock:
            self._calls += 1
            data = _frame(call, self._calls, value)
            for peer in self._peers:
                peer.send(data)
            return value

    def close(self) -> None:
        """Close all connections."""
        for peer in self._peers:
            peer.close()


class GroupClient:
    """Another rank's side of a group."""

    def __init__(self, address: Address, key: str, rank: int, agent: int, within_s: float) -> None:
        """Connect to the chief as soon as it listens.

        Args:
            address: at which the chief listens.
            key: of this rank's agent.
            rank: of this process in the group.
            agent: the index of its key among those of the chief.
            within_s: the time limit, seconds.

        Raises:
            RanksApart: it did not in time.
        """
        self._calls = 0
        self._lock = threading.Lock()
        self._chief = _PeerConnection(
            _connected(address, key, (rank, agent), time.monotonic() + within_s), 0
        )

    def gather(self, call: str, value: Any) -> None:
        """Send the value to the chief."""
        with self._lock:
            self._calls += 1
            self._chief.send(_frame(call, self._calls, value))

    def broadcast(self, call: str, value: Any) -> Any:  # noqa: ARG002 - the chief's counts
        """Return the chief's value."""
        with self._lock:
            self._calls += 1
            return self._chief.receive(call, self._calls)

    def close(self) -> None:
        """Close the connection."""
        self._chief.close()


def _frame(call: str, number: int, value: Any) -> bytes:
    return pickle.dumps((call, number, value), protocol=pickle.HIGHEST_PROTOCOL)


def _listening(address: Address) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else _family(address[0])
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise RanksApart(f"the chief cannot listen at {_shown(address)}: {error}") from error
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _join(
    listener: socket.socket, keys: Sequence[str], size: int, deadline: float
) -> list[_PeerConnection]:
    """Return the connections of ranks 1 to size - 1, in order."""
    found: dict[int, _PeerConnection] = {}
    while len(found) < size - 1:
        listener.settimeout(max(_RETRY_S, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            for peer in found.values():
                peer.close()
            missing = [str(rank) for rank in range(1, size) if rank not in found]
            raise RanksApart(
                f"these ranks did not connect: {', '.join(missing)}; every rank must call "
                "core.init(), and the agents must reach each other"
            ) from None
        rank = _welcome(connection, keys)
        if rank is None or not 0 < rank < size or rank in found:
            connection.close()
        else:
            found[rank] = _PeerConnection(connection, rank)
    return [found[rank] for rank in sorted(found)]


def _welcome(connection: socket.socket, keys: Sequence[str]) -> int | None:
    """Return the rank of a connection, None if it is not of this run."""
    connection.settimeout(_HANDSHAKE_S)
    nonce = secrets.token_bytes(_NONCE)
    try:
        connection.sendall(nonce)
        head = _exactly(connection, _RANK.size + _NONCE)
        proof = _exactly(connection, _PROOF)
        rank, agent = _RANK.unpack(head[: _RANK.size])
        key = keys[agent] if len(keys) > 1 else keys[0]
        if not hmac.compare_digest(proof, _proof(key, b"client", nonce + head)):
            return None
        connection.sendall(_proof(key, b"server", head + nonce))
    except (OSError, EOFError, IndexError):
        return None
    _settle(connection)
    return int(rank)


def _connected(address: Address, key: str, who: tuple[int, int], deadline: float) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else _family(address[0])
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_HANDSHAKE_S)
            connection.connect(address)
            _handshake(connection, key, who)
        except (OSError, EOFError) as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise RanksApart(
                    f"rank {who[0]} does not reach the chief at {_shown(address)}: {error}"
                ) from error
            time.sleep(_RETRY_S)  # there is no notification of a listener on another machine
        else:
            return connection


def _handshake(connection: socket.socket, key: str, who: tuple[int, int]) -> None:
    nonce = _exactly(connection, _NONCE)
    head = _RANK.pack(*who) + secrets.token_bytes(_NONCE)
    connection.sendall(head + _proof(key, b"client", nonce + head))
    if not hmac.compare_digest(_exactly(connection, _PROOF), _proof(key, b"server", head + nonce)):
        raise EOFError("another process than the chief of this run listens there")
    _settle(connection)


def _settle(connection: socket.socket) -> None:
    """Send small messages without delay, and detect a peer machine that is gone."""
    connection.settimeout(None)
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def _proof(key: str, who: bytes, said: bytes) -> bytes:
    return hmac.digest(key.encode(), who + said, "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError("its connection closed")
        data += piece
    return bytes(data)


def _shown(address: Address) -> str:
    return "a socket of this machine" if isinstance(address, str) else f"{address[0]}:{address[1]}"


_open_peers: Final[weakref.WeakSet[_PeerConnection]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for peer in list(_open_peers):
        peer.forget()


os.register_at_fork(after_in_child=_forget_in_child)
