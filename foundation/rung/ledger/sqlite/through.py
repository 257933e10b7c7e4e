"""Appending to a ledger's file through another process, so that one process writes.

What several processes append, and what follows from it, shares a transaction only where one of
them writes all of it. A process that starts another one gives it an end of a socket pair, which
nobody else can come by: what is handed over there is appended as by `Ledger.append`, and answered
once it is durable. Whatever else the other process does with the ledger it does with the file.

When either of the two is gone, nobody knows what became of that which has no answer. It is
appended again, with the same origins and sequences, by whoever has it.
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
    """What is to be appended in one piece."""

    number: int
    drafts: list[Draft]


class _Answer(Struct, array_like=True):
    """What became of it."""

    number: int
    positions: list[int] = []
    error: str = ""
    """The name of the error's class; empty if it is durable."""
    reason: str = ""


_requests: Final = msgspec.msgpack.Decoder(_Request)
_answers: Final = msgspec.msgpack.Decoder(_Answer)


async def append_for(ledger: Ledger, connection: socket.socket) -> None:
    """Append what the process at the other end hands over, until it is gone.

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


class ThroughLedger(SqliteLedger):
    """An open ledger to which another process appends what this one has."""

    async def connect(self, connection: socket.socket, gone: Callable[[], None]) -> None:
        """Hand over from now on; nothing can be appended before.

        Args:
            connection: to the process that appends, see `append_for`.
            gone: called when that process is gone.
        """
        reader, self._to_writer = await asyncio.open_connection(sock=connection)
        self._numbers = itertools.count(1)
        self._unanswered: dict[int, asyncio.Future[list[int]]] = {}
        self._hearing = asyncio.create_task(self._hear(reader, gone))

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Have drafts appended in order, all or none of them, and return their positions."""
        if not drafts:
            return []
        if self._closed:
            raise self._commits.refusal
        if self._hearing.done():
            raise self._gone()
        number = next(self._numbers)
        answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._unanswered[number] = answer
        try:
            _send(self._to_writer, _Request(number, list(drafts)))
            await self._to_writer.drain()
            return await answer
        except ConnectionError as error:
            raise self._gone() from error
        finally:
            self._unanswered.pop(number, None)

    async def close(self) -> None:
        """Wait for pending appends, and let go of the ledger."""
        self._closed = True
        await asyncio.gather(*self._unanswered.values(), return_exceptions=True)
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        await super().close()

    async def _hear(self, reader: asyncio.StreamReader, gone: Callable[[], None]) -> None:
        """Hand on answers until the other process is gone."""
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
            gone()
            self._to_writer.close()
            for answer in self._unanswered.values():
                if not answer.done():
                    answer.set_exception(self._gone())

    def _gone(self) -> LedgerUnavailable:
        return LedgerUnavailable(f"the process that appends to the ledger {self._path} is gone")


def _send(writer: asyncio.StreamWriter, message: _Request | _Answer) -> None:
    frame = msgspec.msgpack.encode(message)
    writer.write(_SIZE.pack(len(frame)) + frame)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    """Return the next message; nothing when the other process is gone."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
