"""Where deliveries may go: spellings that are refused, and machines that are not public."""

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.subscription.address import AddressRefused, check_address, target_of


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "//example.com/",
        "https:///x",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://example.com@127.0.0.1/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com%2f@127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.0.0.0x1/",
        "https://0x7f.1/",
        "https://①②⑦.0.0.1/",
        "https://exämple.com/",
        "https://example.com/#frag",
        "https://example.com:22/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: x",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://-a.com/",
        "https://a..b/",
        "https://" + "a" * 3000,
    ],
)
def test_ambiguous_addresses_are_refused(url: str) -> None:
    """What one program reads as one machine and the next as another."""
    with pytest.raises(AddressRefused):
        target_of(url)


def test_plain_addresses_are_read() -> None:
    """Host and port, also of literal addresses; HTTP where it is allowed."""
    found = target_of("https://hooks.example.com/services/T0/B0?x=1")
    assert (found.host, found.port, found.literal) == ("hooks.example.com", 443, None)
    assert target_of("https://[2606:4700::1111]:8443/x").port == 8443
    assert target_of("https://203.0.113.7/").literal == ipaddress.ip_address("203.0.113.7")
    assert target_of("http://example.com:8080/", plain=True).scheme == "http"


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_public_machines_are_allowed(address: str) -> None:
    """Those that anybody reaches."""
    assert str(check_address(address)) == address


def test_an_operator_may_allow_a_network() -> None:
    """That one, and no other."""
    allowed = (ipaddress.ip_network("10.1.0.0/16"),)
    assert str(check_address("10.1.2.3", allowed)) == "10.1.2.3"
    with pytest.raises(AddressRefused, match="allow-network"):
        check_address("10.2.0.1", allowed)


_INSIDE = st.sampled_from(
    [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "224.0.0.0/4",
        "240.0.0.0/4",
    ]
).flatmap(lambda text: st.ip_addresses(network=text))


@given(_INSIDE)
def test_no_inner_address_passes_in_any_dress(address: ipaddress.IPv4Address) -> None:
    """Neither as it is nor carried by IPv6: mapped, compatible, 6to4, NAT64, Teredo, ISATAP."""
    number = int(address)
    dressed = [
        str(address),
        f"::ffff:{address}",
        f"::{address}",
        f"64:ff9b::{address}",
        f"64:ff9b:1::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80))),
        str(
            ipaddress.IPv6Address((0x20010000 << 96) | (0x08080808 << 64) | (number ^ 0xFFFFFFFF))
        ),
        str(ipaddress.IPv6Address((0x2606 << 112) | (0x5EFE << 32) | number)),
    ]
    for text in dressed:
        with pytest.raises(AddressRefused):
            check_address(text)


@given(st.text())
def test_any_text_is_refused_or_read(text: str) -> None:
    """Nothing else is raised."""
    for url in (text, f"https://{text}/"):
        with contextlib.suppress(AddressRefused):
            target_of(url)
    with contextlib.suppress(AddressRefused):
        check_address(text)
