"""How a Kafka cluster is reached: its address as an URL, and the settings of the environment."""

import contextlib
import math
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from rung.events.errors import LedgerError

SCHEME: Final = "kafka"
PREFIX: Final = "rung"
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
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A ledger on a cluster: some of its brokers, and what its topics' names begin with."""

    servers: tuple[Server, ...]
    prefix: str

    def __str__(self) -> str:
        servers = ",".join(str(server) for server in self.servers)
        return f"{SCHEME}://{servers}/{self.prefix}"

    def topic(self, name: str) -> str:
        """Return what a topic of the ledger is called on the cluster."""
        return f"{self.prefix}.{name}"


def parse_address(url: str) -> Address:
    """Read an URL such as `kafka://host:9092,other:9092/prefix`.

    Raises:
        LedgerError: it is none.
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
    """What the environment says about a cluster; `from_environment` names the variables."""

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: Path | None = None
    """The authorities that sign brokers' certificates; the system's own if not given."""
    ssl_certfile: Path | None = None
    """This client's certificate, where the brokers ask for one."""
    ssl_keyfile: Path | None = None
    timeout_s: float = _TIMEOUT_S
    """After this long without success an append, a read or a commit fails."""
    request_timeout_s: float = _REQUEST_TIMEOUT_S
    """After this long without an answer a connection is given up."""
    fetch_wait_s: float = _FETCH_WAIT_S
    """How long a follower's request waits at a broker that has nothing new; Kafka answers it the
    moment something comes, Tansu looks twice in this time."""
    buffer_bytes: int = _BUFFER_BYTES
    """What may wait to be sent; more appends wait until there is room."""

    def __post_init__(self) -> None:
        """Check what belongs together.

        Raises:
            LedgerError: something is missing or of no effect; the variable is named.
        """
        _among("SECURITY_PROTOCOL", self.security_protocol, _PROTOCOLS)
        if self.security_protocol.startswith("SASL"):
            self._check_sasl()
        elif self.sasl_mechanism or self.sasl_username or self.sasl_password:
            raise _wrong(
                "SECURITY_PROTOCOL",
                f"is {self.security_protocol}, which knows no user; with a SASL user it is "
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
            LedgerError: a variable does not fit; its name and what would be right are said.
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
        """Return how to encrypt and log in, by the names that aiokafka and kafka-python share.

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
        """Return what encrypts the connections, None if nothing does.

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
