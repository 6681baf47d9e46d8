"""Renders a world as the configuration of its machines: frr.conf, Linux commands and service files.

Lines of FRR have the same form as in ``show running-config``. The commands that inject and repair a
fault are derived from two renderings (``fault.derive``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Interface

from netarena_backbone.world.lab_spec import Ask, Cable, End, Recipe, Setup
from netarena_backbone.world.model import (
    LOOPBACK,
    Bgp,
    CommunityList,
    Host,
    MapEntry,
    Offer,
    Ospf,
    OspfPort,
    Peer,
    Port,
    PrefixEntry,
    Range,
    RouteMap,
    Router,
    Rule,
    Service,
    Static,
    World,
)
from netarena_backbone.world.routing import externals


def render(world: World) -> Setup:
    """Return the setup from which the lab builds ``world``."""
    numbers = {name: index for index, (name, _) in enumerate(world.endpoints)}
    return Setup(
        cables=tuple(
            Cable(ends=(_end(world, *link.one), _end(world, *link.other))) for link in world.links
        ),
        recipes=tuple(recipe(world, name) for name in world.machines),
        endpoints=world.endpoints,
        asks=asks(world),
        ways=tuple((numbers[one], numbers[other]) for one, other in world.ways),
        ears=tuple(router.name for router in world.outside),
        cuttable=world.contingencies,
        probed=tuple((numbers[one], numbers[other]) for one, other in world.probed),
        full_bytes=world.packet_bytes,
    )


def asks(world: World) -> tuple[Ask, ...]:
    """Return a test of each offered service from every other host.

    Hosts with a DNS server use the service's name; other hosts use its address.
    """
    return _asks(world.offers, tuple((host.name, host.resolver) for host in world.hosts))


@lru_cache(maxsize=32)
def _asks(offers: tuple[Offer, ...], hosts: tuple[tuple[str, str], ...]) -> tuple[Ask, ...]:
    return tuple(
        Ask(
            source=name,
            server=offer.host,
            target=offer.name if resolver else offer.address,
            protocol=offer.protocol,
            port=offer.port,
        )
        for offer in offers
        for name, resolver in hosts
        if name != offer.host
    )


def _end(world: World, machine: str, interface: str) -> End:
    port = next(one for one in world.machines[machine].ports if one.name == interface)
    return End(machine=machine, interface=interface, mac=port.mac)


def recipe(world: World, machine: str) -> Recipe:
    """Return the configuration of one machine."""
    found = world.machines[machine]
    if isinstance(found, Host):
        return _recipe_of_host(world, found)
    return _recipe_of_router(found, login=machine in world.names)


def _recipe_of_router(router: Router, *, login: bool) -> Recipe:
    return Recipe(
        machine=router.name,
        commands=(
            *_addresses(router.ports, (router.loopback, *router.held)),
            *(f"ip route add {kernel_route(one)}" for one in router.kernel_routes),
            *_settings(router.sysctls, router.rules),
        ),
        frr=frr_conf(router),
        login=login,
        told=tuple(str(prefix) for prefix, through in externals(router) if through),
    )


def _recipe_of_host(world: World, host: Host) -> Recipe:
    return Recipe(
        machine=host.name,
        commands=(
            *_addresses(host.ports, host.held),
            f"ip route add default via {host.gateway}",
            *_settings(host.sysctls, host.rules),
        ),
        services=tuple(service_line(service) for service in host.services),
        zone=tuple(record_line(*record) for record in host.records),
        resolver=host.resolver or None,
        login=all(host.zone != outsider.router for outsider in world.outsiders),
    )


def _addresses(ports: Sequence[Port], held: Sequence[str]) -> Iterator[str]:
    for address in held:
        yield f"ip addr add {address}/32 dev {LOOPBACK}"
    for port in ports:
        yield f"ip addr add {port.address} dev {port.name}"
        yield f"ip link set {port.name} mtu {port.mtu}"


def _settings(sysctls: Sequence[tuple[str, str]], rules: Sequence[Rule]) -> Iterator[str]:
    if sysctls:
        yield "sysctl -q -w " + " ".join(f"{name}={value}" for name, value in sysctls)
    if rules:
        # The chains are passed to iptables-restore one after the other. The handles of the rules
        # then increase within each chain.
        ordered = sorted(rules, key=lambda rule: rule.chain)
        lines = "\\n".join(f"-A {rule_text(rule)}" for rule in ordered)
        yield f"printf '*filter\\n{lines}\\nCOMMIT\\n' | iptables-restore"


def service_line(service: Service) -> str:
    """Return the line of a service in the machine's service file."""
    return f"{service.name} {service.protocol} {service.address} {service.port}"


