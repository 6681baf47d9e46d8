"""The paper's five kinds of faults, all on the router.

Methods of the reference implementation that have no effect are replaced with effective methods.
Examples of methods without effect are masks that still include the hosts, delays without netem, and
a gateway that the kernel rejects.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

from netarena_route.fault.method import (
    NARROW_MASKS,
    SET_ADDRESS,
    TIGHT_QUEUES,
    Method,
    Scope,
    Site,
    crosses,
    enters,
    forwards,
    leaves,
    leaves_by_main,
    local,
    port_rows,
    queue_rows,
)
from netarena_route.world.path import MAIN, Packet


def _accepts_forwarding(site: Site) -> bool:
    return not any(text.split()[:2] == ["-P", "FORWARD"] for text in site.plan.router.filters)


def _sent_on(site: Site, packet: Packet) -> bool:
    """Return whether the router sends a packet. This includes the router's own packets."""
    del site
    return packet.leaves is not None


def _from_subnet(site: Site, packet: Packet) -> bool:
    return packet.forwarded and packet.source == site.subnet


def _gone(site: Site, packet: Packet) -> bool:
    """Return whether a packet is lost because a port has no address.

    The router has no route to the port's hosts, and the hosts cannot resolve the router's address.
    """
    return crosses(site, packet) or (
        packet.dst == site.plan.router.name and packet.target == site.subnet
    )


def _renamed(site: Site, packet: Packet) -> bool:
    """Return whether a packet is lost because a port has a wrong address.

    The hosts cannot resolve the correct address. They still answer packets that the router sends
    from the wrong address.
    """
    return (enters(site, packet) and packet.routed) or (
        packet.dst == site.plan.router.name and packet.target == site.subnet and not packet.reply
    )


def _outside(site: Site, packet: Packet, length: int) -> bool:
    """Return whether a packet goes to a host outside the narrower network.

    Packets that use a table other than main are lost too, because that table's route through the
    port is removed with the address.
    """
    return leaves(site, packet) and (
        packet.table != MAIN or site.at(packet.dst) not in site.narrow[length]
    )


_SET_ROUTE = (
    "ip route flush exact {net} && ip route add {net} dev {port} proto kernel scope link src {ip}"
)


def _no_edge(site: Site, length: int) -> bool:
    """Return whether the network address and the broadcast address of the narrower network are
    unused.

    Different kernel versions treat these addresses differently.
    """
    network = IPv4Network((site.address.ip, length), strict=False)
    edges = set(network) - site.narrow[length]
    return edges.isdisjoint({site.address.ip, *map(site.at, site.plan.world.endpoints)})


def _mask(length: int) -> Method:
    return Method(
        f"mask_{length}",
        Scope.ROUTER,
        f"{{machine}} has {{ip}} on {{port}} with the mask /{length} instead of /{{length}}",
        f"ip addr flush dev {{port}} && ip addr add {{ip}}/{length} dev {{port}}",
        SET_ADDRESS,
        lambda site, packet: _outside(site, packet, length),
        holds=("{port}", "~{net} halves"),
        fits=lambda site: _no_edge(site, length),
    )


def _local_drop(name: str, match: str, verdict: str, words: str) -> Method:
    rules = (
        ("INPUT", f"-s {{net}}{match} -j {verdict}"),
        ("OUTPUT", f"-d {{net}}{match} -j {verdict}"),
    )
    return Method(
        name,
        Scope.ROUTER,
        f"{{machine}} {words} of its own to and from {{net}}",
        " && ".join(f"iptables -I {chain} {{at_{chain}}}{rest}" for chain, rest in rules),
        " && ".join(f"iptables -D {chain} {rest}" for chain, rest in rules),
        local,
    )


def _route(name: str, words: str, *wrong: str, holds: tuple[str, ...] = ()) -> Method:
    commands = ("ip route del {net} dev {port}", *(f"ip route add {route}" for route in wrong))
    return Method(
        name,
        Scope.ROUTER,
        words,
        " && ".join(commands),
        _SET_ROUTE,
        leaves_by_main,
        holds=("{port}", *holds),
    )


