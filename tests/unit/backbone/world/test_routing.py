"""Computed routing: neighbours, paths, policies, and destinations of packets."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any

import pytest

from netarena_backbone.draw import draw
from netarena_backbone.fault.change import (
    Edit,
    on_map_entry,
    on_ospf_port,
    on_peer,
    on_port,
    outer_peers,
    transit_ports,
)
from netarena_backbone.fault.table import KINDS
from netarena_backbone.world import routing
from netarena_backbone.world.fib import BLACKHOLE, Hop, Route, Table, resolve
from netarena_backbone.world.forwarding import SMALL_BYTES, Follower
from netarena_backbone.world.model import (
    Bgp,
    Link,
    MapEntry,
    Peer,
    Port,
    PrefixEntry,
    PrefixList,
    RouteMap,
    Router,
    Static,
    World,
    bare,
)
from netarena_backbone.world.routing import neighbours, permits, settle


def _route(prefix: str, hop: Hop, distance: int = 1, metric: int = 0) -> Route:
    return Route(IPv4Network(prefix), hop, distance, metric)


def test_lookup_finds_the_longest_prefix_and_the_preferred_route() -> None:
    table = Table(
        [
            _route("0.0.0.0/0", Hop("a", "192.0.2.1")),
            _route("10.0.0.0/8", Hop("b", "192.0.2.2"), 110, 20),
            _route("10.0.0.0/8", Hop("c", "192.0.2.3"), 110, 10),
            _route("10.0.0.0/8", Hop("d", "192.0.2.4"), 200),
            _route("10.1.0.0/16", BLACKHOLE),
            _route("192.0.2.0/24", Hop("e"), 0),
        ]
    )
    found = [table.look_up(address) for address in ("10.2.3.4", "10.1.2.3", "8.8.8.8")]
    assert [route and route.hop.port for route in found] == ["c", "", "a"]
    assert table.look_up("8.8.8.8", default=False) is None
    assert resolve(table, "192.0.2.9") == Hop("e", "192.0.2.9")
    assert resolve(table, "10.2.3.4") == Hop("c", "192.0.2.3")
    assert resolve(table, "8.8.8.8") is None


@pytest.mark.parametrize(
    "update",
    [
        {"area": "9"},
        {"hello": 7},
        {"dead": 9},
        {"key": "other"},
        {"passive": True},
    ],
    ids=lambda update: next(iter(update)),
)
def test_ospf_adjacency_with_mismatched_settings_stays_down(
    world: World, update: Mapping[str, object]
) -> None:
    router, port, _, _ = next(transit_ports(world))
    before = settle(world).adjacent
    after = settle(on_ospf_port(router.name, port.name, **update)(world)).adjacent
    assert len(after) == len(before) - 1


def test_ospf_adjacency_with_mismatched_mtu_needs_mtu_ignore(world: World) -> None:
    router, port, _, _ = next(transit_ports(world))
    number = len(settle(world).adjacent)
    narrow = on_port(router.name, port.name, mtu=1000)(world)
    told = on_ospf_port(router.name, port.name, mtu_ignore=True)(narrow)
    untold = on_ospf_port(router.name, port.name, mtu_ignore=False)(narrow)
    assert len(settle(told).adjacent) == number
    assert len(settle(untold).adjacent) == number - 1


@pytest.mark.parametrize("update", [{"shutdown": True}, {"asn": 1}, {"password": "other"}], ids=str)
def test_bgp_session_with_mismatched_ends_stays_down(
    world: World, update: Mapping[str, object]
) -> None:
    router, peer = next(outer_peers(world))
    number = len(settle(world).sessions)
    changed = on_peer(router.name, peer.address, **update)(world)
    assert len(settle(changed).sessions) == number - 2


def test_bgp_session_over_bgp_routes_is_established_if_the_peer_has_a_return_path() -> None:
    """The router's own address is not advertised, but peers with a default route can reply."""
    world = draw(random.Random(8), 5)
    (method,) = (one for one in KINDS["ospf_network"] if one.name == "loopback_missing")
    numbers = set()
    for change in method.changes(world):
        broken = change.edit(world)
        router = broken.router(change.machine)
        tables = settle(broken)
        follower = Follower(broken, tables.fib)
        found = {one.other for one in tables.sessions if one.router == router.name}
        stand = 0
        for peer in router.bgp.peers:
            if peer.asn != world.asn or (router.name, peer.address) in world.closed:
                continue
            own = router.name, bare(router.loopback)
            answered = follower.talk(own, (peer.description, peer.address), 179)
            # a passive end does not open a session over a default route
            assert (peer.description in found) == (answered and not peer.passive)
            stand += peer.description in found
        numbers.add(stand)
    assert numbers >= {0, 1}


