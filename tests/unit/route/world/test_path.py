"""Intended paths of packets, on the paper's network and on varied ones."""

from __future__ import annotations

import random

import pytest

from netarena_route.world.model import World, standard, varied
from netarena_route.world.path import MAIN, Packet, Plan

_WORLD = standard(3, 2, random.Random(1))
_PLAN = Plan(_WORLD)
_R0, _H1, _H2, _H3, *_ = _WORLD.endpoints


def _ways(packet: Packet) -> tuple[int | None, int | None, bool, bool]:
    return packet.enters, packet.leaves, packet.forwarded, packet.routed


@pytest.mark.parametrize(
    ("pair", "request_ways", "reply_ways"),
    [
        ((_H1, _H2), (None, None, False, False), (None, None, False, False)),
        ((_H1, _H3), (0, 1, True, True), (1, 0, True, True)),
        ((_H1, _R0), (0, None, False, False), (None, 0, False, False)),
        # the host is not on the subnet of the router's first address, so its gateway must forward
        ((_H3, _R0), (1, None, False, True), (None, 1, False, False)),
        ((_R0, _H3), (None, 1, False, False), (1, None, False, False)),
    ],
)
def test_ping_takes_the_expected_paths(
    pair: tuple[str, str], request_ways: object, reply_ways: object
) -> None:
    there, back = _PLAN.ping(*pair)
    assert (_ways(there), _ways(back)) == (request_ways, reply_ways)
    assert (there.src, there.dst, there.reply) == (*pair, False)
    assert (back.dst, back.src, back.reply) == (*pair, True)
    for packet in (there, back):
        assert packet.table == (None if packet.leaves is None else MAIN)


def _tabulated() -> World:
    worlds = (varied(3, 1, random.Random(seed)) for seed in range(100))
    return next(w for w in worlds if any(" lookup " in rule for rule in w.router.rules))


def test_forwarded_packets_use_policy_tables_but_packets_of_the_router_the_main_table() -> None:
    world = _tabulated()
    plan = Plan(world)
    router, *hosts = world.endpoints
    subnets = {machine.name: machine.interfaces[0].subnet for machine in world.machines}
    for host in hosts:
        for other in hosts:
            there, _ = plan.ping(host, other)
            if there.forwarded:
                name = world.ports[subnets[host]].name
                rule = next(rule for rule in world.router.rules if f" iif {name} " in rule)
                assert there.table == rule.split()[-1]
        assert plan.ping(router, host)[0].table == MAIN
        assert plan.ping(host, router)[1].table == MAIN


@pytest.mark.parametrize(
    ("rule", "there", "back"),
    [
        ("pref 1000 from 192.168.1.0/24 lookup 100", "100", MAIN),
        ("pref 1000 to 192.168.1.0/24 table 100", MAIN, "100"),
        ("pref 1000 from all lookup 100", "100", "100"),
        # this table has no route to the destination
        ("pref 1000 from 192.168.1.0/24 lookup 101", MAIN, MAIN),
        ("pref 1000 from all to 192.168.2.0/24 lookup main", MAIN, MAIN),
        ("pref 1000 from 192.168.1.0/24 prohibit", MAIN, MAIN),
    ],
)
def test_policy_rules_choose_the_table(rule: str, there: str, back: str) -> None:
    router = _WORLD.router.model_copy(
        update={
            "rules": (rule,),
            "routes": (
                "192.168.2.0/24 dev x table 100",
                "unreachable default table 100",
                "blackhole 192.0.2.0/24 table 101",
            ),
        }
    )
    plan = Plan(_WORLD.model_copy(update={"machines": (router, *_WORLD.hosts)}))
    request, reply = plan.ping(_H1, _H3)
    assert (request.table, reply.table) == (there, back)
    if " from 192.168.1.0/24 lookup 100" in rule:
        # an unbound socket has no source address yet; replies use the router's first address
        assert plan.ping(_R0, _H1)[0].table == MAIN
        assert plan.ping(_H3, _R0)[1].table == "100"


def test_spare_address_is_unused() -> None:
    assert str(_PLAN.spare(1)) == "192.168.2.254"
    full = standard(2, 128, random.Random(1))
    assert str(Plan(full).spare(0)) == "192.168.1.254"