_NETEM_QUEUES = (
    ("netem_delay", "netem delay 10s", "delays all that it sends by 10 s"),
    ("netem_loss", "netem loss 100%", "loses all that it sends"),
)

PAPER: dict[str, tuple[Method, ...]] = {
    "disable_routing": (
        Method(
            "ip_forward",
            Scope.ROUTER,
            "{machine} forwards nothing: net.ipv4.ip_forward is 0",
            "sysctl -w net.ipv4.ip_forward=0",
            "sysctl -w net.ipv4.ip_forward=1{kept_settings}",
            forwards,
            # A change of ip_forward also changes the forwarding setting of each port.
            holds=("{machine} forwarding",),
        ),
        Method(
            "forward_policy",
            Scope.ROUTER,
            "{machine} forwards nothing: the policy of iptables' FORWARD is DROP",
            "iptables -P FORWARD DROP",
            "iptables -P FORWARD ACCEPT",
            forwards,
            fits=_accepts_forwarding,
        ),
        Method(
            "rule_prohibit",
            Scope.ROUTER,
            "{machine} has a policy rule that prohibits all that is not for itself",
            "ip rule add prohibit pref {first_pref}",
            "ip rule del prohibit pref {first_pref}",
            _sent_on,
        ),
        Method(
            "forward_source",
            Scope.ROUTER,
            "{machine} drops what it should forward from {net}",
            "iptables -I FORWARD {at_FORWARD}-s {net} -j DROP",
            "iptables -D FORWARD -s {net} -j DROP",
            _from_subnet,
        ),
    ),
    "disable_interface": (*port_rows(Scope.ROUTER, crosses, enters),),
    "remove_ip": (
        Method(
            "flush",
            Scope.ROUTER,
            "{port} of {machine} has no address",
            "ip addr flush dev {port}",
            SET_ADDRESS,
            _gone,
            holds=("{port}",),
        ),
        Method(
            "wrong_address",
            Scope.ROUTER,
            "{port} of {machine} has {spare} instead of {ip}",
            "ip addr flush dev {port} && ip addr add {spare}/{length} brd + dev {port}",
            SET_ADDRESS,
            _renamed,
            holds=("{port}", "{spare}", "{ip}"),
            resolves=True,
        ),
        *(_mask(length) for length in NARROW_MASKS),
        Method(
            "duplicate",
            Scope.ROUTER,
            "{port} of {machine} has the address of {other_port} instead of {ip}",
            "ip addr flush dev {port} && ip addr add {other_address} brd + dev {port}",
            SET_ADDRESS,
            _gone,
            holds=("{port}", "{other_port}"),
        ),
    ),
    "drop_traffic_to_from_subnet": (
        _local_drop("drop", "", "DROP", "drops all traffic"),
        _local_drop("reject", "", "REJECT", "rejects all traffic"),
        _local_drop("icmp", " -p icmp", "DROP", "drops ICMP"),
        *queue_rows(Scope.ROUTER, leaves, TIGHT_QUEUES),
        *(
            replace(method, netem=True)
            for method in queue_rows(Scope.ROUTER, leaves, _NETEM_QUEUES)
        ),
    ),
    "wrong_routing_table": (
        _route("missing", "{machine} has no route to {net}"),
        _route(
            "other_interface",
            "{machine} sends what is for {net} out by {other_port}",
            "{net} dev {other_port}",
            holds=("{other_port}",),
        ),
        _route(
            "bad_gateway",
            "{machine} sends what is for {net} to {spare}, which nobody has",
            "{net} via {spare} dev {port} onlink",
            holds=("{spare}",),
        ),
        _route(
            "metric",
            "{machine} prefers a route to {net} via {spare}, which nobody has",
            "{net} dev {port} proto kernel scope link src {ip} metric {worse_metric}",
            "{net} via {spare} dev {port} onlink metric {metric}",
            holds=("{spare}",),
        ),
        _route("loop", "{machine} sends what is for {net} to itself", "{net} dev lo"),
    ),
}
