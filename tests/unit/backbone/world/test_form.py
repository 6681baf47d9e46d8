"""Shapes of the settings of a machine."""

from __future__ import annotations

from netarena_backbone.fault.change import on_peer, on_port, outer_peers, transit_ports
from netarena_backbone.world.form import shapes
from netarena_backbone.world.model import World


def test_shapes_contain_counts_of_settings_but_no_names_or_addresses(world: World) -> None:
    router, port, _, _ = next(transit_ports(world))
    found = shapes(router)
    assert not any(world.prefix in shape or router.loopback in shape for shape in found)
    narrow = shapes(on_port(router.name, port.name, mtu=576)(world).router(router.name))
    assert narrow["wire mtu 576"] == 1
    assert found[f"wire mtu {port.mtu}"] == narrow.get(f"wire mtu {port.mtu}", 0) + 1


def test_shapes_include_the_limits_of_sessions(world: World) -> None:
    router, peer = next(
        (router, peer) for router, peer in outer_peers(world) if peer.maximum_prefix != 1
    )
    edit = on_peer(router.name, peer.address, maximum_prefix=1, shutdown=True)
    edited = shapes(edit(world).router(router.name))
    before = shapes(router).get("shut outer peer maximum 1", 0)
    assert edited["shut outer peer maximum 1"] == before + 1


def test_shapes_of_hosts_list_their_services(world: World) -> None:
    host = next(one for one in world.hosts if one.services)
    assert any(shape.startswith("service ") for shape in shapes(host))
