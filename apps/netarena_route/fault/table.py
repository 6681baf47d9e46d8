"""The tables of all kinds of faults, the draw of faults, and the connectivity of a network with
faults."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations
from types import MappingProxyType

from netarena_network.action import Command, Fault
from netarena_route.fault.host import HOST
from netarena_route.fault.method import Method, Site
from netarena_route.fault.pair import PAIR
from netarena_route.fault.paper import PAPER
from netarena_route.fault.router import ROUTER
from netarena_route.world.model import World
from netarena_route.world.path import Plan

#: Kind of fault -> its methods, beginning with the paper's five kinds
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**PAPER, **ROUTER, **HOST})
#: ``KINDS``, and the kinds that are drawn only if the configuration gives a number of faults.
ALL_KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**KINDS, **PAIR})
PAPER_KINDS: tuple[str, ...] = tuple(PAPER)
EXTENDED_KINDS: tuple[str, ...] = (*ROUTER, *HOST)
#: Groups of kinds whose faults break similar sets of pairs: faults on the router break pairs of
#: subnets, and faults on hosts break pairs of one host.
ALIKE: tuple[tuple[str, ...], ...] = ((*PAPER, *ROUTER), tuple(HOST))
#: The ten pairs of kinds of faults that the paper combines.
PAIRS: tuple[tuple[str, ...], ...] = tuple(combinations(PAPER_KINDS, 2))

METHODS: Mapping[tuple[str, str], Method] = MappingProxyType(
    {(kind, method.name): method for kind, methods in ALL_KINDS.items() for method in methods}
)
#: Maximum number of attempts to draw a site or a combination. If a network is suitable, at least
#: one attempt in twenty succeeds.
_TRIES = 400
#: Maximum number of endpoints for which each pair is computed separately. In larger networks,
#: endpoints are grouped.
_FEW = 24


def draw(
    plan: Plan, kinds: Sequence[str], rng: random.Random, *, netem: bool
) -> tuple[Fault, ...] | None:
    """Return one fault of each kind, each of which breaks a pair. Return None if no such faults are
    found.

    No two faults use the same resource (see ``Method.holds``). ``netem`` allows faults with the
    netem queue discipline.
    """
    options = {kind: methods_of(kind, plan.world, netem=netem) for kind in kinds}
    for _ in range(_TRIES if all(options.values()) else 0):
        faults = []
        held: set[str] = set()
        for kind in kinds:
            method = rng.choice(options[kind])
            site = Site.draw(plan, method.scope, rng)
            if site is None or not method.fits(site):
                break
            needed = holds(method, site)
            if clash(needed, held) or not _breaks_any(site, method):
                break
            held |= needed
            faults.append(apply(kind, method, site))
        else:
            return tuple(faults)
    return None


def read(plan: Plan, fault: Fault) -> tuple[Method, Site]:
    """Return the method of ``fault`` and its site in a network with the same machines."""
    return METHODS[fault.kind, fault.method], Site.read(plan, fault.parameters)


def apply_anew(plan: Plan, fault: Fault) -> Fault:
    """Return the same fault for a network to which intended settings were added after the draw."""
    return apply(fault.kind, *read(plan, fault))


def holds(method: Method, site: Site) -> set[str]:
    """Return the resources that ``method`` uses at ``site``."""
    return {entry.format_map(site.names) for entry in method.needs}


def clash(one: set[str], other: set[str]) -> bool:
    """Return whether two sets of resources conflict (see ``Method.holds``)."""
    both = any(not entry.startswith("~") for entry in one & other)
    return both or any(f"~{a}" in b for x, b in ((one, other), (other, one)) for a in x)


def methods_of(kind: str, world: World, *, netem: bool) -> list[Method]:
    """Return the methods of a kind that may be drawn.

    Methods that affect address resolution are left out if ARP entries are permanent.
    """
    return [
        method
        for method in ALL_KINDS[kind]
        if (netem or not method.netem) and not (world.permanent and method.resolves)
    ]


def one_of_each(plan: Plan, rng: random.Random) -> Iterator[Fault]:
    """Yield a fault for each method that has a suitable site in the network, without netem."""
    for kind in ALL_KINDS:
        for method in methods_of(kind, plan.world, netem=False):
            sites = (Site.draw(plan, method.scope, rng) for _ in range(_TRIES))
            fitting = (site for site in sites if site is not None and method.fits(site))
            site = next((site for site in fitting if _breaks_any(site, method)), None)
            if site is not None:
                yield apply(kind, method, site)


def apply(kind: str, method: Method, site: Site) -> Fault:
    """Return the fault of ``method`` at ``site``."""
    names = site.names
    machine = site.machine.name
    return Fault(
        kind=kind,
        method=method.name,
        machine=machine,
        parameters=site.parameters(),
        words=method.words.format_map(names),
        inject=(Command(machine=machine, command=method.inject.format_map(names)),),
        repair=(Command(machine=machine, command=method.repair.format_map(names)),),
    )


def expected(world: World, faults: Iterable[Fault]) -> tuple[str, ...]:
    """Return the connectivity matrix of the network with these faults, as ``World.intended``.

    The effects of faults are independent, so a pair is broken if any of the faults breaks it.
    There are two exceptions. A fault that lets packets bypass another fault removes that fault's
    effect (``bypasses``). The pairs that a fault opens (``opens``) work unless another fault breaks
    them.
    """
    plan, there = Plan(world), list(faults)
    past = {name for fault in there for name in fault.bypasses}
    parts = [read(plan, one) for one in there if not one.opens and one.name not in past]
    rows = _matrix(plan, parts)
    place = {name: index for index, name in enumerate(world.endpoints)}
    for source, target in (pair for fault in there for pair in fault.opens):
        if not loses(plan, parts, source, target):
            row, column = rows[place[source]], place[target]
            rows = (
                *rows[: place[source]],
                f"{row[:column]}1{row[column + 1 :]}",
                *rows[place[source] + 1 :],
            )
    return rows


def loses(plan: Plan, parts: Sequence[tuple[Method, Site]], source: str, target: str) -> bool:
    """Return whether a packet of a ping is lost because of one of these methods at its site."""
    packets = plan.ping(source, target)
    return any(method.lost(site, packet) for method, site in parts for packet in packets)


def breaks(world: World, faults: Iterable[Fault]) -> frozenset[tuple[str, str]]:
    """Return the ordered pairs that must work but do not work with these faults."""
    plan = Plan(world)
    return broken_by(plan, [read(plan, fault) for fault in faults])


def broken_by(plan: Plan, parts: Sequence[tuple[Method, Site]]) -> frozenset[tuple[str, str]]:
    """Return the ordered pairs that these methods, each at its site, break."""
    if len(plan.world.endpoints) <= _FEW:
        return frozenset(
            pair
            for pair, packets in plan.open_pings
            if any(method.lost(site, packet) for method, site in parts for packet in packets)
        )
    names, intended = plan.world.endpoints, plan.world.intended
    rows = zip(names, intended, _matrix(plan, parts), strict=True)
    return frozenset(
        (src, dst)
        for src, healthy, broken in rows
        if healthy != broken
        for dst, was, now in zip(names, healthy, broken, strict=True)
        if was != now
    )


def breaks_within(plan: Plan, part: tuple[Method, Site], names: Sequence[str]) -> bool:
    """Return whether a method at its site breaks a pair between two of the machines ``names``."""
    method, site = part
    return any(
        method.lost(site, packet)
        for source, target in permutations(names, 2)
        for packet in plan.ping(source, target)
    )


def shows(world: World, fault: Fault, matrix: Sequence[str]) -> bool:
    """Return whether all pairs that ``fault`` breaks are broken in ``matrix``."""
    rows = zip(world.intended, expected(world, [fault]), matrix, strict=True)
    return all(
        now == "0"
        for intended, broken, seen in rows
        if intended != broken
        for was, left, now in zip(intended, broken, seen, strict=True)
        if was != left
    )


def _breaks_any(site: Site, method: Method) -> bool:
    return bool(broken_by(site.plan, [(method, site)]))


def _matrix(plan: Plan, broken: Sequence[tuple[Method, Site]]) -> tuple[str, ...]:
    """Return the connectivity matrix with these faults.

    Endpoints that no formula distinguishes share a row, so that a million pairs take only a second.
    """
    marks = _marks(plan, broken)
    members: dict[Hashable, list[int]] = {}
    for index, mark in enumerate(marks):
        members.setdefault(mark, []).append(index)
    rows = {}
    for source, sources in members.items():
        works = {}
        for target, targets in members.items():
            pair = next(((a, b) for a in sources[:2] for b in targets[:2] if a != b), None)
            works[target] = "1" if pair is None else _works(plan, broken, *pair)
        rows[source] = "".join(works[target] for target in marks)
    return tuple(
        f"{row[:index]}1{row[index + 1 :]}"
        for index, row in enumerate(rows[source] for source in marks)
    )


def _marks(plan: Plan, broken: Sequence[tuple[Method, Site]]) -> list[Hashable]:
    """Return a mark for each endpoint. Formulas do not distinguish endpoints with equal marks."""
    world = plan.world
    names = world.endpoints
    if len(names) <= _FEW:
        return list(names)
    reserve = [names.index(name) for name in world.reserve]
    return [
        (
            name == plan.router.name,
            plan.subnet(name),
            # The pairs that must not work differ for each reserve host.
            name in world.reserve and name,
            *((world.intended[index][i], world.intended[i][index]) for i in reserve),
            *(site.mark(name) for _, site in broken),
        )
        for index, name in enumerate(names)
    ]


def _works(plan: Plan, broken: Sequence[tuple[Method, Site]], source: int, target: int) -> str:
    if plan.world.intended[source][target] == "0":
        return "0"
    names = plan.world.endpoints
    return "0" if loses(plan, broken, names[source], names[target]) else "1"
