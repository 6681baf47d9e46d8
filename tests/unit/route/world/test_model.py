"""Worlds as data: the paper's plan, and the properties of varied worlds."""

from __future__ import annotations

import random
from collections import Counter
from ipaddress import IPv4Interface
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netarena_route.world.model import (
    NUM_RESERVE,
    NUM_RESERVE_SUBNETS,
    TABLES,
    World,
    standard,
    varied,
)

_SEEDS = st.integers(0, 2**32)


def test_standard_world_is_the_papers_network() -> None:
    world = standard(2, 2, random.Random(3))
    prefix = world.prefix
    assert world.endpoints == tuple(f"{prefix}_{name}" for name in ("r0", "h1", "h2", "h3", "h4"))
    assert world.addresses == (
        "192.168.1.1",
        "192.168.1.100",
        "192.168.1.101",
        "192.168.2.100",
        "192.168.2.101",
    )
    assert [port.name for port in world.ports] == [f"{prefix}_r0-eth1", f"{prefix}_r0-eth2"]
    assert world.machine(f"{prefix}_h3").routes == ("default via 192.168.2.1",)
    assert world.router.sysctls == (("net.ipv4.ip_forward", "1"),)
    assert world.switches == (f"{prefix}_s1", f"{prefix}_s2")
    assert world.intended == ("11111",) * 5
    with pytest.raises(KeyError):
        world.machine("p1_r0")


def test_names_fit_the_kernel_limit_at_the_largest_size() -> None:
    world = standard(32, 32, random.Random(0))
    names = [interface.name for machine in world.machines for interface in machine.interfaces]
    assert max(map(len, names)) <= 15
    assert len(set(names)) == len(names) == 1024 + 32


@settings(max_examples=25, deadline=None)
@given(seed=_SEEDS, switches=st.integers(3, 6), hosts=st.integers(1, 5))
def test_varied_world_is_consistent(seed: int, switches: int, hosts: int) -> None:
    world = varied(switches, hosts, random.Random(seed))
    assert World.model_validate_json(world.model_dump_json()) == world
    assert world == varied(switches, hosts, random.Random(seed))
    addresses = [
        IPv4Interface(interface.address)
        for machine in world.machines
        for interface in machine.interfaces
    ]
    assert len({address.ip for address in addresses}) == len(addresses)
    for machine in world.machines:
        for interface in machine.interfaces:
            network = world.networks[interface.subnet]
            address = IPv4Interface(interface.address)
            assert address.network == network
            assert address.ip in set(network.hosts())
    # each subnet has one more unused address, which faults may use
    members = Counter(host.interfaces[0].subnet for host in world.hosts)
    assert all(
        network.num_addresses - 2 > members[subnet] + 1
        for subnet, network in enumerate(world.networks)
    )
    assert all(not a.overlaps(b) for a, b in combinations(world.networks, 2))
    # in addition to the requested hosts, there are hosts in reserve, some of them on separate
    # subnets
    assert len(world.switches) == switches + NUM_RESERVE_SUBNETS
    assert len(world.reserve) == NUM_RESERVE == len(world.hosts) - switches * hosts
    serving = Counter(
        host.interfaces[0].subnet for host in world.hosts if host.name not in world.reserve
    )
    assert set(serving.values()) == {hosts}
    assert len(serving) == switches
    assert set(world.apart) < set(combinations(sorted(serving), 2))
    assert world.apart
    assert not world.closed  # as drawn, the world has no locks
    subnet = {host.name: host.interfaces[0].subnet for host in world.hosts}
    for source, row in zip(world.endpoints, world.intended, strict=True):
        for target, works in zip(world.endpoints, row, strict=True):
            ends = sorted(subnet.get(name, -1) for name in (source, target))
            assert (works == "0") is (tuple(ends) in world.apart)


def test_varied_worlds_differ_in_all_drawn_settings() -> None:
    worlds = [varied(3, 2, random.Random(seed)) for seed in range(60)]
    routers = [world.router for world in worlds]
    filters = [" ".join(router.filters) for router in routers]
    rules = [" ".join(router.rules) for router in routers]
    assert any("-P FORWARD DROP" in text for text in filters)
    assert any(f"-j {verdict}" in text for text in filters for verdict in ("DROP", "REJECT"))
    assert any("lookup" in text for text in rules)
    assert any("iif" in text and " to " in text for text in rules)
    assert any(router.interfaces[0].subnet for router in routers)
    assert any(IPv4Interface(p.address).ip != n[1] for w in worlds for p, n in _plan(w))
    assert len({network.prefixlen for world in worlds for network in world.networks}) > 4
    assert {len(host.routes) for world in worlds for host in world.hosts} == {1, 4}
    assert len({machine.sysctls for world in worlds for machine in world.hosts}) > 10
    # one of three pairs of subnets is separated
    assert len({len(world.apart) for world in worlds}) == 1
    assert len({len(varied(5, 1, random.Random(seed)).apart) for seed in range(60)}) > 2


def _plan(world: World):
    return zip(world.ports, world.networks, strict=True)


@pytest.mark.parametrize("seed", range(12))
def test_policy_rules_are_ordered_and_have_separate_tables(seed: int) -> None:
    """Policy rules have the properties that faults rely on: order, and separate tables."""
    router = varied(4, 1, random.Random(seed)).router
    preferences = [int(rule.split()[1]) for rule in router.rules]
    assert all(1000 <= a < b <= 30_000 for a, b in pairwise(preferences))
    tables = {int(route.split()[-1]) for route in router.routes if " table " in route}
    assert tables <= set(TABLES)
    assert len(tables) == sum(" lookup " in rule for rule in router.rules)
