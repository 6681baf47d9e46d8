"""Seeded generator of a backbone's queries: a world and its faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

from netarena.cache import Kept
from netarena.errors import ConfigError
from netarena.model import JsonValue, Query
from netarena.task.application import Drawer, Drawn
from netarena.task.label import COUNTED, JOINT, Catalogue, kinds_of
from netarena_route.action import Fault, action_of, fault_of
from netarena_route.backbone.draw import draw as draw_world
from netarena_route.backbone.fault import table
from netarena_route.backbone.intent import Backup, backups
from netarena_route.backbone.model import World
from netarena_route.backbone.state import Facts, intended
from netarena_route.config import RouteConfig

#: worlds that are drawn before a combination is said not to fit
_WORLDS = 12
#: how often several faults of which none has to wait are drawn again, and how many times at most
#: where their kinds are given
_AGAIN, _DRAWS = 0.9, 12
#: combinations of two and of three kinds, drawn once for all
_PAIRS, _TRIPLES = 15, 15
#: kinds that few worlds have room for are left to labels of their own
_RARE = frozenset({"router_id", "bgp_client", "bgp_update_source", "ospf_summary", "one_way"})
_CATALOGUE = Catalogue((), tuple(table.KINDS), frozenset())


class Case:
    """The healthy world of a query, and what is intended of it."""

    def __init__(self, world: World) -> None:
        self.world = world

    @cached_property
    def wanted(self) -> Facts:
        """The facts of the healthy world."""
        return intended(self.world)

    @cached_property
    def backups(self) -> Mapping[tuple[str, str], Backup]:
        """The ways that are intended where a cable is cut."""
        return backups(self.world)


_CASES: Kept[Case] = Kept(32)


def labels(config: RouteConfig) -> Mapping[str, tuple[str, ...]]:
    """The labels of ``config``, each with its kinds: left out, each kind alone and as many pairs
    and triples.

    Raises ConfigError for a kind that there is not.
    """
    if config.error_types is not None:
        return _CATALOGUE.choose(config.error_types, config.complexity_level)
    chosen = [*((kind,) for kind in table.KINDS), *_combinations()]
    return {
        JOINT.join(kinds): kinds
        for kinds in chosen
        if _CATALOGUE.level(kinds) in config.complexity_level
    }


def _combinations() -> list[tuple[str, ...]]:
    """Pairs and triples of kinds, the same ones always."""
    rng = random.Random("pairs and triples of a backbone")  # noqa: S311 -- not for secrets
    kinds = [kind for kind in table.KINDS if kind not in _RARE]
    chosen: list[tuple[str, ...]] = []
    for parts, number in ((2, _PAIRS), (3, _TRIPLES)):
        found: set[tuple[str, ...]] = set()
        while len(found) < number:
            found.add(tuple(sorted(rng.sample(kinds, parts), key=kinds.index)))
        chosen += sorted(found)
    return chosen


def drawer(config: RouteConfig) -> Drawer:
    """What draws a backbone, and faults upon it.

    Raises ConfigError for a combination that does not fit.
    """

    def draw_one(label: str, rng: random.Random) -> Drawn:
        world, faults = _draw_fitting(config, label, rng)
        initial: JsonValue = {"world": world.model_dump(mode="json", exclude_defaults=True)}
        level = _CATALOGUE.level(kinds_of(label))
        return Drawn(level, _text(world), initial, tuple(map(action_of, faults)))

    return draw_one


def _draw_fitting(
    config: RouteConfig, label: str, rng: random.Random
) -> tuple[World, tuple[Fault, ...]]:
    for _ in range(_WORLDS):
        kinds = _kinds(label, rng)
        try:
            world = draw_world(rng, config.routers, partial(table.has_room, kinds=kinds))
        except RuntimeError:
            continue
        room = table.Room(world)
        faults = table.draw(room, kinds, rng) if kinds else ()
        if faults is not None:
            return world, _draw_related(room, label, faults, rng)
    size = "" if config.routers is None else f" of {config.routers} routers"
    raise ConfigError("config.error_types", f"{label} does not fit into a backbone{size}")


def _draw_related(
    room: table.Room, label: str, faults: tuple[Fault, ...], rng: random.Random
) -> tuple[Fault, ...]:
    """Other faults of this label of which some have to wait, or hide each other, if those drawn do
    not and some are soon found; for most of those queries."""
    if len(faults) < 2 or _waits(faults) or rng.random() >= _AGAIN:
        return faults
    if label in COUNTED:
        return table.draw_waiting(room, COUNTED[label], rng) or faults
    kinds = kinds_of(label)
    for _ in range(_DRAWS):
        found = table.draw(room, kinds, rng)
        if found is not None and _waits(found):
            return found
        if found is not None and table.interact(found) and not table.interact(faults):
            faults = found
    return faults


def _waits(faults: Sequence[Fault]) -> bool:
    """Whether repairs of about every second one have to wait for another's elsewhere."""
    return 2 * table.num_waits(faults) >= len(faults)


def _kinds(label: str, rng: random.Random) -> Sequence[str]:
    """The kinds of a label; so many of any, where it says how many."""
    if label in COUNTED:
        return rng.sample([*table.KINDS], COUNTED[label])
    return kinds_of(label)


def _text(world: World) -> str:
    return (
        f"The backbone of AS {world.asn} is broken: repair it until every service, way and "
        "announcement is as its documentation says."
    )


def is_backbone(query: Query) -> bool:
    """Whether a query is about a backbone."""
    world = query.initial.get("world") if isinstance(query.initial, dict) else None
    return isinstance(world, dict) and "outsiders" in world


def case_of(query: Query) -> Case:
    """The healthy world of ``query``; the same object while it is asked for again and again."""
    return _CASES.get(
        query.initial,
        lambda: Case(World.model_validate(cast("dict[str, Any]", query.initial)["world"])),
    )


def faults_of(query: Query) -> tuple[Fault, ...]:
    """What is broken in it, in the order in which it is injected."""
    return tuple(fault_of(action) for action in query.actions)
