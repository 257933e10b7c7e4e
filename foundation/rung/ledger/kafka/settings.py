"""Settings of the connections to a Kafka cluster: its URL, and the environment's variables."""

import contextlib
import math
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rung.events import TOPICS
from rung.events.errors import LedgerError

SCHEME: Final = "kafka"
PREFIX: Final = "rung"
IDENTITY: Final = "ledger"
"""The topic that holds the ledger's identity."""
_PORT: Final = 9092
_EXAMPLE: Final = "kafka://host:9092,other:9092/rung"
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_VARIABLES: Final = "RUNG_KAFKA_"
_TIMEOUT_S: Final = 30.0
_REQUEST_TIMEOUT_S: Final = 10.0
_FETCH_WAIT_S: Final = 0.5
_BUFFER_BYTES: Final = 64 << 20


class Server(NamedTuple):
    """Address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """Address of a ledger: some of the cluster's brokers, and the prefix of the topics."""

    servers: tuple[Server, ...]
    prefix: str

    def __str__(self) -> str:
        servers = ",".join(str(server) for server in self.servers)
        return f"{SCHEME}://{servers}/{self.prefix}"

    def topic(self, name: str) -> str:
        """Return the name on the cluster of a topic of the ledger."""
        return f"{self.prefix}.{name}"

    @property
    def topics(self) -> list[str]:
        """The names on the cluster of all topics of the ledger."""
        return [self.topic(name) for name in (IDENTITY, *TOPICS)]


def parse_address(url: str) -> Address:
    """Parse an URL such as `kafka://host:9092,other:9092/prefix`.

    Raises:
        LedgerError: it is not one.
    """
    scheme, separator, rest = url.partition("://")
    if scheme != SCHEME or not separator:
        raise LedgerError(f"ledger {url!r}: an URL such as {_EXAMPLE} is wanted")
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        raise LedgerError(
            "ledger: user and password do not belong into the URL of a Kafka cluster; set "
            f"{_VARIABLES}SASL_USERNAME and {_VARIABLES}SASL_PASSWORD"
        )
    prefix = prefix.rstrip("/") or PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise LedgerError(
            f"ledger {url!r}: the prefix {prefix!r} may hold letters, digits, `.`, `_` and `-`, "
            f"as in {_EXAMPLE}"
        )
    return Address(tuple(_server(url, text) for text in hosts.split(",")), prefix)


