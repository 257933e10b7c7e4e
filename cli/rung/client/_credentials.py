"""Credentials of `rung login`: a token for each server, in a file that its owner alone can read.

The file is `credentials.json` in `~/.config/rung` (`XDG_CONFIG_HOME` if that is set). A token is
sent to the server that gave it only, by scheme, host, port and path.
"""

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from rung.client._error import ClientError
from rung.client._http import InvalidAddress, address_of

_OTHERS: Final = 0o077


class Credential(Struct, kw_only=True):
    """A session at a server."""

    user: str
    token: str
    token_id: str
    expires_at: str


class _File(Struct, kw_only=True):
    servers: dict[str, Credential]


def credentials_path() -> Path:
    """Return where the file is."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "rung" / "credentials.json"


def read_credential(url: str) -> Credential | None:
    """Return the credential for a server, None if there is none.

    Raises:
        ClientError: others can read the file, or it is damaged.
    """
    return _read(credentials_path()).servers.get(_server(url))


def keep_credential(url: str, credential: Credential) -> Path:
    """Write the credential for a server, in place of another one; return the file.

    Raises:
        ClientError: others can read the file, or it is damaged.
    """
    with _changed() as content:
        content.servers[_server(url)] = credential
    return credentials_path()


def forget_credential(url: str) -> Credential | None:
    """Remove the credential for a server and return it, None if there is none.

    Raises:
        ClientError: others can read the file, or it is damaged.
    """
    if not credentials_path().exists():
        return None
    with _changed() as content:
        return content.servers.pop(_server(url), None)


def _server(url: str) -> str:
    """Return one form of what names the same server."""
    try:
        server = address_of(url)
    except InvalidAddress:
        return url
    return f"{server.scheme}://{server.host}:{server.port}{server.path.rstrip('/')}"


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & _OTHERS:
                raise ClientError(
                    f"{path} holds tokens, and others can read it: `chmod 600 {path}` if it is"
                    " yours, and then `rung login` for new ones"
                )
            return msgspec.json.decode(file.read(), type=_File)
    except FileNotFoundError:
        return _File(servers={})
    except msgspec.DecodeError as error:
        raise ClientError(f"{path} is damaged: remove it, and `rung login` again") from error


@contextlib.contextmanager
def _changed() -> Iterator[_File]:
    """Give the content of the file, and write it anew; one process at a time."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = _read(path)
        yield content
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as target:
            target.write(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        draft.replace(path)
    finally:
        os.close(lock)
