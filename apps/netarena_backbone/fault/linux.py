"""Faults of static routes, packet filters, kernel settings and services on hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from ipaddress import IPv4Interface, IPv4Network
from itertools import chain
from types import MappingProxyType
from zlib import crc32

from netarena_backbone.fault.change import (
    Change,
    Edit,
    Method,
    added,
    both,
    dropped,
    on_host,
    on_items,
    on_port,
    preceded,
    simple,
    swapped,
    transit_ports,
)
from netarena_backbone.world.model import Host, Port, Router, Rule, Service, Static, World, bare
from netarena_backbone.world.odd import narrow
from netarena_backbone.world.render import (
    rule_text,
)

_LOOPBACK_ADDRESS, _DNS = "127.0.0.1", "dns"


def _targets(world: World) -> Iterator[str]:
    """For each of our hosts, yield the half of its network that contains the host."""
    for host in world.hosts:
        if host.resolver:
            address = IPv4Interface(host.port.address)
            yield str(IPv4Interface(f"{address.ip}/{address.network.prefixlen + 1}").network)


def _add_static(router: Router, static: Static) -> Edit:
    return on_items(router.name, "statics", added(static))


def _blackhole(world: World) -> Iterator[Change]:
    for router in world.routers:
        for net in _targets(world):
            static = Static(prefix=net, via="blackhole")
            if static in router.statics:
                continue
            yield simple(
                router.name,
                f"has a static blackhole route to {net} in FRR",
                _add_static(router, static),
                f"route {net}",
            )


def _kernel_blackhole(world: World) -> Iterator[Change]:
    for router in world.routers:
        for net in _targets(world):
            static = Static(prefix=net, via="blackhole")
            if static in router.kernel_routes:
                continue
            yield simple(
                router.name,
                f"has a kernel blackhole route to {net}",
                on_items(router.name, "kernel_routes", added(static)),
                f"route {net}",
            )


def _outer_blackhole(world: World) -> Iterator[Change]:
    """Yield blackhole routes to networks of other ASes."""
    for router in world.routers:
        for host in world.hosts:
            if not host.resolver:
                net = str(IPv4Interface(host.port.address).network)
                static = Static(prefix=net, via="blackhole")
                if static in router.statics:
                    continue
                yield simple(
                    router.name,
                    f"has a static blackhole route to {net} in FRR",
                    _add_static(router, static),
                    f"route {net}",
                )


def _wrong_gateway(world: World) -> Iterator[Change]:
    """Yield changes of routes to service addresses: the new next hop is an unused address."""
    for router in world.routers:
        for static in router.statics:
            owner = next((one for one in world.hosts if bare(one.port.address) == static.via), None)
            if owner is None:
                continue
            net = IPv4Interface(owner.port.address).network
            taken = {static.via, owner.gateway}
            spare = next(str(one) for one in net.hosts() if str(one) not in taken)
            yield _exchange_static(
                router,
                static,
                static.model_copy(update={"via": spare}),
                f"sends {static.prefix} to the unused address {spare} instead of {static.via}",
            )


def _next_hop_gone(world: World) -> Iterator[Change]:
    """Yield changes of static routes: the new next hop is unreachable."""
    for router in world.routers:
        for static in router.statics:
            if static.via == "blackhole":
                continue
            block = IPv4Network(world.infrastructure)
            gone = str(block[256 * 254 + crc32(static.prefix.encode()) % 200 + 20])
            yield _exchange_static(
                router,
                static,
                static.model_copy(update={"via": gone}),
                f"has a route to {static.prefix} via the unreachable address {gone} instead of via "
                f"{static.via}",
            )


def _exchange_static(router: Router, old: Static, new: Static, words: str) -> Change:
    return simple(
        router.name,
        words,
        on_items(router.name, "statics", swapped(old, new)),
        f"route {old.prefix}",
    )


# filters


def _insert(router: Router, rule: Rule, words: str, key: str) -> Change:
    """Return a change that inserts a rule before all other rules of the router."""
    return simple(
        router.name,
        words,
        on_items(router.name, "rules", preceded(rule)),
        f"rule {key}",
        key=f"{router.name} {key}",
    )


def _drops_zone(world: World) -> Iterator[Change]:
    for router in world.routers:
        for one in world.zones:
            for other in world.zones:
                if one != other:
                    rule = Rule(source=one.block, target=other.block)
                    yield _insert(
                        router,
                        rule,
                        f"drops forwarded packets from {one.block} to {other.block}",
                        f"{one.name} {other.name}",
                    )


def _drops_service(world: World) -> Iterator[Change]:
    for router in world.routers:
        for offer in world.offers:
            rule = Rule(
                target=offer.address,
                protocol=offer.protocol,
                port=offer.port,
                verdict="REJECT",
            )
            yield _insert(
                router,
                rule,
                f"rejects forwarded packets to {offer.protocol} port {offer.port} of "
                f"{offer.address}",
                f"{offer.address} {offer.port}",
            )


def _accept_missing(world: World) -> Iterator[Change]:
    """Yield changes that remove an ACCEPT rule from the FORWARD chain."""
    for router in world.routers:
        forward = [rule for rule in router.rules if rule.chain == "FORWARD"]
        for number, rule in enumerate(forward, start=1):
            if rule.verdict != "ACCEPT":
                continue
            text = rule_text(rule)
            yield simple(
                router.name,
                f"lacks the rule {text}",
                on_items(router.name, "rules", dropped(rule)),
                "rules",
                key=f"{router.name} {number}",
            )


def _opened(world: World) -> Iterator[Change]:
    """Yield rules that accept all traffic from a zone through a filtered port to hosts."""
    for router in world.routers:
        lans = {
            port.name
            for port in router.ports
            if isinstance(world.machines[world.far[router.name, port.name][0]], Host)
        }
        outs = sorted({rule.out for rule in router.rules} & lans)
        for out in outs:
            for zone in world.zones:
                rule = Rule(out=out, source=zone.block, verdict="ACCEPT")
                if rule not in router.rules:
                    yield _insert(
                        router,
                        rule,
                        f"accepts all packets from {zone.block} that leave through {out}",
                        f"{zone.name} {out}",
                    )


def _stateful(world: World) -> Iterator[Change]:
    """Yield rules that drop replies if the request did not pass the same router."""
    for router in world.routers:
        rule = Rule(state="INVALID")
        if rule not in router.rules:
            words = "drops packets that belong to no connection that it saw"
            yield _insert(router, rule, words, "state")


def _reverse_path(world: World) -> Iterator[Change]:
    for router in world.routers:
        for port in router.ports:
            name = f"net.ipv4.conf.{port.name}.rp_filter"
            if (name, "1") in router.sysctls:
                continue
            yield simple(
                router.name,
                f"accepts only packets at {port.name} that it would answer through {port.name}",
                on_items(router.name, "sysctls", added((name, "1"))),
                f"rp {port.name}",
            )


def _drops_long(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        length = world.packet_bytes - crc32(port.name.encode()) % 300
        yield _insert(
            router,
            Rule(out=port.name, length=length),
            f"drops packets of {length} bytes or more that leave through {port.name}",
            f"length {port.name}",
        )


def _narrow(world: World, port: Port) -> int:
    """Return an MTU that is smaller than the packets that every path must carry."""
    options = narrow(world.packet_bytes)
    return options[crc32(port.name.encode()) % len(options)]


def _narrow_link(world: World) -> Iterator[Change]:
    for router, port, other, far in transit_ports(world):
        if router.name > other.name or port.mtu < world.packet_bytes:
            continue
        value = _narrow(world, port)
        ends = ((router, port), (other, far))
        parts = tuple(on_port(one.name, end.name, mtu=value) for one, end in ends)
        yield Change(
            key=f"{router.name} {port.name}",
            machine=router.name,
            words=(
                f"{router.name} and {other.name} have an MTU of {value} on {port.name} and "
                f"{far.name} instead of {port.mtu}"
            ),
            edit=both(*parts),
            holds=frozenset(f"{one.name} ospf {end.name}" for one, end in ends),
            parts=parts,
            others=(other.name,),
        )


def _narrow_lan(world: World) -> Iterator[Change]:
    """Yield changes that set too small an MTU on a router's port to a host.

    Hosts with a TCP service are left out: the arrival of their responses depends on the kernel's
    segmentation, which is not computed.
    """
    servers = {offer.host for offer in world.offers if offer.protocol == "tcp"}
    for router in world.routers:
        for port in router.ports:
            far, _ = world.far[router.name, port.name]
            if isinstance(world.machines[far], Host) and far not in servers:
                value = _narrow(world, port)
                yield simple(
                    router.name,
                    f"has an MTU of {value} on {port.name} instead of {port.mtu}",
                    on_port(router.name, port.name, mtu=value),
                    f"ospf {port.name}",
                )


# services on hosts


def _served(world: World) -> Iterator[tuple[Host, Service]]:
    """Yield the services that other machines use, including DNS."""
    offers = {(offer.host, offer.protocol, offer.port) for offer in world.offers}
    for host in world.hosts:
        for service in host.services if host.resolver else ():
            known = (host.name, service.protocol, service.port) in offers
            if known or service.name == _DNS:
                yield host, service


def _other_service(host: Host, old: Service, new: Service, words: str) -> Change:
    return simple(
        host.name,
        words,
        on_host(
            host.name,
            lambda one: one.model_copy(
                update={"services": tuple(new if it == old else it for it in one.services)}
            ),
        ),
        f"service {old.name}",
    )


def _bound_wrong(world: World) -> Iterator[Change]:
    for host, service in _served(world):
        addresses = [bare(host.port.address), *host.held]
        others = [one for one in addresses if one != service.address]
        wrong = others[0] if service.address in addresses and others else _LOOPBACK_ADDRESS
        yield _other_service(
            host,
            service,
            service.model_copy(update={"address": wrong}),
            f"serves {service.name} at {wrong} instead of {service.address}",
        )


def _bound_port(world: World) -> Iterator[Change]:
    for host, service in _served(world):
        wrong = service.port + 1 + crc32(host.name.encode()) % 9
        yield _other_service(
            host,
            service,
            service.model_copy(update={"port": wrong}),
            f"serves {service.name} at {service.protocol} port {wrong} instead of {service.port}",
        )


def _other_record(world: World, *, missing: bool) -> Iterator[Change]:
    for host in world.hosts:
        for name, address in host.records:
            new = str(IPv4Interface(address).ip + 1)
            records = () if missing else ((name, new),)
            yield simple(
                host.name,
                f"does not know the name {name}"
                if missing
                else f"has {new} for the name {name} instead of {address}",
                on_host(host.name, _with_records(name, records)),
                f"record {name}",
            )


def _with_records(name: str, records: tuple[tuple[str, str], ...]) -> Callable[[Host], Host]:
    """Return an edit that replaces a DNS server's records for a name, at the same position."""

    def edit(host: Host) -> Host:
        found = (records if one[0] == name else (one,) for one in host.records)
        return host.model_copy(update={"records": tuple(chain.from_iterable(found))})

    return edit