def record_line(name: str, address: str) -> str:
    """Return the line of a DNS record in the server's zone file."""
    return f"{name} {address}"


def kernel_route(static: Static) -> str:
    """Return the arguments of ``ip route add`` for a static route."""
    if static.via == "blackhole":
        return f"blackhole {static.prefix}"
    return f"{static.prefix} via {static.via}"


def rule_text(rule: Rule) -> str:
    """Return the arguments of ``iptables -A`` for a rule."""
    words: list[str] = [rule.chain]
    words += ["-s", rule.source] if rule.source else []
    words += ["-d", rule.target] if rule.target else []
    words += ["-i", rule.into] if rule.into else []
    words += ["-o", rule.out] if rule.out else []
    words += ["-p", rule.protocol] if rule.protocol else []
    words += ["--dport", str(rule.port)] if rule.port else []
    words += ["--icmp-type", rule.icmp] if rule.icmp else []
    words += ["-m", "length", "--length", f"{rule.length}:65535"] if rule.length else []
    if rule.state:
        state = "RELATED,ESTABLISHED" if rule.state == "ESTABLISHED" else rule.state
        words += ["-m", "conntrack", "--ctstate", state]
    words += ["-j", rule.verdict]
    return " ".join(words)


# frr.conf in the form of ``show running-config``


def frr_conf(router: Router) -> str:
    """Return a router's complete frr.conf."""
    lines = [f"hostname {router.name}"]
    lines += [f"ip route {static_text(static)}" for static in router.statics]
    if router.ospf:
        for port in router.ports:
            if words := port_lines(router.ospf, port):
                lines += [f"interface {port.name}", *_indent(words), "exit"]
        if router.ospf.interfaces and router.ospf.loopback:
            lines += [f"interface {LOOPBACK}", f" ip ospf area {router.ospf.area}", "exit"]
        lines += ["router ospf", *_indent(ospf_lines(router.ospf, router)), "exit"]
    for name, entry in ((one.name, entry) for one in router.prefix_lists for entry in one.entries):
        lines.append(prefix_text(name, entry))
    lines += [community_text(one) for one in router.community_lists]
    for route_map in router.route_maps:
        lines += map_lines(route_map)
    lines.append("bgp route-map delay-timer 1")
    lines.append("zebra route-map delay-timer 1")
    lines += [f"router bgp {router.bgp.asn}", *_indent(bgp_lines(router.bgp)), "exit"]
    return "\n".join(lines) + "\n"


def _indent(lines: Sequence[str]) -> list[str]:
    return [f" {line}" for line in lines]


def static_text(static: Static) -> str:
    """Return the arguments of FRR's ``ip route`` command for a static route."""
    distance = f" {static.distance}" if static.distance != 1 else ""
    return f"{static.prefix} {static.via}{distance}"


def port_lines(ospf: Ospf, port: Port) -> list[str]:
    """Return the lines below ``interface``; empty if the port has no OSPF settings."""
    has = port.ospf or port.idle
    if has is None:
        return []
    return [
        *([f"ip ospf area {has.area}"] if ospf.interfaces and port.ospf else []),
        *(["ip ospf authentication message-digest"] if has.key else []),
        f"ip ospf cost {has.cost}",
        f"ip ospf dead-interval {has.dead}",
        f"ip ospf hello-interval {has.hello}",
        *([key_text(has)] if has.key else []),
        *(["ip ospf mtu-ignore"] if has.mtu_ignore else []),
        # Passive ports need this line too. A port of another type elects a designated router after
        # the dead interval. All routes are then recomputed.
        f"ip ospf network {has.network}",
        *(["ip ospf passive"] if has.passive else []),
        "ip ospf retransmit-interval 1",
    ]


def key_text(port: OspfPort) -> str:
    """Return the line that sets a port's authentication key."""
    return f"ip ospf message-digest-key {port.key_id} md5 {port.key}"


def ospf_lines(ospf: Ospf, router: Router) -> list[str]:
    """Return the lines below ``router ospf``."""
    lines = [
        f"ospf router-id {ospf.router_id}",
        "timers throttle spf 0 50 200",
        "timers throttle lsa all 0",
        "timers lsa min-arrival 0",
    ]
    if ospf.redistribute:
        lines.append(f"redistribute static route-map {ospf.redistribute}")
    if not ospf.interfaces:
        if ospf.loopback:
            lines.append(network_text(f"{router.loopback}/32", ospf.area))
        lines += [network_of(port) for port in router.ports if port.ospf]
    lines += [range_text(one) for one in ospf.ranges]
    return lines


