"""The sockets between the ranks of a run: each rank has one to the chief.

The chief (the *hub*) listens, the others (the *spokes*) connect as soon as it does. Both prove
that they know the run's key before a word is believed; what comes after is pickled, because what
ranks have to say to each other is whatever the script has. A call is a frame with its name and
number, so that ranks that call different things are told, not left hanging.

Who dies takes its connection along. The agent then stops the other ranks at once; until it does,
whoever waited for the dead one keeps quiet, so that the first failure is not drowned by what it
brings about.
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
from typing import Any, Final

from rung.events import RungError

Address = tuple[str, int] | str
"""Host and port, or the name of a Unix socket."""

_HEAD: Final = struct.Struct("!Q")
_RANK: Final = struct.Struct("!I")
_NONCE: Final = 32
_PROOF: Final = 32
_AGAIN_S: Final = 0.02
_HANDSHAKE_S: Final = 10.0
QUIET_S: Final = 10.0
"""How long a rank waits for its agent to stop it, once another rank is gone."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


class RanksApart(RungError):
    """The ranks of a run do not find each other, or do not do the same; the message says how."""


class _Line:
    """A connection to another rank."""

    def __init__(self, connection: socket.socket, rank: int) -> None:
        self._socket = connection
        self._rank = rank
        _open_lines.add(self)

    def send(self, data: bytes) -> None:
        """Send a frame.

        Raises:
            RanksApart: the other rank is gone.
        """
        try:
            self._socket.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            self._gone(error)

    def receive(self, call: str, number: int) -> Any:
        """Return what the other rank gave to the call.

        Raises:
            RanksApart: it is gone, or made another call.
        """
        try:
            (size,) = _HEAD.unpack(_exactly(self._socket, _HEAD.size))
            data = _exactly(self._socket, size)
        except (OSError, EOFError) as error:
            self._gone(error)
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
        _open_lines.discard(self)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()

    def forget(self) -> None:
        """Let go of the connection in a forked child."""
        self._socket.close()

    def _gone(self, error: Exception) -> None:
        time.sleep(QUIET_S)  # the agent stops this process meanwhile, if the other one failed
        raise RanksApart(
            f"rank {self._rank} is gone while this one waited for it ({error}); did it leave the "
            "training earlier than the others?"
        ) from error


class Hub:
    """The chief's side of a group."""

    def __init__(self, address: Address, key: str, size: int, within_s: float) -> None:
        """Listen until all have come.

        Raises:
            RanksApart: the address cannot be had, or some did not come in time.
        """
        self._calls = 0
        self._lock = threading.Lock()
        with _listening(address) as listener:
            self._lines = _join(listener, key, size, time.monotonic() + within_s)

    def gather(self, call: str, value: Any) -> list[Any]:
        """Return what each rank gave."""
        with self._lock:
            self._calls += 1
            return [value, *(line.receive(call, self._calls) for line in self._lines)]

    def broadcast(self, call: str, value: Any) -> Any:
        """Give every rank the value."""
        with self._lock:
            self._calls += 1
            data = _frame(call, self._calls, value)
            for line in self._lines:
                line.send(data)
            return value

    def close(self) -> None:
        """Close all connections."""
        for line in self._lines:
            line.close()


class Spoke:
    """Another rank's side of a group."""

    def __init__(self, address: Address, key: str, rank: int, within_s: float) -> None:
        """Connect to the chief as soon as it listens.

        Raises:
            RanksApart: it does not in time.
        """
        self._calls = 0
        self._lock = threading.Lock()
        self._line = _Line(_connected(address, key, rank, time.monotonic() + within_s), 0)

    def gather(self, call: str, value: Any) -> None:
        """Give the chief the value."""
        with self._lock:
            self._calls += 1
            self._line.send(_frame(call, self._calls, value))

    def broadcast(self, call: str, value: Any) -> Any:  # noqa: ARG002 - the chief's counts
        """Return what the chief gave."""
        with self._lock:
            self._calls += 1
            return self._line.receive(call, self._calls)

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


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


def _join(listener: socket.socket, key: str, size: int, deadline: float) -> list[_Line]:
    """Return the connections of ranks 1 to size - 1, in order."""
    found: dict[int, _Line] = {}
    while len(found) < size - 1:
        listener.settimeout(max(_AGAIN_S, deadline - time.monotonic()))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            for line in found.values():
                line.close()
            missing = [str(rank) for rank in range(1, size) if rank not in found]
            raise RanksApart(
                f"these ranks did not come: {', '.join(missing)}; every rank must call "
                "core.init(), and the agents must reach each other"
            ) from None
        rank = _welcome(connection, key)
        if rank is None or not 0 < rank < size or rank in found:
            connection.close()
        else:
            found[rank] = _Line(connection, rank)
    return [found[rank] for rank in sorted(found)]


def _welcome(connection: socket.socket, key: str) -> int | None:
    """Return the rank that connected, None if it is nobody of this run."""
    connection.settimeout(_HANDSHAKE_S)
    nonce = secrets.token_bytes(_NONCE)
    try:
        connection.sendall(nonce)
        head = _exactly(connection, _RANK.size + _NONCE)
        proof = _exactly(connection, _PROOF)
        if not hmac.compare_digest(proof, _proof(key, b"spoke", nonce + head)):
            return None
        connection.sendall(_proof(key, b"hub", head + nonce))
    except (OSError, EOFError):
        return None
    _settle(connection)
    (rank,) = _RANK.unpack(head[: _RANK.size])
    return int(rank)


def _connected(address: Address, key: str, rank: int, deadline: float) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else _family(address[0])
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(_HANDSHAKE_S)
            connection.connect(address)
            _greet(connection, key, rank)
        except (OSError, EOFError) as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise RanksApart(
                    f"rank {rank} does not reach the chief at {_shown(address)}: {error}"
                ) from error
            time.sleep(_AGAIN_S)  # nothing tells when another machine's process listens
        else:
            return connection


def _greet(connection: socket.socket, key: str, rank: int) -> None:
    nonce = _exactly(connection, _NONCE)
    head = _RANK.pack(rank) + secrets.token_bytes(_NONCE)
    connection.sendall(head + _proof(key, b"spoke", nonce + head))
    if not hmac.compare_digest(_exactly(connection, _PROOF), _proof(key, b"hub", head + nonce)):
        raise EOFError("who listens there is not the chief of this run")
    _settle(connection)


def _settle(connection: socket.socket) -> None:
    """Let small words go at once, and notice a machine that vanished."""
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


_open_lines: Final[weakref.WeakSet[_Line]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for line in list(_open_lines):
        line.forget()


os.register_at_fork(after_in_child=_forget_in_child)