def test_adjacencies_and_sessions_are_listed_from_both_ends(world: World) -> None:
    tables = settle(world)
    found = neighbours(tables)
    assert len(found) == 2 * len(tables.adjacent) + len(tables.sessions)
    link = tables.adjacent[0]
    assert {(link.one[0], "ospf", link.one[1]), (link.other[0], "ospf", link.other[1])} <= found
    for router in (*world.routers, *world.outside):
        peers = {peer.address for peer in router.bgp.peers}
        assert {to for one, by, to in found if (one, by) == (router.name, "bgp")} <= peers


def test_route_map_entry_with_a_missing_prefix_list_matches_nothing(world: World) -> None:
    entries = (
        PrefixEntry(seq=10, verdict="deny", prefix="10.1.0.0/16", le=24),
        PrefixEntry(seq=20, verdict="permit", prefix="10.0.0.0/8", ge=16, le=24),
    )
    router = world.routers[0].model_copy(
        update={
            "prefix_lists": (PrefixList(name="SOME", entries=entries),),
            "route_maps": (
                RouteMap(name="MAP", entries=(MapEntry(seq=10, prefix_list="SOME"),)),
                RouteMap(name="NONE", entries=(MapEntry(seq=10, prefix_list="GONE"),)),
            ),
        }
    )
    asked = ["10.2.0.0/16", "10.2.3.0/24", "10.1.2.0/24", "10.2.3.4/32", "10.0.0.0/8"]
    assert [permits(router, "MAP", prefix) for prefix in asked] == [True, True, False, False, False]
    assert not permits(router, "NONE", "10.2.0.0/16")
    assert not permits(router, "MISSING", "10.2.0.0/16")


def test_link_with_a_small_mtu_drops_large_packets_only(world: World) -> None:
    one, other = world.ways[0]
    ends = dict(world.endpoints)
    follower = Follower(world, settle(world).fib)
    first, second = follower.way(one, ends[other])[:2]
    port = next(p for p in world.router(first).ports if world.far[first, p.name][0] == second)
    narrow = on_ospf_port(first, port.name, mtu_ignore=True)(
        on_port(first, port.name, mtu=1000)(world)
    )
    follower = Follower(narrow, settle(narrow).fib)
    pair = (one, ends[one]), (other, ends[other])
    assert follower.ping(*pair, SMALL_BYTES)
    assert not follower.ping(*pair, world.packet_bytes)


def test_routes_that_differ_only_in_the_router_id_are_doubtful(
    world: World,
) -> None:
    """FRR spreads packets over both paths."""
    router, peer, entry = next(
        (router, peer, entry)
        for router, peer in outer_peers(world)
        for found in router.route_maps
        if found.name == peer.route_map_out
        for entry in found.entries
        if entry.metric is not None and entry.prefix_list == "OURS"
    )
    upstream = peer.description
    metrics = {
        one.name: [each.metric for found in one.route_maps for each in found.entries if each.metric]
        for one, each_peer in outer_peers(world)
        if each_peer.description == upstream and one is not router
    }
    ((other, (wanted, *_)),) = metrics.items()
    assert other != router.name
    assert wanted != entry.metric
    equal = on_map_entry(router.name, peer.route_map_out, entry.seq, metric=wanted)(world)
    assert settle(equal).doubtful == {(upstream, world.block)}


