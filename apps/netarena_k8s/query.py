"""Seeded generator of queries. Each query has a world and faults in its policies."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path

from netarena.sdk import (
    COUNTED,
    Briefing,
    ConfigError,
    Drawer,
    Drawn,
    Query,
    broken,
    kinds_of,
    read_labels,
    world_reader,
)
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.intent import draw_intended, draw_named
from netarena_k8s.fault.mask import draw_number
from netarena_k8s.fault.subtle import methods_of
from netarena_k8s.fault.table import CATALOGUE, Fault, action_of, draw, fault_of
from netarena_k8s.source.alter import alter
from netarena_k8s.source.checkout import KEY, digest_checkout, read_checkout
from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import World

_log = logging.getLogger(__name__)

#: version of the generator, increased whenever a seed would produce other queries
VERSION = "3"
#: version of queries whose label fixes the number of faults, but not their kinds
COUNTED_VERSION = "4"
#: maximum number of worlds that are drawn to find one in which a combination of faults is possible
_WORLDS = 24
#: number of kinds of fault that policies of a query have or seem to have
_FORMS = 4
#: number of attempts to draw a requested combination before it is refused
_DRAWS = 3

_TEXT = (
    "Network policies of this namespace are wrong: repair them until every connection is as it "
    "is intended."
)


def labels(config: KubernetesConfig) -> Collection[str]:
    """Return the labels (combinations of faults) for which queries are generated.

    By default, combinations that are not possible with the policies of a folder are left out.
    Raises ConfigError for an unknown kind, for requested combinations that are not possible, and if
    no combination is left.
    """
    chosen = CATALOGUE.choose(config.error_types, config.complexity_level)
    folder = config.microservice_dir
    if folder is None:
        return chosen
    usual = config.IN_TICKETS if config.briefing is Briefing.TICKET else {}
    given = config.error_types is not None and config.error_types != read_labels(
        usual.get("error_types")
    )
    # A requested combination gets several draws, because another draw may find faults.
    draws = _DRAWS if given else 1
    found, others = _fitting(folder, digest_checkout(folder), tuple(chosen), draws)
    if others and (given or not found):
        raise ConfigError(
            "config.error_types",
            f"the policies of {KEY} cannot have faults of the kinds "
            f"{', '.join(others)}: omit these kinds",
        )
    return found


@lru_cache(maxsize=8)
def _fitting(
    folder: str, digest: str, chosen: tuple[str, ...], draws: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels that are possible with the policies of a folder, and the other labels.

    The result is cached, so labels that are left out by default are logged only once.
    """
    del digest
    world = read_checkout(folder)
    # The seed depends only on the label, so that the same labels fit in every assessment.
    found = tuple(one for one in chosen if _fits(world, one, draws))
    others = tuple(one for one in chosen if one not in found)
    if others and found and draws == 1:
        _log.warning(
            "microservice_dir %s: the policies cannot have faults of the kinds %s, so %d "
            "of %d combinations are drawn; set error_types to choose the combinations",
            Path(folder).name,
            ", ".join(others),
            len(found),
            len(chosen),
        )
    return found, others


def _fits(world: World, label: str, draws: int) -> bool:
    """Return whether one of the first ``draws`` attempts finds faults of a label."""
    rng = random.Random(label)  # noqa: S311 -- not for secrets
    if label in COUNTED:
        return any(draw_number(world, COUNTED[label], rng) is not None for _ in range(_WORLDS))
    methods = methods_of(world)
    return any(draw(world, kinds_of(label), rng, methods) is not None for _ in range(draws))


def drawer(config: KubernetesConfig) -> Drawer:
    """Return the function that generates a world and faults in its policies.

    The returned function raises ConfigError for a combination that is not possible. ``drawer``
    raises ConfigError for an unreadable folder of manifests.
    """
    folder = config.microservice_dir
    standard = boutique() if folder is None else read_checkout(folder)

    chosen = CATALOGUE.choose(config.error_types, config.complexity_level)
    among = sorted({kind for kinds in chosen.values() for kind in kinds} - COUNTED.keys())

    def draw_one(label: str, rng: random.Random) -> Drawn:
        kinds, number = kinds_of(label), COUNTED.get(label)
        for _ in range(_WORLDS if config.world == "varied" else 0):
            if number is None:
                some = _together(kinds, among, rng)
                world, altered = alter(_draw_world(config, rng), rng, some)
                found = draw_named(world, altered, kinds, some, rng)
            else:
                world, altered = alter(_draw_world(config, rng), rng)
                found = draw_intended(world, altered, number, rng)
            if found is not None:
                world, faults = found
                return broken(CATALOGUE, label, _TEXT, world, tuple(map(action_of, faults)))
        for _ in range(_WORLDS if number is not None else 1):
            world = _draw_world(config, rng) if config.world == "varied" else standard
            faults_ = (
                draw(world, kinds, rng, methods_of(world))
                if number is None
                else draw_number(world, number, rng)
            )
            if faults_ is not None:
                return broken(CATALOGUE, label, _TEXT, world, tuple(map(action_of, faults_)))
        raise ConfigError(
            "config.error_types", f"{label} has no measurable effect on the policies of this world"
        )

    return draw_one


def _together(kinds: Sequence[str], among: Sequence[str], rng: random.Random) -> list[str]:
    """Return ``kinds`` and some other kinds of ``among``, in random order.

    Policies of a query have, or seem to have, faults of the returned kinds. Only a few kinds are
    returned, so that several policies look similar. The form of a policy then does not show
    whether it is faulty.
    """
    others = [kind for kind in among if kind not in kinds]
    chosen = [*kinds, *rng.sample(others, min(len(others), max(0, _FORMS - len(kinds))))]
    return rng.sample(chosen, len(chosen))


def _draw_world(config: KubernetesConfig, rng: random.Random) -> World:
    """Return a random world."""
    return varied(rng) if config.num_apps is None else estate(rng, *config.num_apps)


#: function that returns a query's world with its intended policies
world_of: Callable[[Query], World] = world_reader(World)


def faults_of(query: Query) -> tuple[Fault, ...]:
    """Return the faults of a query, each on a different policy."""
    return tuple(fault_of(action) for action in query.actions)
