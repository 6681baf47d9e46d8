"""Requested changes of BGP: exits from our network, sessions with other ASes, and sessions between
our routers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from types import MappingProxyType

from netarena_backbone.fault.change import (
    Change,
    Edit,
    Method,
    Turn,
    added,
    both,
    inner_peers,
    on_items,
    on_map,
    on_map_entry,
    on_peer,
    outer_peers,
    preceded,
)
from netarena_backbone.planned.requested import Piece, fresh, listed, pick, requested
from netarena_backbone.world.model import (
    MapEntry,
    Outsider,
    Peer,
    PrefixEntry,
    PrefixList,
    RouteMap,
    Router,
    World,
    bare,
)
from netarena_backbone.world.odd import password_of
from netarena_backbone.world.render import entry_lines

#: Sequence number of the entry that a request adds at the start of a route map.
FIRST = 5
#: Minimum number of our own routers in networks with requests for route reflection.
_FEWEST = 5
#: Difference between a requested local preference and the local preferences in use.
_STEP = 30
_METRICS = (2, 10, 50, 300)
_MAXIMA = (20, 50, 100)


def _kinds(world: World) -> Mapping[str, Outsider]:
    return {one.router: one for one in world.outsiders}


def _admitting(world: World) -> Iterator[tuple[Router, Peer, RouteMap, MapEntry]]:
    """Yield our sessions with other ASes whose inbound route map has exactly one entry.

    Each item is a tuple: the router, the peer, the route map and the entry.
    """
    for router, peer in outer_peers(world):
        for found in router.route_maps:
            if found.name == peer.route_map_in and len(found.entries) == 1:
                yield router, peer, found, found.entries[0]


def named(router: Router, peer: Peer) -> str:
    """Return the name that requests use for a session with another AS."""
    return f"{router.name} - {peer.description}"


def _prefer(name: str, *, up: bool) -> Method:
    """Return a method that makes a session the most or least preferred session of its kind.

    The session becomes the most preferred one if ``up``, else the least preferred one. It is
    compared with all sessions with ASes of the same kind.
    """

    def changes(world: World) -> Iterator[Change]:
        kinds = _kinds(world)
        every = [*_admitting(world)]
        for router, peer, found, entry in every:
            kind = kinds[peer.description].kind
            others = [
                one.local_preference or 100
                for _, far, _, one in every
                if kinds[far.description].kind == kind and one is not entry
            ]
            if not others:
                continue
            now = entry.local_preference
            value = max(others) + _STEP if up else min(others) - _STEP
            if now == value or (now or 100) * (1 if up else -1) > value * (1 if up else -1):
                continue
            yield requested(
                f"{router.name} {found.name}",
                f"{'Prefer' if up else 'Avoid'} the session {named(router, peer)} for traffic that "
                f"leaves our network: set its local preference to {value} in route map "
                f"{found.name} of {router.name}",
                [
                    Piece(
                        router.name,
                        on_map_entry(router.name, found.name, entry.seq, local_preference=value),
                        f"map {found.name}",
                    )
                ],
            )

    return Method(name, changes)


def _prefer_prefix(world: World) -> Iterator[Change]:
    """Yield changes that prefer one session for one prefix of another AS."""
    prefixes = dict.fromkeys(prefix for one in world.outsiders for prefix in one.prefixes)
    for router, peer, found, entry in _admitting(world):
        outsider = _kinds(world)[peer.description]
        if entry.seq <= FIRST or entry.local_preference is None:
            continue
        for prefix in prefixes:
            if outsider.kind != "upstream" and prefix not in outsider.prefixes:
                continue
            value = entry.local_preference + 10 * _STEP
            name = f"EXIT-{found.name.removesuffix('-IN')}"
            if any(one.name == name for one in router.prefix_lists):
                continue
            permitted = PrefixEntry(seq=5, verdict="permit", prefix=prefix)
            listing = PrefixList(name=name, entries=(permitted,))
            first = entry.model_copy(
                update={"seq": FIRST, "prefix_list": name, "local_preference": value}
            )
            lines = [line for line in entry_lines(first) if line.startswith("set ")]
            yield requested(
                f"{router.name} {found.name} {prefix}",
                f"Use the session {named(router, peer)} for traffic to {prefix}: on {router.name}, "
                f"create prefix list {name}, whose entry 5 permits exactly {prefix}, and in route "
                f"map {found.name} add entry {FIRST}, which permits its prefixes, with "
                f"{listed(map(repr, lines))}",
                [
                    Piece(
                        router.name,
                        both(
                            on_items(router.name, "prefix_lists", added(listing)),
                            on_map(router.name, found.name, preceded(first)),
                        ),
                        f"map {found.name}",
                    )
                ],
            )


def _swap_exits(world: World) -> Iterator[Change]:
    """Yield changes that swap the local preferences of two sessions with the same AS."""
    for one, other in combinations(_admitting(world), 2):
        (router, peer, found, entry), (far, far_peer, far_found, far_entry) = one, other
        values = entry.local_preference, far_entry.local_preference
        if peer.asn != far_peer.asn or router is far or None in values or len({*values}) == 1:
            continue
        yield requested(
            f"{router.name} {far.name} {peer.asn}",
            f"Swap the preferred and the backup session with AS {peer.asn} for traffic that leaves "
            f"our network: set the local preference to {values[1]} in {found.name} of "
            f"{router.name}, and to {values[0]} in {far_found.name} of {far.name}",
            [
                Piece(
                    router.name,
                    on_map_entry(router.name, found.name, entry.seq, local_preference=values[1]),
                    f"map {found.name}",
                ),
                Piece(
                    far.name,
                    on_map_entry(
                        far.name, far_found.name, far_entry.seq, local_preference=values[0]
                    ),
                    f"map {far_found.name}",
                ),
            ],
        )


def _entry_metric(world: World) -> Iterator[Change]:
    """Yield changes of the MED that we announce on one of several sessions with the same AS."""
    count: dict[int, int] = {}
    for _, peer in outer_peers(world):
        count[peer.asn] = count.get(peer.asn, 0) + 1
    for router, peer in outer_peers(world):
        found = map_of(router, peer.route_map_out)
        if found is None or count[peer.asn] < 2:
            continue
        entries = [one for one in found.entries if one.metric is not None]
        used = {one.metric for one in entries if one.metric is not None}
        if not used:
            continue
        value = pick(f"metric {router.name} {found.name}", _METRICS, *used)
        yield requested(
            f"{router.name} {found.name}",
            f"Announce a MED of {value} on the session {named(router, peer)}: in route map "
            f"{found.name} of {router.name}, replace the metric "
            f"{listed(map(str, sorted(used)))} of each entry that sets one",
            [
                Piece(
                    router.name,
                    both(
                        *(
                            on_map_entry(router.name, found.name, one.seq, metric=value)
                            for one in entries
                        )
                    ),
                    f"map {found.name}",
                )
            ],
        )


# sessions with other ASes


def _on_peers(name: str, change: Turn) -> Edit:
    def edit(router: Router) -> Router:
        peers = change(router.bgp.peers)
        return router.model_copy(update={"bgp": router.bgp.model_copy(update={"peers": peers})})

    return lambda world: world.edit(name, edit)


def without_peer(name: str, address: str) -> Edit:
    """Return an edit that removes a session from one router."""
    return _on_peers(name, lambda peers: tuple(one for one in peers if one.address != address))


def with_peer(name: str, peer: Peer) -> Edit:
    """Return an edit that adds a session to one router."""
    return _on_peers(name, added(peer))


def _remove_neighbour(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        yield requested(
            f"{router.name} {peer.address}",
            f"Remove the BGP peer {peer.address} ({peer.description}) from {router.name}. Its "
            "route maps and prefix lists may stay",
            [
                Piece(
                    router.name,
                    without_peer(router.name, peer.address),
                    f"peer {peer.address}",
                )
            ],
        )


def _shut_neighbour(world: World) -> Iterator[Change]:
    for router, peer in outer_peers(world):
        if not peer.shutdown:
            yield requested(
                f"{router.name} {peer.address}",
                f"Shut down the BGP session of {router.name} with {peer.address} "
                f"({peer.description}), using 'shutdown'",
                [
                    Piece(
                        router.name,
                        on_peer(router.name, peer.address, shutdown=True),
                        f"peer {peer.address}",
                    )
                ],
            )


def _open_neighbour(world: World) -> Iterator[Change]:
    """Yield changes that start a session that is shut down at our end only."""
    far_ready = _prepared(world)
    for router in world.routers:
        for peer in router.bgp.peers:
            if peer.shutdown and (router.name, peer.address) in far_ready:
                yield requested(
                    f"{router.name} {peer.address}",
                    f"Start the BGP session of {router.name} with {peer.address} "
                    f"({peer.description}), which is shut down",
                    [
                        Piece(
                            router.name,
                            on_peer(router.name, peer.address, shutdown=False),
                            f"peer {peer.address}",
                        )
                    ],
                )


def _add_neighbour(world: World) -> Iterator[Change]:
    """Yield changes that add a session for which the other AS and our route maps are already
    prepared."""
    for name, address, peer in _new_peers(world):
        yield requested(
            f"{name} {address}",
            _set_up(name, peer),
            [Piece(name, with_peer(name, peer), f"peer {address}")],
        )


def _move_session(world: World) -> Iterator[Change]:
    """Yield changes that move the session with an AS to another of our border routers.

    The AS and our route maps are already prepared for the new session.
    """
    for name, address, peer in _new_peers(world):
        for router, old in outer_peers(world):
            if old.asn == peer.asn and router.name != name and not old.shutdown:
                yield requested(
                    f"{router.name} {old.address} {name} {address}",
                    f"Move the session with AS {peer.asn} from {router.name} to {name}. "
                    f"{_set_up(name, peer)}. Remove the BGP peer {old.address} "
                    f"({old.description}) from {router.name}. Its route maps and prefix "
                    "lists may stay",
                    [
                        Piece(
                            router.name,
                            without_peer(router.name, old.address),
                            f"peer {old.address}",
                        ),
                        Piece(name, with_peer(name, peer), f"peer {address}"),
                    ],
                )


def _set_up(name: str, peer: Peer) -> str:
    source = f"update-source {peer.update_source}, " if peer.update_source else ""
    return (
        f"Set up the BGP session of {name} with {peer.address} ({peer.description}) as agreed with "
        f"AS {peer.asn}, with {source}the prepared route maps {peer.route_map_in} (in) and "
        f"{peer.route_map_out} (out) and a maximum of {peer.maximum_prefix} prefixes"
    )


def _new_peers(world: World) -> Iterator[tuple[str, str, Peer]]:
    """Yield the settings of sessions that can be set up at our end.

    Each item is a tuple: our router, the address of the other end, and the settings.
    """
    for (name, address), (far, theirs) in _prepared(world).items():
        router = world.router(name)
        short = far.name.rpartition("_")[2].upper()
        maps = {one.name for one in router.route_maps}
        is_known = any(peer.address == address for peer in router.bgp.peers)
        if is_known or not {f"{short}-IN", f"{short}-OUT"} <= maps:
            continue
        peer = Peer(
            address=address,
            asn=far.asn,
            description=far.name,
            update_source=router.loopback if theirs.address == router.loopback else "",
            multihop=theirs.multihop,
            ttl_security=theirs.ttl_security,
            password=theirs.password,
            maximum_prefix=pick(f"maximum {name} {address}", _MAXIMA),
            route_map_in=f"{short}-IN",
            route_map_out=f"{short}-OUT",
        )
        yield name, address, peer


def _prepared(world: World) -> Mapping[tuple[str, str], tuple[Router, Peer]]:
    """Return the sessions that routers of other ASes try to establish with our routers.

    Keys are (our router, address of the other end). Values are (router, peer settings) of the other
    end.
    """
    owners = {address: router.name for router in world.routers for address in router.addresses}
    found = {}
    for far in world.outside:
        for peer in far.bgp.peers:
            name = owners.get(peer.address)
            if peer.asn != world.asn or name is None or peer.shutdown:
                continue
            ports = [port for port in far.ports if world.far[far.name, port.name][0] == name]
            address = peer.update_source or next((bare(one.address) for one in ports), "")
            if address:
                found[name, address] = far, peer
    return found


# sessions between our routers


def _both_ends(world: World) -> Iterator[tuple[tuple[Router, Peer], tuple[Router, Peer]]]:
    """Yield both ends of each session between our routers."""
    ends = {(router.name, peer.description): (router, peer) for router, peer in inner_peers(world)}
    for (one, other), end in ends.items():
        far = ends.get((other, one))
        if far is not None and one < other:
            yield end, far


def _password(name: str, *, had: bool, removed: bool = False) -> Method:
    def changes(world: World) -> Iterator[Change]:
        for one, other in _both_ends(world):
            if bool(one[1].password) != had or bool(other[1].password) != had:
                continue
            pair = f"{one[0].name} - {other[0].name}"
            old = {one[1].password, other[1].password}
            new = "" if removed else fresh(f"password {pair}", password_of, *old)
            words = (
                f"Remove the password of the BGP session {pair}"
                if removed
                else f"Replace the password of the BGP session {pair} with {new}"
                if had
                else f"Protect the BGP session {pair} with the password {new}"
            )
            yield requested(
                pair,
                f"{words}, at both ends",
                [
                    Piece(
                        router.name,
                        on_peer(router.name, peer.address, password=new),
                        f"peer {peer.address}",
                    )
                    for router, peer in (one, other)
                ],
            )

    return Method(name, changes)


def _to_reflectors(world: World) -> Iterator[Change]:
    """Yield changes from a full mesh to route reflection.

    There is one change for each choice of one or two reflectors.
    """
    names = [router.name for router in world.routers]
    sessions = {
        (one[0].name, other[0].name): (one[1], other[1]) for one, other in _both_ends(world)
    }
    if any(_clients(world)) or len(names) < _FEWEST:
        return
    for chosen in [*combinations(names, 2), *((name,) for name in names)]:
        pieces = []
        for (one, other), ends in sessions.items():
            for (name, far), peer in zip(((one, other), (other, one)), ends, strict=True):
                setting = f"peer {peer.address}"
                if name in chosen and far not in chosen:
                    edit = on_peer(name, peer.address, client=True)
                    pieces.append(Piece(name, edit, setting))
                elif name not in chosen and far not in chosen:
                    pieces.append(Piece(name, without_peer(name, peer.address), setting))
        clients = [name for name in names if name not in chosen]
        yield requested(
            " ".join(chosen),
            f"Replace the iBGP full mesh with route reflection: {listed(chosen)} "
            f"{'reflects' if len(chosen) == 1 else 'reflect'} the routes of "
            f"{'its' if len(chosen) == 1 else 'their'} clients {listed(clients)}. Remove all "
            "sessions between two of these clients, at both ends",
            sorted(pieces, key=lambda piece: names.index(piece.machine)),
        )


def _to_mesh(world: World) -> Iterator[Change]:
    """Yield the change from route reflection to a full mesh."""
    reflectors = {name for name, _ in _clients(world)}
    names = [router.name for router in world.routers]
    if not reflectors:
        return
    known = {
        (router.name, peer.description) for router in world.routers for peer in router.bgp.peers
    }
    pieces = []
    for router in world.routers:
        pieces += [
            Piece(
                router.name,
                on_peer(router.name, peer.address, client=False),
                f"peer {peer.address}",
            )
            for peer in router.bgp.peers
            if peer.client
        ]
        is_border = any(peer.asn != world.asn for peer in router.bgp.peers)
        for far in world.routers:
            if far is not router and (router.name, far.name) not in known:
                peer = Peer(
                    address=far.loopback,
                    asn=world.asn,
                    description=far.name,
                    update_source=router.loopback,
                    next_hop_self=is_border,
                )
                pieces.append(
                    Piece(router.name, with_peer(router.name, peer), f"peer {far.loopback}")
                )
    yield requested(
        " ".join(sorted(reflectors)),
        f"Replace route reflection with an iBGP full mesh of {listed(names)}: set up all sessions "
        "that are missing, between loopback addresses (update-source is the router's own) and "
        "without a password, with next-hop-self on routers that have neighbours in other "
        "autonomous systems; then "
        f"{listed(sorted(reflectors))} no longer "
        f"{'reflects' if len(reflectors) == 1 else 'reflect'} routes to any client",
        pieces,
    )


def _clients(world: World) -> Iterator[tuple[str, Peer]]:
    """Yield the sessions of route reflectors with their clients."""
    for router, peer in inner_peers(world):
        if peer.client:
            yield router.name, peer


def map_of(router: Router, name: str) -> RouteMap | None:
    """Return a route map of a router, or None if it has no map with this name."""
    return next((one for one in router.route_maps if one.name == name), None)


#: Kind of requested change -> its methods
BGP: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "exit": (
            _prefer("prefer", up=True),
            _prefer("avoid", up=False),
            Method("prefix", _prefer_prefix),
            Method("swap", _swap_exits),
        ),
        "entry": (Method("metric", _entry_metric),),
        "neighbour_add": (Method("set_up", _add_neighbour), Method("start", _open_neighbour)),
        "neighbour_remove": (
            Method("remove", _remove_neighbour),
            Method("shut_down", _shut_neighbour),
        ),
        "bgp_password": (
            _password("add", had=False),
            _password("rotate", had=True),
            _password("remove", had=True, removed=True),
        ),
        "reflection": (Method("reflectors", _to_reflectors), Method("mesh", _to_mesh)),
        "session_move": (Method("router", _move_session),),
    }
)
