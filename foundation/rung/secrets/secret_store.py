"""Secret store: encrypted values as objects of the object store, below `secrets/`.

    secrets/experiments/<experiment>/<random>.json    what was taken out of one experiment file
    secrets/workspaces/<workspace>/<name>.json        a secret of a workspace

A value is encrypted with AES-256-GCM under a data key of its own, the data key under the master
key (`WrappedKey`). Both are bound to the object's name, so that no object passes for another. The
digest is that of the ciphertext: encrypting the data key anew under another master key does not
change it.
"""

import hashlib
import secrets
import time
from typing import Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from rung.events.errors import ObjectMissing, SecretError
from rung.secrets.master_key import KEY_BYTES, NONCE_BYTES, MasterKey, WrappedKey
from rung.storage.port import ObjectStore

PREFIX: Final = "secrets/"
EXPERIMENTS: Final = f"{PREFIX}experiments/"
WORKSPACES: Final = f"{PREFIX}workspaces/"
SUFFIX: Final = ".json"
CIPHER: Final = "AES-256-GCM"


class EncryptedObject(Struct, frozen=True, kw_only=True):
    """An object of the store; all that is in it may be known."""

    version: int = 1
    cipher: str = CIPHER
    key_id: str
    """Of the master key."""
    data_key: bytes
    """The data key, encrypted under the master key."""
    nonce: bytes
    ciphertext: bytes
    made_ms: int = 0
    """When the value was encrypted, since 1970."""

    @property
    def digest(self) -> str:
        """SHA-256 of what the value became."""
        return hashlib.sha256(self.nonce + self.ciphertext).hexdigest()


class Reference(NamedTuple):
    """How events and configurations refer to an encrypted value."""

    name: str
    digest: str


class Rekeyed(NamedTuple):
    """What a change of the master key did."""

    changed: int
    already: int
    """Objects that were under the current key already."""
    failed: list[str]
    """One line for each object that could not be changed."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(EncryptedObject)


class SecretStore:
    """Encrypted values; methods block."""

    def __init__(self, store: ObjectStore, key: MasterKey) -> None:
        self._store: Final = store
        self._key: Final = key

    def put(self, name: str, value: bytes) -> Reference:
        """Encrypt a value and store it, in place of one that has the name.

        Raises:
            SecretError: the master key cannot be used.
            ObjectError: the store refuses.
        """
        context = name.encode()
        data_key = secrets.token_bytes(KEY_BYTES)
        nonce = secrets.token_bytes(NONCE_BYTES)
        wrapped = self._key.wrap(data_key, context)
        found = EncryptedObject(
            key_id=wrapped.key_id,
            data_key=wrapped.data,
            nonce=nonce,
            ciphertext=AESGCM(data_key).encrypt(nonce, value, context),
            made_ms=time.time_ns() // 1_000_000,
        )
        self._store.put_bytes(name, _encoder.encode(found))
        return Reference(name, found.digest)

    def get(self, name: str, digest: str | None = None) -> bytes:
        """Return a value.

        Args:
            name: of the object.
            digest: of its ciphertext, where that is on record.

        Raises:
            SecretError: it is missing, altered, another, or its master key is not here.
            SecretsUnavailable: the service of the key does not answer.
            ObjectUnavailable: the store does not answer.
        """
        found = self.look(name)
        if digest is not None and found.digest != digest:
            raise SecretError(f"{name} is not the object that is on record: its digest differs")
        context = name.encode()
        data_key = self._key.unwrap(WrappedKey(found.key_id, found.data_key), context)
        try:
            return AESGCM(data_key).decrypt(found.nonce, found.ciphertext, context)
        except (InvalidTag, ValueError):
            raise SecretError(f"{name} was altered, or moved from another place") from None

    def look(self, name: str) -> EncryptedObject:
        """Return an object as it is stored.

        Raises:
            SecretError: it is missing, or cannot be read.
            ObjectUnavailable: the store does not answer.
        """
        try:
            found = _decoder.decode(self._store.read(name))
        except ObjectMissing:
            raise SecretError(f"{name} is not in the object store (any more)") from None
        except msgspec.DecodeError:
            raise SecretError(f"{name} is damaged in the object store") from None
        if (found.version, found.cipher) != (1, CIPHER):
            raise SecretError(f"{name} was written by a newer release")
        return found

    def names(self, prefix: str = PREFIX) -> list[str]:
        """Return the names of the objects below a prefix."""
        return [info.name for info in self._store.list(prefix) if info.name.endswith(SUFFIX)]

    def delete(self, prefix: str) -> int:
        """Delete what lies below a prefix, or has that name; return how many objects it was."""
        assert prefix.startswith(PREFIX), prefix
        return self._store.delete(prefix)

    def key_ids(self) -> set[str]:
        """Return the ids of the master keys that objects need."""
        return {self.look(name).key_id for name in self.names()}

    def rekey(self) -> Rekeyed:
        """Encrypt the data keys of all objects under the current master key.

        Values are neither decrypted nor encrypted again. It can be repeated, and interrupted.
        """
        changed = already = 0
        failed: list[str] = []
        current: dict[str, bool] = {}
        for name in self.names():
            try:
                found = self.look(name)
                if found.key_id not in current:
                    current[found.key_id] = self._key.is_current(found.key_id)
                if current[found.key_id]:
                    already += 1
                    continue
                context = name.encode()
                data_key = self._key.unwrap(WrappedKey(found.key_id, found.data_key), context)
                wrapped = self._key.wrap(data_key, context)
            except SecretError as error:
                failed.append(f"{name}: {error}")
                continue
            new = msgspec.structs.replace(found, key_id=wrapped.key_id, data_key=wrapped.data)
            self._store.put_bytes(name, _encoder.encode(new))
            changed += 1
        return Rekeyed(changed, already, failed)


def experiment_object(experiment_id: str) -> str:
    """Return a new name for the secrets of an experiment's file."""
    return f"{EXPERIMENTS}{experiment_id}/{secrets.token_hex(8)}{SUFFIX}"


def workspace_object(workspace: str, name: str) -> str:
    """Return the name of a workspace's secret."""
    return f"{WORKSPACES}{workspace}/{name}{SUFFIX}"
