"""Requested changes of our announcements to other ASes: our prefix, and parts of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from types import MappingProxyType

from netarena_backbone.fault.change import (
    Change,
    Edit,
    Method,
    Turn,
    added,
    dropped,
    on_items,
    on_list,
    on_map,
    outer_peers,
    preceded,
    swapped,
)
from netarena_backbone.planned.bgp import FIRST, map_of, named
from netarena_backbone.planned.requested import Piece, listed, requested
from netarena_backbone.world.model import (
    MapEntry,
    Peer,
    PrefixEntry,
    PrefixList,
    RouteMap,
    Router,
    Static,
    World,
)


def _stop_announcement(world: World) -> Iterator[Change]:
    """Yield changes that stop announcing our prefix on one of our several sessions with an AS."""
    for router, peer, found, entry in _announcing(world):
        yield requested(
            f"{router.name} {found.name}",
            f"Stop announcing {world.block} on the session {named(router, peer)}: remove entry "
            f"{entry.seq}, which permits it, from route map {found.name} of {router.name}",
            [
                Piece(
                    router.name,
                    on_map(router.name, found.name, dropped(entry)),
                    f"map {found.name}",
                )
            ],
        )


def _start_announcement(world: World) -> Iterator[Change]:
    """Yield changes that announce our prefix on a session whose outbound route map does not permit
    it yet."""
    for router, peer in outer_peers(world):
        found = map_of(router, peer.route_map_out)
        lists = [one.name for one in router.prefix_lists if _is_ours(world, one)]
        if found is None or not lists or not found.entries or peer.shutdown:
            continue
        if found.entries[0].seq <= FIRST or any(one.prefix_list in lists for one in found.entries):
            continue
        first = MapEntry(seq=FIRST, prefix_list=lists[0], metric=found.entries[0].metric)
        med = "no MED" if first.metric is None else f"the MED {first.metric}"
        yield requested(
            f"{router.name} {found.name}",
            f"Announce {world.block} on the session {named(router, peer)}: at the start of route "
            f"map {found.name} of {router.name}, add entry {FIRST}, which permits the prefix list "
            f"{lists[0]} and sets {med}",
            [
                Piece(
                    router.name,
                    on_map(router.name, found.name, preceded(first)),
                    f"map {found.name}",
                )
            ],
        )


def _on_networks(name: str, change: Turn) -> Edit:
    """Return an edit of the prefixes that a router originates in BGP."""

    def edit(router: Router) -> Router:
        networks = change(router.bgp.networks)
        bgp = router.bgp.model_copy(update={"networks": networks})
        return router.model_copy(update={"bgp": bgp})

    return lambda world: world.edit(name, edit)


def _announce_prefix(world: World) -> Iterator[Change]:
    """Yield changes that announce the prefix of a zone in addition to our whole prefix."""
    origins = [router.name for router in world.routers if world.block in router.bgp.networks]
    known = {static.prefix for router in world.routers for static in router.statics}
    for zone in world.zones:
        prefix = zone.block
        if prefix in known or not origins or not _is_inside(world, prefix):
            continue
        pieces, told = [], []
        for router in world.routers:
            ours = next((one for one in router.prefix_lists if _is_ours(world, one)), None)
            if ours is not None:
                seq = 5 + max(entry.seq for entry in ours.entries)
                new = PrefixEntry(seq=seq, verdict="permit", prefix=prefix)
                edit = on_list(router.name, ours.name, added(new))
                pieces.append(Piece(router.name, edit, f"list {ours.name}"))
                told.append(f"entry {seq} of {ours.name} on {router.name}")
            if router.name in origins:
                static = Static(prefix=prefix, via="blackhole")
                pieces += [
                    Piece(
                        router.name,
                        on_items(router.name, "statics", added(static)),
                        f"route {prefix}",
                    ),
                    Piece(router.name, _on_networks(router.name, added(prefix)), "networks"),
                ]
        permitted = f"; permit it in prefix lists ({listed(told)})" if told else ""
        yield requested(
            prefix,
            f"Announce {prefix}, the prefix of zone {zone.name}, in addition to {world.block}: "
            f"originate it on {listed(origins)}, with a blackhole route and a network statement"
            f"{permitted}",
            pieces,
        )


def _withdraw_prefix(world: World) -> Iterator[Change]:
    """Yield changes that stop announcing a part of our prefix."""
    for prefix, origins, entries in _parts_of_block(world):
        told = _told(entries)
        denied = f", and the entries that permit it ({told})" if told else ""
        yield requested(
            prefix,
            f"Stop announcing {prefix} in addition to {world.block}: remove its blackhole route "
            f"and network statement from {listed(origins)}{denied}",
            _replaced(prefix, None, origins, entries),
        )


def _announce_aggregate(world: World) -> Iterator[Change]:
    """Yield changes that announce one half of our prefix instead of a smaller part in the same
    half."""
    length = IPv4Network(world.block).prefixlen + 1
    for prefix, origins, entries in _parts_of_block(world):
        if IPv4Network(prefix).prefixlen <= length:
            continue
        new = str(IPv4Network(prefix).supernet(new_prefix=length))
        told = _told(entries)
        permitted = f", and in the entries that permit it ({told})" if told else ""
        yield requested(
            prefix,
            f"Announce the aggregate {new} instead of {prefix}: on {listed(origins)}, replace "
            f"{prefix} by {new} in the blackhole route and in the network statement{permitted}",
            _replaced(prefix, new, origins, entries),
        )


def _told(entries: Sequence[tuple[str, str, PrefixEntry]]) -> str:
    """Return the entries of prefix lists in words, or "" if there are no entries."""
    words = [f"entry {entry.seq} of {name} on {router}" for router, name, entry in entries]
    return listed(words) if words else ""


def _replaced(
    prefix: str,
    new: str | None,
    origins: Sequence[str],
    entries: Sequence[tuple[str, str, PrefixEntry]],
) -> Iterator[Piece]:
    """Yield the edits that replace ``prefix`` with ``new``; if ``new`` is None, they withdraw
    ``prefix``."""
    for router, name, entry in entries:
        turn = (
            dropped(entry)
            if new is None
            else swapped(entry, entry.model_copy(update={"prefix": new}))
        )
        yield Piece(router, on_list(router, name, turn), f"list {name}")
    static = Static(prefix=prefix, via="blackhole")
    for name in origins:
        if new is None:
            route, network = dropped(static), dropped(prefix)
        else:
            route = swapped(static, static.model_copy(update={"prefix": new}))
            network = swapped(prefix, new)
        yield Piece(name, on_items(name, "statics", route), f"route {prefix}")
        yield Piece(name, _on_networks(name, network), "networks")


def _parts_of_block(
    world: World,
) -> Iterator[tuple[str, list[str], list[tuple[str, str, PrefixEntry]]]]:
    """Yield the parts of our prefix that we announce in addition to the whole prefix.

    Each item is a tuple: the part, the routers that originate it, and the prefix-list entries that
    permit it, as (router, list, entry).
    """
    prefixes = dict.fromkeys(prefix for router in world.routers for prefix in router.bgp.networks)
    for prefix in prefixes:
        if prefix != world.block and _is_inside(world, prefix):
            origins = [one.name for one in world.routers if prefix in one.bgp.networks]
            entries = [
                (router.name, found.name, entry)
                for router in world.routers
                for found in router.prefix_lists
                for entry in found.entries
                if entry.prefix == prefix and entry.verdict == "permit"
            ]
            yield prefix, origins, entries


def _is_inside(world: World, prefix: str) -> bool:
    return IPv4Network(prefix).subnet_of(IPv4Network(world.block))


def _announcing(world: World) -> Iterator[tuple[Router, Peer, RouteMap, MapEntry]]:
    """Yield our sessions with each AS to which we announce our prefix on several sessions.

    Each item is a tuple: the router, the peer, the outbound route map, and the entry that permits
    our prefix.
    """
    found = []
    for router, peer in outer_peers(world):
        policy = map_of(router, peer.route_map_out)
        ours = {one.name for one in router.prefix_lists if _is_ours(world, one)}
        if policy is not None and not peer.shutdown:
            found += [
                (router, peer, policy, entry)
                for entry in policy.entries
                if entry.prefix_list in ours and entry.verdict == "permit"
            ]
    systems = [peer.asn for _, peer, _, _ in found]
    yield from (one for one in found if systems.count(one[1].asn) > 1)


def _is_ours(world: World, one: PrefixList) -> bool:
    """Return whether a prefix list permits exactly the prefix that we announce."""
    return [(entry.verdict, entry.prefix) for entry in one.entries] == [("permit", world.block)]


#: Kind of requested change -> its methods
ANNOUNCEMENT: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "announcement": (
            Method("stop", _stop_announcement),
            Method("start", _start_announcement),
            Method("prefix", _announce_prefix),
            Method("withdraw", _withdraw_prefix),
            Method("aggregate", _announce_aggregate),
        ),
    }
)
