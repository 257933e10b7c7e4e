"""Remote append: a child process appends to a ledger's file through its parent.

Appends of several processes, and their consequences, share a transaction only where one process
writes them all. So a parent gives its child one end of a private socket pair: the parent appends
the drafts that it receives there, as `Ledger.append` does, and answers once they are durable. For
all else the child uses the file.

When either process ends, the outcome of unanswered appends is unknown. They are repeated, with the
same origins and sequences.
"""

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from rung.events.errors import (
    EventTooLarge,
    LedgerDamaged,
    LedgerError,
    LedgerRefused,
    LedgerUnavailable,
)
from rung.ledger.port import Draft, Ledger
from rung.ledger.sqlite.ledger import SqliteLedger

_SIZE: Final = struct.Struct("!I")
_KINDS: Final = {
    kind.__name__: kind
    for kind in (LedgerError, LedgerUnavailable, LedgerDamaged, LedgerRefused, EventTooLarge)
}


class _Request(Struct, array_like=True):
    """One atomic append."""

    number: int
    drafts: list[Draft]


class _Answer(Struct, array_like=True):
    """The result of an append."""

    number: int
    positions: list[int] = []
    error: str = ""
    """The name of the error's class; empty if the append is durable."""
    reason: str = ""


_requests: Final = msgspec.msgpack.Decoder(_Request)
_answers: Final = msgspec.msgpack.Decoder(_Answer)


async def serve_appends(ledger: Ledger, connection: socket.socket) -> None:
    """Append the drafts that arrive on a connection, until it closes.

    Args:
        ledger: appended to.
        connection: closed at the end.
    """
    reader, writer = await asyncio.open_connection(sock=connection)
    appending: set[asyncio.Task[None]] = set()

    async def append(request: _Request) -> None:
        answer = _Answer(request.number)
        try:
            answer.positions = await ledger.append(request.drafts)
        except LedgerError as error:
            kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
            answer.error, answer.reason = next(kinds), str(error)
        _send(writer, answer)

    try:
        while frame := await _receive(reader):
            task = asyncio.create_task(append(_requests.decode(frame)))
            appending.add(task)
            task.add_done_callback(appending.discard)
        await asyncio.gather(*appending)
    finally:
        for task in appending:
            task.cancel()
        writer.close()


class RemoteAppendLedger(SqliteLedger):
    """An open ledger whose appends another process makes."""

    async def connect(self, connection: socket.socket, disconnected: Callable[[], None]) -> None:
        """Connect to the process that appends; must precede the first append.

        Args:
            connection: to that process, see `serve_appends`.
            disconnected: called when the connection closes.
        """
        reader, self._writer = await asyncio.open_connection(sock=connection)
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, asyncio.Future[list[int]]] = {}
        self._receiving = asyncio.create_task(self._receive_answers(reader, disconnected))

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append in order, all or none of them, and return their positions."""
        if not drafts:
            return []
        if self._closed:
            raise self._commits.refusal
        if self._receiving.done():
            raise self._disconnected()
        number = next(self._numbers)
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._unanswered[number] = answer
        try:
            _send(self._writer, _Request(number, list(drafts)))
            await self._writer.drain()
            return await answer
        except ConnectionError as error:
            raise self._disconnected() from error
        finally:
            self._unanswered.pop(number, None)

    async def close(self) -> None:
        """Finish pending appends and close the ledger."""
        self._closed = True
        await asyncio.gather(*self._unanswered.values(), return_exceptions=True)
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)
        await super().close()

    async def _receive_answers(
        self, reader: asyncio.StreamReader, disconnected: Callable[[], None]
    ) -> None:
        """Return answers to callers until the connection closes."""
        try:
            while frame := await _receive(reader):
                it = _answers.decode(frame)
                answer = self._unanswered.get(it.number)
                if answer is None or answer.done():
                    continue
                if it.error:
                    answer.set_exception(_KINDS[it.error](it.reason))
                else:
                    answer.set_result(it.positions)
        finally:
            disconnected()
            self._writer.close()
            for answer in self._unanswered.values():
                if not answer.done():
                    answer.set_exception(self._disconnected())

    def _disconnected(self) -> LedgerUnavailable:
        return LedgerUnavailable(f"the process that appends to the ledger {self._path} is gone")


def _send(writer: asyncio.StreamWriter, message: _Request | _Answer) -> None:
    frame = msgspec.msgpack.encode(message)
    writer.write(_SIZE.pack(len(frame)) + frame)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    """Return the next message; empty when the connection is closed."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
