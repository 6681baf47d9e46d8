"""The seeded generator: a world, and the faults upon it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from netarena.errors import ConfigError
from netarena.label import Catalogue
from netarena.model import Query
from netarena_route import fault, world
from netarena_route.action import Fault, action_of, fault_of
from netarena_route.config import RouteConfig
from netarena_route.lock import lock
from netarena_route.path import Plan
from netarena_route.world import World

APPLICATION = "route"
#: raised whenever a seed would draw something else
VERSION = "2"

#: networks that are drawn before a combination is said not to fit into their size
_NETWORKS = 5
#: draws of faults before a network is said to have no room for locks that are like them
_TRIES = 20
#: the paper's Table 5: pairs of its kinds that are harder than the others
_LEVEL3 = frozenset(
    frozenset(pair)
    for pair in (
        ("disable_interface", "wrong_routing_table"),
        ("remove_ip", "drop_traffic_to_from_subnet"),
        ("disable_interface", "remove_ip"),
    )
)
_CATALOGUE = Catalogue(fault.PAPER_KINDS, fault.EXTENDED_KINDS, _LEVEL3)
#: the worlds of a config, by their name
DRAW: Mapping[str, Callable[[int, int, random.Random], World]] = MappingProxyType(
    {"standard": world.standard, "varied": world.varied}
)


def labels(config: RouteConfig) -> Mapping[str, tuple[str, ...]]:
    """The labels of ``config``, kinds joined by ``+``, each with its kinds.

    Raises ConfigError for a kind that there is not.
    """
    return _CATALOGUE.choose(config.error_types, config.complexity_level)


def level(kinds: Sequence[str]) -> str:
    """After the paper's Table 5, else the number of parts."""
    return _CATALOGUE.level(kinds)


def generate(
    config: RouteConfig,
    seed: int,
    rng_for: Callable[[int], random.Random],
    make_id: Callable[[int], str],
    *,
    start: int = 0,
) -> Iterator[Query]:
    """Draw ``config.num_queries`` queries of each label, labels in turn, from index ``start`` on.

    Query ``i`` is drawn from ``rng_for(i)`` alone and has the id ``make_id(i)``. Raises
    ConfigError for a kind that there is not, and for a combination that does not fit into a
    network of this size.
    """
    programs = list(labels(config).items())
    for index in range(start, config.num_queries * len(programs)):
        label, kinds = programs[index % len(programs)]
        rng = rng_for(index)
        net, faults = _draw_fitting(config, label, kinds, rng)
        yield Query(
            id=make_id(index),
            application=APPLICATION,
            version=VERSION,
            seed=seed,
            index=index,
            label=label,
            level=level(kinds),
            text=_text(net),
            initial={"world": net.model_dump(mode="json")},
            actions=tuple(action_of(entry) for entry in faults),
        )


def _draw_fitting(
    config: RouteConfig, label: str, kinds: Sequence[str], rng: random.Random
) -> tuple[World, tuple[Fault, ...]]:
    """A network and faults for which it has room: of its size one may have none, another does."""
    tries = 1
    while True:
        net = DRAW[config.world](config.num_switches, config.num_hosts_per_subnet, rng)
        drawn = draw(net, kinds, rng, netem=config.netem)
        if drawn is not None:
            return drawn
        if tries == _NETWORKS:
            raise ConfigError("config.error_types", _refusal(label, kinds, net))
        tries += 1


def draw(
    net: World, kinds: Sequence[str], rng: random.Random, *, netem: bool
) -> tuple[World, tuple[Fault, ...]] | None:
    """A fault of each kind, and the network upon which they are: a reserve is kept back by locks
    that are like them. None where the network has no room for such a combination."""
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
    """Why a combination cannot be drawn, and what helps."""
    size = f"{len(net.switches)} switches and {len(net.hosts)} hosts"
    for kind in kinds:
        if not fault.methods_of(kind, net, netem=False):
            return (
                f"{kind} acts on neighbours that machines learn, and in a network of {size} they "
                f"are permanent: fewer hosts per subnet help"
            )
    return f"{label} does not fit into {size}: its parts would get in each other's way"


def _text(net: World) -> str:
    goal = (
        "every pair of its machines can ping each other"
        if not net.apart
        else "the machines that should reach each other do, and the others still do not"
    )
    return f"The network of {net.router.name} is broken: repair it until {goal}."


def world_of(query: Query) -> World:
    """The healthy network of ``query``."""
    return World.model_validate(cast("dict[str, Any]", query.initial)["world"])


def faults_of(query: Query) -> tuple[Fault, ...]:
    """What is broken in it, in the order in which it is injected."""
    return tuple(fault_of(action) for action in query.actions)
