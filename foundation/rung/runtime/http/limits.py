"""Limits of a server's connections, and of open files."""

import contextlib
import resource
from typing import Final

from msgspec import Struct, structs

OPEN_FILES: Final = 65_536
"""The soft limit of open files is raised to this; a higher one slows programs that close every
possible file."""


class Limits(Struct, frozen=True, kw_only=True):
    """What the clients of a server may use.

    Raises:
        ValueError: a value is out of range.
    """

    connections: int = 2048
    """In all; at most half of the open files that the process may have."""
    connections_per_address: int = 256
    """Of one IPv4 address or one /64 of IPv6; at most half of `connections`, unless it is as
    large. Behind a proxy all clients have the proxy's address."""
    head_s: float = 20.0
    """Seconds from the first byte of a request, or the connection, to the end of its headers."""
    head_bytes: int = 64 * 1024
    """Of the request line and all headers, and of requests sent ahead of their answers."""
    idle_s: float = 75.0
    """Seconds without a request; longer than proxies keep connections to their servers."""
    progress_s: float = 60.0
    """Seconds in which a client has to send or read `progress_bytes`."""
    progress_bytes: int = 16 * 1024

    def __post_init__(self) -> None:
        for name in ("connections", "connections_per_address", "head_bytes", "progress_bytes"):
            number: int = getattr(self, name)
            if number < 1:
                raise ValueError(f"{name} is {number}: give a whole number from 1 on")
        for name in ("head_s", "idle_s", "progress_s"):
            seconds: float = getattr(self, name)
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{name} is {seconds}: give a number of seconds above 0")

    def within(self, open_files: int) -> "Limits":
        """Return these limits for a process that may have so many open files."""
        most = max(2, min(self.connections, open_files // 2))
        share = most if self.connections_per_address >= self.connections else max(1, most // 2)
        of_address = min(self.connections_per_address, share)
        return structs.replace(self, connections=most, connections_per_address=of_address)


def raise_open_files(most: int = OPEN_FILES) -> int:
    """Raise the soft limit of open files as far as the hard limit allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # some kernels allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
