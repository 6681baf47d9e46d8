"""All kinds of fault, how one is drawn, and what a network shows that has some of them."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from netarena_route.action import Command, Fault
from netarena_route.fault_host import HOST
from netarena_route.fault_paper import PAPER
from netarena_route.fault_router import ROUTER
from netarena_route.method import Method, Site
from netarena_route.path import Plan
from netarena_route.world import World

#: kind of fault -> its methods, the paper's five first
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**PAPER, **ROUTER, **HOST})
PAPER_KINDS: tuple[str, ...] = tuple(PAPER)
EXTENDED_KINDS: tuple[str, ...] = (*ROUTER, *HOST)
#: the paper's ten pairs
PAIRS: tuple[tuple[str, ...], ...] = tuple(combinations(PAPER_KINDS, 2))

_METHODS: Mapping[tuple[str, str], Method] = MappingProxyType(
    {(kind, method.name): method for kind, methods in KINDS.items() for method in methods}
)
#: draws before a network is said to have no room for a method or a combination: where it has any,
#: one draw in twenty succeeds at least
_TRIES = 400


def draw(
    plan: Plan, kinds: Sequence[str], rng: random.Random, *, netem: bool
) -> tuple[Fault, ...] | None:
    """One fault of each kind, each of which breaks something; no two get in each other's way.

    ``netem`` says whether faults of that queue discipline may be drawn. None where the network
    has no room for such a combination.
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
            holds = {entry.format_map(site.names) for entry in method.holds}
            if holds & held or not _breaks_any(site, method):
                break
            held |= holds
            faults.append(apply(kind, method, site))
        else:
            return tuple(faults)
    return None


def methods_of(kind: str, world: World, *, netem: bool) -> list[Method]:
    """Those of a kind that may be drawn; none where neighbours are permanent and it is about
    these."""
    return [
        method
        for method in KINDS[kind]
        if (netem or not method.netem) and not (world.permanent and method.resolves)
    ]


def one_of_each(plan: Plan, rng: random.Random) -> Iterator[Fault]:
    """A fault by each method for which the network has room, those of netem left out."""
    for kind in KINDS:
        for method in methods_of(kind, plan.world, netem=False):
            sites = (Site.draw(plan, method.scope, rng) for _ in range(_TRIES))
            fitting = (site for site in sites if site is not None and method.fits(site))
            site = next((site for site in fitting if _breaks_any(site, method)), None)
            if site is not None:
                yield apply(kind, method, site)


def apply(kind: str, method: Method, site: Site) -> Fault:
    """The fault of ``method`` at ``site``."""
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
    """The matrix of the network with these faults, rows of ``0`` and ``1`` as ``World.intended``.

    Each fault loses packets, whatever the others do: what is broken is the union.
    """
    plan = Plan(world)
    sites = [Site.read(plan, fault.parameters) for fault in faults]
    methods = [_METHODS[fault.kind, fault.method] for fault in faults]
    return _matrix(plan, list(zip(sites, methods, strict=True)))


def breaks(world: World, faults: Iterable[Fault]) -> frozenset[tuple[str, str]]:
    """The ordered pairs that should work and do not."""
    names = world.endpoints
    rows = zip(names, world.intended, expected(world, faults), strict=True)
    return frozenset(
        (src, dst)
        for src, healthy, broken in rows
        if healthy != broken
        for dst, was, now in zip(names, healthy, broken, strict=True)
        if was != now
    )


def shows(world: World, fault: Fault, matrix: Sequence[str]) -> bool:
    """Whether every pair that ``fault`` breaks is broken in ``matrix``."""
    rows = zip(world.intended, expected(world, [fault]), matrix, strict=True)
    return all(
        now == "0"
        for intended, broken, seen in rows
        if intended != broken
        for was, left, now in zip(intended, broken, seen, strict=True)
        if was != left
    )


def _breaks_any(site: Site, method: Method) -> bool:
    return _matrix(site.plan, [(site, method)]) != site.plan.world.intended


def _matrix(plan: Plan, broken: Sequence[tuple[Site, Method]]) -> tuple[str, ...]:
    """Endpoints that no formula can tell apart share a row: a million pairs take a second."""
    world = plan.world
    members: dict[Hashable, list[int]] = {}
    classes = []
    for index, name in enumerate(world.endpoints):
        mark = (name == plan.router.name, plan.subnet(name), *(s.mark(name) for s, _ in broken))
        members.setdefault(mark, []).append(index)
        classes.append(mark)
    rows = {}
    for source, sources in members.items():
        works = {}
        for target, targets in members.items():
            pair = next(((a, b) for a in sources[:2] for b in targets[:2] if a != b), None)
            works[target] = "1" if pair is None else _works(plan, broken, *pair)
        rows[source] = "".join(works[target] for target in classes)
    return tuple(
        f"{row[:index]}1{row[index + 1 :]}"
        for index, row in enumerate(rows[source] for source in classes)
    )


def _works(plan: Plan, broken: Sequence[tuple[Site, Method]], source: int, target: int) -> str:
    if plan.world.intended[source][target] == "0":
        return "0"
    names = plan.world.endpoints
    packets = plan.ping(names[source], names[target])
    lost = any(method.lost(site, packet) for site, method in broken for packet in packets)
    return "0" if lost else "1"
