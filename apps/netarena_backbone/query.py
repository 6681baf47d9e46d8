"""Seeded generator of backbone queries. A query consists of a world and its faults."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
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
from netarena_backbone.planned import request
from netarena_backbone.planned.plan import Plan, actions_of, is_requested
from netarena_backbone.state import Facts, intended
from netarena_backbone.world.contingency import Contingency, contingencies, during
from netarena_backbone.world.intent import Backup, backups
from netarena_backbone.world.model import World
from netarena_network.action import Fault, action_of, faults_of

#: Version of the generator. It must be increased whenever a seed generates a different query.
VERSION = "11"
#: Version of the generator for configurations whose labels include change requests.
CHANGES_VERSION = "12"

#: Maximum number of worlds that are drawn for a combination of kinds.
_WORLDS = 12
#: Probability that independent faults are replaced by dependent faults if these are found, and the
#: maximum number of attempts to find dependent faults of given kinds.
_AGAIN, _DRAWS = 0.9, 12
#: Number of faults of a ticket -> equally likely numbers of these faults that take effect only in a
#: contingency.
_LATENT: Mapping[int, Sequence[int]] = MappingProxyType(
    {2: (0, 1, 1), 3: (1, 1, 2), 4: (1, 2, 3), 5: (2, 3, 3)}
)
#: Number of fixed combinations of two and of three kinds.
_PAIRS, _TRIPLES = 15, 15
#: Kinds that are possible in few worlds. They therefore occur only in labels with one kind.
_RARE = frozenset({"router_id", "bgp_client", "bgp_update_source", "ospf_summary", "one_way"})
#: Label -> number of requested changes.
CHANGES: Mapping[str, int] = MappingProxyType(
    {f"change_{number}": number for number in range(1, 5)}
)
CATALOGUE = Catalogue((), tuple(table.KINDS), frozenset(), table.ALIKE, CHANGES)


class Case:
    """The documented world of a query, with values derived from the world.

    In a query with a change request, ``plan`` is the request. ``world`` is the world documented
    today. ``wanted`` contains the facts documented for the time after the changes.
    """

    def __init__(self, world: World, plan: Plan | None = None) -> None:
        self.world = world
        self.plan = plan
        #: The world that the agent has to reach.
        self.goal = world if plan is None else plan.target
        self._wanted_in: dict[Contingency, Facts] = {}
        #: The observations of each ticket about this world (``ticket.observe``).
        self.observed: dict[object, tuple[str, ...]] = {}

    @cached_property
    def wanted(self) -> Facts:
        """The facts of the world that the agent has to reach."""
        return intended(self.goal)

    @cached_property
    def of_today(self) -> Case:
        """The case of today's network in a query with a change request; it has no contingencies."""
        return Case(self.world.model_copy(update={"contingencies": ()}))

    def prepare(self) -> None:
        """Compute the values that prompts and judgements of a change request need.

        This takes about a second.
        """
        if self.plan is not None:
            _ = self.plan.judged, self.wanted, self.backups
            _ = self.of_today.wanted, self.of_today.backups
            for contingency in self.contingencies:
                self.wanted_in(contingency)

    @cached_property
    def contingencies(self) -> tuple[Contingency, ...]:
        """The contingencies in the order in which they are tried; only tickets have any."""
        return contingencies(self.world)

    def wanted_in(self, contingency: Contingency) -> Facts:
        """Return the facts that are documented for the duration of a contingency."""
        if contingency.cable is None:
            return self.wanted
        if contingency not in self._wanted_in:
            self._wanted_in[contingency] = intended(during(self.goal, contingency))
        return self._wanted_in[contingency]

    @cached_property
    def backups(self) -> Mapping[tuple[str, str], Backup]:
        """The intended backup paths, which are used while a link is down."""
        return backups(self.goal)


#: Cases by initial state, for queries without change requests; and cases by query.
_CASES: Kept[Case] = Kept(32)
_OF_QUERIES: Kept[Case] = Kept(32)


def labels(config: BackboneConfig) -> Mapping[str, tuple[str, ...]]:
    """Return the labels of ``config``, each with its kinds.

    If ``error_types`` is unset, the labels are all single kinds and the fixed pairs and triples.
    Raises ConfigError if a kind is unknown.
    """
    if config.error_types is not None:
        for label in config.error_types:
            if label in CHANGES and config.briefing is not Briefing.TICKET:
                raise ConfigError(
                    "config.error_types",
                    f"{label} is a change request, which is available only with briefing=ticket",
                )
        return CATALOGUE.choose(config.error_types, config.complexity_level)
    chosen = [*((kind,) for kind in table.KINDS), *_combinations()]
    return {
        JOINT.join(kinds): kinds
        for kinds in chosen
        if CATALOGUE.level(kinds) in config.complexity_level
    }


