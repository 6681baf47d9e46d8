"""The generated configurations of FRR and Linux contain a world's settings."""

from __future__ import annotations

from netarena_backbone.world.model import Rule, World
from netarena_backbone.world.render import frr_conf, render, rule_text


def test_every_machine_has_a_recipe_and_only_manageable_machines_have_a_login(world: World) -> None:
    setup = render(world)
    assert [recipe.machine for recipe in setup.recipes] == [*world.machines]
    kept_out = {recipe.machine for recipe in setup.recipes if not recipe.login}
    hosts = {host.name for host in world.hosts if not host.resolver}
    assert kept_out == {router.name for router in world.outside} | hosts
    assert {recipe.machine for recipe in setup.recipes if recipe.frr} == {
        router.name for router in (*world.routers, *world.outside)
    }
    assert len(setup.cables) == len(world.links)
    assert setup.endpoints == world.endpoints
    assert all(ask.source != ask.server for ask in setup.asks)


def test_probed_pairs_are_given_as_indices_of_endpoints(world: World) -> None:
    assert render(world).probed == ()
    names = [name for name, _ in world.endpoints]
    probed = ((names[2], names[0]), (names[1], names[-1]))
    setup = render(world.model_copy(update={"probed": probed}))
    assert setup.probed == ((2, 0), (1, len(names) - 1))


def test_frr_configuration_contains_the_settings_of_its_router(world: World) -> None:
    for router in world.routers:
        lines = frr_conf(router).splitlines()
        assert router.ospf is not None
        assert f" ospf router-id {router.ospf.router_id}" in lines
        assert "bgp route-map delay-timer 1" in lines
        for peer in router.bgp.peers:
            assert f" neighbor {peer.address} remote-as {peer.asn}" in lines
            assert (f" neighbor {peer.address} shutdown" in lines) == peer.shutdown
        for port in router.ports:
            if port.ospf:
                start = lines.index(f"interface {port.name}")
                assert f" ip ospf cost {port.ospf.cost}" in lines[start : start + 10]


def test_rule_is_written_in_iptables_syntax() -> None:
    rule = Rule(into="a", out="b", source="10.0.0.0/8", target="192.0.2.1", protocol="tcp", port=80)
    assert rule_text(rule) == (
        "FORWARD -s 10.0.0.0/8 -d 192.0.2.1 -i a -o b -p tcp --dport 80 -j DROP"
    )
    rule = Rule(state="ESTABLISHED", length=1000, verdict="ACCEPT")
    assert rule_text(rule) == (
        "FORWARD -m length --length 1000:65535 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    )
