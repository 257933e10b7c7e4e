"""Keys with which the ranks of a run prove to each other that they belong to it.

Agents of a gang know each other through the ledger alone, which more people read than may join a
run. So each publishes the public half of an X25519 key pair of its own (RFC 7748, section 6.1),
and the first agent shares one key with each of the others, which is derived from its own private
and the other's public half (HKDF with SHA-256, RFC 5869). No key itself is ever on record.
"""

from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rung.events import RungError

_KEY_BYTES: Final = 16


class BadPublicKey(RungError):
    """An agent published something else than a public key."""


def new_private_key() -> str:
    """Return a private key, in hexadecimal digits."""
    return X25519PrivateKey.generate().private_bytes_raw().hex()


def public_key_of(private_key: str) -> str:
    """Return the public half of a private key, in hexadecimal digits."""
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(private_key))
    return private.public_key().public_bytes_raw().hex()


def shared_key(private_key: str, public_key: str, allocation_id: str) -> str:
    """Return the key that the owners of both halves share for one allocation.

    Raises:
        BadPublicKey: it is not one.
    """
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(private_key))
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public_key)))
    except ValueError as error:
        raise BadPublicKey(f"{public_key!r:.80} is no public key: {error}") from error
    info = f"rung ranks of {allocation_id}".encode()
    return HKDF(SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(secret).hex()
