"""The routing table of a router."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Interface, IPv4Network
from typing import NamedTuple, TypeAlias

Address: TypeAlias = str


class Hop(NamedTuple):
    """A next hop: an outgoing port, and a gateway unless the destination is directly connected.

    If the port is empty, packets are dropped.
    """

    port: str
    gateway: Address = ""


BLACKHOLE = Hop("")


class Route(NamedTuple):
    """An entry of a routing table."""

    prefix: IPv4Network
    hop: Hop
    distance: int
    #: OSPF metric.
    metric: int = 0


class Table:
    """Routing table of one router; lookups return the route with the longest matching prefix."""

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self._by_length: dict[int, dict[int, Route]] = {}
        self._lengths: list[int] = []
        self._found: dict[Address, Route | None] = {}
        for route in routes:
            self.offer(route)

    def copy(self) -> Table:
        """Return an independent table with the same routes."""
        table = Table()
        table._by_length = {length: dict(level) for length, level in self._by_length.items()}
        table._lengths = self._lengths
        return table

    def offer(self, route: Route) -> None:
        """Add a route if it is better than the current route for its prefix."""
        length = route.prefix.prefixlen
        if length not in self._by_length:
            self._by_length[length] = {}
            self._lengths = sorted(self._by_length, reverse=True)
        level = self._by_length[length]
        key = int(route.prefix.network_address)
        known = level.get(key)
        if known is None or (route.distance, route.metric) < (known.distance, known.metric):
            level[key] = route
            self._found.clear()

    def look_up(self, address: Address, *, default: bool = True) -> Route | None:
        """Return the route to ``address``.

        With ``default=False``, the default route is not returned.
        """
        if address not in self._found:
            self._found[address] = self._look_up(number_of(address))
        route = self._found[address]
        return route if default or route is None or route.prefix.prefixlen else None

    def _look_up(self, number: int) -> Route | None:
        for length in self._lengths:
            route = self._by_length[length].get(number >> (32 - length) << (32 - length))
            if route is not None:
                return route
        return None

    def get(self, prefix: IPv4Network) -> Route | None:
        """Return the route to exactly this prefix, or None."""
        return self._by_length.get(prefix.prefixlen, {}).get(int(prefix.network_address))

    @property
    def hops(self) -> Mapping[IPv4Network, Hop]:
        """Map of each prefix to its next hop."""
        return {route.prefix: route.hop for route in self}

    def __iter__(self) -> Iterator[Route]:
        for level in self._by_length.values():
            yield from level.values()


@lru_cache(maxsize=65536)
def network_of(address: str) -> IPv4Network:
    """Return the network of an address that has a prefix length."""
    return IPv4Interface(address).network


@lru_cache(maxsize=65536)
def number_of(address: Address) -> int:
    """Return an address as a 32-bit integer."""
    a, b, c, d = address.split(".")
    return int(a) << 24 | int(b) << 16 | int(c) << 8 | int(d)


@lru_cache(maxsize=65536)
def is_on(address: Address, network: str) -> bool:
    """Return whether an address is in a network, which is given as an address with a
    prefix length."""
    net = network_of(network)
    return number_of(address) >> net.max_prefixlen - net.prefixlen == _head(network)


@lru_cache(maxsize=65536)
def _head(network: str) -> int:
    """Return the network part of an address, without the host bits."""
    net = network_of(network)
    return int(net.network_address) >> net.max_prefixlen - net.prefixlen


def resolve(table: Table, address: Address) -> Hop | None:
    """Return the hop that reaches a next-hop address.

    Returns None if there is no route to the address, or only a default route.
    """
    route = table.look_up(address, default=False)
    if route is None:
        return None
    hop = route.hop
    return Hop(hop.port, address) if hop.port and not hop.gateway else hop
