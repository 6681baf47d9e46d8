"""Seeded choice of the contingencies of a fault-free world.

Contingencies are drawn before the faults and independently of them. A link is suitable if the
effect of its failure is predictable. The failure must break little inside our network, allow no
additional traffic and leak no route. Links to other ASes are suitable even if the AS then loses its
connection.
"""

from __future__ import annotations

import random

from netarena_backbone.state import WORKS, Facts, forbidden, misfits, predicted
from netarena_backbone.world.contingency import Contingency, during, link_between
from netarena_backbone.world.model import World

_LEAST, _MOST = 3, 5
#: Maximum number of links to other ASes among the contingencies.
_MOST_OUTER = 2
#: Probability that links to the first upstream are preferred over other links to other ASes.
_TWICE = 0.7
#: Maximum number of tests inside our network that a failure may break by design.
_MOST_LOST = 24
#: Share of worlds in which only a saved configuration survives the restart of the daemons.
_SAVED = 1 / 3


def with_contingencies(world: World, wanted: Facts, rng: random.Random) -> World | None:
    """Return the fault-free world with its contingencies, or None if too few links are suitable.

    ``wanted`` contains the facts of the world.
    """
    number = rng.randint(_LEAST, _MOST)
    links = [(link.one[0], link.other[0]) for link in world.links]
    ours = [one for one in links if world.names & {*one} and link_between(world, one)]
    inner = [one for one in ours if world.names >= {*one}]
    outer = [one for one in ours if {router.name for router in world.outside} & {*one}]
    rng.shuffle(inner)
    rng.shuffle(outer)
    if rng.random() < _TWICE:
        # The first upstream is connected twice, so that each of its links has a backup.
        upstream = next(one.router for one in world.outsiders if one.kind == "upstream")
        outer.sort(key=lambda cable: upstream not in cable)
    chosen: list[tuple[str, str]] = []
    for some, most in ((outer, _MOST_OUTER), (inner, number)):
        limit = min(number, len(chosen) + most)
        for cable in some:
            if len(chosen) < limit and _is_suitable(world, wanted, cable):
                chosen.append(cable)
    if len(chosen) < _LEAST:
        return None
    rng.shuffle(chosen)
    return world.model_copy(
        update={
            "contingencies": tuple(chosen),
            "only_saved_survives": rng.random() < _SAVED,
        }
    )


def _is_suitable(world: World, wanted: Facts, cable: tuple[str, str]) -> bool:
    facts = predicted(during(world, Contingency("", cable)), anyhow=True)
    if facts is None:
        return False
    wrong = misfits(wanted, facts)
    is_opened = any(facts.get(fact) == WORKS for fact in wrong)
    # The documentation cannot express that only full-size pings fail.
    is_narrow = any(fact.sort == "full" for fact in wrong)
    if is_opened or is_narrow or forbidden(world, facts):
        return False
    return _lost_inside(world, wanted, facts) <= _MOST_LOST


def _lost_inside(world: World, wanted: Facts, facts: Facts) -> int:
    """Return the number of pings between our own machines that the link failure breaks.

    Small and full-size pings are counted separately.
    """
    own = world.names | {host.name for host in world.hosts if host.resolver}
    return sum(
        fact.sort in {"ping", "full"}
        and own >= {fact.source, fact.target}
        and value == WORKS != facts.get(fact)
        for fact, value in wanted.items()
    )
