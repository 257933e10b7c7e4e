"""This machine on the network."""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator

import pytest

from rung.agent.rendezvous import network
from rung.agent.rendezvous.network import NoSuchInterface, ReservedPort, address_of, interface_of


def test_the_address_is_one_of_this_machine() -> None:
    """Whatever network there is, the address can be listened at."""
    address = address_of(None)
    assert ipaddress.ip_address(address)
    with socket.socket() as listener:
        listener.bind((address, 0))


def test_where_no_way_leads_outside_an_interface_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Machines of a network of their own reach each other at the address that they have in it."""
    monkeypatch.setattr(network, "_ANYWHERE", ("255.255.255.255", 9))
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    found = interface_of(address_of(None))
    assert found in others if any(map(has_address, others)) else found == "lo"


def has_address(interface: str) -> bool:
    """Whether an interface has an address."""
    try:
        return bool(address_of(interface))
    except NoSuchInterface:
        return False


def test_the_interface_of_an_address() -> None:
    """An address that is another machine's has none here."""
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None
    assert interface_of("node-7") is None


def test_the_address_of_an_interface() -> None:
    """An interface is named, and its address found."""
    assert address_of("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["none0", "a-name-that-is-far-too-long"])
def test_an_interface_that_is_not_there_is_refused(name: str) -> None:
    """The message says which ones there are."""
    with pytest.raises(NoSuchInterface, match=rf"{name}.*there are: .*lo"):
        address_of(name)


EVERYWHERE = [("127.0.0.1", socket.AF_INET), ("", socket.AF_INET)] + [
    (host, socket.AF_INET6) for host in ("::1", "::") if socket.has_dualstack_ipv6()
]


@pytest.fixture
def reserved() -> Iterator[ReservedPort]:
    """Give a port that is reserved."""
    with contextlib.closing(ReservedPort()) as port:
        yield port


@pytest.mark.parametrize(("host", "family"), [*EVERYWHERE, ("127.0.0.2", socket.AF_INET)])
def test_a_reserved_port_is_free_at_no_address(
    reserved: ReservedPort, host: str, family: socket.AddressFamily
) -> None:
    """The system assigns it at none: not where the ranks meet, nor where somebody else listens."""
    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((host, reserved.number))


@pytest.mark.parametrize(("host", "family"), EVERYWHERE)
def test_a_reserved_port_can_be_listened_at(
    reserved: ReservedPort, host: str, family: socket.AddressFamily
) -> None:
    """Whoever binds it and allows its address to be reused gets it, at one address or at all."""
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, reserved.number))
        listener.listen()


def test_a_reserved_port_is_the_source_of_no_connection(reserved: ReservedPort) -> None:
    """A connection from an address of the machine would keep the ranks from listening at all."""
    source = ("127.0.0.2", reserved.number)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        socket.create_connection(server.getsockname(), source_address=source)
