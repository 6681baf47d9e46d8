"""Requested changes that must be refused, each with its reason.

A change must be refused if it cannot be made as requested without harm, or if it contradicts the
documentation. The reason is always provable without a search: the change would cut the network, use
an address of another link, accept one of our own prefixes, or block a documented service. The texts
of these requests have the same form as the texts of other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from types import MappingProxyType
from typing import TypeAlias

from netarena_backbone.fault.change import Change, outer_peers
from netarena_backbone.planned.ospf import renumbering
from netarena_backbone.planned.requested import End, listed, name_of, pick, running_links
from netarena_backbone.planned.table import KINDS
from netarena_backbone.world.model import World

#: The two machines of a link.
Pair: TypeAlias = frozenset[str]


def bridges(links: Iterable[Pair]) -> set[Pair]:
    """Return the links whose removal leaves no path between their two machines.

    >>> sorted(map(sorted, bridges(map(frozenset, ("ab", "bc", "ca", "cd")))))
    [['c', 'd']]
    """
    every = list(links)
    return {
        link for link in every if not _is_connected(link, [one for one in every if one != link])
    }


def _is_connected(pair: Pair, links: Iterable[Pair]) -> bool:
    """Return whether the links connect two machines, directly or through other machines."""
    one, other = sorted(pair)
    near = {one}
    rest = list(links)
    while other not in near:
        found = [link for link in rest if near & link]
        if not found:
            return False
        near.update(*found)
        rest = [link for link in rest if link not in found]
    return True


def inner_links(world: World) -> set[Pair]:
    """Return the links between our routers on which OSPF runs."""
    return {frozenset(end.router for end in ends) for ends in running_links(world)}


def _no_redundancy(world: World, target: World) -> Iterator[tuple[str, str, Change]]:
    """Yield removals of links and sessions that have no alternative, either today or
    in the target."""
    cut = bridges(inner_links(world) | inner_links(target))
    for change in options(world, "link_out", "remove"):
        if change.machines in cut:
            yield "link_out", "remove", change
    sessions = {(router.name, peer.address, peer.asn) for one in (world, target)
                for router, peer in outer_peers(one) if not peer.shutdown}  # fmt: skip
    only = [asn for _, _, asn in sessions]
    single = {f"{name} {address}" for name, address, asn in sessions if only.count(asn) == 1}
    for method in ("remove", "shut_down"):
        for change in options(world, "neighbour_remove", method):
            if change.key in single:
                yield "neighbour_remove", method, change


def _address_in_use(world: World, target: World) -> Iterator[tuple[str, str, Change]]:
    """Yield changes that give a link the addresses of another link, which continues to use them."""
    possible = {change.key for change in options(world, "renumber", "link")}
    kept = {name_of(ends): ends for ends in running_links(target)}
    links = [ends for ends in running_links(world) if kept.get(name_of(ends)) == ends]
    for ends in links:
        # Each request keeps the prefix length. Otherwise an agent could recognise by the length
        # which requests must be refused.
        others = [one for one in links if one != ends and _length(one) == _length(ends)]
        if name_of(ends) in possible and others:
            other = pick(f"taken {name_of(ends)}", others)
            addresses = [end.port.address for end in other]
            yield "renumber", "link", renumbering(world, ends, addresses)


def _length(ends: tuple[End, End]) -> int:
    return IPv4Interface(ends[0].port.address).network.prefixlen


def _own_prefix(world: World, target: World) -> Iterator[tuple[str, str, Change]]:
    """Yield requests for a new peer that announces a prefix which contains one of our zones.

    Only the text of the request states this prefix; the peer's settings are unchanged.
    """
    del target
    foreign = {one.router for one in world.outsiders}
    zones = [IPv4Network(zone.block) for zone in world.zones if zone.name not in foreign]
    for change in options(world, "neighbour_add", "set_up"):
        prefixes = announced(world, change)
        # The request names as many prefixes as the peer really announces, with the same prefix
        # length.
        length = IPv4Network(prefixes[0]).prefixlen
        nets = [*IPv4Network(world.block).subnets(new_prefix=length)]
        used = [net for net in nets if any(zone.subnet_of(net) for zone in zones)]
        if not used:
            continue
        first = pick(f"own {change.key}", used)
        others = [net for net in nets if net != first][: len(prefixes) - 1]
        wrong = [str(net) for net in (first, *others)]
        yield "neighbour_add", "set_up", replace(change, words=announcing(change.words, wrong))


def announced(world: World, change: Change) -> tuple[str, ...]:
    """Return the prefixes of the AS with which a change sets up a session."""
    known = {peer.address for peer in world.router(change.machine).bgp.peers}
    (new,) = (
        peer
        for peer in change.edit(world).router(change.machine).bgp.peers
        if peer.address not in known
    )
    return next(one.prefixes for one in world.outsiders if one.asn == new.asn)


def announcing(words: str, prefixes: Iterable[str]) -> str:
    """Return the words of a request, followed by the prefixes that the new peer announces."""
    return f"{words}. This peer announces {listed(prefixes)}"


def options(world: World, kind: str, method: str) -> tuple[Change, ...]:
    """Return the changes that a method of ``KINDS`` can request in a world."""
    found = next(one for one in KINDS[kind] if one.name == method)
    return tuple(found.changes(world))


def _documented_service(world: World, target: World) -> Iterator[tuple[str, str, Change]]:
    """Yield filters that may block a documented service. The caller checks whether they do."""
    del target
    for kind, method in (("service_filter", "close"), ("zone_filter", "close")):
        for change in options(world, kind, method):
            yield kind, method, change


#: Reason -> function that yields the changes that must be refused for this reason, as (kind,
#: method, change). The function's arguments are today's world and the target.
REFUSED: Mapping[str, Callable[[World, World], Iterator[tuple[str, str, Change]]]] = (
    MappingProxyType(
        {
            "no_redundancy": _no_redundancy,
            "address_in_use": _address_in_use,
            "own_prefix": _own_prefix,
            "documented_service": _documented_service,
        }
    )
)
