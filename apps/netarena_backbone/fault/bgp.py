"""BGP faults: sessions that are down, and routes that are filtered or leaked by mistake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from types import MappingProxyType
from zlib import crc32

from netarena_backbone.fault.change import (
    Change,
    Edit,
    Method,
    added,
    both,
    dropped,
    inner_peers,
    on_bgp,
    on_list,
    on_map,
    on_map_entry,
    on_peer,
    outer_peers,
    simple,
    swapped,
)
from netarena_backbone.world.model import (
    MapEntry,
    Peer,
    PrefixEntry,
    RouteMap,
    Router,
    World,
)
from netarena_backbone.world.odd import password_of


def _session(router: Router, peer: Peer, words: str, **update: object) -> Change:
    """Return a change of one session at our end."""
    return simple(
        router.name,
        words,
        on_peer(router.name, peer.address, **update),
        f"peer {peer.address}",
    )


def _name(peer: Peer) -> str:
    return f"{peer.address} ({peer.description})"


def _wrong_as(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        wrong = 64512 + (peer.asn - 64512 + 1 + crc32(peer.address.encode()) % 50) % 900
        if wrong == world.asn:
            continue
        yield _session(
            router,
            peer,
            f"has AS {wrong} for the peer {_name(peer)} instead of {peer.asn}",
            asn=wrong,
        )


def _next_hop(world: World) -> Iterator[Change]:
    for router, peer in inner_peers(world):
        if peer.next_hop_self:
            yield simple(
                router.name,
                f"does not set itself as the next hop of routes announced to {_name(peer)}",
                on_peer(router.name, peer.address, next_hop_self=False),
                f"peer {peer.address}",
            )


def _next_hop_all(world: World) -> Iterator[Change]:
    for router in world.routers:
        chosen = [peer for one, peer in inner_peers(world) if one is router and peer.next_hop_self]
        if not chosen:
            continue
        yield simple(
            router.name,
            "does not set itself as the next hop of routes announced to our routers",
            _each_peer(router, chosen, next_hop_self=False),
            *(f"peer {peer.address}" for peer in chosen),
            key=router.name,
        )


def _each_peer(router: Router, chosen: list[Peer], **update: object) -> Edit:
    return both(*(on_peer(router.name, peer.address, **update) for peer in chosen))


def _no_update_source(world: World) -> Iterator[Change]:
    for router, peer in (*inner_peers(world), *outer_peers(world)):
        if peer.update_source:
            yield _session(
                router,
                peer,
                f"does not use {peer.update_source} as the source of its session with "
                f"{_name(peer)}",
                update_source="",
            )


def _wrong_update_source(world: World) -> Iterator[Change]:
    for router, peer in (*inner_peers(world), *outer_peers(world)):
        if peer.update_source:
            wrong = router.ports[0].address.partition("/")[0]
            yield _session(
                router,
                peer,
                f"uses {wrong} as the source of its session with {_name(peer)} instead of "
                f"{peer.update_source}",
                update_source=wrong,
            )


def _no_multihop(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        if peer.multihop:
            yield _session(
                router,
                peer,
                f"allows only one hop to {_name(peer)}",
                multihop=0,
            )


def _no_ttl_security(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        # A value above 1 makes the session flap: one end repeatedly establishes it and drops it
        # again.
        if peer.ttl_security == 1:
            yield _session(
                router,
                peer,
                f"does not use TTL security with {_name(peer)}, which uses it",
                ttl_security=0,
            )


def _needless_ttl_security(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        if not peer.ttl_security and not peer.multihop:
            yield _session(
                router,
                peer,
                f"uses TTL security with {_name(peer)}, which does not use it",
                ttl_security=1,
            )


def _wrong_password(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        if peer.password:
            wrong = password_of(crc32(peer.password.encode()))
            yield _session(
                router,
                peer,
                f"has a password for {_name(peer)} that differs from the peer's",
                password=wrong,
            )


def _needless_password(world: World) -> Iterator[Change]:
    for router, peer in (*inner_peers(world), *outer_peers(world)):
        if not peer.password:
            wrong = password_of(crc32(f"{router.name} {peer.address}".encode()))
            yield _session(
                router,
                peer,
                f"has a password for {_name(peer)}, which does not use one",
                password=wrong,
            )


def _shut(world: World) -> Iterator[Change]:
    for router, peer in (*inner_peers(world), *outer_peers(world)):
        yield _session(
            router,
            peer,
            f"has shut down the session with {_name(peer)}",
            shutdown=True,
        )


def _duplicate_id(world: World) -> Iterator[Change]:
    for router, peer in inner_peers(world):
        wrong, right = world.router(peer.description).bgp.router_id, router.bgp.router_id
        yield simple(
            router.name,
            f"has the BGP router ID {wrong}, which belongs to {peer.description}, instead of "
            f"{right}",
            on_bgp(router.name, router_id=wrong),
            "bgp id",
            key=f"{router.name} {wrong}",
        )


def _no_clients(world: World) -> Iterator[Change]:
    """Yield changes that remove all clients of a route reflector.

    Removing only one client would have no effect, because the remaining clients and the reflector
    still exchange all routes with that router.
    """
    for router in world.routers:
        clients = [peer for peer in router.bgp.peers if peer.client]
        if clients:
            yield simple(
                router.name,
                "does not reflect the routes of any of our routers",
                _each_peer(router, clients, client=False),
                *(f"peer {peer.address}" for peer in clients),
                key=router.name,
            )


def _maximum(world: World) -> Iterator[Change]:
    """Yield changes that limit a session to one prefix if its peer advertises more prefixes.

    A session that has exceeded its limit stays down even if the peer later advertises fewer
    prefixes. Therefore ``holds`` of the change also names the prefix lists that determine how
    many prefixes are accepted.
    """
    for router, peer in outer_peers(world):
        if peer.maximum_prefix == 1:
            continue
        lists = {
            entry.prefix_list
            for found in router.route_maps
            if found.name == peer.route_map_in
            for entry in found.entries
        }
        yield simple(
            router.name,
            f"accepts at most one prefix from {_name(peer)}"
            + (f" instead of {peer.maximum_prefix}" if peer.maximum_prefix else ""),
            on_peer(router.name, peer.address, maximum_prefix=1),
            f"peer {peer.address}",
            *(f"list {one}" for one in sorted(lists)),
            key=f"{router.name} peer {peer.address}",
        )


def _no_community(world: World) -> Iterator[Change]:
    for router, peer in inner_peers(world):
        if not peer.send_community:
            continue
        yield simple(
            router.name,
            f"strips communities from routes announced to {_name(peer)}",
            on_peer(router.name, peer.address, send_community=False),
            f"peer {peer.address}",
        )


# policies


def _maps(world: World, way: str) -> Iterator[tuple[Router, Peer, RouteMap]]:
    for router, peer in outer_peers(world):
        name = peer.route_map_in if way == "in" else peer.route_map_out
        for found in router.route_maps:
            if found.name == name:
                yield router, peer, found


def _entry(
    router: Router,
    route_map: RouteMap,
    entry: MapEntry,
    words: str,
    **update: object,
) -> Change:
    """Return a change of values in one entry of a route map."""
    told = " ".join(f"{field} {value}" for field, value in update.items())
    return simple(
        router.name,
        words,
        on_map_entry(router.name, route_map.name, entry.seq, **update),
        f"map {route_map.name}",
        key=f"{router.name} {route_map.name} {entry.seq} {told}",
    )


def _wrong_community(world: World) -> Iterator[Change]:
    for router, peer, found in _maps(world, "in"):
        for entry in found.entries:
            if entry.community:
                head, _, tail = entry.community.partition(":")
                wrong = f"{head}:{int(tail) + 1}"
                yield _entry(
                    router,
                    found,
                    entry,
                    f"marks routes from {_name(peer)} with the community {wrong} instead of "
                    f"{entry.community}",
                    community=wrong,
                )


def _other_kind(world: World) -> Iterator[Change]:
    """Yield changes that give routes from peers or upstreams the community of customer routes."""
    kinds = {outsider.router: outsider.kind for outsider in world.outsiders}
    for router, peer, found in _maps(world, "in"):
        if kinds.get(peer.description, "customer") == "customer":
            continue
        for entry in found.entries:
            for one in router.community_lists:
                if one.name == "CUSTOMER-ROUTES" and entry.community not in {"", one.community}:
                    yield _entry(
                        router,
                        found,
                        entry,
                        f"marks routes from {_name(peer)} as customer routes: {one.community} "
                        f"instead of {entry.community}",
                        community=one.community,
                    )


def _others(right: int | None, *values: int) -> Sequence[int]:
    """Return the values that differ from the current value ``right``; empty if
    ``right`` is None."""
    return [value for value in values if right not in {None, value}]


def _preference(world: World) -> Iterator[Change]:
    for router, peer, found in _maps(world, "in"):
        for entry in found.entries:
            for wrong in _others(entry.local_preference, 60, 400):
                yield _entry(
                    router,
                    found,
                    entry,
                    f"sets local preference {wrong} for routes from {_name(peer)} instead of "
                    f"{entry.local_preference}",
                    local_preference=wrong,
                )


def _metric(world: World) -> Iterator[Change]:
    for router, peer, found in _maps(world, "out"):
        for entry in found.entries:
            for wrong in _others(entry.metric, 2, 300):
                yield _entry(
                    router,
                    found,
                    entry,
                    f"announces metric {wrong} to {_name(peer)} instead of {entry.metric} in "
                    f"{found.name} {entry.seq}",
                    metric=wrong,
                )


def _prepend(world: World) -> Iterator[Change]:
    for router, peer, found in _maps(world, "in"):
        for entry in found.entries:
            if entry.prepend:
                continue
            yield _entry(
                router,
                found,
                entry,
                f"prepends the AS of {_name(peer)} three times to the path of its routes",
                prepend=3,
            )


def _leak(world: World) -> Iterator[Change]:
    kinds = {outsider.router: outsider.kind for outsider in world.outsiders}
    for router, peer, found in _maps(world, "out"):
        if kinds.get(peer.description, "customer") == "customer":
            continue
        for list_name in ("PEER-ROUTES", "UPSTREAM-ROUTES"):
            seq = 10 + max((entry.seq for entry in found.entries), default=0)
            new = MapEntry(seq=seq, community_list=list_name)
            yield simple(
                router.name,
                f"announces the routes of {list_name} to {_name(peer)} through {found.name} {seq}",
                on_map(router.name, found.name, added(new)),
                f"map {found.name}",
                key=f"{router.name} {found.name} {list_name}",
            )


def _tells_all(world: World) -> Iterator[Change]:
    """Yield changes that make the prefix list of our own prefix permit every prefix up to /24."""
    for router in world.routers:
        for found in router.prefix_lists:
            if found.name == "OURS" and len(found.entries) == 1:
                new = PrefixEntry(seq=10, verdict="permit", prefix="0.0.0.0/0", le=24)
                yield simple(
                    router.name,
                    f"has {new.prefix} le {new.le} in the prefix list {found.name}",
                    on_list(router.name, found.name, added(new)),
                    f"list {found.name}",
                )


def _tells_less(world: World) -> Iterator[Change]:
    """Yield changes that reduce the prefix list of our own prefix to half of the prefix."""
    for router in world.routers:
        for found in router.prefix_lists:
            for entry in found.entries:
                if found.name != "OURS" or entry.prefix != world.block:
                    continue
                half = str(next(IPv4Network(entry.prefix).subnets()))
                new = entry.model_copy(update={"prefix": half})
                yield simple(
                    router.name,
                    f"has {half} in the prefix list {found.name} instead of {entry.prefix}",
                    on_list(
                        router.name,
                        found.name,
                        swapped(entry, new),
                    ),
                    f"list {found.name}",
                )


def _admits_less(world: World) -> Iterator[Change]:
    """Yield changes that make an inbound prefix list deny one prefix of another AS."""
    for router, peer, found in _maps(world, "in"):
        names = {entry.prefix_list for entry in found.entries}
        for prefix_list in router.prefix_lists:
            for entry in prefix_list.entries if prefix_list.name in names else ():
                if entry.verdict == "permit" and len(prefix_list.entries) > 1:
                    new = entry.model_copy(update={"verdict": "deny"})
                    yield simple(
                        router.name,
                        f"denies {entry.prefix} from {_name(peer)} in the prefix list "
                        f"{prefix_list.name}",
                        on_list(
                            router.name,
                            prefix_list.name,
                            swapped(entry, new),
                        ),
                        f"list {prefix_list.name}",
                        key=f"{router.name} {prefix_list.name} {entry.seq}",
                    )


def _tells_not(world: World) -> Iterator[Change]:
    """Yield changes that remove an entry from an outbound route map towards another AS."""
    for router, peer, found in _maps(world, "out"):
        for entry in found.entries:
            yield simple(
                router.name,
                f"lacks entry {entry.seq} of {found.name}, the route map towards {_name(peer)}",
                on_map(router.name, found.name, dropped(entry)),
                f"map {found.name}",
                key=f"{router.name} {found.name} {entry.seq}",
            )


def _no_network(world: World) -> Iterator[Change]:
    for router in world.routers:
        for prefix in router.bgp.networks:
            yield simple(
                router.name,
                f"does not originate {prefix}",
                on_bgp(router.name, networks=dropped(prefix)(router.bgp.networks)),
                "bgp networks",
            )


#: Kind of fault -> methods that inject it
BGP: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "bgp_as": (Method("wrong", _wrong_as),),
        "bgp_next_hop": (Method("one", _next_hop), Method("all", _next_hop_all)),
        "bgp_update_source": (
            Method("missing", _no_update_source),
            Method("wrong", _wrong_update_source),
        ),
        "bgp_hops": (
            Method("multihop", _no_multihop),
            Method("ttl_missing", _no_ttl_security),
            Method("ttl_needless", _needless_ttl_security),
        ),
        "bgp_password": (
            Method("wrong", _wrong_password),
            Method("needless", _needless_password),
        ),
        "bgp_shutdown": (Method("shut", _shut),),
        "bgp_router_id": (Method("duplicate", _duplicate_id),),
        "bgp_client": (Method("missing", _no_clients),),
        "bgp_maximum": (Method("reached", _maximum),),
        "bgp_community": (
            Method("stripped", _no_community),
            Method("wrong", _wrong_community),
        ),
        "bgp_preference": (
            Method("local", _preference),
            Method("metric", _metric),
            Method("prepend", _prepend),
        ),
        "bgp_leak": (
            Method("route_map", _leak),
            Method("prefix_list", _tells_all),
            Method("community", _other_kind),
        ),
        "bgp_filter": (
            Method("admits_less", _admits_less),
            Method("tells_less", _tells_less),
            Method("tells_not", _tells_not),
            Method("network", _no_network),
        ),
    }
)
