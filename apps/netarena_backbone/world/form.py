"""Shapes of configurations: configuration lines as an agent reads them, without values that
identify a network.

The shapes omit names, addresses, keys and passwords, and most numbers that do not distinguish
faults. They count lines, the contents of whole blocks, and references between the parts of one
machine's configuration. Machines are not compared with each other, because such a comparison would
be diagnosis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from netarena_backbone.world.fib import is_on, network_of
from netarena_backbone.world.model import Host, Peer, Port, RouteMap, Router, Static, bare
from netarena_backbone.world.render import frr_conf, rule_text, service_line

_NAME = re.compile(r"\bp\d+_\w+(?:-eth\d+)?|\b[A-Z][A-Z0-9]*(?:-[A-Z]+)+\b")
_ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b")
_COMMUNITY = re.compile(r"\b\d+:\d+\b")
_WORD = re.compile(r"(md5|password) \S+")
_LARGE = re.compile(r"(?<![/.\d])\d{4,}\b|(?<=message-digest-key )\d+")
_COST = re.compile(r"(?<=cost )\d+|(?<=length )\d+")
_AREA = re.compile(r"area [1-9]\d*")
#: Minimum prefix length of a network between routers.
_WIRE = 30


def shapes(machine: Router | Host) -> Mapping[str, float]:
    """Return the shapes in a machine's configuration, each with the number of its occurrences."""
    found = _of_router(machine) if isinstance(machine, Router) else _of_host(machine)
    return {shape: float(number) for shape, number in sorted(Counter(found).items())}


@lru_cache(maxsize=16384)
def _shape(text: str) -> str:
    """Return ``text`` without names, addresses, keys and passwords."""
    text = _COST.sub(lambda match: _size(int(match[0])), _WORD.sub(r"\1 W", text))
    text = _COMMUNITY.sub("C", _ADDRESS.sub("A", _NAME.sub("M", text)))
    return _LARGE.sub("N", _AREA.sub("area N", text))


def _size(number: int) -> str:
    return "low" if number < 5 else "middle" if number < 200 else "high"


def _of_router(router: Router) -> Iterator[str]:
    block = ""
    for line in frr_conf(router).splitlines():
        if not line.startswith(" "):
            block = _shape(line).split(" permit")[0]
        yield _shape(f"{block}: {line.strip()}" if line.startswith(" ") else line)
    for port in router.ports:
        yield from _of_port(router, port)
    for peer in router.bgp.peers:
        yield from _of_peer(router, peer)
    for found in router.route_maps:
        yield from _of_map(router, found)
    for kind, statics in (("static", router.statics), ("kernel", router.kernel_routes)):
        for static in statics:
            yield _of_static(router, kind, static)
    for rule in router.rules:
        yield f"rule {_shape(rule_text(rule))}"
    yield f"first rule {_shape(rule_text(router.rules[0]))}" if router.rules else "no rule"
    for name, value in router.sysctls:
        yield f"sysctl {_NAME.sub('M', name)}={value}"
    yield from _references(router)


def _of_port(router: Router, port: Port) -> Iterator[str]:
    kind = "wire" if network_of(port.address).prefixlen >= _WIRE else "lan"
    yield f"{kind} mtu {port.mtu}"
    has = port.ospf or port.idle
    if has is None:
        yield f"{kind} without OSPF"
        return
    strict = "strict" if port.name in router.strict else ""
    part = "area 0" if port.ospf and has.area == "0" else "area" if port.ospf else "no area"
    yield f"{kind} {part} {'passive' if has.passive else ''} {strict}"
    active = f"{kind} {part} {'passive' if has.passive else 'active'}"
    yield f"{active} hello {has.hello} dead {has.dead}"
    yield f"{active} {has.network} {'key' if has.key else 'no key'}"
    yield f"{active} cost {_size(has.cost)}"


