"""Where deliveries may go: addresses of receivers, and the machines that they stand for.

Whoever may subscribe chooses an address to which a process inside the network of the platform
posts. So a receiver must be a public machine, unless the operator allows its network:

* the text is read strictly. Spellings that programs read differently are refused: users and
  passwords, backslashes, hosts in decimal, octal or hexadecimal numbers, zones of IPv6;
* the host is resolved once, all of its addresses must be allowed, and the connection goes to one
  of these very addresses, so that a second answer of the name server changes nothing;
* an address that carries another one (IPv4 in IPv6, 6to4, Teredo, NAT64, ISATAP) is judged by
  both.
"""

import ipaddress
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rung.events.errors import RungError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

URL_LENGTH_MAX: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}
_PORT_MIN: Final = 1024
"""Below it only the ports of HTTP."""
_PLAIN: Final = re.compile(r"[\x21-\x7e]+")
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*")
_NAT64: Final = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
_COMPATIBLE: Final = ipaddress.ip_network("::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


class AddressRefused(RungError):
    """An address that deliveries do not go to; says why."""

    retriable = False


class Target(NamedTuple):
    """An address, as it was read."""

    url: str
    scheme: str
    host: str
    port: int

    @property
    def literal(self) -> Address | None:
        """The host, if it is an address itself."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


class AddressRule(NamedTuple):
    """Where deliveries may go besides public machines, as the operator allows."""

    allowed: tuple[Network, ...] = ()
    """Networks that are not public and yet allowed."""
    plain: bool = False
    """Whether receivers may be addressed by HTTP without encryption."""

    def check(self, url: str) -> Target:
        """Return an address that a webhook may have; its host is resolved at each delivery.

        Raises:
            AddressRefused: it is none, or of a machine that is not public.
        """
        target = target_of(url, plain=self.plain)
        if target.literal is not None:
            check_address(target.host, self.allowed)
        return target


PUBLIC: Final = AddressRule()


def rule_of(allow_network: Sequence[str], *, allow_http: bool) -> AddressRule:
    """Return the rule of an operator's options.

    Raises:
        ValueError: a network is none.
    """
    try:
        networks = tuple(ipaddress.ip_network(text) for text in allow_network)
    except ValueError as error:
        raise ValueError(f"allow_network: {error}; give one such as 10.1.0.0/16") from error
    return AddressRule(networks, plain=allow_http)


def target_of(url: str, *, plain: bool = False) -> Target:
    """Return an address as it was read.

    Args:
        url: of a receiver.
        plain: whether HTTP without encryption is allowed.

    Raises:
        AddressRefused: it is none, or ambiguous.
    """
    if len(url) > URL_LENGTH_MAX or not _PLAIN.fullmatch(url) or "\\" in url:
        raise AddressRefused(
            f"the address must have at most {URL_LENGTH_MAX} visible ASCII characters, and no `\\`"
        )
    try:
        split = urlsplit(url)
        host, port = split.hostname or "", split.port
    except ValueError as error:
        raise AddressRefused(f"the address cannot be read: {error}") from error
    if split.scheme not in _PORTS or (split.scheme == "http" and not plain):
        raise AddressRefused("the address must begin with https://")
    if "@" in split.netloc or "%" in split.netloc:
        raise AddressRefused("the address must have no user, password or `%` before its path")
    if split.fragment or url.endswith("#"):
        raise AddressRefused("the address must have no `#`")
    port = _PORTS[split.scheme] if port is None else port
    if port not in _PORTS.values() and port < _PORT_MIN:
        raise AddressRefused(f"the port {port} is another service's: use 443, or one above 1023")
    _check_host(host, bracketed="[" in split.netloc)
    return Target(url, split.scheme, host, port)


def _check_host(host: str, *, bracketed: bool) -> None:
    if bracketed:
        ipaddress.IPv6Address(host)  # urlsplit has read it already
        return
    name = host.removesuffix(".")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise AddressRefused(f"the host {host!r} is no name; other scripts are written as xn--…")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            ipaddress.IPv4Address(host)
        except ValueError as error:
            raise AddressRefused(
                f"the host {host!r} is a number: write addresses as 203.0.113.7"
            ) from error


def check_address(address: str, allowed: Sequence[Network] = ()) -> Address:
    """Return an address that deliveries may go to.

    Args:
        address: as a name server gave it.
        allowed: networks that are allowed although they are not public.

    Raises:
        AddressRefused: it is of a machine that is not public.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError as error:
        raise AddressRefused(f"{address!r} is no address") from error
    for each in (found, *_carried(found)):
        if any(each in network for network in allowed if network.version == each.version):
            continue
        if not each.is_global or each.is_multicast or each.is_reserved or _local_nat64(each):
            raise AddressRefused(
                f"{address} is not a public address: an operator may allow its network"
                " (`--allow-network` for the webhooks, `--webhooks-allow-network` elsewhere)"
            )
    return found


def _local_nat64(address: Address) -> bool:
    return isinstance(address, IPv6Address) and address in _NAT64[1]


def _carried(address: Address) -> list[IPv4Address]:
    """Return the IPv4 addresses that an address carries."""
    if isinstance(address, IPv4Address):
        return []
    number = int(address)
    low = IPv4Address(number & 0xFFFFFFFF)
    found = [it for it in (address.ipv4_mapped, address.sixtofour) if it is not None]
    if address.teredo is not None:
        found += address.teredo
    carries = address in _NAT64[0] or address in _COMPATIBLE
    if carries or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        found.append(low)
    return found
