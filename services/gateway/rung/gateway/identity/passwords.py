"""Passwords of local accounts: argon2id, by argon2-cffi.

Only hashes enter the ledger. A hash takes 64 MiB and some 50 ms of a processor, so at most
`AT_ONCE` are computed at a time, in threads; others wait.
"""

import asyncio
import functools
import unicodedata
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from argon2.profiles import RFC_9106_LOW_MEMORY

LENGTH_MIN: Final = 12
LENGTH_MAX: Final = 256
AT_ONCE: Final = 2

_hasher: Final = PasswordHasher.from_parameters(RFC_9106_LOW_MEMORY)


class BadPassword(ValueError):
    """A new password is refused; the message says what would be right."""


class Passwords:
    """Hashes and verifies passwords in threads."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(AT_ONCE)

    async def hash(self, password: str) -> str:
        """Return the hash of a new password.

        Raises:
            BadPassword: it is too short or too long, or holds the name of its user alone.
        """
        text = _normal(password)
        if not LENGTH_MIN <= len(text) <= LENGTH_MAX:
            raise BadPassword(
                f"has {len(text)} characters: choose one of {LENGTH_MIN} to {LENGTH_MAX}"
            )
        async with self._room:
            return await asyncio.to_thread(_hasher.hash, text)

    async def verify(self, expected: str | None, password: str) -> bool:
        """Return whether a password has a hash; None: of a user without one, or of none.

        It takes as long for a user who does not exist as for one who does, so that the time tells
        nobody which names there are.
        """
        text = _normal(password[: LENGTH_MAX * 2])
        async with self._room:
            same = await asyncio.to_thread(_verify, expected or _nobodys(), text)
        return same and expected is not None


def _verify(expected: str, text: str) -> bool:
    try:
        return _hasher.verify(expected, text)
    except (VerifyMismatchError, VerificationError, InvalidHashError):
        return False


@functools.cache
def _nobodys() -> str:
    """Return a hash as expensive as any."""
    return _hasher.hash("no password of anybody")


def _normal(password: str) -> str:
    """Return one form of what keyboards write in several."""
    return unicodedata.normalize("NFKC", password.encode("utf-8", "replace").decode())
