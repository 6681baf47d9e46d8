"""Intended settings that look like faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import mean

import pytest

from netarena_backbone.draw import _Draft as Draft
from netarena_backbone.draw import draw
from netarena_backbone.fault.table import KINDS
from netarena_backbone.world import odd
from netarena_backbone.world.form import shapes
from netarena_backbone.world.mix import mix
from netarena_backbone.world.model import World, bare


@pytest.fixture(name="worlds", scope="module")
def _worlds(world: World) -> Sequence[World]:
    return [world, *(draw(random.Random(seed), 6) for seed in range(11, 13))]


@pytest.fixture(name="drafts", scope="module")
def _drafts() -> Sequence[World]:
    """Return worlds with intended settings, drawn without verification, which is faster."""
    rng = random.Random(5)
    return [mix(Draft(rng, 6).world(), rng) for _ in range(30)]


def test_links_have_various_mtus_and_both_ends_agree(worlds: Sequence[World]) -> None:
    found = set()
    for world in worlds:
        for link in world.links:
            mtus = [
                port.mtu
                for name, number in (link.one, link.other)
                for port in world.machines[name].ports
                if port.name == number
            ]
            assert len(set(mtus)) == 1
            found.add(mtus[0])
        assert {host.port.mtu for host in world.hosts} == {world.packet_bytes}
    assert len(found) > 5
    assert found <= {*odd.MTUS, *odd.PACKETS_BYTES}
    assert {world.packet_bytes for world in worlds} <= {*odd.PACKETS_BYTES}


def test_no_prepared_session_is_accepted_at_another_address_of_the_peer(
    drafts: Sequence[World],
) -> None:
    """FRR checks only the source address, so such a connection could end the active session."""
    num_prepared = 0
    for world in drafts:
        names = {router.name for router in world.outside}
        for router in world.routers:
            own = {bare(port.address) for port in router.ports}
            for peer in router.bgp.peers:
                if peer.description in names and (router.name, peer.address) in world.closed:
                    num_prepared += 1
                    known = {one.address for one in world.router(peer.description).bgp.peers}
                    assert known.isdisjoint({peer.update_source} if peer.update_source else own)
    assert num_prepared


def test_some_border_routers_use_next_hop_self_on_no_session(
    drafts: Sequence[World],
) -> None:
    found = {
        any(peer.next_hop_self for peer in router.bgp.peers if peer.asn == world.asn)
        for world in drafts
        for router in world.routers
        if any(peer.asn != world.asn for peer in router.bgp.peers)
    }
    assert found == {True, False}


def test_area_border_routers_have_more_hidden_summaries_than_others(
    drafts: Sequence[World],
) -> None:
    numbers: dict[bool, list[int]] = {True: [], False: []}
    for world in drafts:
        for router in world.routers:
            if router.ospf is not None:
                areas = {port.ospf.area for port in router.ports if port.ospf}
                hidden = sum(not one.advertise for one in router.ospf.ranges)
                numbers[len(areas) > 1].append(hidden)
    assert max(numbers[False]) == 1
    assert max(numbers[True]) > 1
    assert mean(numbers[True]) > 2 * mean(numbers[False])


#: Methods after which a router has a form that does not occur in the intended state. There, each
#: router advertises its own address, its host networks and the whole block of the AS.
_WITHOUT_TWIN = {
    "ospf_network.loopback_missing",
    "ospf_network.network_missing",
    "bgp_filter.tells_less",
}
#: maximum share of a method's changes that add a shape absent from all intended machines
_MOST_NEW = 0.5


def test_shapes_added_by_faults_also_occur_on_machines_without_faults(
    worlds: Sequence[World], drafts: Sequence[World]
) -> None:
    healthy = {
        shape
        for world in (*worlds, *drafts)
        for one in world.machines.values()
        for shape in shapes(one)
    }
    missing = set()
    for kind, methods in KINDS.items():
        for method in methods:
            new = [
                bool(shapes(edited.machines[name]).keys() - healthy)
                for world in worlds
                for change in [*method.changes(world)][:2]
                for edited in [change.edit(world)]
                for name in change.machines
            ]
            if new and sum(new) / len(new) > _MOST_NEW:
                missing.add(f"{kind}.{method.name}")
    assert missing <= _WITHOUT_TWIN
    assert "ospf_network.loopback_missing" in missing
