"""Seeded generator of backbone queries, which consist of a world and its faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

from netarena.sdk import (
    COUNTED,
    JOINT,
    Briefing,
    Catalogue,
    ConfigError,
    Drawer,
    Drawn,
    JsonValue,
    Kept,
    Query,
    kinds_of,
)
from netarena_backbone.config import BackboneConfig
from netarena_backbone.draw import draw as draw_world
from netarena_backbone.fault import table
from netarena_backbone.state import Facts, intended
from netarena_backbone.world.contingency import Contingency, contingencies, during
from netarena_backbone.world.intent import Backup, backups
from netarena_backbone.world.model import World
from netarena_network.action import Fault, action_of

#: Must be increased with every change after which a seed generates a different query.
VERSION = "6"

#: Maximum number of worlds drawn for one combination of kinds.
_WORLDS = 12
#: Probability that independent faults are drawn again to find dependent faults, and maximum number
#: of such draws if the kinds are given.
_AGAIN, _DRAWS = 0.9, 12
#: Share of tickets with several faults of which one shows only in a contingency.
_LATENT = 2 / 3
#: Number of fixed combinations of two and of three kinds.
_PAIRS, _TRIPLES = 15, 15
#: Kinds that are possible in few worlds, and therefore occur only in labels with one kind.
_RARE = frozenset({"router_id", "bgp_client", "bgp_update_source", "ospf_summary", "one_way"})
CATALOGUE = Catalogue((), tuple(table.KINDS), frozenset(), table.ALIKE)


class Case:
    """The fault-free world of a query, with values derived from it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._wanted_in: dict[Contingency, Facts] = {}
        #: The observations of each ticket about this world (``ticket.observe``).
        self.observed: dict[object, tuple[str, ...]] = {}

    @cached_property
    def wanted(self) -> Facts:
        """The facts of the fault-free world."""
        return intended(self.world)

    @cached_property
    def contingencies(self) -> tuple[Contingency, ...]:
        """The contingencies in the order in which they are tried; only tickets have any."""
        return contingencies(self.world)

    def wanted_in(self, contingency: Contingency) -> Facts:
        """Return the documented facts while a contingency lasts."""
        if contingency.cable is None:
            return self.wanted
        if contingency not in self._wanted_in:
            self._wanted_in[contingency] = intended(during(self.world, contingency))
        return self._wanted_in[contingency]

    @cached_property
    def backups(self) -> Mapping[tuple[str, str], Backup]:
        """The intended paths while a link is down."""
        return backups(self.world)


_CASES: Kept[Case] = Kept(32)


def labels(config: BackboneConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the labels of ``config``, each with its kinds.

    If ``error_types`` is unset, the labels are all single kinds and the fixed pairs and triples.
    Raises ConfigError for an unknown kind.
    """
    if config.error_types is not None:
        return CATALOGUE.choose(config.error_types, config.complexity_level)
    chosen = [*((kind,) for kind in table.KINDS), *_combinations()]
    return {
        JOINT.join(kinds): kinds
        for kinds in chosen
        if CATALOGUE.level(kinds) in config.complexity_level
    }


def _combinations() -> list[tuple[str, ...]]:
    """Return the pairs and triples of kinds, which are the same in every call."""
    rng = random.Random("pairs and triples of a backbone")  # noqa: S311 -- not for secrets
    kinds = [kind for kind in table.KINDS if kind not in _RARE]
    chosen: list[tuple[str, ...]] = []
    for parts, number in ((2, _PAIRS), (3, _TRIPLES)):
        found: set[tuple[str, ...]] = set()
        while len(found) < number:
            found.add(tuple(sorted(rng.sample(kinds, parts), key=kinds.index)))
        chosen += sorted(found)
    return chosen


def drawer(config: BackboneConfig) -> Drawer:
    """Return the function that draws a world and its faults.

    The returned function raises ConfigError if no world has room for a combination of kinds.
    """

    def draw_one(label: str, rng: random.Random) -> Drawn:
        world, faults = _draw_fitting(config, label, rng)
        initial: JsonValue = {"world": world.model_dump(mode="json", exclude_defaults=True)}
        level = CATALOGUE.level(kinds_of(label))
        return Drawn(level, _text(world), initial, tuple(map(action_of, faults)))

    return draw_one


def _draw_fitting(
    config: BackboneConfig, label: str, rng: random.Random
) -> tuple[World, tuple[Fault, ...]]:
    contingent = config.briefing is Briefing.TICKET
    # before the loop, so that the share does not depend on how often worlds are rejected
    is_latent = contingent and COUNTED.get(label, 0) > 1 and rng.random() < _LATENT
    for _ in range(_WORLDS):
        kinds = _kinds(label, rng)
        try:
            fits = partial(table.has_room, kinds=kinds)
            world = draw_world(rng, config.routers, fits, contingent=contingent)
        except RuntimeError:
            continue
        room = table.Room(world)
        shown = kinds[:-1] if is_latent else kinds
        faults = table.draw(room, shown, rng) if shown else ()
        if faults is None:
            continue
        faults = _draw_related(room, f"faults_{len(shown)}" if is_latent else label, faults, rng)
        if is_latent:
            faults = table.add_latent(room, faults, rng)
        if faults is not None:
            return world, faults
    size = "" if config.routers is None else f" of {config.routers} routers"
    raise ConfigError("config.error_types", f"{label} cannot be injected into a backbone{size}")


def _draw_related(
    room: table.Room, label: str, faults: tuple[Fault, ...], rng: random.Random
) -> tuple[Fault, ...]:
    """Return related faults of the same label if any are found quickly.

    Related faults depend on each other's repair or hide each other. If the given faults are not
    related, the function usually searches for related faults. Otherwise, and if the search fails,
    the function returns the given faults.
    """
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
    """Return whether at least half of the repairs must wait for a repair on another machine."""
    return 2 * table.num_waits(faults) >= len(faults)


def _kinds(label: str, rng: random.Random) -> Sequence[str]:
    """Return the kinds of a label; a label with a number means that many random kinds."""
    if label in COUNTED:
        return rng.sample([*table.KINDS], COUNTED[label])
    return kinds_of(label)


def _text(world: World) -> str:
    return (
        f"The backbone of AS {world.asn} is broken: repair it until every service, way and "
        "announcement is as its documentation says."
    )


def case_of(query: Query) -> Case:
    """Return the fault-free world of ``query``, with its cached values."""
    return _CASES.get(
        query.initial,
        lambda: Case(World.model_validate(cast("dict[str, Any]", query.initial)["world"])),
    )
