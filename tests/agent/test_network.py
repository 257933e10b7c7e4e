"""This machine on the network."""

import ipaddress
import socket

import pytest

from rung.agent.network import NoSuchInterface, ReservedPort, address_of


def test_the_address_is_one_of_this_machine() -> None:
    """Whatever network there is, the address can be listened at."""
    address = address_of(None)
    assert ipaddress.ip_address(address)
    with socket.socket() as listener:
        listener.bind((address, 0))


def test_the_address_of_an_interface() -> None:
    """An interface is named, and its address found."""
    assert address_of("lo") == "127.0.0.1"


@pytest.mark.parametrize("name", ["none0", "a-name-that-is-far-too-long"])
def test_an_interface_that_is_not_there_is_refused(name: str) -> None:
    """The message says which ones there are."""
    with pytest.raises(NoSuchInterface, match=rf"{name}.*there are: .*lo"):
        address_of(name)


def test_a_reserved_port_is_given_to_nobody_else() -> None:
    """Who asks for any port never gets it; who asks for it can listen at it."""
    reserved = ReservedPort("127.0.0.1")
    others = []
    for _ in range(500):
        other = socket.socket()
        other.bind(("127.0.0.1", 0))
        others.append(other)
    assert reserved.number not in {other.getsockname()[1] for other in others}
    for host in ("127.0.0.1", ""):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, reserved.number))
            listener.listen()
    for other in others:
        other.close()
    reserved.close()
