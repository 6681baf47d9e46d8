"""Requested changes of hosts: a service or the name server moves to another host.

A service that moves keeps its name and its users. If the new host's router filters traffic, the
change adds rules for the zones that the old host's router admits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from netarena_backbone.fault.change import Change, Edit, Method, both, on_host, on_items, preceded
from netarena_backbone.planned.requested import Piece, listed, requested
from netarena_backbone.world.fib import is_on
from netarena_backbone.world.lab_spec import RESOLVER, SERVICES, Ask
from netarena_backbone.world.model import Host, Offer, Rule, Service, World, bare
from netarena_backbone.world.render import asks, rule_text, service_line

_DNS = "dns"


def _clients(world: World) -> Sequence[Host]:
    """Return our hosts that use a name server."""
    return [host for host in world.hosts if host.resolver]


class _Place(NamedTuple):
    """A service on a host, and the address that its users connect to."""

    host: Host
    service: Service
    address: str


def _admitted(world: World, sources: Iterable[Host], place: _Place) -> set[str]:
    """Return the names of the hosts whose packets to a service pass the filters of its host's
    router."""
    host, service, address = place
    gate, port = world.far[host.name, host.port.name]
    rules = [
        rule
        for rule in world.router(gate).rules
        if rule.chain == "FORWARD"
        and rule.out in {"", port}
        and rule.protocol in {"", service.protocol}
        and rule.port in {0, service.port}
        and (not rule.target or is_on(address, rule.target))
        and not (rule.state or rule.length or rule.icmp)
    ]
    found = set()
    for source in sources:
        own = bare(source.port.address)
        first = next((one for one in rules if not one.source or is_on(own, one.source)), None)
        if first is None or first.verdict == "ACCEPT":
            found.add(source.name)
    return found


def _admissions(
    world: World, sources: Sequence[Host], old: _Place, new: _Place
) -> list[Rule] | None:
    """Return the rules that give the service at ``new`` the same users as the service at ``old``.

    Returns None if the service at ``new`` would have additional users, or would need rules for only
    a part of a zone.
    """
    others = [one for one in sources if one is not new.host]
    before, after = (_admitted(world, others, place) for place in (old, new))
    before.add(old.host.name)  # a host reaches its own services without a router
    if after - before:
        return None
    port = world.far[new.host.name, new.host.port.name][1]
    rules = []
    for zone in world.zones:
        members = {one.name for one in others if one.zone == zone.name}
        missing = members & (before - after)
        if missing and missing != members:
            return None
        if missing:
            rules.append(
                Rule(
                    out=port,
                    source=zone.block,
                    protocol=new.service.protocol,
                    port=new.service.port,
                    verdict="ACCEPT",
                )
            )
    return rules


def _admitting(world: World, host: Host, rules: Sequence[Rule]) -> tuple[list[Piece], str]:
    """Return the edits that add rules on the router of a host, and a description of the rules."""
    if not rules:
        return [], ""
    gate = world.far[host.name, host.port.name][0]
    edits = [on_items(gate, "rules", preceded(rule)) for rule in rules]
    told = listed(f"iptables -I {rule_text(rule)}" for rule in rules)
    words = f"; on {gate}, admit the zones that may use it now, before all other rules: {told}"
    return [Piece(gate, both(*edits), "rules")], words


def _with_service(name: str, service: Service) -> Edit:
    return on_host(
        name, lambda host: host.model_copy(update={"services": (*host.services, service)})
    )


def _without_service(name: str, service: Service) -> Edit:
    return on_host(
        name,
        lambda host: host.model_copy(
            update={"services": tuple(one for one in host.services if one != service)}
        ),
    )


def _with_record(name: str, target: str, address: str) -> Edit:
    """Return an edit of a name server that changes its address record of the name ``target``."""

    def change(host: Host) -> Host:
        records = tuple((one, address if one == target else old) for one, old in host.records)
        return host.model_copy(update={"records": records})

    return on_host(name, change)


def _with_records(name: str, records: tuple[tuple[str, str], ...]) -> Edit:
    return on_host(name, lambda host: host.model_copy(update={"records": records}))


def _with_resolver(name: str, address: str) -> Edit:
    return on_host(name, lambda host: host.model_copy(update={"resolver": address}))


def _offered(world: World) -> Iterator[tuple[Offer, Host, Service]]:
    """Yield the named services of our hosts, each with its host and its configuration."""
    for offer in world.offers:
        host = world.host(offer.host)
        for service in host.services if host.resolver else ():
            if (service.protocol, service.port) == (offer.protocol, offer.port):
                yield offer, host, service


def _name_server(world: World) -> Iterator[tuple[Host, Service]]:
    for host in world.hosts:
        for service in host.services:
            if service.name == _DNS and host.records:
                yield host, service


def _move_service(world: World) -> Iterator[Change]:
    """Yield changes that move a service to another host. The service then listens at that host's
    own address."""
    for (offer, old, service), (server, _) in (
        (one, dns) for one in _offered(world) for dns in _name_server(world)
    ):
        for new in _clients(world):
            address = bare(new.port.address)
            moved = service.model_copy(update={"address": address})
            is_taken = any(
                one.name == service.name
                or (one.protocol, one.port) == (service.protocol, service.port)
                for one in new.services
            )
            if new is old or is_taken or (offer.name, address) in server.records:
                continue
            rules = _admissions(
                world, world.hosts, _Place(old, service, offer.address), _Place(new, moved, address)
            )
            if rules is None:
                continue
            pieces, admitted = _admitting(world, new, rules)
            yield requested(
                f"{offer.name} {new.name}",
                f"Move the service {offer.name} from {old.name} to {new.name}: serve it on "
                f"{new.name} at its own address ({service_line(moved)} in {SERVICES}){admitted}; "
                f"then give {offer.name} the address {address} on the name server {server.name}, "
                f"and remove the service from {old.name}",
                [
                    *pieces,
                    Piece(
                        new.name, _with_service(new.name, moved), f"service {moved.port} {address}"
                    ),
                    Piece(
                        server.name,
                        _with_record(server.name, offer.name, address),
                        f"record {offer.name}",
                    ),
                    Piece(
                        old.name,
                        _without_service(old.name, service),
                        f"service {service.port} {service.address}",
                    ),
                ],
                f"service {offer.name}",
            )


def _move_name_server(world: World) -> Iterator[Change]:
    """Yield changes that move the name server and all its names to another host."""
    for old, service in _name_server(world):
        users = [host for host in _clients(world) if host.resolver == service.address]
        for new in _clients(world):
            address = bare(new.port.address)
            moved = service.model_copy(update={"address": address})
            if new is old or new.records or any(one.port == service.port for one in new.services):
                continue
            rules = _admissions(
                world, users, _Place(old, service, service.address), _Place(new, moved, address)
            )
            if rules is None:
                continue
            pieces, admitted = _admitting(world, new, rules)
            yield requested(
                new.name,
                f"Move the name server from {old.name} to {new.name}: serve all of its names on "
                f"{new.name} at {address} ({service_line(moved)} in {SERVICES}){admitted}; then "
                f"use {address} as the name server of {listed(one.name for one in users)} "
                f"({RESOLVER}), and remove the service and all names from {old.name}",
                [
                    *pieces,
                    Piece(
                        new.name,
                        both(
                            _with_service(new.name, moved),
                            _with_records(new.name, old.records),
                        ),
                        f"service {moved.port} {address}",
                    ),
                    *(
                        Piece(one.name, _with_resolver(one.name, address), "resolver")
                        for one in users
                        if one is not old
                    ),
                    Piece(
                        old.name,
                        both(
                            _without_service(old.name, service),
                            _with_records(old.name, ()),
                            *(_with_resolver(one.name, address) for one in users if one is old),
                        ),
                        f"service {service.port} {service.address}",
                    ),
                ],
            )


def places(world: World) -> Mapping[str, tuple[str, str]]:
    """Return the address and the host of each named service.

    Services without an address record are omitted, as are services whose address belongs to a host
    that does not serve them.
    """
    records = {name: address for host in world.hosts for name, address in host.records}
    found = {}
    for offer in world.offers:
        for host in world.hosts:
            own = {bare(host.port.address), *host.held}
            address = records.get(offer.name)
            if address in own and any(
                (one.protocol, one.port) == (offer.protocol, offer.port) for one in host.services
            ):
                found[offer.name] = address, host.name
    return found


def asks_of_both(today: World, target: World) -> tuple[Ask, ...]:
    """Return the tests of services in today's network.

    If a service moves to another host, an answer of that host is correct too.
    """
    then = places(target)
    found = []
    for ask in asks(today):
        _, host = then.get(ask.target, ("", ask.server))
        also = host if host != ask.server else ""
        found.append(ask.model_copy(update={"also": also}) if also else ask)
    return tuple(found)


def moved(today: World, target: World) -> Iterator[str]:
    """Yield sentences about the services and name servers whose host or address differs in
    ``target``."""
    before, after = places(today), places(target)
    for offer in target.offers:
        place = after.get(offer.name)
        if place is not None and before.get(offer.name) != place:
            yield f"{offer.name} is {place[0]} on {place[1]}, {offer.protocol} port {offer.port}"
    servers = [(host.name, service.address) for host, service in _name_server(today)]
    for host, service in _name_server(target):
        if (host.name, service.address) not in servers:
            yield f"The name server is {service.address} on {host.name}, udp port {service.port}"


#: Kind of requested change -> its methods
HOST: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "service_move": (
            Method("host", _move_service),
            Method("name_server", _move_name_server),
        ),
    }
)
