"""Addresses of ClickHouse databases: `clickhouse://user@host:9000/database?secure=1`."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

SCHEME: Final = "clickhouse"
PASSWORD: Final = "RUNG_CLICKHOUSE_PASSWORD"  # noqa: S105 - the variable's name
_FORM: Final = f"{SCHEME}://USER@HOST:9000/DATABASE"
_PORT: Final = 9000
_SECURE_PORT: Final = 9440
_PORT_MAX: Final = 65_535


class Address(Struct, frozen=True, kw_only=True):
    """A database on a server, and how to connect to it."""

    host: str
    port: int
    user: str
    password: str
    database: str
    secure: bool = False
    """Speak TLS."""
    verify: bool = True
    """Refuse a server whose certificate is not signed by an authority that is trusted."""
    ca_file: str | None = None
    """The authorities to trust; the system's if not given."""
    timeout_s: float = 30.0
    """How long the server may be silent within one request."""

    @property
    def place(self) -> str:
        """The address without its password."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}://{self.user}@{host}:{self.port}/{self.database}"


def is_address(text: str) -> bool:
    """Whether a place of series is a server's rather than a folder."""
    return text.startswith(f"{SCHEME}:")


def read_address(text: str, environment: Mapping[str, str] = os.environ) -> Address:
    """Return the address that a URL and the environment give.

    Args:
        text: the URL; `secure`, `verify`, `ca_file` and `timeout_s` are its options.
        environment: holds the password, or the path of a file that holds it.

    Raises:
        ValueError: it is no such address; the message says what would be right.
    """
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"--series {text!r}: the port must be from 1 to {_PORT_MAX}") from error
    if parts.password is not None:
        raise ValueError(
            "--series holds a password, which other users of this machine can see: leave it out "
            f"and set {PASSWORD}, or {PASSWORD}_FILE to the path of a file that holds it"
        )
    database = unquote(parts.path.removeprefix("/"))
    if not (parts.scheme == SCHEME and parts.hostname and database) or "/" in database:
        raise ValueError(f"--series {text!r}: give {_FORM}, or the path of a folder")
    options = _read_options(text, parts.query)
    return Address(
        host=parts.hostname,
        port=port or (_SECURE_PORT if options.get("secure") else _PORT),
        user=unquote(parts.username or "default"),
        password=_read_password(environment),
        database=database,
        **options,
    )


def _read_options(text: str, query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ValueError(
                f"--series {text!r}: there is no option {name!r}; there are {', '.join(_OPTIONS)}"
            )
        try:
            options[name] = _OPTIONS[name](value)
        except ValueError as error:
            raise ValueError(f"--series {text!r}: {name} is {value!r}: {error}") from error
    return options


def _flag(value: str) -> bool:
    if value not in {"0", "1"}:
        raise ValueError("give 1 or 0")
    return value == "1"


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3_600:
        raise ValueError("give seconds, up to 3600, such as 30")
    return seconds


def _path(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError("give the path of a file of certificates")
    return value


_OPTIONS: Final[dict[str, Callable[[str], object]]] = {
    "secure": _flag,
    "verify": _flag,
    "ca_file": _path,
    "timeout_s": _seconds,
}


def _read_password(environment: Mapping[str, str]) -> str:
    path = environment.get(f"{PASSWORD}_FILE")
    if not path:
        return environment.get(PASSWORD, "")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"{PASSWORD}_FILE is {path!r}, which cannot be read: {error}") from error
