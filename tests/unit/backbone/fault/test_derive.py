"""Commands that inject and repair faults, derived from rendered configurations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netarena_backbone.fault.change import Change
from netarena_backbone.fault.derive import orders, vtysh
from netarena_backbone.fault.table import KINDS
from netarena_backbone.world.model import Peer, Rule, Static, World


def _changes(world: World, method: str) -> Iterator[Change]:
    kind, _, name = method.partition(".")
    found = next(one for one in KINDS[kind] if one.name == name)
    return found.changes(world)


def _repair(world: World, method: str) -> str:
    change = next(_changes(world, method))
    (_, line), *_ = orders(change.edit(world), world)
    return line


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        (("router ospf", "x"), "vtysh -c 'configure terminal' -c 'router ospf' -c 'x'"),
        (("a", "!clear b"), "vtysh -c 'configure terminal' -c 'a' -c 'end' -c 'clear b'"),
        (("!clear b",), "vtysh -c 'clear b'"),
    ],
)
def test_lines_are_joined_into_one_vtysh_command(lines: tuple[str, ...], command: str) -> None:
    assert vtysh(*lines) == command


def test_equal_worlds_need_no_command(world: World) -> None:
    assert orders(world, world) == ()


def test_setting_with_one_value_is_overwritten_in_its_block(world: World) -> None:
    change = next(_changes(world, "ospf_cost.high"))
    _, _, port = next(iter(change.holds)).rpartition(" ")
    right = world.router(change.machine).port(port).ospf
    assert right is not None
    assert _repair(world, "ospf_cost.high") == vtysh(
        f"interface {port}", f"ip ospf cost {right.cost}"
    )


def test_added_setting_is_removed_and_removed_setting_is_added(world: World) -> None:
    assert "-c 'no ip ospf passive'" in _repair(world, "ospf_passive.passive")
    assert " -c 'redistribute static route-map" in _repair(world, "ospf_redistribution.missing")


def test_line_with_leading_no_is_removed_with_the_line_without_no(world: World) -> None:
    line = _repair(world, "bgp_community.stripped")
    assert " send-community'" in line
    assert "no neighbor" not in line


def test_route_map_entry_is_removed_and_added_as_a_whole(world: World) -> None:
    change = next(_changes(world, "bgp_filter.tells_not"))
    edited = change.edit(world)
    (_, inject), (_, repair) = *orders(world, edited), *orders(edited, world)
    assert inject.count(" -c ") == 2
    assert " -c 'no route-map " in inject
    assert " -c 'match ip address prefix-list OURS'" in repair


def test_denied_route_map_entry_is_permitted_with_its_first_line_only(world: World) -> None:
    line = _repair(world, "ospf_redistribution.denied")
    assert line == vtysh("route-map STATIC-TO-OSPF permit 10")


def test_changes_of_router_id_and_maximum_prefix_include_a_clear_command(world: World) -> None:
    change = next(_changes(world, "bgp_maximum.reached"))
    _, line = orders(change.edit(world), world)[0]
    assert " -c 'end' -c 'clear bgp ipv4 unicast " in line
    name = world.routers[0].name
    edited = world.edit(
        name,
        lambda one: one.model_copy(
            update={"ospf": one.ospf.model_copy(update={"router_id": "192.0.2.9"})}
            if one.ospf
            else {}
        ),
    )
    ((machine, line),) = orders(edited, world)
    assert machine == name
    assert line.endswith(" -c 'end' -c 'clear ip ospf process'")


def test_removed_filter_rule_is_inserted_at_its_old_position(world: World) -> None:
    router = next(one for one in world.routers if len(one.rules) > 2)
    rules = [rule for rule in router.rules if rule.chain == "FORWARD"]
    edited = world.edit(
        router.name, lambda one: one.model_copy(update={"rules": (rules[0], *rules[2:])})
    )
    before = world.edit(router.name, lambda one: one.model_copy(update={"rules": tuple(rules)}))
    ((_, line),) = orders(edited, before)
    assert line.startswith("iptables -I FORWARD 2 ")


def test_kernel_settings_are_reverted(world: World) -> None:
    router = world.routers[0]
    edited = world.edit(
        router.name,
        lambda one: one.model_copy(
            update={
                "kernel_routes": (
                    *one.kernel_routes,
                    Static(prefix="192.0.2.0/25", via="blackhole"),
                ),
                "rules": (Rule(state="INVALID", source="192.0.2.0/25"), *one.rules),
                "sysctls": (*one.sysctls, ("net.ipv4.conf.x.rp_filter", "1")),
                "ports": (
                    one.ports[0].model_copy(update={"mtu": one.ports[0].mtu + 1}),
                    *one.ports[1:],
                ),
            }
        ),
    )
    ((_, line),) = orders(edited, world)
    port = router.ports[0]
    assert line.split("; ") == [
        "ip route del blackhole 192.0.2.0/25",
        f"ip link set {port.name} mtu {port.mtu}",
        "sysctl -w net.ipv4.conf.x.rp_filter=0",
        "iptables -D FORWARD -s 192.0.2.0/25 -m conntrack --ctstate INVALID -j DROP",
    ]


def test_lines_of_files_are_replaced_removed_and_added(world: World) -> None:
    assert _repair(world, "name_entry.wrong").startswith("sed -i 's/^")
    assert _repair(world, "name_entry.missing").startswith("echo '")
    assert _repair(world, "name_entry.missing").endswith(" >> /etc/serve/zone")
    assert _repair(world, "name_entry.resolver").endswith(" > /etc/serve/resolver")
    change = next(_changes(world, "name_entry.missing"))
    (_, line), *_ = orders(world, change.edit(world))
    assert line.startswith("sed -i '/^")


def test_remote_as_is_the_first_setting_of_a_new_peer(world: World) -> None:
    name = world.routers[0].name
    peer = Peer(address="192.0.2.1", asn=65000, description="new", password="x")
    edited = world.edit(
        name,
        lambda one: one.model_copy(
            update={"bgp": one.bgp.model_copy(update={"peers": (*one.bgp.peers, peer)})}
        ),
    )
    ((_, line),) = orders(world, edited)
    assert line.index("remote-as") < line.index("description") < line.index("password")


def test_bgp_neighbour_is_removed_with_one_command(world: World) -> None:
    router = next(one for one in world.routers if len(one.bgp.peers) > 1)
    gone, changed, *others = router.bgp.peers
    peers = (changed.model_copy(update={"weight": 7}), *others)
    edited = world.edit(
        router.name,
        lambda one: one.model_copy(update={"bgp": one.bgp.model_copy(update={"peers": peers})}),
    )
    ((_, line),) = orders(world, edited)
    assert line.startswith(
        vtysh(f"router bgp {router.bgp.asn}", f"no neighbor {gone.address}").removesuffix("'")
    )
    assert line.count(f"neighbor {gone.address}'") == line.count(gone.address) == 1
    assert f"neighbor {changed.address} weight 7" in line


def test_address_is_added_before_the_old_one_is_removed(world: World) -> None:
    router, port = world.routers[0], world.routers[0].ports[0]
    edited = world.edit(
        router.name,
        lambda one: one.model_copy(
            update={
                "ports": (port.model_copy(update={"address": "192.0.2.0/31"}), *one.ports[1:]),
            }
        ),
    )
    ((_, line),) = orders(world, edited)
    assert line.endswith(
        f"ip addr add 192.0.2.0/31 dev {port.name}; ip addr del {port.address} dev {port.name}"
    )
