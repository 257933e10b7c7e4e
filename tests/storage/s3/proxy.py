"""A line between a client and an HTTP server that counts, damages and cuts."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import Final, Self
from urllib.parse import urlsplit

_CHUNK: Final = 1 << 16
_DAMAGE_FROM: Final = 50_000


class Proxy:
    """Listens on a port of its own and passes on what it hears.

    Attributes:
        bodies: the sizes of the requests' bodies that went through whole.
        damaged: how many bodies were damaged.
        cut: how many answers were cut.
        answered: bytes of answers that went through.
    """

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server: Final = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._to_damage = 0
        self._to_cut = 0
        self._cut_after = 0
        self._fuse: tuple[int, Callable[[], None]] | None = None
        self._speech = b""
        self._heads: list[bytes] = []
        self.bodies: list[int] = []
        self.damaged = 0
        self.cut = 0
        self.answered = 0

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def answers(self) -> str:
        """The beginnings of what the server answered."""
        return b"\n".join(self._heads).decode(errors="replace")

    def forget_answers(self) -> None:
        """Forget what the server answered so far."""
        self._heads.clear()

    def after_bodies(self, count: int, do: Callable[[], None]) -> None:
        """Do something once so many more large bodies went through."""
        self._fuse = (count, do)

    def damage(self, count: int) -> None:
        """Flip a bit in each of the next bodies that are not small."""
        self._to_damage = count

    def cut_answers(self, count: int, *, after: int) -> None:
        """Cut the next connections on which a longer answer comes, so far into it."""
        self._to_cut, self._cut_after = count, after

    def speak(self, answer: bytes) -> None:
        """Answer everything with this, instead of asking the server."""
        self._speech = answer

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(client)
            if self._speech:
                client.recv(_CHUNK)
                client.sendall(self._speech)
                continue
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            self._connections.append(server)
            for pass_on in (self._requests, self._answers):
                threading.Thread(target=pass_on, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on one request after another, each body with or without damage."""
        buffer = b""
        with contextlib.suppress(OSError):
            while True:
                while b"\r\n\r\n" not in buffer:
                    if not (data := client.recv(_CHUNK)):
                        return _hang_up(server)
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                server.sendall(head + b"\r\n\r\n")
                found = re.search(rb"(?i)content-length: (\d+)", head)
                size = int(found[1]) if found else 0
                buffer = self._body(client, server, buffer, size)

    def _body(
        self, client: socket.socket, server: socket.socket, buffer: bytes, size: int
    ) -> bytes:
        """Pass a body on; return what came behind it."""
        damage = False
        with self._lock:
            if size > _DAMAGE_FROM and self._to_damage:
                self._to_damage -= 1
                damage = True
        left = size
        while left:
            data, buffer = (buffer or client.recv(_CHUNK))[:left], buffer[left:]
            if not data:
                raise ConnectionResetError
            left -= len(data)
            if damage:
                data = bytes([data[0] ^ 1]) + data[1:]
                damage = False
                self.damaged += 1
            server.sendall(data)
        if size:
            self._passed(size)
        return buffer

    def _passed(self, size: int) -> None:
        with self._lock:
            self.bodies.append(size)
            if self._fuse is not None and size > _DAMAGE_FROM:
                count, do = self._fuse
                self._fuse = (count - 1, do) if count > 1 else None
                if count == 1:
                    do()

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                self._heads.append(data[:1_000])
                passed += len(data)
                client.sendall(data)
                with self._lock:
                    self.answered += len(data)
                    if self._to_cut and passed > self._cut_after:
                        self._to_cut -= 1
                        self.cut += 1
                        _hang_up(server)
                        break
        _hang_up(client)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
