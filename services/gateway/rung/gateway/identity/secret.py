"""Secrets of tokens and sessions: drawn here, shown once, kept as digests.

A secret is `rung_`, 40 characters of randomness (238 bits), and a checksum of six. By the prefix
and the checksum scanners recognise one that was published by mistake, and a mistyped one is
refused without a look into the directory.
"""

import hashlib
import secrets
import string
import zlib
from typing import Final

PREFIX: Final = "rung_"
_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM: Final = 40
_CHECKSUM: Final = 6
_LENGTH: Final = len(PREFIX) + _RANDOM + _CHECKSUM


def draw() -> str:
    """Return a new secret."""
    body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM))
    return body + _checksum(body)


def is_secret(text: str) -> bool:
    """Return whether a text has the form of a secret, checksum included."""
    if len(text) != _LENGTH or not text.startswith(PREFIX) or not text.isascii():
        return False
    return _checksum(text[:-_CHECKSUM]) == text[-_CHECKSUM:]


def digest_of(secret: str) -> str:
    """Return what of a secret is on record: its SHA-256.

    A secret has as many random bits as the digest is hard to invert, so it needs no salt and no
    slow function, as passwords do.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _checksum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(_CHECKSUM):
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits
