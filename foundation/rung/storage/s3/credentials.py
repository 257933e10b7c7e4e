"""Credentials of requests to S3: given keys, or temporary ones of the workload's identity.

Given keys are read for each request, because their files may have been replaced. An identity is
exchanged for temporary keys by the providers of the `minio` client: a web identity token by STS, a
container's or an instance's role by the metadata service. They are renewed before they expire.

Errors of these providers contain the URL of the request, and with it the token, so they are
replaced by errors without it.
"""

import re
import threading
from typing import Final
from xml.etree import ElementTree as ET

import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import IamAwsProvider, Provider, WebIdentityProvider
from urllib3 import exceptions as http

from rung.events.errors import ObjectUnavailable
from rung.storage.s3.errors import STATUS_TRANSIENT, KeysRefused
from rung.storage.s3.settings import Identity, Keys, S3Settings

_CONNECT_S: Final = 5.0
_STATUS: Final = re.compile(r"failed with HTTP status code (\d{3})$")


def credentials(settings: S3Settings) -> Provider:
    """Return the provider of the client's credentials."""
    match settings.credentials:
        case Keys():
            return _GivenKeys(settings.credentials)
        case Identity():
            return _TemporaryKeys(settings.credentials, settings.timeout_s)


class _GivenKeys(Provider):
    """Given keys, read at each request."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def retrieve(self) -> Credentials:
        """Return the keys.

        Raises:
            KeysRefused: a file cannot be read.
        """
        token = self._keys.session_token
        return Credentials(
            self._keys.access_key.read(),
            self._keys.secret_key.read(),
            token.read() if token else None,
        )


class _TemporaryKeys(Provider):
    """Temporary keys of an identity; thread-safe."""

    def __init__(self, identity: Identity, timeout_s: float) -> None:
        self._identity = identity
        self._provider = _provider(identity, timeout_s)
        self._lock = threading.Lock()

    def retrieve(self) -> Credentials:
        """Return the keys, renewed if they expire within seconds.

        Raises:
            KeysRefused: the identity has no keys, or its token cannot be read.
            ObjectUnavailable: the service does not answer, or is busy.
        """
        with self._lock:
            try:
                return self._provider.retrieve()
            except http.HTTPError as error:
                reason = f"does not answer: {type(error).__name__}"
                transient = True
            except (ValueError, KeyError, OSError, ET.ParseError) as error:
                found = _STATUS.search(str(error))
                transient = found is not None and int(found[1]) in STATUS_TRANSIENT
                reason = f"answered {found[1]}" if found else _bare(error)
        text = f"no keys to S3 for {self._identity}: {reason}"
        if transient:
            raise ObjectUnavailable(text)
        raise KeysRefused(f"{text}; {self._identity.remedy}")


def _provider(identity: Identity, timeout_s: float) -> Provider:
    pool = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=min(_CONNECT_S, timeout_s), read=timeout_s), retries=False
    )
    if identity.token_file is None:
        return IamAwsProvider(custom_endpoint=identity.endpoint, http_client=pool)
    file = identity.token_file
    return WebIdentityProvider(
        jwt_provider_func=lambda: {"access_token": file.read_text(encoding="utf-8").strip()},
        sts_endpoint=identity.endpoint or "https://sts.amazonaws.com",
        role_arn=identity.role,
        role_session_name=identity.session,
        http_client=pool,
    )


def _bare(error: Exception) -> str:
    """Return the reason without what was sent or answered."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return "the answer has no keys"
