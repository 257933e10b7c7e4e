"""Settings of an S3 store, from environment variables.

Credentials are in the variables of all S3 tools; each may also be in a file that the variable with
the suffix `_FILE` names. Such a file is read for each request, so rotated keys need no restart.

Without keys the identity of the workload is exchanged for temporary ones, as by the SDKs of AWS,
with the same variables: a web identity token (IRSA in EKS, or MinIO's STS), a container's role
(EKS Pod Identity, ECS), or, for a bucket of AWS, the role of the instance.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, cast, get_args
from urllib.parse import urlsplit

from msgspec import Struct

from rung.events.errors import ObjectError
from rung.storage.s3.errors import KeysRefused

MIB: Final = 1024**2
AWS_ENDPOINT: Final = "https://s3.amazonaws.com"
Encryption = Literal["none", "s3", "kms", "customer"]

_KNOWN: Final = frozenset(
    {
        "RUNG_S3_ENDPOINT",
        "RUNG_S3_PUBLIC_ENDPOINT",
        "RUNG_S3_REGION",
        "RUNG_S3_CA_FILE",
        "RUNG_S3_SSE",
        "RUNG_S3_SSE_KEY",
        "RUNG_S3_SSE_KEY_FILE",
        "RUNG_S3_PART_MIB",
        "RUNG_S3_PARALLEL",
        "RUNG_S3_TIMEOUT_S",
        "RUNG_S3_PATIENCE_S",
    }
)
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Secret(Struct, frozen=True):
    """A secret value, or the file that holds it."""

    name: str
    """Its variable, for messages."""
    value: str | None = None
    file: Path | None = None

    def read(self) -> str:
        """Return the value.

        Raises:
            KeysRefused: its file cannot be read, or is empty.
        """
        text = self.value or ""
        if self.file is not None:
            try:
                text = self.file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise KeysRefused(f"{self.name}: {self.file} cannot be read: {error}") from error
        if not text:
            raise KeysRefused(f"{self.name}: {self.file or 'the value'} is empty")
        return text

    def __repr__(self) -> str:
        return f"Secret({self.name})"


class Keys(Struct, frozen=True, kw_only=True):
    """Given keys."""

    access_key: Secret
    secret_key: Secret
    session_token: Secret | None = None

    @property
    def rotate(self) -> bool:
        """Whether they may be replaced while the process runs."""
        return self.access_key.file is not None


class Identity(Struct, frozen=True, kw_only=True):
    """An identity of the workload, exchanged for temporary keys."""

    token_file: Path | None = None
    """Of a web identity; without, the role is the container's or the instance's."""
    role: str | None = None
    session: str | None = None
    endpoint: str | None = None
    """Of STS or the metadata service, if not that of AWS."""

    @property
    def remedy(self) -> str:
        """What to check when there are no keys for it."""
        if self.token_file is not None:
            return (
                "look at AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN and AWS_ENDPOINT_URL_STS, and"
                " whether the role trusts this service account"
            )
        return "give the container or the instance a role, or set AWS_ACCESS_KEY_ID"

    def __str__(self) -> str:
        if self.token_file is not None:
            return f"the web identity in {self.token_file}"
        return "the role of the container or the instance"


class S3Settings(Struct, frozen=True, kw_only=True):
    """Settings of the connections to a bucket.

    Raises:
        ObjectError: a value is not valid; the message names its variable and what is.
    """

    credentials: Keys | Identity
    endpoint: str = AWS_ENDPOINT
    public_endpoint: str | None = None
    """The same server as users reach it, for presigned URLs."""
    region: str | None = None
    """None: `us-east-1`, or, on AWS, that of the bucket."""
    ca_file: Path | None = None
    """Certificates of the trusted authorities, instead of the system's."""
    sse: Encryption = "none"
    sse_key: Secret | None = None
    """The id of a KMS key; or a customer key, 32 bytes in base64."""
    part_bytes: int = 16 * MIB
    """Larger objects are transferred in parts of this size."""
    parallel: int = 4
    """How many parts, and how many files, are transferred at a time."""
    timeout_s: float = 30.0
    """How long the server may not answer, and how long a part may take to be sent."""
    patience_s: float = 60.0
    """How long transient errors are retried."""

    def __post_init__(self) -> None:
        _check_endpoint("RUNG_S3_ENDPOINT", self.endpoint)
        if self.public_endpoint is not None:
            _check_endpoint("RUNG_S3_PUBLIC_ENDPOINT", self.public_endpoint)
        if self.ca_file is not None and not self.ca_file.is_file():
            raise ObjectError(f"RUNG_S3_CA_FILE: there is no file {self.ca_file}")
        self._check_encryption()
        if not 5 * MIB <= self.part_bytes <= 5 * 1024 * MIB:
            raise ObjectError("RUNG_S3_PART_MIB: parts have 5 to 5120 MiB, as S3 wants it")
        if not 1 <= self.parallel <= 64:
            raise ObjectError("RUNG_S3_PARALLEL: from 1 to 64")
        if not (self.timeout_s > 0 and self.patience_s >= 0):
            raise ObjectError("RUNG_S3_TIMEOUT_S and RUNG_S3_PATIENCE_S: give seconds")

    @property
    def secure(self) -> bool:
        """Whether the endpoint speaks TLS."""
        return self.endpoint.startswith("https:")

    def customer_key(self) -> bytes:
        """Return the 32 bytes of the customer key."""
        assert self.sse_key is not None, "checked"
        try:
            key = base64.b64decode(self.sse_key.read(), validate=True)
        except binascii.Error as error:
            raise ObjectError(f"{self.sse_key.name}: is not base64: {error}") from error
        if len(key) != 32:
            raise ObjectError(
                f"{self.sse_key.name}: has {len(key)} bytes; give 32 of them in base64, such as"
                " `openssl rand -base64 32` prints"
            )
        return key

    def _check_encryption(self) -> None:
        if self.sse not in get_args(Encryption):
            known = ", ".join(get_args(Encryption))
            raise ObjectError(f"RUNG_S3_SSE is {self.sse!r}: one of {known}")
        if (self.sse in {"kms", "customer"}) != (self.sse_key is not None):
            raise ObjectError(
                "RUNG_S3_SSE_KEY goes with RUNG_S3_SSE=kms (the key's id) and"
                " RUNG_S3_SSE=customer (32 bytes in base64), and with nothing else"
            )
        if self.sse == "customer":
            self.customer_key()
            if not self.secure and urlsplit(self.endpoint).hostname not in _LOOPBACK:
                raise ObjectError(
                    f"RUNG_S3_SSE=customer sends the key with each request; {self.endpoint} would"
                    " send it in the clear: use an https endpoint"
                )


