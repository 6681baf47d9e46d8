"""Requested changes of packet filters, which open or close zones and services to other zones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType

from netarena_backbone.fault.change import Change, Method, dropped, on_items, preceded
from netarena_backbone.planned.requested import Piece, listed, requested
from netarena_backbone.world.model import Host, Offer, Rule, World, Zone
from netarena_backbone.world.render import rule_text

#: Setting that a change reserves if it inserts filter rules on a router. The effect of two rules
#: may depend on their order, so two requests never insert rules on the same router.
_HELD = "rules"


def _inner_zones(world: World) -> Sequence[Zone]:
    outer = {one.router for one in world.outsiders}
    return [zone for zone in world.zones if zone.name not in outer]


def _gates(world: World, zone: Zone) -> Mapping[str, list[Host]]:
    """Return the hosts of a zone, grouped by the router to which they are connected."""
    found: dict[str, list[Host]] = {}
    for host in world.hosts:
        if host.zone == zone.name:
            found.setdefault(world.far[host.name, host.port.name][0], []).append(host)
    return found


def _port_of(world: World, host: Host) -> str:
    return world.far[host.name, host.port.name][1]


def _first_rule(world: World, zone: Zone, rule: Rule) -> Iterator[Piece]:
    for name in _gates(world, zone):
        if rule not in world.router(name).rules:
            yield Piece(name, on_items(name, "rules", preceded(rule)), _HELD)


def _close_zone(world: World) -> Iterator[Change]:
    for zone in _inner_zones(world):
        for other in world.zones:
            rule = Rule(source=other.block, target=zone.block)
            pieces = [*_first_rule(world, zone, rule)]
            if other is not zone and len(pieces) == len(_gates(world, zone)):
                yield requested(
                    f"{zone.name} {other.name}",
                    f"Close zone {zone.name} to zone {other.name}: on {_machines(pieces)}, to "
                    f"which the hosts of {zone.name} are connected, drop all packets from "
                    f"{other.block} to {zone.block}, as the first rule of FORWARD "
                    f"({_insertion(rule)})",
                    pieces,
                )


def _open_zone(world: World) -> Iterator[Change]:
    """Yield changes that remove the rule that closes one zone to another zone."""
    for zone, other in permutations(world.zones, 2):
        rule = Rule(source=other.block, target=zone.block)
        names = [name for name in _gates(world, zone) if rule in world.router(name).rules]
        if names and len(names) == len(_gates(world, zone)):
            yield requested(
                f"{zone.name} {other.name}",
                f"Open zone {zone.name} to zone {other.name}: on {listed(names)}, remove the rule "
                f"of FORWARD that drops all packets from {other.block} to {zone.block}",
                [_removal(name, rule) for name in names],
            )


def _admit_zone(world: World) -> Iterator[Change]:
    """Yield changes that add rules that admit another zone to a filtered zone."""
    for zone in _inner_zones(world):
        for other in world.zones:
            pieces: list[Piece] = []
            told: list[str] = []
            for name, hosts in _gates(world, zone).items():
                for host in hosts:
                    port = _port_of(world, host)
                    rule = Rule(out=port, source=other.block, verdict="ACCEPT")
                    rules = world.router(name).rules
                    is_filtered = any(
                        one.out == port and one.state == "ESTABLISHED" for one in rules
                    )
                    if is_filtered and rule not in rules:
                        edit = on_items(name, "rules", preceded(rule))
                        pieces.append(Piece(name, edit, _HELD))
                        told.append(f"{_insertion(rule)} on {name}")
            number = sum(len(hosts) for hosts in _gates(world, zone).values())
            if other is not zone and len(pieces) == number:
                yield requested(
                    f"{zone.name} {other.name}",
                    f"Admit zone {other.name} ({other.block}) to all hosts of zone {zone.name}, "
                    f"before all other rules: {listed(told)}",
                    pieces,
                )


def _close_service(world: World) -> Iterator[Change]:
    for offer, name in _offers(world):
        rule = _rejection(offer)
        if rule not in world.router(name).rules:
            yield requested(
                offer.name,
                f"Close the service {offer.name} to all other hosts: on {name}, reject "
                f"{offer.protocol} port {offer.port} of {offer.address}, as the first rule "
                f"of FORWARD ({_insertion(rule)})",
                [Piece(name, on_items(name, "rules", preceded(rule)), _HELD)],
                f"service {offer.name}",
            )


def _open_service(world: World) -> Iterator[Change]:
    for offer, name in _offers(world):
        rule = _rejection(offer)
        if rule in world.router(name).rules:
            yield requested(
                offer.name,
                f"Open the service {offer.name}: on {name}, remove the rule of FORWARD that "
                f"rejects {offer.protocol} port {offer.port} of {offer.address}",
                [_removal(name, rule)],
                f"service {offer.name}",
            )


def _removal(name: str, rule: Rule) -> Piece:
    """Return the edit that removes a rule.

    Unlike an insertion, it does not reserve all rules: the removal may come before or after the
    insertion of another rule.
    """
    return Piece(name, on_items(name, "rules", dropped(rule)), f"rule {rule_text(rule)}")


def _insertion(rule: Rule) -> str:
    return f"iptables -I {rule_text(rule)}"


def _machines(pieces: Iterable[Piece]) -> str:
    return listed(dict.fromkeys(piece.machine for piece in pieces))


def _offers(world: World) -> Iterator[tuple[Offer, str]]:
    """Yield the services on our hosts, each with the router to which its host is connected."""
    for offer in world.offers:
        host = world.host(offer.host)
        if host.resolver:
            yield offer, world.far[host.name, host.port.name][0]


def _rejection(offer: Offer) -> Rule:
    return Rule(target=offer.address, protocol=offer.protocol, port=offer.port, verdict="REJECT")


#: Kind of requested change -> its methods
FILTER: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "zone_filter": (
            Method("close", _close_zone),
            Method("open", _open_zone),
            Method("admit", _admit_zone),
        ),
        "service_filter": (Method("close", _close_service), Method("open", _open_service)),
    }
)
