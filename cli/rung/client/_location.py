"""The location of a gateway, by its address or by a data folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import yarl

from rung.client._data_folder import DataFolderError, is_stopped, read_server
from rung.client._error import Unreachable

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})


class Location(NamedTuple):
    """Address and token of a server."""

    url: str
    token: str | None
    data: Path | None = None
    """The data folder whose Unix socket to connect to; None: connect to the URL."""


Locate = Callable[[], Location]


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

    The token of a data folder is sent to that folder's own server only: if the address is that of
    the `rung up` that runs on the folder, over its socket.

    Args:
        url: the address.
        token: of that server; None: that of the data folder, if the address is its server's.
        data: the folder.

    Raises:
        Unreachable: it is the folder's server, which is stopped.
    """
    if token is None:
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
        asked, there = yarl.URL(url), yarl.URL(own)
        return (
            asked.scheme == there.scheme
            and asked.host in _LOOPBACK
            and asked.port == there.port
            and asked.path.strip("/") == ""
        )
    except ValueError:
        return False
