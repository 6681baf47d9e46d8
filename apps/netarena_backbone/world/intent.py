"""Computed observation of a world. The observation of the fault-free world is the
intended state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import NamedTuple

from netarena_backbone.world.contingency import Contingency, during, link_between
from netarena_backbone.world.forwarding import SMALL_BYTES, Follower
from netarena_backbone.world.lab_spec import Heard, Neighbour, Observation
from netarena_backbone.world.model import Link, Router, World, bare
from netarena_backbone.world.render import asks
from netarena_backbone.world.routing import Tables, neighbours, settle


def expected(
    world: World, tables: Tables | None = None, follower: Follower | None = None
) -> Observation:
    """Return the computed observation of the converged ``world``, in the order of ``render``'s
    setup.

    If ``follower`` is given, it must belong to this world and these tables; its cached paths are
    used.
    """
    tables = tables or settle(world)
    follower = follower or Follower(world, tables.fib)
    small = tuple(reached(world, follower))
    return Observation(
        small=small,
        full=tuple(_reached_by_large(world, follower, small)),
        services="".join(_answers(world, follower)),
        ways=tuple(_ways(world, follower)),
        heard=_all_heard(world, tables),
        neighbours=_used(tables),
    )


def is_expected(world: World, tables: Tables, seen: Observation) -> bool:
    """Return whether a world's ``expected`` observation equals ``seen``.

    Parts that are fast to compute come first, and the comparison stops at the first difference.
    """
    if not is_told(world, tables, seen):
        return False
    follower = Follower(world, tables.fib)
    return (
        _equal(_ways(world, follower), seen.ways)
        and _equal(_answers(world, follower), seen.services)
        and _equal(reached(world, follower), seen.small)
        and _equal(_reached_by_large(world, follower, seen.small), seen.full)
    )


def is_told(world: World, tables: Tables, seen: Observation) -> bool:
    """Return whether the state of the routing protocols is the same as in ``seen``.

    The comparison covers sessions, adjacencies and the routes that other ASes received. It does not
    cover the results of pings and services.
    """
    return _used(tables) == seen.neighbours and _all_heard(world, tables) == seen.heard


def _equal(found: Iterator[object], wanted: Iterable[object]) -> bool:
    return all(one == other for one, other in zip_longest(found, wanted))


def reached(world: World, follower: Follower) -> Iterator[str]:
    """Return a row for each endpoint, with ``1`` for each endpoint that answers its pings."""
    ends = world.endpoints
    for a in ends:
        yield "".join("1" if a == b or follower.ping(a, b, SMALL_BYTES) else "0" for b in ends)


def _reached_by_large(world: World, follower: Follower, small: Iterable[str]) -> Iterator[str]:
    """Return rows as in ``reached``, but for pings with the world's full packet size."""
    if not _is_narrow(world):
        yield from small
        return
    ends = world.endpoints
    for a, row in zip(ends, small, strict=True):
        yield "".join(
            "1" if a == b or (works == "1" and follower.ping(a, b, world.packet_bytes)) else "0"
            for b, works in zip(ends, row, strict=True)
        )


def _ways(world: World, follower: Follower) -> Iterator[tuple[str, ...]]:
    addresses = dict(world.endpoints)
    for one, other in world.ways:
        yield follower.way(one, addresses[other])


def _all_heard(world: World, tables: Tables) -> tuple[tuple[Heard, ...], ...]:
    return tuple(_heard(tables, router) for router in world.outside)


def _used(tables: Tables) -> tuple[Neighbour, ...]:
    return tuple(sorted(neighbours(tables) - _unused(tables)))


class Backup(NamedTuple):
    """The path that traffic takes when one link fails."""

    cable: tuple[str, str]
    way: tuple[str, ...]


def backups(world: World) -> Mapping[tuple[str, str], Backup]:
    """Return the backup paths of the documented pairs.

    The backup path of a pair applies if one certain link fails. This is the first link on the
    intended path without which the pair still communicates over a predictable path. Pairs without
    such a link have no entry.
    """
    addresses = dict(world.endpoints)
    follower = Follower(world, settle(world).fib)
    cuts: dict[Link, Follower | None] = {}
    found: dict[tuple[str, str], Backup] = {}
    for one, other in world.ways:
        way = follower.way(one, addresses[other])
        for cable in pairwise(way):
            link = link_between(world, cable)
            if link is None:
                continue
            if link not in cuts:
                cuts[link] = _follow_without(world, cable)
            cut = cuts[link]
            ends = ((one, addresses[one]), (other, addresses[other]))
            if cut is not None and cut.ping(*ends, SMALL_BYTES):
                found[one, other] = Backup(cable, cut.way(one, addresses[other]))
                break
    return found


def _follow_without(world: World, cable: tuple[str, str]) -> Follower | None:
    """Return a Follower of ``world`` during the failure of ``cable``.

    Returns None if the resulting routes are unpredictable.
    """
    less = during(world, Contingency("", cable))
    tables = settle(less)
    return None if tables.doubtful else Follower(less, tables.fib)


def _answers(world: World, follower: Follower) -> Iterator[str]:
    zones = {
        address: dict(host.records)
        for host in world.hosts
        for address in (bare(host.port.address), *host.held)
    }
    named: dict[tuple[str, str], Mapping[str, str]] = {}
    for ask in asks(world):
        host = world.host(ask.source)
        address = ask.target
        if host.resolver:
            key = host.name, host.resolver
            if key not in named:
                is_answered = follower.ask(host.name, host.resolver, "udp", 53)
                named[key] = zones.get(host.resolver, {}) if is_answered else {}
            address = named[key].get(ask.target, "")
        works = bool(address) and follower.ask(ask.source, address, ask.protocol, ask.port)
        yield "1" if works else "0"


def _heard(tables: Tables, router: Router) -> tuple[Heard, ...]:
    found = (
        Heard(
            prefix=path.prefix,
            path=" ".join(map(str, path.as_path)),
            next_hop=path.next_hop,
            peer=router.bgp.peers[path.peer].address,
            used=path == tables.best[router.name].get(path.prefix),
        )
        for path in tables.heard[router.name]
    )
    return tuple(sorted(found))


def _unused(tables: Tables) -> set[Neighbour]:
    """Return the ends of adjacencies that carry no routes."""
    ends = (end for link in tables.unused for end in (link.one, link.other))
    return {(router, "ospf", port) for router, port in ends}


def _is_narrow(world: World) -> bool:
    """Return whether any MTU or rule treats full-size packets differently from small packets."""
    return any(
        any(port.mtu < world.packet_bytes for port in machine.ports)
        or any(0 < rule.length <= world.packet_bytes for rule in machine.rules)
        for machine in world.machines.values()
    )