def _combinations() -> list[tuple[str, ...]]:
    """Return the pairs and triples of kinds; every call returns the same."""
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

    The returned function raises ConfigError if no drawn world has a given combination of kinds.
    """

    def draw_one(label: str, rng: random.Random) -> Drawn:
        if label in CHANGES:
            return _draw_changes(config, label, rng)
        world, faults = _draw_fitting(config, label, rng)
        initial: JsonValue = {"world": world.model_dump(mode="json", exclude_defaults=True)}
        level = CATALOGUE.level(kinds_of(label))
        return Drawn(level, _text(world), initial, tuple(map(action_of, faults)))

    return draw_one


def _draw_changes(config: BackboneConfig, label: str, rng: random.Random) -> Drawn:
    try:
        draft = request.draw(rng, CHANGES[label], config.routers)
    except request.NoRequestError:
        size = "" if config.routers is None else f" of {config.routers} routers"
        raise ConfigError(
            "config.error_types",
            f"found no {label} request in {request.WORLDS} drawn backbones{size}; set another seed "
            "or another number of routers",
        ) from None
    initial: JsonValue = {"world": draft.world.model_dump(mode="json", exclude_defaults=True)}
    text = (
        f"Carry out the change request for the backbone of AS {draft.world.asn} without harm to "
        "documented traffic."
    )
    actions = tuple(map(action_of, actions_of(draft)))
    return Drawn(CATALOGUE.level(kinds_of(label)), text, initial, actions)


def _draw_fitting(
    config: BackboneConfig, label: str, rng: random.Random
) -> tuple[World, tuple[Fault, ...]]:
    contingent = config.briefing is Briefing.TICKET
    # before the loop, so that the share does not depend on how often worlds are rejected
    numbers = _LATENT.get(COUNTED.get(label, 0)) if contingent else None
    latent = rng.choice(numbers) if numbers else 0
    for _ in range(_WORLDS):
        kinds = _kinds(label, rng)
        try:
            fits = partial(table.has_room, kinds=kinds)
            world = draw_world(rng, config.routers, fits, contingent=contingent)
        except RuntimeError:
            continue
        room = table.Room(world, faults=len(kinds))
        shown = kinds[: len(kinds) - latent]
        faults = table.draw(room, shown, rng) if shown else ()
        if faults is None:
            continue
        faults = _draw_related(room, f"faults_{len(shown)}" if latent else label, faults, rng)
        for _ in range(latent):
            faults = faults and table.add_latent(room, faults, rng)
        if faults is not None:
            return world, faults
    size = "" if config.routers is None else f" of {config.routers} routers"
    raise ConfigError("config.error_types", f"{label} cannot be injected into a backbone{size}")


def _draw_related(
    room: table.Room, label: str, faults: tuple[Fault, ...], rng: random.Random
) -> tuple[Fault, ...]:
    """Return related faults of the same label if such faults are found quickly.

    Faults are related if their repairs depend on each other or if one hides another. Usually,
    unrelated faults are replaced by related faults. Otherwise, and if the search fails, the given
    faults are returned.
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
    """Return whether the repairs of at least half of the faults must wait for a repair on another
    machine."""
    return 2 * table.num_waits(faults) >= len(faults)


def _kinds(label: str, rng: random.Random) -> Sequence[str]:
    """Return the kinds of a label, or N random kinds if the label states only a number N."""
    if label in COUNTED:
        return rng.sample([*table.KINDS], COUNTED[label])
    return kinds_of(label)


def _text(world: World) -> str:
    return (
        f"The backbone of AS {world.asn} is broken: repair it until every service, way and "
        "announcement is as its documentation says."
    )


def case_of(query: Query) -> Case:
    """Return the documented world of ``query``, with its cached values.

    Raises KeyError or ValueError if the query is not a backbone query.
    """

    def make() -> Case:
        return Case(World.model_validate(cast("dict[str, Any]", query.initial)["world"]))

    def make_planned() -> Case:
        case, actions = _CASES.get(query.initial, make), faults_of(query)
        if not any(map(is_requested, actions)):
            return case
        return Case(case.world, Plan(case.world, actions))

    return _OF_QUERIES.get(query, make_planned)
