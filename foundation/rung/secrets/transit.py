"""KMS adapter: the transit engine of HashiCorp Vault or OpenBao, over HTTP.

    vault+https://vault.example.org:8200/transit/rung

names the mount `transit` and the key `rung`. The master key never leaves the service: it encrypts
and decrypts data keys, and its policies say who may do which (a gateway encrypts, an agent
decrypts). The token is in `VAULT_TOKEN`, or in the file that `VAULT_TOKEN_FILE` names, which is
read at each use because agents of these services renew it. An authority of its own is in the
file that `VAULT_CACERT` names.
"""

import base64
import contextlib
import hashlib
import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from rung.events.errors import SecretError, SecretsUnavailable
from rung.secrets.master_key import WrappedKey

_TIMEOUT_S: Final = 10.0
_BUSY: Final = 429
_BROKEN: Final = 500
_OK: Final = 200
_ANSWER_BYTES_MAX: Final = 1024 * 1024


class TransitKey:
    """A master key of a transit engine."""

    def __init__(
        self, address: str, mount: str, name: str, environment: Mapping[str, str], *, tls: bool
    ) -> None:
        self._address: Final = address
        self._mount: Final = mount
        self._name: Final = name
        self._environment: Final = environment
        self._tls: Final = tls

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """Return the key that an URL names.

        Raises:
            SecretError: it names none.
        """
        parts = urlsplit(text.removeprefix("vault+"))
        mount, _, name = parts.path.strip("/").rpartition("/")
        if not (parts.hostname and mount and name) or "@" in parts.netloc:
            raise SecretError(
                "the URL of a KMS is vault+https://HOST:PORT/MOUNT/KEY; its token is in"
                " VAULT_TOKEN or in the file that VAULT_TOKEN_FILE names"
            )
        return cls(parts.netloc, mount, name, environment, tls=parts.scheme == "https")

    def wrap(self, key: bytes, context: bytes) -> WrappedKey:
        """Have a data key encrypted."""
        answer = self._ask("encrypt", plaintext=_text(key), associated_data=_text(context))
        ciphertext = answer.get("ciphertext")
        if not isinstance(ciphertext, str):
            raise SecretError(f"{self._address} answered no ciphertext for key {self._name}")
        return WrappedKey(self._id(_version(ciphertext)), ciphertext.encode())

    def unwrap(self, wrapped: WrappedKey, context: bytes) -> bytes:
        """Have a data key decrypted."""
        if wrapped.key_id.rpartition(":v")[0] != self._id("").rpartition(":v")[0]:
            raise SecretError(
                f"the secret was encrypted under {wrapped.key_id}, not under {self._id('')[:-2]}:"
                " name that key, or encrypt it anew with `rung secret set`"
            )
        ciphertext = wrapped.data.decode("ascii", "replace")
        answer = self._ask("decrypt", ciphertext=ciphertext, associated_data=_text(context))
        try:
            return base64.b64decode(str(answer.get("plaintext")), validate=True)
        except ValueError:
            raise SecretError(f"{self._address} answered no data key") from None

    def is_current(self, key_id: str) -> bool:
        """Whether a key is the newest version of this one."""
        probe = hashlib.sha256(b"which version").digest()
        return self.wrap(probe, b"rung key version").key_id == key_id

    def _id(self, version: str) -> str:
        return f"vault:{self._mount}/{self._name}:v{version}"

    def _ask(self, verb: str, **fields: str) -> dict[str, Any]:
        status, body = self._send(
            f"/v1/{quote(self._mount)}/{verb}/{quote(self._name)}", json.dumps(fields).encode()
        )
        if status == _BUSY or status >= _BROKEN:
            raise SecretsUnavailable(f"the KMS {self._address} answered {status}")
        if status != _OK:
            raise SecretError(
                f"the KMS {self._address} refused to {verb} with key {self._name} ({status}):"
                " look at the key, and at the policy of the token"
            )
        try:
            data = json.loads(body)["data"]
        except (ValueError, KeyError, TypeError):
            raise SecretError(f"{self._address} did not answer as a transit engine does") from None
        return data if isinstance(data, dict) else {}

    def _send(self, path: str, body: bytes) -> tuple[int, bytes]:
        headers = {"X-Vault-Token": self._token(), "Content-Type": "application/json"}
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read(_ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise SecretsUnavailable(
                f"the KMS {self._address} does not answer ({type(error).__name__})"
            ) from None

    def _connection(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._address, timeout=_TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._environment.get("VAULT_CACERT"))
        return http.client.HTTPSConnection(self._address, timeout=_TIMEOUT_S, context=context)

    def _token(self) -> str:
        path = self._environment.get("VAULT_TOKEN_FILE")
        if path is None:
            return self._environment.get("VAULT_TOKEN", "")
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SecretError(f"VAULT_TOKEN_FILE: {path} cannot be read") from None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _version(ciphertext: str) -> str:
    """Return the version of the key in `vault:v3:…`."""
    parts = ciphertext.split(":")
    return parts[1].removeprefix("v") if len(parts) == 3 else "?"
