"""Key of an installation, which signs its seals.

A PEM file holds an Ed25519 private key, and behind it the former public keys, whose seals stay
valid, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Final, Self

from blake3 import blake3
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from rung.events.errors import LedgerError

FILE: Final = "seal.key"
"""The key's file in a data folder."""
ENVIRONMENT: Final = "RUNG_SEAL_KEY"
"""The variable of the key in a cluster."""
_SECRET_LETTERS_MIN: Final = 32
_CONTEXT: Final = "rung 2026-11-22 seal key v1"
"""Context of the key derivation."""
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)


class SealKey:
    """A private key, and the public keys by which the installation's seals are verified."""

    def __init__(self, private: Ed25519PrivateKey, former: frozenset[str] = frozenset()) -> None:
        self._private: Final = private
        self.public: Final = private.public_key().public_bytes_raw().hex()
        """The public key, 64 hexadecimal digits."""
        self.trusted: Final = former | {self.public}
        """The present and the former public keys."""

    @classmethod
    def generate(cls) -> Self:
        """Return a new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key file.

        Raises:
            LedgerError: it does not exist, or holds something else.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"the key {path}, by which seals are signed, cannot be read ({error.strerror})"
            ) from error
        private, public = _parse(data, path)
        if private is None:
            raise LedgerError(
                f"{path} holds no private key: write one with `openssl genpkey -algorithm ed25519`"
            )
        return cls(private, frozenset(public))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key of an option or a variable.

        Args:
            text: the path of a file, PEM, or a secret of at least 32 characters from which the
                key is derived.

        Raises:
            LedgerError: it is none of these.
        """
        if text.lstrip().startswith("-----BEGIN"):
            private, public = _parse(text.encode(), Path(ENVIRONMENT))
            if private is not None:
                return cls(private, frozenset(public))
        elif text.startswith(("/", "./", "~/")):
            return cls.load(Path(text).expanduser())
        elif len(text) >= _SECRET_LETTERS_MIN:
            seed = blake3(text.encode(), derive_key_context=_CONTEXT).digest()
            return cls(Ed25519PrivateKey.from_private_bytes(seed))
        raise LedgerError(
            f"{ENVIRONMENT}: give the path of a key file, which begins with `/`, `./` or `~/`, a"
            " private key as PEM, or a secret of at "
            f"least {_SECRET_LETTERS_MIN} characters, such as `openssl rand -hex 32` prints"
        )

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """Read a key file; create one, readable only by its owner, if there is none.

        Raises:
            LedgerError: the file holds something else, or cannot be written.
        """
        if not path.exists():
            try:
                _create(path)
            except OSError as error:
                raise LedgerError(
                    f"the key {path}, by which seals are signed, cannot be written "
                    f"({error.strerror})"
                ) from error
        return cls.load(path)

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, 128 hexadecimal digits."""
        return self._private.sign(message).hex()


def signed_by(key: str, signature: str, message: bytes) -> bool:
    """Return whether a message was signed by the owner of a public key."""
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), message)
    except (ValueError, InvalidSignature):
        return False
    return True


def parse_public(text: str) -> frozenset[str]:
    """Return the public keys of an option: 64 hexadecimal digits, or a PEM file.

    Raises:
        LedgerError: it is neither.
    """
    if _HEX.fullmatch(text):
        return frozenset({text})
    path = Path(text)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{text!r} is neither a public key (64 hexadecimal digits) nor a file that holds one "
            f"({error.strerror})"
        ) from error
    lines = data.decode(errors="replace").split()
    if lines and all(_HEX.fullmatch(line) for line in lines):
        return frozenset(lines)
    private, public = _parse(data, path)
    if private is not None:
        public.append(private.public_key().public_bytes_raw().hex())
    if not public:
        raise LedgerError(f"{path} holds no Ed25519 public key, in PEM or in hexadecimal digits")
    return frozenset(public)


def _parse(data: bytes, path: Path) -> tuple[Ed25519PrivateKey | None, list[str]]:
    """Return the private key and the public keys in PEM."""
    private: Ed25519PrivateKey | None = None
    public: list[str] = []
    for block in _PEM.finditer(data):
        try:
            if b"PRIVATE" in block[1]:
                loaded = load_pem_private_key(block[0], password=None)
                if not isinstance(loaded, Ed25519PrivateKey):
                    raise LedgerError(f"{path} holds a private key that is not of Ed25519")
                private = private or loaded
            else:
                found = load_pem_public_key(block[0])
                if not isinstance(found, Ed25519PublicKey):
                    raise LedgerError(f"{path} holds a public key that is not of Ed25519")
                public.append(found.public_bytes_raw().hex())
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise LedgerError(f"{path} holds a key that cannot be read: {error}") from error
    return private, public


def _create(path: Path) -> None:
    """Write a new key durably, unless another process did so meanwhile."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        new.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
