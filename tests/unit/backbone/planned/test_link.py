"""Requested changes of links: areas, MTUs and static routes."""

from __future__ import annotations

import random
from functools import cache
from ipaddress import IPv4Interface

from backbone_requests import APP, asked, start_of

from netarena_backbone.fault.change import Change
from netarena_backbone.planned.refusal import options
from netarena_backbone.planned.request import Request, documentable
from netarena_backbone.planned.stages import Stages
from netarena_backbone.state import FAILS, WORKS, Facts, intended
from netarena_backbone.world.model import BACKBONE_AREA, FULL_MTU, World
from netarena_backbone.world.routing import settle


def _areas(world: World, change: Change) -> set[str]:
    one, other = change.key.split(" - ")
    return {
        port.ospf.area
        for router in (world.router(one), world.router(other))
        for port in router.ports
        if port.ospf and world.far[router.name, port.name][0] in {one, other}
    }


def test_moved_link_is_in_a_new_area_at_both_ends_and_keeps_all_adjacencies(world: World) -> None:
    changes = options(world, "area", "link")
    assert changes
    for change in changes:
        after = change.edit(world)
        (old,), (new,) = _areas(world, change), _areas(after, change)
        assert old != new
        assert change.words.endswith(f"from OSPF area {old} to area {new}, at both ends")
        assert {*settle(after).adjacent} == {*settle(world).adjacent}


def test_link_of_another_area_moves_to_area_0() -> None:
    world = start_of(("area", "number"))  # one router has a separate area
    (leaf,) = (one for one in options(world, "area", "link") if _areas(world, one) != {"0"})
    assert _areas(leaf.edit(world), leaf) == {BACKBONE_AREA}


def test_router_keeps_at_least_one_link_in_area_0(world: World) -> None:
    for change in options(world, "area", "link"):
        for name in change.machines:
            kept = [
                port.name
                for port in change.edit(world).router(name).ports
                if port.ospf and port.ospf.area == BACKBONE_AREA and not port.ospf.passive
            ]
            assert kept


# MTU


@cache
def _narrowed() -> tuple[World, Change]:
    """Return a world in which a link is too small for some documented pings, and its repair."""
    world = start_of(("path_mtu", "lower"))
    for lower in options(world, "path_mtu", "lower"):
        today = lower.edit(world)
        (change,) = options(today, "path_mtu", "raise")
        stages = Stages(today, (), [change])
        if _lost(intended(today)) and next(stages.safe_orders(), None):
            return today, change
    raise AssertionError("no link of the stored world carries full-size pings")


def _lost(facts: Facts) -> set[tuple[str, str]]:
    """Return the pairs between which only small pings work."""
    return {
        (fact.source, fact.target)
        for fact, value in facts.items()
        if fact.sort == "full" and (value, facts[fact._replace(sort="ping")]) == (FAILS, WORKS)
    }


def test_full_size_pings_are_documented_as_failing_until_the_mtu_is_raised() -> None:
    today, change = _narrowed()
    target = change.edit(today)
    before, after = documentable(today), documentable(target)
    assert before
    assert after
    assert _lost(before)
    assert not _lost(after)
    rules = APP.tickets.prompt(
        asked(today, Request("path_mtu", "raise", change)), None, (), random.Random(1)
    ).rules
    size = today.packet_bytes
    (fails,) = (line for line in rules.splitlines() if "that fail by design" in line)
    (works,) = (line for line in rules.splitlines() if "Additional pings of" in line)
    assert fails.startswith(f"- exceptions, pings of {size} bytes that fail by design: ")
    assert works.startswith(f"- Additional pings of {size} bytes: ")
    assert fails.partition(": ")[2] == works.partition(": ")[2]
    source, target_name = min(_lost(before))
    assert source in works
    assert target_name in works


def test_mtu_is_raised_to_the_full_size_only_where_it_is_too_small() -> None:
    today, change = _narrowed()
    before, after = (
        {(name, port.name): port.mtu for name in change.machines for port in one.router(name).ports}
        for one in (today, change.edit(today))
    )
    raised = {place for place in before if before[place] != after[place]}
    assert len(raised) == 2
    assert all(before[place] < today.packet_bytes for place in raised)
    assert {after[place] for place in raised} == {FULL_MTU}
    assert options(start_of(("path_mtu", "lower")), "path_mtu", "raise") == ()


def test_adjacency_is_down_while_only_one_end_has_the_new_mtu() -> None:
    today, change = _narrowed()
    stages = Stages(today, (), [change])
    assert {(fact.sort, fact.source, fact.target) for fact in stages.interrupted} >= {
        ("adjacency", *change.key.split(" - "))
    }


# static routes


def test_static_routes_forward_packets_through_both_routers_to_the_hosts(world: World) -> None:
    changes = options(world, "static_routes", "to_static")
    assert changes
    for change in changes[:4]:
        net, far, near = change.key.split()
        after = change.edit(world)
        tables = settle(after).fib
        address = net.partition("/")[0]
        hops = []
        for name in (far, near):
            route = tables[name].look_up(address)
            assert route is not None
            hops.append(after.far[name, route.hop.port][0])
        assert hops[0] == near
        assert net in {
            str(IPv4Interface(port.address).network) for port in world.router(hops[1]).ports
        }


def test_static_routes_replace_the_next_hop_of_at_least_one_router(world: World) -> None:
    tables = settle(world).fib
    for change in options(world, "static_routes", "to_static"):
        net, *names = change.key.split()
        routes = [tables[name].look_up(net.partition("/")[0]) for name in names]
        assert any(route is None or route.hop.gateway not in change.words for route in routes)


def test_change_back_to_ospf_removes_the_static_routes(world: World, wanted: Facts) -> None:
    for change in options(world, "static_routes", "to_static")[:2]:
        pinned = change.edit(world)
        (back,) = options(pinned, "static_routes", "to_ospf")
        assert back.edit(pinned) == world
        assert intended(back.edit(pinned)) == wanted
        assert change.key.split()[0] in back.words


def test_order_of_static_routes_matters_if_ospf_sends_packets_back(world: World) -> None:
    """The router next to the hosts sends packets back until it has its own static route."""
    stages = next(
        Stages(today, (), [change])
        for drain in options(world, "link_out", "drain")
        for today in [drain.edit(world)]
        for change in options(today, "static_routes", "to_static")
        if _leads_back(today, change)
    )
    assert stages.does_harm([0, 1])
    assert stages.is_safe([1, 0])


def _leads_back(world: World, change: Change) -> bool:
    net, far, near = change.key.split()
    route = settle(world).fib[near].look_up(net.partition("/")[0])
    return route is not None and world.far[near, route.hop.port][0] == far
