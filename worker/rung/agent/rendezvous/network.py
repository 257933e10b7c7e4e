"""This machine on the network: its address for other agents, and ports reserved for ranks."""

import contextlib
import socket
from typing import Final

import psutil

from rung.events import RungError

LOOPBACK: Final = "127.0.0.1"
_ANYWHERE: Final = ("192.0.2.1", 9)
"""A reserved address: a UDP socket connected to it has the default route's own address."""


class NoSuchInterface(RungError):
    """The configured network interface does not exist or has no address."""


def address_of(interface: str | None) -> str:
    """Return the address at which other machines reach this one.

    Args:
        interface: the network interface; None: that of the default route; without one, the first
            that has an address; on a machine without a network, the loopback.

    Raises:
        NoSuchInterface: it does not exist or has no IPv4 address.
    """
    if interface is not None:
        return _address_of_interface(interface)
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        probe.connect(_ANYWHERE)
        return str(probe.getsockname()[0])
    found = (address for address in _addresses().values() if address != LOOPBACK)
    return next(found, LOOPBACK)


def interface_of(address: str) -> str | None:
    """Return the network interface with an address, None if there is none."""
    found = (name for name, own in _addresses().items() if own == address)
    return next(found, None)


def _addresses() -> dict[str, str]:
    """Return the IPv4 address of each network interface that has one."""
    return {
        name: found.address
        for name, addresses in psutil.net_if_addrs().items()
        for found in reversed(addresses)  # the first is the interface's own, others are aliases
        if found.family == socket.AF_INET
    }


def _address_of_interface(interface: str) -> str:
    addresses = _addresses()
    if interface not in addresses:
        raise NoSuchInterface(
            f"no network interface {interface!r} with an IPv4 address; there are: "
            + ", ".join(addresses)
        )
    return addresses[interface]


class ReservedPort:
    """A port that the system assigns to no other socket while this one is open.

    It is bound with SO_REUSEADDR but does not listen; so a process that binds this port with the
    same option, as servers do, gets it. It is bound on all addresses of the machine, including
    IPv6: bound on one only, the system could assign it on the others, to listeners and to outgoing
    connections, and frameworks listen on all addresses, whichever they are given.
    """

    def __init__(self, number: int = 0) -> None:
        """Bind a free port, or one that was reserved before.

        Raises:
            OSError: the port is in use.
        """
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            self._socket.bind(("", number))
        except OSError:
            self._socket.close()
            raise
        self.number: Final[int] = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()
