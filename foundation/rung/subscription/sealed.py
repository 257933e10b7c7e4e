"""Sealed receivers: addresses and keys of webhooks, as encrypted objects of the secret store.

    secrets/webhooks/<webhook>/<random>.json

The document of a webhook has the object's name and digest (`Subscription.sealed`). So there is one
key of an installation for all that is secret, `rung secrets rekey` is for webhooks, too, and the
ledger holds nothing that a lost key opens. An object is of one webhook: another's is not opened.
"""

import secrets
from typing import Final

import msgspec

from rung.events.errors import SecretError
from rung.secrets.secret_store import PREFIX, SUFFIX, SecretStore
from rung.subscription.document import Receiver

WEBHOOKS: Final = f"{PREFIX}webhooks/"
_MARK: Final = "#"
_decoder: Final = msgspec.json.Decoder(Receiver)


class Seal:
    """Seals and opens receivers; methods block."""

    def __init__(self, store: SecretStore) -> None:
        """Take the store of encrypted values."""
        self._store: Final = store

    def seal(self, webhook_id: str, receiver: Receiver) -> str:
        """Store a receiver for one webhook; return what its document refers to it by.

        Raises:
            SecretError: the key cannot be used.
            ObjectError: the store refuses.
        """
        name = f"{_prefix(webhook_id)}{secrets.token_hex(8)}{SUFFIX}"
        reference = self._store.put(name, msgspec.json.encode(receiver))
        return f"{reference.name}{_MARK}{reference.digest}"

    def open(self, webhook_id: str, sealed: str) -> Receiver:
        """Return the receiver of a webhook.

        Raises:
            SecretError: it is missing, altered, another webhook's, or the key is not here.
            SecretsUnavailable: the service of the key does not answer.
            ObjectUnavailable: the store does not answer.
        """
        name, _, digest = sealed.partition(_MARK)
        if not name.startswith(_prefix(webhook_id)):
            raise SecretError("no address is sealed for this webhook: set its address again")
        try:
            return _decoder.decode(self._store.get(name, digest))
        except msgspec.DecodeError as error:
            raise SecretError(f"{name} holds no receiver: set the address again") from error

    def forget(self, webhook_id: str, sealed: str = "") -> None:
        """Delete the receiver that a document referred to, or all of a webhook.

        Raises:
            ObjectError: the store refuses.
        """
        name = sealed.partition(_MARK)[0] or _prefix(webhook_id)
        if name.startswith(_prefix(webhook_id)):
            self._store.delete(name)


def _prefix(webhook_id: str) -> str:
    return f"{WEBHOOKS}{webhook_id}/"