def from_environment(environment: Mapping[str, str] | None = None) -> S3Settings:
    """Return the settings in the environment's variables.

    Raises:
        ObjectError: one is missing, unknown or not valid.
    """
    given = os.environ if environment is None else environment
    env = {name: value for name, value in given.items() if value}
    for name in sorted(env):
        if name.startswith("RUNG_S3_") and name not in _KNOWN:
            known = ", ".join(sorted(_KNOWN))
            raise ObjectError(f"{name} is no setting; known are {known}")
    region = env.get("RUNG_S3_REGION") or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    endpoint = env.get("RUNG_S3_ENDPOINT", AWS_ENDPOINT).rstrip("/")
    if endpoint != AWS_ENDPOINT:
        region = region or "us-east-1"
    ca_file = env.get("RUNG_S3_CA_FILE")
    return S3Settings(
        credentials=_credentials(env, endpoint, region),
        endpoint=endpoint,
        public_endpoint=env.get("RUNG_S3_PUBLIC_ENDPOINT", "").rstrip("/") or None,
        region=region,
        ca_file=Path(ca_file) if ca_file else None,
        sse=cast("Encryption", env.get("RUNG_S3_SSE", "none").lower()),
        sse_key=_secret(env, "RUNG_S3_SSE_KEY"),
        part_bytes=int(_number(env, "RUNG_S3_PART_MIB", 16) * MIB),
        parallel=int(_number(env, "RUNG_S3_PARALLEL", 4)),
        timeout_s=_number(env, "RUNG_S3_TIMEOUT_S", 30),
        patience_s=_number(env, "RUNG_S3_PATIENCE_S", 60),
    )


def _credentials(env: Mapping[str, str], endpoint: str, region: str | None) -> Keys | Identity:
    given = [_secret(env, name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    if not any(given) and (identity := _identity(env, endpoint, region)):
        return identity
    return Keys(
        access_key=_needed(env, "AWS_ACCESS_KEY_ID"),
        secret_key=_needed(env, "AWS_SECRET_ACCESS_KEY"),
        session_token=_secret(env, "AWS_SESSION_TOKEN"),
    )


def _identity(env: Mapping[str, str], endpoint: str, region: str | None) -> Identity | None:
    """Return the identity of the workload; that of an instance, without a variable, on AWS."""
    if file := env.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        sts = env.get("AWS_ENDPOINT_URL_STS")
        if sts is None and region is not None and endpoint == AWS_ENDPOINT:
            suffix = ".cn" if region.startswith("cn-") else ""
            sts = f"https://sts.{region}.amazonaws.com{suffix}"
        return Identity(
            token_file=Path(file),
            role=env.get("AWS_ROLE_ARN"),
            session=env.get("AWS_ROLE_SESSION_NAME"),
            endpoint=sts,
        )
    if any(f"AWS_CONTAINER_CREDENTIALS_{kind}_URI" in env for kind in ("FULL", "RELATIVE")):
        return Identity()
    metadata = env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
    disabled = env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    if not disabled and (metadata or endpoint == AWS_ENDPOINT):
        return Identity(endpoint=metadata.rstrip("/") if metadata else None)
    return None


def _secret(env: Mapping[str, str], name: str) -> Secret | None:
    value, file = env.get(name), env.get(f"{name}_FILE")
    if value and file:
        raise ObjectError(f"{name} and {name}_FILE are both set; unset one of them")
    if file:
        return Secret(f"{name}_FILE", file=Path(file))
    return Secret(name, value) if value else None


def _needed(env: Mapping[str, str], name: str) -> Secret:
    secret = _secret(env, name)
    if secret is None:
        raise ObjectError(
            f"{name} is not set, nor is {name}_FILE; an S3 store needs it, or an identity of the"
            " workload (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI)"
        )
    return secret


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise ObjectError(f"{name} is {text!r}: give a number") from None


def _check_endpoint(name: str, endpoint: str) -> None:
    parts = urlsplit(endpoint)
    try:
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        whole = False
    if not whole or parts.path or parts.query or parts.username:
        raise ObjectError(
            f"{name} is {endpoint!r}: give scheme, host and port, such as http://minio:9000"
        )