def test_world_that_does_not_converge_is_doubtful(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not settle(world).doubtful
    # drawn worlds always converge, so the test lowers the limit of rounds instead
    monkeypatch.setattr(routing, "_ROUNDS", 2)
    assert settle(world).doubtful


def test_routes_do_not_depend_on_an_earlier_computation(world: World) -> None:
    settle(world)
    (name, *_) = (one.router for one in world.outsiders)
    renamed = World.model_validate_json(world.model_dump_json().replace(f'"{name}"', f'"{name}b"'))
    assert f"{name}b" in settle(renamed).fib


@pytest.mark.parametrize("contradict", [True, False])
def test_best_path_that_depends_on_session_order_is_doubtful(contradict: bool) -> None:
    """b and c prefer each other's path to a's prefix, so the order of updates decides."""
    wishes = {("c", "b")} | ({("b", "c")} if contradict else set())
    world = _systems([("a", "b"), ("a", "d"), ("d", "c"), ("b", "c")], "198.51.100.0/24", wishes)
    tables = settle(world)
    assert not tables.doubtful
    assert tables.best["c"]["198.51.100.0/24"].as_path == (2, 1)
    doubtful = settle(world, anyhow=True).doubtful
    assert doubtful == (
        {("b", "198.51.100.0/24"), ("c", "198.51.100.0/24")} if contradict else set()
    )


def _systems(
    links: Sequence[tuple[str, str]], prefix: str, wishes: Collection[tuple[str, str]]
) -> World:
    """Return a world of numbered autonomous systems with one router each; the first has a prefix.

    For (one, other) in ``wishes``, ``one`` prefers the routes from ``other``.
    """
    names = sorted({name for link in links for name in link})
    ports: dict[str, list[Port]] = {name: [] for name in names}
    peers: dict[str, list[Peer]] = {name: [] for name in names}
    cables = []
    for number, (one, other) in enumerate(links):
        ends = {one: f"192.0.2.{4 * number + 1}", other: f"192.0.2.{4 * number + 2}"}
        cables.append(Link(one=(one, f"to{other}"), other=(other, f"to{one}")))
        for here, there in ((one, other), (other, one)):
            ports[here].append(Port(name=f"to{there}", address=f"{ends[here]}/30", mac=""))
            peers[here].append(
                Peer(
                    address=ends[there],
                    asn=1 + names.index(there),
                    description=there,
                    route_map_in="WISH" if (here, there) in wishes else "ALL",
                    route_map_out="ALL",
                )
            )
    maps = (
        RouteMap(name="ALL", entries=(MapEntry(seq=10),)),
        RouteMap(name="WISH", entries=(MapEntry(seq=10, local_preference=200),)),
    )
    routers = [
        Router(
            name=name,
            asn=number,
            loopback=f"203.0.113.{number}",
            ports=tuple(ports[name]),
            bgp=Bgp(
                asn=number,
                router_id=f"203.0.113.{number}",
                networks=(prefix,) if number == 1 else (),
                peers=tuple(peers[name]),
            ),
            route_maps=maps,
            statics=(Static(prefix=prefix, via="blackhole"),) if number == 1 else (),
        )
        for number, name in enumerate(names, start=1)
    ]
    nothing: dict[str, Any] = dict.fromkeys(("hosts", "zones", "outsiders", "offers", "ways"), ())
    return World(
        prefix="p",
        asn=1,
        block="198.51.100.0/24",
        infrastructure="203.0.113.0/24",
        routers=tuple(routers),
        outside=(),
        links=tuple(cables),
        firewall="a",
        **nothing,
    )


def test_border_router_without_usable_backbone_neighbours_is_doubtful() -> None:
    """A full backbone adjacency decides from which areas the router learns routes."""
    world = next(
        one for one in (draw(random.Random(seed), 8) for seed in range(9)) if any(_borders(one))
    )
    name, ports = next(_borders(world))
    broadcast = [on_ospf_port(name, port, network="broadcast") for port in ports]
    assert (name, "0") in settle(_with(world, broadcast)).doubtful
    silent = on_ospf_port(name, ports[0], passive=True)
    assert (name, "0") in settle(_with(world, [silent, *broadcast[1:]])).doubtful
    assert (name, "0") not in settle(_with(world, broadcast[1:])).doubtful
    alone = [on_ospf_port(name, port, passive=True) for port in ports]
    assert (name, "0") in settle(_with(world, alone)).doubtful
    assert (name, "0") not in settle(_with(world, alone[1:])).doubtful


def _borders(world: World) -> Iterator[tuple[str, list[str]]]:
    """Yield each router with several areas and several ports in area 0, with these ports."""
    for router in world.routers:
        areas = {port.ospf.area for port in router.ports if port.ospf}
        ports = [
            port.name
            for one, port, _, _ in transit_ports(world)
            if one.name == router.name and port.ospf and port.ospf.area == "0"
        ]
        if len(areas) > 1 and len(ports) > 1:
            yield router.name, ports


def test_kernel_route_whose_gateway_is_in_no_connected_network_is_doubtful(world: World) -> None:
    name = world.routers[0].name
    reachable = Static(prefix="203.0.113.0/24", via="blackhole")
    stranded = Static(prefix="203.0.113.0/25", via="203.0.113.1")

    def add(router: Router) -> Router:
        return router.model_copy(update={"kernel_routes": (reachable, stranded)})

    tables = settle(world.edit(name, add))
    assert tables.doubtful == {(name, stranded.prefix)}


def _with(world: World, edits: Sequence[Edit]) -> World:
    for edit in edits:
        world = edit(world)
    return world