def _server(url: str, text: str) -> Server:
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text.strip(), str(_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise LedgerError(f"ledger {url!r}: {text!r} is no host with a port, as in {_EXAMPLE}")
    return Server(host, int(port))


@dataclass(frozen=True, kw_only=True, slots=True)
class KafkaSettings:
    """Settings of the connections; `from_environment` reads them."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: Path | None = None
    """Authorities of the brokers' certificates; by default the system's."""
    ssl_certfile: Path | None = None
    """This client's certificate, where the brokers require one."""
    ssl_keyfile: Path | None = None
    timeout_s: float = _TIMEOUT_S
    """Seconds without success after which an append, a read or a commit fails."""
    request_timeout_s: float = _REQUEST_TIMEOUT_S
    """Seconds without an answer after which a connection is closed."""
    fetch_wait_s: float = _FETCH_WAIT_S
    """Seconds that a broker may hold a follower's fetch while it has nothing new; it answers at
    the next record."""
    buffer_bytes: int = _BUFFER_BYTES
    """Bound on the bytes that wait to be sent; appends beyond it wait."""

    def __post_init__(self) -> None:
        """Check that the settings fit each other.

        Raises:
            LedgerError: one is missing or has no effect; the message names its variable.
        """
        _among("SECURITY_PROTOCOL", self.security_protocol, _PROTOCOLS)
        if self.security_protocol.startswith("SASL"):
            self._check_sasl()
        elif self.sasl_mechanism or self.sasl_username or self.sasl_password:
            raise _wrong(
                "SECURITY_PROTOCOL",
                f"is {self.security_protocol}, which has no users; with a SASL user it is "
                "SASL_SSL or SASL_PLAINTEXT",
            )
        self._check_ssl()
        for name, value in (
            ("TIMEOUT_S", self.timeout_s),
            ("REQUEST_TIMEOUT_S", self.request_timeout_s),
            ("FETCH_WAIT_S", self.fetch_wait_s),
            ("BUFFER_BYTES", self.buffer_bytes),
        ):
            if value <= 0:
                raise _wrong(name, f"is {value}; a number above 0 is wanted")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read `RUNG_KAFKA_…`: each field in capitals; the password also as `…_PASSWORD_FILE`.

        Raises:
            LedgerError: a variable is not valid; the message names it and what is.
        """
        found = os.environ if environment is None else environment

        def text(name: str) -> str | None:
            return found.get(_VARIABLES + name) or None

        def path(name: str) -> Path | None:
            return Path(value) if (value := text(name)) else None

        def number(name: str, default: float) -> float:
            return _number(name, text(name), default)

        return cls(
            security_protocol=(text("SECURITY_PROTOCOL") or "PLAINTEXT").upper(),
            sasl_mechanism=text("SASL_MECHANISM"),
            sasl_username=text("SASL_USERNAME"),
            sasl_password=_password(text("SASL_PASSWORD"), path("SASL_PASSWORD_FILE")),
            ssl_cafile=path("SSL_CAFILE"),
            ssl_certfile=path("SSL_CERTFILE"),
            ssl_keyfile=path("SSL_KEYFILE"),
            timeout_s=number("TIMEOUT_S", _TIMEOUT_S),
            request_timeout_s=number("REQUEST_TIMEOUT_S", _REQUEST_TIMEOUT_S),
            fetch_wait_s=number("FETCH_WAIT_S", _FETCH_WAIT_S),
            buffer_bytes=int(number("BUFFER_BYTES", _BUFFER_BYTES)),
        )

    def login(self) -> dict[str, Any]:
        """Return the options for encryption and login that aiokafka and kafka-python share.

        Raises:
            LedgerError: a file holds no certificate or no key.
        """
        return {
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context(),
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
        }

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of the connections, None without TLS.

        Raises:
            LedgerError: a file holds no certificate or no key.
        """
        if "SSL" not in self.security_protocol:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
        except (ssl.SSLError, OSError) as error:
            raise _wrong("SSL_CAFILE", f"{self.ssl_cafile} holds no certificates: {error}") from (
                error
            )
        if self.ssl_certfile:
            try:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
            except (ssl.SSLError, OSError) as error:
                raise _wrong(
                    "SSL_CERTFILE",
                    f"{self.ssl_certfile} and {_VARIABLES}SSL_KEYFILE {self.ssl_keyfile} are no "
                    f"certificate with its key: {error}",
                ) from error
        return context

    def _check_sasl(self) -> None:
        if self.sasl_mechanism is None:
            raise _wrong("SASL_MECHANISM", f"is not set; {_either(_MECHANISMS)} is wanted")
        _among("SASL_MECHANISM", self.sasl_mechanism, _MECHANISMS)
        for name, value in (
            ("SASL_USERNAME", self.sasl_username),
            ("SASL_PASSWORD", self.sasl_password),
        ):
            if not value:
                raise _wrong(
                    name, f"is not set; {self.security_protocol} wants a user and a password"
                )

    def _check_ssl(self) -> None:
        files = {
            "SSL_CAFILE": self.ssl_cafile,
            "SSL_CERTFILE": self.ssl_certfile,
            "SSL_KEYFILE": self.ssl_keyfile,
        }
        for name, path in files.items():
            if path is None:
                continue
            if "SSL" not in self.security_protocol:
                raise _wrong(
                    name,
                    f"is set, but {_VARIABLES}SECURITY_PROTOCOL {self.security_protocol} does not "
                    "encrypt; SSL and SASL_SSL do",
                )
            if not path.is_file():
                raise _wrong(name, f"names {path}, and there is no such file")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise _wrong("SSL_CERTFILE", "is not set, but a key is; a certificate goes with it")


def _password(value: str | None, path: Path | None) -> str | None:
    if path is None:
        return value
    if value is not None:
        raise _wrong("SASL_PASSWORD_FILE", "is set, and so is the password itself; one is enough")
    try:
        return path.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong("SASL_PASSWORD_FILE", f"names {path}, which is not legible: {error}") from (
            error
        )


def _number(name: str, value: str | None, default: float) -> float:
    if value is None:
        return default
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(value)):
            return number
    raise _wrong(name, f"is {value!r}; a number such as {default:g} is wanted")


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise _wrong(name, f"is {value!r}; {_either(known)} is wanted")


def _either(known: tuple[str, ...]) -> str:
    return ", ".join(known[:-1]) + f" or {known[-1]}"


def _wrong(name: str, what: str) -> LedgerError:
    return LedgerError(f"{_VARIABLES}{name} {what}")
