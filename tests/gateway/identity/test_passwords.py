"""Passwords: hashes of argon2id, and times that tell nothing."""

import time
import unicodedata

import pytest

from rung.gateway.identity.passwords import LENGTH_MAX, LENGTH_MIN, BadPassword, Passwords

PASSWORD = "correct horse battery"  # noqa: S105 - of no account


async def test_a_password_and_its_hash() -> None:
    """The hash is argon2id, other each time, and only its own password has it."""
    passwords = Passwords()
    kept, again = await passwords.hash(PASSWORD), await passwords.hash(PASSWORD)
    assert kept.startswith("$argon2id$")
    assert kept != again
    assert await passwords.verify(kept, PASSWORD)
    assert not await passwords.verify(kept, PASSWORD + "x")
    assert not await passwords.verify(None, PASSWORD)


async def test_keyboards_write_one_letter_in_several_ways() -> None:
    """A letter with its accent apart is the letter with its accent."""
    passwords = Passwords()
    kept = await passwords.hash(unicodedata.normalize("NFD", "Grüße aus Köln"))
    assert await passwords.verify(kept, "Grüße aus Köln")


@pytest.mark.parametrize("text", ["", "x" * (LENGTH_MIN - 1), "x" * (LENGTH_MAX + 1)])
async def test_too_short_or_too_long(text: str) -> None:
    """The message has the limits, and not the password."""
    with pytest.raises(BadPassword, match=f"{LENGTH_MIN} to {LENGTH_MAX}"):
        await Passwords().hash(text)


@pytest.mark.parametrize("kept", ["", "$argon2id$", "plain", "$argon2id$v=19$m=1,t=1,p=1$$"])
async def test_a_damaged_hash_lets_nobody_in(kept: str) -> None:
    """Whatever is on record, only a hash of the password opens."""
    assert not await Passwords().verify(kept or "x", PASSWORD)


async def test_nobody_takes_as_long_as_somebody() -> None:
    """A name that does not exist costs a hash, too."""
    passwords = Passwords()
    kept = await passwords.hash(PASSWORD)
    await passwords.verify(None, PASSWORD)

    async def fastest(expected: str | None) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            await passwords.verify(expected, "another password")
            times.append(time.perf_counter() - began)
        return min(times)

    assert await fastest(None) > 0.3 * await fastest(kept)


async def test_hostile_texts() -> None:
    """A password of a megabyte, or no text at all, is refused without harm."""
    passwords = Passwords()
    kept = await passwords.hash(PASSWORD)
    assert not await passwords.verify(kept, "x" * 1_000_000)
    assert not await passwords.verify(kept, "\udcff\0")
