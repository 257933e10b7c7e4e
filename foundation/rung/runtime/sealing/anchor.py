"""An anchor: a place outside of the ledger that gets its signed heads, one JSON line each.

Write access to the ledger is enough to put back an earlier copy of it, with its heads of then.
An anchor that cannot be written from there shows it: a file on another machine's disk, or an URL
that takes POST and keeps what it got.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog

from rung.events.errors import LedgerError
from rung.ledger.seals import Heads, decode_heads

_WITHIN_S: Final = 10.0
_READ_WITHIN_S: Final = 60.0

_log = structlog.get_logger()


class Anchor:
    """A file to which lines are appended, or an URL to which they are sent."""

    def __init__(self, where: str) -> None:
        """Name it; nothing is opened yet.

        Args:
            where: a path, or an URL that begins with http:// or https://.
        """
        self._where = where

    async def put(self, heads: Sequence[Heads]) -> bool:
        """Store heads; return whether that succeeded. It is logged where it did not."""
        lines = b"".join(msgspec.json.encode(item) + b"\n" for item in heads)
        try:
            if _is_url(self._where):
                await self._post(lines)
            else:
                await asyncio.to_thread(self._append, lines)
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            _log.error("anchor not written", anchor=self._where, reason=str(error) or repr(error))
            return False
        return True

    async def _post(self, lines: bytes) -> None:
        timeout = aiohttp.ClientTimeout(total=_WITHIN_S)
        headers = {"Content-Type": "application/x-ndjson"}
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(self._where, data=lines, headers=headers) as answer,
        ):
            answer.raise_for_status()

    def _append(self, lines: bytes) -> None:
        with Path(self._where).open("ab") as file:
            file.write(lines)


async def read_anchor(where: str) -> list[Heads]:
    """Return the heads that an anchor holds: a file, or what an URL answers to GET.

    Raises:
        LedgerError: it cannot be read, or a line is no heads; the message names the line.
    """
    try:
        data = await _get(where) if _is_url(where) else await asyncio.to_thread(_read, where)
    except (OSError, TimeoutError, aiohttp.ClientError) as error:
        raise LedgerError(f"the anchor {where} cannot be read ({error or repr(error)})") from error
    found: list[Heads] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(decode_heads(line))
        except ValueError as error:
            if number == len(lines):
                continue  # being written at this moment, or cut by a loss of power
            raise LedgerError(f"the anchor {where}, line {number}: {error}") from error
    return found


async def _get(url: str) -> bytes:
    timeout = aiohttp.ClientTimeout(total=_READ_WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
        answer.raise_for_status()
        return await answer.read()


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))
