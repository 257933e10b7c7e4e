"""Master keys: the keys that encrypt data keys. The port, and keys of a file or a variable.

Of several keys the first encrypts and all decrypt, so that a new key can be put in front and what
the others encrypted stays readable until `rung secrets rekey` has encrypted it under the new one.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rung.events.errors import SecretError

FILE: Final = "secrets.key"
"""The key file in a data folder."""
ENVIRONMENT: Final = "RUNG_SECRETS_KEY"
"""The variable of the keys in a cluster."""
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12

_HEX: Final = re.compile(r"[0-9a-f]{64}")
_LETTERS_MIN: Final = 32
_DERIVED: Final = "rung 2026-11-23 secrets key v1"
"""Context in which a key is derived from a text."""
_NAMED: Final = "rung 2026-11-23 secrets key id v1"
"""Context in which a key's id is derived."""
_HEAD: Final = "# Keys of Rung's secrets. Keep a copy apart from backups of the data folder.\n"


class WrappedKey(NamedTuple):
    """A data key, encrypted under a master key."""

    key_id: str
    """Names the master key."""
    data: bytes


class MasterKey(Protocol):
    """Encrypts and decrypts data keys; the keys themselves may be a service's.

    Methods block; call them from a thread where an event loop runs.
    """

    def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Return a data key encrypted under the current master key, for one context alone.

        Raises:
            SecretError: there is no key, or its service refuses.
            SecretsUnavailable: the service does not answer.
        """
        ...

    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Return a data key.

        Raises:
            SecretError: that master key is not here, or it was another context.
            SecretsUnavailable: the service does not answer.
        """
        ...

    def is_current(self, key_id: str) -> bool:
        """Whether `wrap` would use this master key now."""
        ...


class LocalKeys:
    """Master keys that this process has."""

    def __init__(self, read: Callable[[], Sequence[bytes]]) -> None:
        """Take keys.

        Args:
            read: returns them, the current one first; called at each use, because a file with them
                may change.
        """
        self._read: Final = read

    def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Encrypt a data key."""
        current = self._read()[0]
        nonce = secrets.token_bytes(NONCE_BYTES)
        return WrappedKey(key_id(current), nonce + AESGCM(current).encrypt(nonce, key, context))

    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Decrypt a data key."""
        known = {key_id(key): key for key in self._read()}
        key = known.get(wrapped.key_id)
        if key is None:
            raise SecretError(
                f"the key {wrapped.key_id} is not among the keys of secrets"
                f" ({', '.join(known)}): add it behind the others in {FILE} or {ENVIRONMENT}"
            )
        nonce, data = wrapped.data[:NONCE_BYTES], wrapped.data[NONCE_BYTES:]
        try:
            return AESGCM(key).decrypt(nonce, data, context)
        except (InvalidTag, ValueError):
            raise SecretError(
                f"a secret that key {wrapped.key_id} encrypted was altered, or moved from another"
                " place"
            ) from None

    def is_current(self, key_id: str) -> bool:
        """Whether a key is the first one."""
        return key_id == _id_of(self._read()[0])


def key_id(key: bytes) -> str:
    """Return the id of a key, which tells nothing of it."""
    return _id_of(key)


def _id_of(key: bytes) -> str:
    return blake3(key, derive_key_context=_NAMED).hexdigest()[:16]


def master_key_of(text: str, environment: Mapping[str, str] = os.environ) -> MasterKey:
    """Return the master key of an option or a variable.

    Args:
        text: the path of a key file; the URL of a KMS (`vault+https://…`); or keys, separated by
            commas, each of 64 hexadecimal digits or a text of at least 32 characters.
        environment: where a KMS finds its credentials.

    Raises:
        SecretError: it is none of these.
    """
    if text.startswith(("vault+https://", "vault+http://")):
        from rung.secrets.transit import TransitKey  # noqa: PLC0415 - imports an HTTP client

        return TransitKey.parse(text, environment)
    if text.startswith(("/", "./", "~/")):
        return key_file(Path(text).expanduser())
    keys = [_parsed(part.strip(), ENVIRONMENT) for part in text.split(",")]
    return LocalKeys(lambda: keys)


def key_file(path: Path) -> LocalKeys:
    """Return the keys of a file.

    Raises:
        SecretError: it cannot be read, or holds something else.
    """
    _read_file(path)
    return LocalKeys(lambda: _read_file(path))


def load_or_create(path: Path) -> LocalKeys:
    """Return the keys of a file; create one, readable only by its owner, if there is none.

    Raises:
        SecretError: it holds something else, or cannot be written.
    """
    if not path.exists():
        write_keys(path, [secrets.token_bytes(KEY_BYTES)], replace=False)
    return key_file(path)


def add_key(path: Path) -> str:
    """Put a new key in front of those of a file; return its id.

    Raises:
        SecretError: the file cannot be read or written.
    """
    key = secrets.token_bytes(KEY_BYTES)
    write_keys(path, [key, *_read_file(path)], replace=True)
    return key_id(key)


def keep_keys(path: Path, kept: Callable[[str], bool]) -> list[str]:
    """Remove keys from a file, all but the first and those whose id is kept; return their ids.

    Raises:
        SecretError: the file cannot be read or written.
    """
    first, *others = _read_file(path)
    left = [key for key in others if kept(key_id(key))]
    removed = [key_id(key) for key in others if key not in left]
    if removed:
        write_keys(path, [first, *left], replace=True)
    return removed


def write_keys(path: Path, keys: Sequence[bytes], *, replace: bool) -> None:
    """Write a key file durably and all or nothing.

    Args:
        path: of the file.
        keys: the current one first.
        replace: whether a file that is there is replaced; else it stays.

    Raises:
        SecretError: it cannot be written.
    """
    text = _HEAD + "".join(f"{key.hex()}\n" for key in keys)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                new.replace(path)
            else:
                with contextlib.suppress(FileExistsError):
                    os.link(new, path)
        finally:
            new.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise SecretError(
            f"the key file {path} cannot be written ({error.strerror}): secrets of experiments"
            " are encrypted under its keys"
        ) from error


def _read_file(path: Path) -> list[bytes]:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SecretError(
            f"the key file {path} cannot be read ({said}): put the copy of it back, or name it in"
            f" {ENVIRONMENT}"
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    keys = [_parsed(line, str(path)) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise SecretError(
            f"{path} holds no key: each line is a key, such as `openssl rand -hex 32` prints"
        )
    return keys


def _parsed(text: str, where: str) -> bytes:
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if len(text) >= _LETTERS_MIN:
        return blake3(text.encode(), derive_key_context=_DERIVED).digest()
    raise SecretError(
        f"{where} has a key of {len(text)} characters: give 64 hexadecimal digits, such as"
        f" `openssl rand -hex 32` prints, or a text of at least {_LETTERS_MIN} characters; a file"
        " by its path; a KMS as vault+https://HOST/MOUNT/KEY"
    )
