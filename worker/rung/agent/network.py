"""This machine on the network: its address for other agents, and ports that nobody else gets."""

import contextlib
import fcntl
import socket
import struct
from typing import Final

from rung.events import RungError

LOOPBACK: Final = "127.0.0.1"
_ANYWHERE: Final = ("192.0.2.1", 9)
"""An address that is nobody's: asked for the way there, the system names ours; nothing is sent."""
_SIOCGIFADDR: Final = 0x8915
_NAME_BYTES_MAX: Final = 15


class NoSuchInterface(RungError):
    """The network interface that was asked for is not there or has no address."""


def address_of(interface: str | None) -> str:
    """Return the address at which other machines reach this one.

    Args:
        interface: the network interface to be reached at; None: whichever leads outside; where
            none does, the first that has an address; on a machine without a network, the loopback.

    Raises:
        NoSuchInterface: it is not there or has no IPv4 address.
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
    """Return the network interface that has an address, None where none has it."""
    found = (name for name, own in _addresses().items() if own == address)
    return next(found, None)


def _addresses() -> dict[str, str]:
    """Return the address of each network interface that has one."""
    found: dict[str, str] = {}
    for _, name in socket.if_nameindex():
        with contextlib.suppress(NoSuchInterface):
            found[name] = _address_of_interface(name)
    return found


def _address_of_interface(interface: str) -> str:
    name = interface.encode()
    known = ", ".join(name for _, name in socket.if_nameindex())
    if len(name) > _NAME_BYTES_MAX:
        raise NoSuchInterface(f"no network interface {interface!r}; there are: {known}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name))
        except OSError as error:
            raise NoSuchInterface(
                f"network interface {interface!r}: {error.strerror}; there are: {known}"
            ) from error
    return socket.inet_ntoa(answer[20:24])


class ReservedPort:
    """A port that the system assigns to no other socket as long as this is open.

    It is bound but does not listen; so a process that binds this very port and allows its address
    to be reused, as all that listen do, gets it. It is bound at every address of the machine, of
    IPv6 too: bound at one only, the system would assign it at the others, to listeners and to
    outgoing connections, and frameworks listen at all of them, whichever address they are given.
    """

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self._socket.bind(("", 0))
        self.number: Final[int] = self._socket.getsockname()[1]

    def close(self) -> None:
        """Give it back."""
        self._socket.close()
