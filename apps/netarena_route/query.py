"""Seeded generator of route queries, which consist of a network and its faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from netarena.sdk import (
    COUNTED,
    Catalogue,
    ConfigError,
    Drawer,
    Drawn,
    Query,
    broken,
    kinds_of,
    world_reader,
)
from netarena_network.action import Fault, action_of
from netarena_route.config import RouteConfig
from netarena_route.fault import table as fault
from netarena_route.fault.lock import lock
from netarena_route.fault.mask import draw_number
from netarena_route.world import model as world
from netarena_route.world.model import World
from netarena_route.world.path import Plan

#: Version of the generator. It must be increased with every change after which a seed generates a
#: different query.
VERSION = "6"
#: Version of queries whose label gives a number of faults instead of their kinds.
COUNTED_VERSION = "7"

#: Maximum number of networks drawn. After this many failures, a combination counts as impossible
#: for networks of this size.
_NETWORKS = 5
#: Maximum number of draws of faults for one network. The network is discarded if the locks fit none
#: of these draws. Locks are intended restrictions that resemble faults.
_TRIES = 20
#: Pairs of kinds of faults that are harder than other pairs, according to Table 5 of the paper.
_LEVEL3 = frozenset(
    frozenset(pair)
    for pair in (
        ("disable_interface", "wrong_routing_table"),
        ("remove_ip", "drop_traffic_to_from_subnet"),
        ("disable_interface", "remove_ip"),
    )
)
CATALOGUE = Catalogue(fault.PAPER_KINDS, fault.EXTENDED_KINDS, _LEVEL3, fault.ALIKE)
#: Name of a world in configurations -> its generator.
DRAW: Mapping[str, Callable[[int, int, random.Random], World]] = MappingProxyType(
    {"standard": world.standard, "varied": world.varied}
)


def drawer(config: RouteConfig) -> Drawer:
    """Return the function that draws a network and its faults.

    The returned function raises ConfigError if a combination of kinds does not fit into a network
    of this size.
    """

    def draw_one(label: str, rng: random.Random) -> Drawn:
        net, faults = _draw_fitting(config, label, kinds_of(label), rng)
        return broken(CATALOGUE, label, _text(net), net, tuple(map(action_of, faults)))

    return draw_one


def _draw_fitting(
    config: RouteConfig, label: str, kinds: Sequence[str], rng: random.Random
) -> tuple[World, tuple[Fault, ...]]:
    """Return a network and the faults drawn for it. Networks without suitable faults are
    discarded."""
    tries = 1
    while True:
        net = DRAW[config.world](*config.size(rng), rng)
        drawn = (
            draw_number(net, COUNTED[label], rng, netem=config.netem)
            if label in COUNTED
            else draw(net, kinds, rng, netem=config.netem)
        )
        if drawn is not None:
            return drawn
        if tries == _NETWORKS:
            raise ConfigError("config.error_types", _refusal(label, kinds, net))
        tries += 1


def draw(
    net: World, kinds: Sequence[str], rng: random.Random, *, netem: bool
) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the network and a fault of each kind, or None if no suitable faults or locks are
    found.

    If the network has reserve hosts, they are isolated by locks that resemble the faults.
    """
    for _ in range(_TRIES):
        faults = fault.draw(Plan(net), kinds, rng, netem=netem)
        if faults is None:
            return None
        if not net.reserve:
            return net, faults
        locked = lock(net, faults, rng)
        if locked is not None:
            plan = Plan(locked)
            return locked, tuple(fault.apply_anew(plan, entry) for entry in faults)
    return None


def _refusal(label: str, kinds: Sequence[str], net: World) -> str:
    """Return the error for a combination that cannot be drawn, with a remedy."""
    size = f"{len(net.switches)} switches and {len(net.hosts)} hosts"
    if label in COUNTED:
        return f"{label} cannot be drawn in a network of {size}"
    for kind in kinds:
        if not fault.methods_of(kind, net, netem=False):
            return (
                f"{kind} needs dynamic ARP entries, but a network of {size} has permanent ones: "
                "set num_hosts_per_subnet to a smaller number"
            )
    return f"{label} cannot be drawn in a network of {size}: its faults would overlap"


def _text(net: World) -> str:
    goal = (
        "every pair of its machines can ping each other"
        if not net.apart
        else "the machines that should reach each other do, and the others still do not"
    )
    return f"The network of {net.router.name} is broken: repair it until {goal}."


#: Function that returns the intended network of a query.
world_of: Callable[[Query], World] = world_reader(World)
