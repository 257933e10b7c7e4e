"""The location of a gateway, by its address or by a data folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from rung.client._credentials import read_credential
from rung.client._data_folder import DataFolderError, default_path, is_stopped, read_server
from rung.client._error import Unreachable
from rung.client._http import InvalidAddress, address_of

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})


class Location(NamedTuple):
    """Address and token of a server."""

    url: str
    token: str | None
    data: Path | None = None
    """The data folder whose Unix socket to connect to; None: connect to the URL."""


Locate = Callable[[], Location]


def locate(data: Path, url: str | None, token: str | None) -> Location:
    """Return the location of the server at an address, or of a data folder's if there is none.

    Raises:
        Unreachable: none runs on the folder, or it is stopped.
    """
    return of_folder(data, token) if url is None else of_url(url, token, data)


def of_environment() -> Location:
    """Return the location that `RUNG_URL` and `RUNG_TOKEN` name, or `RUNG_DATA`, or `~/.rung`.

    Raises:
        Unreachable: none runs on the folder, or it is stopped.
    """
    url, token = os.environ.get("RUNG_URL"), os.environ.get("RUNG_TOKEN")
    return locate(default_path().absolute(), url or None, token or None)


def of_folder(data: Path, token: str | None = None) -> Location:
    """Return the present location of a data folder's server.

    Args:
        data: the folder.
        token: sent in place of the folder's own.

    Raises:
        Unreachable: none runs there, or it is stopped.
    """
    try:
        server = read_server(data)
    except DataFolderError as error:
        raise Unreachable(str(error)) from error
    if is_stopped(server.pid):
        raise Unreachable(
            f"process {server.pid}, the `rung up` of {data}, is stopped: `kill -CONT {server.pid}`"
            f" lets it go on, `rung down --data {data}` ends it"
        )
    return Location(server.url, token or server.token, data)


def of_url(url: str, token: str | None, data: Path) -> Location:
    """Return the location of the server with an address.

    Without a token, it is that of a `rung login` at this server. The token of a data folder is
    sent to that folder's own server only: if the address is that of the `rung up` that runs on the
    folder, over its socket.

    Args:
        url: the address.
        token: of that server; None: that of `rung login`, or that of the data folder, if the
            address is its server's.
        data: the folder.

    Raises:
        Unreachable: it is the folder's server, which is stopped.
        ClientError: the file with the tokens of `rung login` cannot be used.
    """
    if token is None:
        known = read_credential(url)
        if known is not None:
            return Location(url, known.token)
        try:
            own = read_server(data).url
        except (DataFolderError, OSError):
            return Location(url, None)
        if _same(url, own):
            return of_folder(data)
    return Location(url, token)


def _same(url: str, own: str) -> bool:
    """Return whether an URL and that of a server on this machine are the same."""
    try:
        asked, there = address_of(url), address_of(own)
    except InvalidAddress:
        return False
    return (
        asked.scheme == there.scheme
        and asked.host in _LOOPBACK
        and asked.port == there.port
        and asked.path.strip("/") == ""
    )
