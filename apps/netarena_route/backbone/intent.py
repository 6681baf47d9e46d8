"""What a look at a world sees, computed: of the healthy one, that is what is intended."""

from __future__ import annotations

from collections.abc import Iterator

from netarena_route.backbone.follow import FULL_BYTES, SMALL_BYTES, Follower
from netarena_route.backbone.model import World
from netarena_route.backbone.recipe import Observation
from netarena_route.backbone.render import asks
from netarena_route.backbone.routing import Tables, settle


def expected(world: World, tables: Tables | None = None) -> Observation:
    """The observation of ``world`` at rest, in the form and order of ``render``'s setup."""
    tables = tables or settle(world)
    follower = Follower(world, tables.fib)
    ends = world.endpoints
    addresses = dict(ends)
    small = tuple(
        "".join("1" if a == b or follower.ping(a, b, SMALL_BYTES) else "0" for b in ends)
        for a in ends
    )
    full = small
    if _is_narrow(world):
        full = tuple(
            "".join(
                "1" if a == b or (works == "1" and follower.ping(a, b, FULL_BYTES)) else "0"
                for b, works in zip(ends, row, strict=True)
            )
            for a, row in zip(ends, small, strict=True)
        )
    return Observation(
        small=small,
        full=full,
        services="".join(_answers(world, follower)),
        ways=tuple(follower.way(one, addresses[other]) for one, other in world.ways),
        heard=tuple(_heard(tables, router.name) for router in world.outside),
    )


def _answers(world: World, follower: Follower) -> Iterator[str]:
    servers = dict(_records(world))
    named: dict[tuple[str, str], bool] = {}
    for ask in asks(world):
        host = world.host(ask.source)
        address = ask.target
        if host.resolver:
            key = host.name, host.resolver
            if key not in named:
                named[key] = follower.ask(host.name, host.resolver, "udp", 53)
            address = servers.get(ask.target, "") if named[key] else ""
        works = bool(address) and follower.ask(ask.source, address, ask.protocol, ask.port)
        yield "1" if works else "0"


def _records(world: World) -> Iterator[tuple[str, str]]:
    for host in world.hosts:
        yield from host.records


def _heard(tables: Tables, name: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (path.prefix, " ".join(map(str, path.as_path)), path.next_hop)
        for path in sorted(tables.best[name].values(), key=lambda one: one.prefix)
        if path.peer >= 0
    )


def _is_narrow(world: World) -> bool:
    """Whether anything treats large packets otherwise than small ones."""
    return any(
        any(port.mtu < FULL_BYTES for port in machine.ports)
        or any(rule.length for rule in machine.rules)
        for machine in world.machines.values()
    )
