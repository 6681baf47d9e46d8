"""Contingencies remove one link from a world, or change nothing."""

from __future__ import annotations

import pytest

from netarena_backbone.world.contingency import (
    RESTART,
    Contingency,
    contingencies,
    during,
    link_between,
)
from netarena_backbone.world.model import Static, World, bare
from netarena_backbone.world.render import render


def test_world_without_links_to_cut_has_no_contingency(world: World) -> None:
    assert contingencies(world) == ()
    assert render(world).cuttable == ()


def test_each_link_fails_once_and_the_restart_is_last(contingent: World) -> None:
    found = contingencies(contingent)
    assert tuple(one.cable for one in found) == (*contingent.contingencies, None)
    assert found[-1] == RESTART
    assert render(contingent).cuttable == contingent.contingencies


def test_failed_link_and_its_two_ports_are_removed_from_the_world(contingent: World) -> None:
    for one in contingencies(contingent)[:-1]:
        assert one.cable is not None
        link, less = link_between(contingent, one.cable), during(contingent, one)
        assert link is not None
        assert {*contingent.links} - {*less.links} == {link}
        for machine, port in (link.one, link.other):
            assert {*contingent.machines[machine].ports} - {*less.machines[machine].ports} == {
                contingent.router(machine).port(port)
            }


def test_restart_leaves_the_world_unchanged(contingent: World) -> None:
    assert during(contingent, RESTART) is contingent


def test_kernel_route_through_a_failed_link_becomes_a_blackhole(contingent: World) -> None:
    (cable, *_) = contingent.contingencies
    link = link_between(contingent, cable)
    assert link is not None
    (name, _), (far, far_port) = link.one, link.other
    gateway = bare(contingent.router(far).port(far_port).address)
    route = Static(prefix="192.0.2.0/25", via=gateway)
    edited = contingent.edit(name, lambda one: one.model_copy(update={"kernel_routes": (route,)}))
    kept = during(edited, Contingency("", cable)).router(name).kernel_routes
    assert kept == (Static(prefix="192.0.2.0/25", via="blackhole"),)


def test_pair_of_machines_without_exactly_one_link_is_refused(contingent: World) -> None:
    host = contingent.hosts[0]
    far = contingent.far[host.name, host.port.name][0]
    other = next(name for name in contingent.names if name != far)
    with pytest.raises(ValueError, match="need exactly one link"):
        during(contingent, Contingency("", (host.name, other)))
