"""Faults as data: properties of each, computed effects, and combinations of several.

``tests/integration/test_route_fault.py`` verifies the computed effects on real networks.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from netarena.model import Action
from netarena.task.label import MAX_PARTS
from netarena_network.action import Fault, action_of, describe, fault_of
from netarena_route.fault import table as fault
from netarena_route.fault.method import Method, Site
from netarena_route.fault.table import ALL_KINDS, EXTENDED_KINDS, KINDS, PAIRS, PAPER_KINDS
from netarena_route.world.model import World, standard, varied
from netarena_route.world.path import Packet, Plan

_METHODS = [(kind, method) for kind, methods in ALL_KINDS.items() for method in methods]


def _draw(plan: Plan, kind: str, name: str) -> Fault:
    method = next(method for method in KINDS[kind] if method.name == name)
    site = Site.draw(plan, method.scope, random.Random(1))
    assert site is not None
    return fault.apply(kind, method, site)


def _of(world: World, kind: str, method: str, subnet: int) -> Fault:
    """Return the fault of the router that affects one subnet."""
    plan = Plan(world)
    other = 1 if subnet == 0 else 0
    site = Site(plan, plan.router, subnet, other, plan.hosts[subnet][0])
    return fault.apply(kind, next(m for m in KINDS[kind] if m.name == method), site)


def test_table_has_the_papers_kinds_and_enough_methods() -> None:
    assert PAPER_KINDS == (
        "disable_routing",
        "disable_interface",
        "remove_ip",
        "drop_traffic_to_from_subnet",
        "wrong_routing_table",
    )
    assert len(PAIRS) == 10
    assert sum(len(KINDS[kind]) for kind in EXTENDED_KINDS) >= 40
    assert len({(kind, method.name) for kind, method in _METHODS}) == len(_METHODS)


# loss measured on real networks before the formulas were written; the remaining pairs are broken
_MEASURED = [
    ("disable_routing", "ip_forward", (33, 57, 70)),
    ("disable_routing", "forward_policy", (33, 57, 70)),
    ("disable_routing", "rule_prohibit", (100, 85, 82)),
    ("disable_routing", "forward_source", (33, 38, 35)),
    ("disable_interface", "down", (66, 47, 38)),
    ("disable_interface", "mtu", (66, 47, 38)),
    ("remove_ip", "flush", (66, 47, 38)),
    ("drop_traffic_to_from_subnet", "drop", (33, 9, 2)),
    ("drop_traffic_to_from_subnet", "reject", (33, 9, 2)),
    ("wrong_routing_table", "loop", (66, 47, 38)),
]


@pytest.mark.parametrize(("kind", "method", "losses_pct"), _MEASURED)
def test_formulas_agree_with_measured_losses(
    kind: str, method: str, losses_pct: tuple[int, ...]
) -> None:
    for (switches, hosts), wanted in zip(((2, 1), (3, 2), (4, 4)), losses_pct, strict=True):
        world = standard(switches, hosts, random.Random(1))
        size = len(world.endpoints)
        broken = fault.breaks(world, [_of(world, kind, method, switches - 1)])
        assert 100 * len(broken) // (size * (size - 1)) == wanted


_WORLDS = st.one_of(
    st.builds(standard, st.integers(2, 4), st.integers(1, 3), st.randoms(use_true_random=False)),
    st.builds(varied, st.integers(3, 4), st.integers(1, 3), st.randoms(use_true_random=False)),
)


def _pair_by_pair(world: World, faults: Sequence[Fault]) -> tuple[str, ...]:
    """Compute the result of ``fault.expected`` pair by pair, without sharing rows."""
    plan = Plan(world)
    broken: list[tuple[Site, Method]] = [
        (
            Site.read(plan, each.parameters),
            next(method for method in KINDS[each.kind] if method.name == each.method),
        )
        for each in faults
    ]

    def works(row: int, column: int) -> bool:
        if row == column or world.intended[row][column] == "0":
            return row == column
        packets = plan.ping(world.endpoints[row], world.endpoints[column])
        return not any(method.lost(site, p) for site, method in broken for p in packets)

    indices = range(len(world.endpoints))
    return tuple("".join("01"[works(row, column)] for column in indices) for row in indices)


@settings(max_examples=20, deadline=None)
@given(
    world=_WORLDS,
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=MAX_PARTS, unique=True),
    rng=st.randoms(use_true_random=False),
)
def test_drawn_combination_is_valid(world: World, kinds: list[str], rng: random.Random) -> None:
    drawn = fault.draw(Plan(world), kinds, rng, netem=False)
    assume(drawn is not None)
    assert drawn is not None
    assert [each.kind for each in drawn] == kinds
    together = fault.expected(world, drawn)
    assert together == _pair_by_pair(world, drawn)
    # each part breaks pairs on its own, and all parts together break the union of these pairs
    assert all(fault.breaks(world, [each]) for each in drawn)
    assert fault.breaks(world, drawn) == frozenset[tuple[str, str]]().union(
        *(fault.breaks(world, [each]) for each in drawn)
    )
    assert all(fault.shows(world, each, together) for each in drawn)
    assert not any(fault.shows(world, each, world.intended) for each in drawn)
    for each in drawn:
        assert fault_of(action_of(each)) == each
        assert describe(Action.model_validate_json(action_of(each).model_dump_json())) == each.words
        texts = [each.words, *(c.command for c in (*each.inject, *each.repair))]
        assert not any("{port}" in text or "{{" in text or "  " in text for text in texts)
        assert {c.machine for c in (*each.inject, *each.repair)} <= set(world.endpoints)


def test_parts_of_a_combination_affect_different_subnets() -> None:
    # with two subnets, a missing address and a disabled port must use different ports
    rng = random.Random(3)
    plan = Plan(standard(2, 1, rng))
    for _ in range(30):
        drawn = fault.draw(plan, ["remove_ip", "disable_interface"], rng, netem=False)
        assert drawn is not None
        assert {each.parameters["subnet"] for each in drawn} == {0, 1}
    kinds = ["remove_ip", "disable_interface", "wrong_routing_table"]
    assert fault.draw(plan, kinds, rng, netem=False) is None
    assert fault.draw(Plan(standard(3, 1, rng)), kinds, rng, netem=False) is not None


def test_netem_and_neighbour_methods_are_drawn_only_where_supported() -> None:
    small, large = standard(2, 1, random.Random(1)), standard(2, 40, random.Random(1))
    assert large.permanent
    for kind, methods in KINDS.items():
        allowed = fault.methods_of(kind, small, netem=False)
        assert {m.name for m in methods if m not in allowed} == (
            {"netem_delay", "netem_loss"} if kind == "drop_traffic_to_from_subnet" else set()
        )
        assert fault.methods_of(kind, small, netem=True) == list(methods)
        assert not any(method.resolves for method in fault.methods_of(kind, large, netem=False))
    assert fault.methods_of("host_neighbour", large, netem=False) == []
    assert fault.draw(Plan(large), ["host_neighbour"], random.Random(1), netem=False) is None


def test_one_of_each_omits_methods_that_need_a_larger_network() -> None:
    rng = random.Random(1)
    drawn = {(f.kind, f.method) for f in fault.one_of_each(Plan(standard(2, 1, rng)), rng)}
    missing = {(kind, method.name) for kind, method in _METHODS if not method.netem} - drawn
    assert missing == {
        # methods that need two hosts on a subnet
        ("host_neighbour", "wrong_twin"),
        ("host_firewall", "twin_rejected"),
        ("host_path", "twin_detour"),
        ("host_traffic", "twin_nft_in"),
        ("host_traffic", "twin_raw"),
        # methods that need a router with separated subnets
        ("stray_route", "table_route_missing"),
        ("router_firewall", "accept_missing"),
    }
    worlds = [varied(3, hosts, random.Random(seed)) for hosts in (1, 2) for seed in range(12)]
    drawn |= {(f.kind, f.method) for world in worlds for f in fault.one_of_each(Plan(world), rng)}
    assert drawn == {(kind, method.name) for kind, method in _METHODS if not method.netem}


def test_reverse_path_is_not_filtered_on_a_router_with_a_table_per_port() -> None:
    """With such a filter, hosts could reach the router only after it had sent them ARP requests."""
    worlds = [varied(3, 2, random.Random(seed)) for seed in range(10)]
    found = set()
    for world in worlds:
        has_tables = any("lookup" in rule for rule in world.router.rules)
        methods = {one.method for one in fault.one_of_each(Plan(world), random.Random(1))}
        found.add((has_tables, "reverse_path" in methods))
    assert found == {(True, False), (False, True)}


def test_repair_of_a_disabled_port_restores_its_routes() -> None:
    world = varied(3, 1, random.Random(5))
    plan = Plan(world)
    host = world.hosts[0]
    site = Site(
        plan, host, plan.subnet(host.name), plan.subnet(world.hosts[1].name), world.hosts[1]
    )
    down = fault.apply("host_interface", KINDS["host_interface"][0], site)
    # a disabled port loses its routes
    assert down.repair[0].command == " && ".join(
        [f"ip link set {host.interfaces[0].name} up", *(f"ip route add {r}" for r in host.routes)]
    )


def test_million_pairs_are_predicted_with_few_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    world = standard(32, 32, random.Random(1))
    drawn = fault.draw(Plan(world), ["remove_ip", "host_gateway"], random.Random(2), netem=False)
    assert drawn is not None
    asked = []
    ping = Plan.ping

    def counted(plan: Plan, src: str, dst: str) -> tuple[Packet, Packet]:
        asked.append((src, dst))
        return ping(plan, src, dst)

    monkeypatch.setattr(Plan, "ping", counted)
    rows = fault.expected(world, drawn)
    assert len(asked) < 5000
    assert {len(row) for row in rows} == {len(rows)} == {1025}
    broken = fault.breaks(world, drawn)
    assert sum(row.count("0") for row in rows) == len(broken)
