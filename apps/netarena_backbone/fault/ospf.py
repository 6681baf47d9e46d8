"""OSPF faults: missing adjacencies, networks that are not advertised, and unintended paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Interface
from types import MappingProxyType
from typing import TypeVar
from zlib import crc32

from netarena_backbone.fault.change import (
    Change,
    Method,
    both,
    on_list,
    on_map_entry,
    on_ospf,
    on_ospf_port,
    on_port,
    simple,
    swapped,
    transit_ports,
)
from netarena_backbone.world.model import BACKBONE_AREA, LOOPBACK, Range, Router, World
from netarena_backbone.world.odd import AREAS, COSTS, DEADS, HELLOS, KEY_IDS, key_of, wide

_Option = TypeVar("_Option")

_HIGH_COSTS = [cost for cost in COSTS if cost > 700]
_LOW_COSTS = [cost for cost in COSTS if cost < 5]


def _number(key: str) -> int:
    """Return a number that depends only on the key."""
    return crc32(key.encode())


def _pick(key: str, options: Iterable[_Option], *but: object) -> _Option:
    """Return an element of ``options`` that is not in ``but``; equal arguments give
    equal results."""
    others = [one for one in options if one not in but]
    return others[_number(key) % len(others)]


def _wrong_area(world: World) -> Iterator[Change]:
    areas = {one.ospf.area for router in world.routers for one in router.ports if one.ospf}
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        right = port.ospf.area
        wrong = _pick(port.name, AREAS, *areas)
        yield simple(
            router.name,
            f"has {port.name} in OSPF area {wrong} instead of {right}",
            on_ospf_port(router.name, port.name, area=wrong),
            f"ospf {port.name}",
        )


def _network_type(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        right = port.ospf.network
        wrong = "broadcast" if right == "point-to-point" else "point-to-point"
        yield simple(
            router.name,
            f"has OSPF network type {wrong} at {port.name} instead of {right}",
            on_ospf_port(router.name, port.name, network=wrong),
            f"ospf {port.name}",
        )


def _timer(field: str, *values: int) -> Method:
    def changes(world: World) -> Iterator[Change]:
        for router, port, _, _ in transit_ports(world):
            assert port.ospf is not None
            # The shortest dead interval requires a hello interval of one second.
            if field == "hello" and port.ospf.dead == DEADS[0]:
                continue
            right = getattr(port.ospf, field)
            short = DEADS[:1] if port.ospf.hello > HELLOS[0] else ()
            wrong = _pick(port.name, values, right, *short)
            yield simple(
                router.name,
                f"has an OSPF {field} interval of {wrong} s at {port.name} instead of {right} s",
                on_ospf_port(router.name, port.name, **{field: wrong}),
                f"ospf {port.name}",
            )

    return Method(field, changes)


def _wrong_key(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        if port.ospf.key:
            wrong = key_of(_number(f"{port.name} {port.ospf.key}"))
            yield simple(
                router.name,
                f"has an OSPF key at {port.name} that differs from its neighbour's",
                on_ospf_port(router.name, port.name, key=wrong),
                f"ospf {port.name}",
            )


def _wrong_key_id(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        if port.ospf.key:
            wrong = _pick(port.name, KEY_IDS, port.ospf.key_id)
            yield simple(
                router.name,
                f"has OSPF key number {wrong} at {port.name} instead of {port.ospf.key_id}",
                on_ospf_port(router.name, port.name, key_id=wrong),
                f"ospf {port.name}",
            )


def _no_authentication(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        if port.ospf.key:
            yield simple(
                router.name,
                f"does not authenticate OSPF at {port.name}",
                on_ospf_port(router.name, port.name, key=""),
                f"ospf {port.name}",
            )


def _needless_authentication(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        assert port.ospf is not None
        if not port.ospf.key:
            number = _pick(port.name, KEY_IDS)
            yield simple(
                router.name,
                f"authenticates OSPF at {port.name}, but its neighbour does not",
                on_ospf_port(router.name, port.name, key=key_of(_number(port.name)), key_id=number),
                f"ospf {port.name}",
            )


def _mtu(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        wrong = _pick(port.name, wide(world.packet_bytes), port.mtu)
        yield simple(
            router.name,
            f"has an MTU of {wrong} on {port.name} instead of {port.mtu}, which blocks OSPF",
            on_port(router.name, port.name, mtu=wrong),
            f"ospf {port.name}",
        )


def _passive(world: World) -> Iterator[Change]:
    for router, port, _, _ in transit_ports(world):
        yield simple(
            router.name,
            f"has {port.name} passive for OSPF",
            on_ospf_port(router.name, port.name, passive=True),
            f"ospf {port.name}",
        )


def _duplicate_id(world: World) -> Iterator[Change]:
    """Yield duplicate router IDs: a router with only one neighbour gets that neighbour's router ID.

    A network in which two non-adjacent routers have the same ID would never converge.
    """
    for router in world.routers:
        near = [(port, far) for one, port, far, _ in transit_ports(world) if one is router]
        if len(near) != 1 or router.ospf is None:
            continue
        far = near[0][1]
        assert far.ospf is not None
        wrong, right = far.ospf.router_id, router.ospf.router_id
        yield simple(
            router.name,
            f"has the OSPF router ID {wrong}, which belongs to {far.name}, instead of {right}",
            on_ospf(router.name, router_id=wrong),
            *(f"ospf {port.name}" for port in router.ports),
            "ospf",
        )


def _missing_network(*, transit: bool) -> Method:
    def changes(world: World) -> Iterator[Change]:
        for router in world.routers:
            for port in router.ports:
                if port.ospf is None or port.ospf.passive == transit:
                    continue
                yield simple(
                    router.name,
                    f"does not advertise the network of {port.name} in OSPF",
                    on_port(router.name, port.name, ospf=None, idle=port.ospf),
                    f"ospf {port.name}",
                )

    return Method("transit_missing" if transit else "network_missing", changes)


def _loopback_missing(world: World) -> Iterator[Change]:
    for router in world.routers:
        if router.ospf is None:
            continue
        yield simple(
            router.name,
            f"does not advertise its own address {router.loopback} in OSPF",
            on_ospf(router.name, loopback=False),
            f"ospf {LOOPBACK}",
        )


def _tellers(world: World) -> Iterator[tuple[Router, str]]:
    for router in world.routers:
        if router.ospf and router.ospf.redistribute:
            yield router, router.ospf.redistribute


def _redistribution_missing(world: World) -> Iterator[Change]:
    for router, _ in _tellers(world):
        yield simple(
            router.name,
            "does not redistribute its static routes to OSPF",
            on_ospf(router.name, redistribute=""),
            "redistribute",
        )


def _redistribution_denied(world: World) -> Iterator[Change]:
    for router, name in _tellers(world):
        if all(
            entry.verdict == "deny"
            for found in router.route_maps
            for entry in found.entries
            if found.name == name
        ):
            continue
        yield simple(
            router.name,
            f"denies static routes in {name} that it should redistribute to OSPF",
            on_map_entry(router.name, name, 10, verdict="deny"),
            "redistribute",
        )


def _redistribution_other(world: World) -> Iterator[Change]:
    for router, _ in _tellers(world):
        for found in router.prefix_lists:
            for entry in found.entries if found.name == "SERVICE-ADDRESSES" else ():
                address = IPv4Interface(entry.prefix).ip + 1
                wrong = entry.model_copy(update={"prefix": f"{address}/32"})
                yield simple(
                    router.name,
                    f"has {wrong.prefix} in the prefix list {found.name} instead of {entry.prefix}",
                    on_list(
                        router.name,
                        found.name,
                        swapped(entry, wrong),
                    ),
                    "redistribute",
                    key=f"{router.name} {entry.seq}",
                )


def _cost(name: str, wrong: Sequence[int]) -> Method:
    def changes(world: World) -> Iterator[Change]:
        for router, port, _, _ in transit_ports(world):
            assert port.ospf is not None
            value = _pick(port.name, wrong, port.ospf.cost)
            yield simple(
                router.name,
                f"has OSPF cost {value} at {port.name} instead of {port.ospf.cost}",
                on_ospf_port(router.name, port.name, cost=value),
                f"ospf {port.name}",
            )

    return Method(name, changes)


def _cost_both(world: World) -> Iterator[Change]:
    """Yield changes that set the same wrong cost at both ends of a link."""
    for router, port, other, far in transit_ports(world):
        if router.name > other.name:
            continue
        assert port.ospf is not None
        value = _pick(port.name, _HIGH_COSTS, port.ospf.cost)
        ends = ((router, port), (other, far))
        parts = tuple(on_ospf_port(a.name, b.name, cost=value) for a, b in ends)
        yield Change(
            key=f"{router.name} {port.name}",
            machine=router.name,
            words=(
                f"{router.name} and {other.name} have OSPF cost {value} at {port.name} and "
                f"{far.name} instead of {port.ospf.cost}"
            ),
            edit=both(*parts),
            holds=frozenset(f"{a.name} ospf {b.name}" for a, b in ends),
            parts=parts,
            others=(other.name,),
        )


def _summary(*, everywhere: bool) -> Method:
    """Return a method in which border routers hide a network of hosts.

    The border routers summarise a prefix that contains the network, but do not advertise the
    summary. With ``everywhere``, all border routers of the area are changed.
    """

    def changes(world: World) -> Iterator[Change]:
        for router in world.routers:
            for port in router.ports:
                if port.ospf is None or not port.ospf.passive or port.ospf.area == BACKBONE_AREA:
                    continue
                area, net = port.ospf.area, str(IPv4Interface(port.address).network.supernet())
                one = Range(area=area, prefix=net, advertise=False)
                borders = [
                    border
                    for border in world.routers
                    if {BACKBONE_AREA, area} <= {p.ospf.area for p in border.ports if p.ospf}
                ]
                groups = [borders] if everywhere else [[border] for border in borders]
                for chosen in filter(None, groups):
                    # FRR stores one range per prefix, so the new range would replace the old one
                    if any(
                        has.prefix == net
                        for border in chosen
                        for has in (border.ospf.ranges if border.ospf else ())
                    ):
                        continue
                    names = " and ".join(border.name for border in chosen)
                    verbs = ("summarises", "does") if len(chosen) == 1 else ("summarise", "do")
                    parts = tuple(
                        on_ospf(border.name, ranges=(*border.ospf.ranges, one))
                        for border in chosen
                        if border.ospf
                    )
                    yield Change(
                        key=f"{names} {net}",
                        machine=chosen[0].name,
                        words=(
                            f"{names} {verbs[0]} {net} of area {area} but {verbs[1]} not advertise "
                            "it"
                        ),
                        edit=both(*parts),
                        holds=frozenset(f"{border.name} ospf ranges" for border in chosen),
                        parts=parts,
                        others=tuple(border.name for border in chosen[1:]),
                    )

    return Method("hidden_everywhere" if everywhere else "hidden", changes)


#: Kind of fault -> methods that inject it
OSPF: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {
        "ospf_area": (Method("wrong_area", _wrong_area),),
        "ospf_network_type": (Method("type", _network_type),),
        "ospf_timers": (_timer("hello", *HELLOS), _timer("dead", *DEADS)),
        "ospf_authentication": (
            Method("wrong_key", _wrong_key),
            Method("wrong_key_id", _wrong_key_id),
            Method("missing", _no_authentication),
            Method("needless", _needless_authentication),
        ),
        "ospf_mtu": (Method("mismatch", _mtu),),
        "ospf_passive": (Method("passive", _passive),),
        "router_id": (Method("ospf", _duplicate_id),),
        "ospf_network": (
            _missing_network(transit=False),
            _missing_network(transit=True),
            Method("loopback_missing", _loopback_missing),
        ),
        "ospf_redistribution": (
            Method("missing", _redistribution_missing),
            Method("denied", _redistribution_denied),
            Method("other_prefix", _redistribution_other),
        ),
        "ospf_cost": (
            _cost("high", _HIGH_COSTS),
            _cost("low", _LOW_COSTS),
            Method("high_both", _cost_both),
        ),
        "ospf_summary": (_summary(everywhere=False), _summary(everywhere=True)),
    }
)
