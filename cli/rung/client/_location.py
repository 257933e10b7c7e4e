"""Where a gateway is, and how it is found: by its address, or by a data folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import yarl

from rung.client._data_folder import DataFolderError, is_stopped, read_server
from rung.client._error import Unreachable

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1"})


class Location(NamedTuple):
    """Where a server is, and the token that it asks for."""

    url: str
    token: str | None
    data: Path | None = None
    """The data folder whose Unix socket to connect to; None: connect to the URL."""


Locate = Callable[[], Location]


def of_folder(data: Path, token: str | None = None) -> Location:
    """Return where the server of a data folder is at this moment.

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
    """Return where the server with an address is.

    The token of a data folder goes to that folder's own server only: where the address is that of
    the `rung up` that runs on the folder, over its socket.

    Args:
        url: the address.
        token: given with it; None: that of the data folder, if the address is its server's.
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
    """Return whether an URL is that of the server on this machine with another."""
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