def _of_peer(router: Router, peer: Peer) -> Iterator[str]:
    kind = "inner" if peer.asn == router.asn else "outer"
    kind = f"shut {kind}" if peer.shutdown else kind
    source = "no source"
    if peer.update_source:
        source = "own source" if peer.update_source == router.loopback else "other source"
    near = "near" if any(is_on(peer.address, port.address) for port in router.ports) else "far"
    hops = f"multihop {peer.multihop} ttl {peer.ttl_security}"
    yield f"{kind} peer {near} {source} {hops}"
    yield f"{kind} peer {'password' if peer.password else 'no password'}"
    yield f"{kind} peer {'next-hop-self' if peer.next_hop_self else 'no next-hop-self'}"
    yield f"{kind} peer {'community' if peer.send_community else 'no community'}"
    yield f"{kind} peer passive {peer.passive} client {peer.client}"
    yield f"{kind} peer maximum {peer.maximum_prefix}"


def _of_map(router: Router, found: RouteMap) -> Iterator[str]:
    side = found.name.rpartition("-")[2]
    known = {one.community for one in router.community_lists}
    told = []
    for entry in found.entries:
        tag = "none" if not entry.community else "listed" if entry.community in known else "other"
        yield f"map {side} community {tag}"
        yield f"map {side} preference {entry.local_preference}"
        yield f"map {side} metric {entry.metric}"
        yield f"map {side} prepend {entry.prepend}"
        matched = _NAME.sub("M", entry.prefix_list) if side == "IN" else entry.prefix_list
        told.append(f"{entry.verdict} {matched}{entry.community_list}")
    if found.entries:
        yield f"map {side} begins with {found.entries[0].seq}"
    yield f"map {side}: {'; '.join(told)}"


def _of_static(router: Router, kind: str, static: Static) -> str:
    length = static.prefix.partition("/")[2]
    if static.via == "blackhole":
        return f"{kind} /{length} blackhole"
    nets = [network_of(port.address) for port in router.ports if is_on(static.via, port.address)]
    on = [net.prefixlen >= _WIRE for net in nets]
    where = "nowhere" if not on else "wire" if on[0] else "lan"
    return f"{kind} /{length} via {where}"


def _references(router: Router) -> Iterator[str]:
    ospf = router.ospf
    if ospf is not None:
        yield f"loopback {ospf.loopback}"
        yield f"OSPF id {'own' if ospf.router_id == router.loopback else 'other'}"
        yield f"areas {len({port.ospf.area for port in router.ports if port.ospf})}"
        listed = {
            entry.prefix
            for one in router.prefix_lists
            if one.name == "SERVICE-ADDRESSES"
            for entry in one.entries
        }
        hosts = {one.prefix for one in router.statics if one.via != "blackhole"}
        yield f"listed services without a route {bool(listed - hosts)}"
        yield (
            f"redistributes {bool(ospf.redistribute)}, has "
            f"{'listed routes' if listed & hosts else 'a list' if listed else 'nothing'}"
        )
    yield f"BGP id {'own' if router.bgp.router_id == router.loopback else 'other'}"
    ours = {e.prefix for one in router.prefix_lists if one.name == "OURS" for e in one.entries}
    wide = {one.prefix for one in router.statics if one.via == "blackhole"}
    if ours:
        yield f"OURS has a blackhole {bool(ours & wide)}, is announced {bool(router.bgp.networks)}"
    for one in router.prefix_lists:
        kind = "OURS" if one.name == "OURS" else _NAME.sub("M", one.name)
        entries = " ".join(
            f"{e.verdict} {'all' if e.prefix == '0.0.0.0/0' else network_of(e.prefix).prefixlen}"
            for e in one.entries
        )
        yield f"list {kind}: {entries}"


def _of_host(host: Host) -> Iterator[str]:
    own = {bare(host.port.address), *host.held}
    for service in host.services:
        address = service.address
        kind = "own" if address in own else address
        yield f"service {service.name} at {kind}"
        yield f"service {_ADDRESS.sub('A', service_line(service))}"
    yield f"mtu {host.port.mtu}"
    yield f"records {len(host.records)}"
    for name, value in host.sysctls:
        yield f"sysctl {_NAME.sub('M', name)}={value}"
