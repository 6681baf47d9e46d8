"""Address blocks as Kubernetes parses them, and the warnings that it returns about them.

Kubernetes accepts more than Python's ``ipaddress``: any number of leading zeros (``010.0.0.0/8`` is
``10.0.0.0/8``), and mapped IPv4 addresses (``::ffff:10.0.0.0/104``), which count as IPv4.

Source: responses of a Kubernetes 1.34 API server, and ``ParseCIDRSloppy`` of ``k8s.io/utils/net``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

_FORM = re.compile(r"([0-9A-Fa-f:.]+)/(\d+)", re.ASCII)
_ZEROS = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")
#: prefix length of ``::ffff:0:0/96``, the IPv6 block of mapped IPv4 addresses
_MAPPED_BITS = 96


class Block:
    """A block of addresses in CIDR notation, as Kubernetes reads it. Raises ValueError if
    Kubernetes rejects ``text``."""

    def __init__(self, text: str) -> None:
        form = _FORM.fullmatch(text)
        if form is None:
            raise ValueError(f"{text[:80]!r} is not an address block")
        self._text = text
        plain = _ZEROS.sub("", text)
        address, _, length = plain.partition("/")
        given, network = ip_address(address), ip_network(plain, strict=False)
        #: prefix length as written, and number of bits in an address (32 or 128)
        self.length, self._bits = int(length), network.max_prefixlen
        self._address = _inner(given)
        self._standard = self._address is given and _is_standard(*form.groups())
        #: the addresses in the block, as an IPv4 block if they are mapped IPv4 addresses
        self.network: IPv4Network | IPv6Network = network
        first = _inner(network.network_address)
        if isinstance(first, IPv4Address) and network.version != first.version:
            self.network = IPv4Network((first, self.length - _MAPPED_BITS))

    def warnings(self) -> list[str]:
        """Return the warnings that the API server returns when it accepts the block."""
        found = []
        if self._address != self.network.network_address:
            found.append(
                f'CIDR value "{self._text}" is ambiguous in this context '
                f'(should be "{self.network}" or "{self._address}/{self._bits}"?)'
            )
        if not self._standard:
            found.append(
                f'non-standard CIDR value "{self._text}" will be considered invalid '
                f'in a future Kubernetes release: use "{self.network}"'
            )
        if not found and str(self.network) != self._text:
            found.append(
                f'IPv6 CIDR value "{self._text}" should be in RFC 5952 canonical format '
                f'("{self.network}")'
            )
        return found


@lru_cache(maxsize=4096)
def network_of(text: str) -> IPv4Network | IPv6Network:
    """Return the network that a CIDR block covers. Raises ValueError if Kubernetes rejects
    ``text``."""
    return Block(text).network


def _is_standard(address: str, length: str) -> bool:
    """Return whether address and prefix length are written in standard form, without leading
    zeros."""
    try:
        ip_address(address)
    except ValueError:
        return False
    return length == "0" or not length.startswith("0")


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address in an IPv4-mapped IPv6 address. Return any other address
    unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
