"""The seeded generator: a shop, and the faults upon its policies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from netarena.errors import ConfigError
from netarena.label import COUNTED
from netarena.model import Query
from netarena_k8s.boutique import boutique
from netarena_k8s.checkout import read_checkout
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.estate import estate
from netarena_k8s.fault import CATALOGUE, Fault, action_of, draw, fault_of
from netarena_k8s.mask import draw_number
from netarena_k8s.varied import varied
from netarena_k8s.world import World

APPLICATION = "k8s"
#: raised whenever a seed would draw something else
VERSION = "2"
#: drawn shops of which one has room for a combination
_WORLDS = 8

_TEXT = (
    "Network policies of this namespace are wrong: repair them until every connection is as it "
    "is intended."
)


def labels(config: KubernetesConfig) -> Mapping[str, tuple[str, ...]]:
    """The labels of ``config``, each with its kinds. Raises ConfigError for an unknown kind."""
    return CATALOGUE.choose(config.error_types, config.complexity_level)


def generate(
    config: KubernetesConfig,
    seed: int,
    rng_for: Callable[[int], random.Random],
    make_id: Callable[[int], str],
    *,
    start: int = 0,
) -> Iterator[Query]:
    """Draw ``config.num_queries`` queries of each label, labels in turn, from index ``start`` on.

    Query ``i`` is drawn from ``rng_for(i)`` alone and has the id ``make_id(i)``. Raises
    ConfigError for a kind that there is not, for a combination for which the world has no room,
    and for a checkout that cannot be read.
    """
    folder = config.microservice_dir
    standard = boutique() if folder is None else read_checkout(folder)
    programs = list(labels(config).items())
    for index in range(start, config.num_queries * len(programs)):
        label, kinds = programs[index % len(programs)]
        rng = rng_for(index)
        anew = config.world == "varied" or label in COUNTED
        for _ in range(_WORLDS if anew else 1):
            world = _world(config, rng) or standard
            number = COUNTED.get(label)
            faults = draw(world, kinds, rng) if number is None else draw_number(world, number, rng)
            if faults is not None:
                break
        else:
            raise ConfigError(
                "config.error_types", f"{label} does not show in the policies of this world"
            )
        yield Query(
            id=make_id(index),
            application=APPLICATION,
            version=VERSION,
            seed=seed,
            index=index,
            label=label,
            level=CATALOGUE.level(kinds),
            text=_TEXT,
            initial={"world": world.model_dump(mode="json")},
            actions=tuple(map(action_of, faults)),
        )


def _world(config: KubernetesConfig, rng: random.Random) -> World | None:
    """A drawn shop, where one is to be drawn."""
    if config.world != "varied":
        return None
    return varied(rng) if config.num_apps is None else estate(rng, *config.num_apps)


def world_of(query: Query) -> World:
    """The healthy shop of ``query``."""
    return World.model_validate(cast("dict[str, Any]", query.initial)["world"])


def faults_of(query: Query) -> tuple[Fault, ...]:
    """What is wrong in it, each on a policy of its own."""
    return tuple(fault_of(action) for action in query.actions)