def network_text(address: str, area: str) -> str:
    """Return the line that adds the network of an address to an area."""
    return f"network {IPv4Interface(address).network} area {area}"


def network_of(port: Port) -> str:
    """Return the ``network`` line that enables OSPF on ``port``."""
    assert port.ospf is not None
    return network_text(port.address, port.ospf.area)


def range_text(one: Range) -> str:
    """Return the line of a summary below ``router ospf``."""
    return f"area {one.area} range {one.prefix}{'' if one.advertise else ' not-advertise'}"


def prefix_text(name: str, entry: PrefixEntry) -> str:
    """Return the line of a prefix-list entry."""
    text = f"ip prefix-list {name} seq {entry.seq} {entry.verdict} {entry.prefix}"
    text += f" ge {entry.ge}" if entry.ge else ""
    return text + (f" le {entry.le}" if entry.le else "")


def community_text(one: CommunityList) -> str:
    """Return the line of a community list."""
    return f"bgp community-list standard {one.name} seq 5 permit {one.community}"


def map_lines(route_map: RouteMap) -> list[str]:
    """Return the lines of a route map, including the head line of each entry."""
    lines = []
    for entry in route_map.entries:
        lines += [f"route-map {route_map.name} {entry.verdict} {entry.seq}"]
        lines += [*_indent(entry_lines(entry)), "exit"]
    return lines


def entry_lines(entry: MapEntry) -> list[str]:
    """Return the lines below the head line of a route-map entry."""
    lines = []
    if entry.prefix_list:
        lines.append(f"match ip address prefix-list {entry.prefix_list}")
    if entry.community_list:
        lines.append(f"match community {entry.community_list}")
    if entry.prepend:
        lines.append(f"set as-path prepend last-as {entry.prepend}")
    if entry.community:
        lines.append(f"set community {entry.community}{' additive' if entry.additive else ''}")
    if entry.local_preference is not None:
        lines.append(f"set local-preference {entry.local_preference}")
    if entry.metric is not None:
        lines.append(f"set metric {entry.metric}")
    return lines


def bgp_lines(bgp: Bgp) -> list[str]:
    """Return the lines below ``router bgp``."""
    lines = [
        f"bgp router-id {bgp.router_id}",
        "bgp deterministic-med",
        "bgp bestpath compare-routerid",
        "timers bgp 1 3",
        "coalesce-time 10",
    ]
    for peer in bgp.peers:
        lines += peer_lines(peer)
    lines.append("address-family ipv4 unicast")
    lines += [f" network {prefix}" for prefix in bgp.networks]
    for peer in bgp.peers:
        lines += _indent(family_lines(peer))
    return [*lines, "exit-address-family"]


def peer_lines(peer: Peer) -> list[str]:
    """Return the lines of a peer directly below ``router bgp``."""
    head = f"neighbor {peer.address}"
    lines = [f"{head} remote-as {peer.asn}", f"{head} description {peer.description}"]
    if peer.password:
        lines.append(f"{head} password {peer.password}")
    if peer.multihop:
        lines.append(f"{head} ebgp-multihop {peer.multihop}")
    if peer.passive:
        lines.append(f"{head} passive")
    if peer.shutdown:
        lines.append(f"{head} shutdown")
    lines.append(f"{head} timers connect 1")
    if peer.ttl_security:
        lines.append(f"{head} ttl-security hops {peer.ttl_security}")
    if peer.update_source:
        lines.append(f"{head} update-source {peer.update_source}")
    return lines


def family_lines(peer: Peer) -> list[str]:
    """Return the lines of a peer below ``address-family ipv4 unicast``."""
    head = f"neighbor {peer.address}"
    lines = []
    if peer.weight:
        lines.append(f"{head} weight {peer.weight}")
    if peer.client:
        lines.append(f"{head} route-reflector-client")
    if peer.next_hop_self:
        lines.append(f"{head} next-hop-self")
    if not peer.send_community:
        lines.append(f"no {head} send-community")
    if peer.prefix_list_in:
        lines.append(f"{head} prefix-list {peer.prefix_list_in} in")
    if peer.prefix_list_out:
        lines.append(f"{head} prefix-list {peer.prefix_list_out} out")
    if peer.maximum_prefix:
        lines.append(f"{head} maximum-prefix {peer.maximum_prefix}")
    if peer.route_map_in:
        lines.append(f"{head} route-map {peer.route_map_in} in")
    if peer.route_map_out:
        lines.append(f"{head} route-map {peer.route_map_out} out")
    return lines