def _with_resolver(address: str) -> Callable[[Host], Host]:
    return lambda host: host.model_copy(update={"resolver": address})


def _record_wrong(world: World) -> Iterator[Change]:
    yield from _other_record(world, missing=False)


def _record_missing(world: World) -> Iterator[Change]:
    yield from _other_record(world, missing=True)


def _resolver(world: World) -> Iterator[Change]:
    for host in world.hosts:
        if host.resolver:
            wrong = str(IPv4Interface(host.resolver).ip + 1)
            yield simple(
                host.name,
                f"asks {wrong} for names instead of {host.resolver}",
                on_host(host.name, _with_resolver(wrong)),
                "resolver",
            )


#: Kind of fault -> methods that inject it
LINUX: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "static_route": (
            Method("blackhole", _blackhole),
            Method("kernel_blackhole", _kernel_blackhole),
            Method("outer_blackhole", _outer_blackhole),
            Method("wrong_gateway", _wrong_gateway),
            Method("next_hop_gone", _next_hop_gone),
        ),
        "zone_filter": (
            Method("drops_zone", _drops_zone),
            Method("drops_service", _drops_service),
            Method("accept_missing", _accept_missing),
            Method("opened", _opened),
        ),
        "one_way": (Method("stateful", _stateful), Method("rp_filter", _reverse_path)),
        "path_mtu": (
            Method("link", _narrow_link),
            Method("lan", _narrow_lan),
            Method("long_dropped", _drops_long),
        ),
        "service_address": (
            Method("address", _bound_wrong),
            Method("port", _bound_port),
        ),
        "name_entry": (
            Method("wrong", _record_wrong),
            Method("missing", _record_missing),
            Method("resolver", _resolver),
        ),
    }
)
