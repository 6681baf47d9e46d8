"""Stored queries with a change request, because drawing one takes seconds.

This file, run as a program, draws and writes all of them, and the digests of test_golden.py; given
names, it draws and writes only the queries with these names:

    PYTHONPATH=apps:. python tests/unit/backbone_requests.py
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from netarena.config import PromptStyle
from netarena.model import Query
from netarena.task.prompt import render
from netarena_backbone.app import Backbone
from netarena_backbone.config import BackboneConfig
from netarena_backbone.planned import request
from netarena_backbone.planned.plan import Plan, actions_of
from netarena_backbone.planned.refusal import REFUSED, options
from netarena_backbone.planned.request import Draft, Request, _pairs_by_link, _Room
from netarena_backbone.planned.table import SETUPS
from netarena_backbone.query import case_of
from netarena_backbone.state import misfits
from netarena_backbone.world.model import World
from netarena_network.action import Fault, action_of

STORED = Path(__file__).with_name("backbone") / "requests"
DIGESTS = STORED / "digests.json"
SEED = 20261129
APP = Backbone()


class Sort(NamedTuple):
    """A label, and the shares that the draw uses.

    Four of them are the shares of requests with an order, a latent fault, a second latent fault and
    a refused change. ``lasting`` is the share of latent faults that only a contingency shows.
    """

    label: str
    ordered: float = 0.0
    faulty: float = 0.0
    twice: float = 0.0
    lasting: float = 0.0
    refused: float = 0.0


#: Name of a stored query -> how it is drawn. The shares are 0 or 1, so that one draw is enough.
SORTS: Mapping[str, Sort] = MappingProxyType(
    {
        "ordered": Sort("change_2", ordered=1),
        "refused": Sort("change_2", refused=1),
        "latent": Sort("change_1", faulty=1),
        "lasting": Sort("change_1", faulty=1, lasting=1),
        "mixed": Sort("change_3", ordered=1, faulty=1, twice=1, refused=1),
    }
)


def config_of(label: str) -> BackboneConfig:
    """Return a config of change requests in small backbones."""
    keys = {"briefing": "ticket", "routers": 5, "error_types": [label], "emulator": "netns"}
    return BackboneConfig.parse(keys)


@cache
def load(name: str) -> Query:
    """Return a stored query."""
    text = (STORED / f"{name}.json").read_text(encoding="utf-8")
    return Query.model_validate_json(text)


def plan_of(query: Query) -> Plan:
    """Return the change request of a query."""
    plan = case_of(query).plan
    assert plan is not None
    return plan


# requests in a stored world, which do not depend on what is drawn


@cache
def world() -> World:
    """Return the stored backbone."""
    text = STORED.with_name("drawn.json").read_text(encoding="utf-8")
    return World.model_validate(json.loads(text)["world"])


#: Methods whose changes the stored world needs before these methods are possible.
EARLIER: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        **SETUPS,
        ("area", "number"): ("area", "leaf"),
        ("summary", "add"): ("area", "leaf"),
        ("reflection", "reflectors"): ("reflection", "mesh"),
    }
)


@cache
def start_of(name: tuple[str, str]) -> World:
    """Return the stored backbone, changed so that it has room for a method."""
    if name not in EARLIER:
        return world()
    before = start_of(EARLIER[name])
    starts = (change.edit(before) for change in options(before, *EARLIER[name]))
    return next(one for one in starts if options(one, *name))


@cache
def link_pair() -> tuple[World, Request, Request]:
    """Return a world, a request to bring a link into service, and one that interrupts another link.

    The other link is the only path between some routers until the first one is in service.
    """
    for seed in range(20):
        for today, first, second in _pairs_by_link(world(), random.Random(seed)):
            if second.kind != "link_out" and _Room(today).is_pair(first, second):
                return today, first, second
    raise AssertionError("the stored world has no such pair of links")


@cache
def session_request() -> Query:
    """Return a query that requests to set up a session."""
    today, made = _session()
    return asked(today, made)


@cache
def own_prefix_request() -> Query:
    """Return a query with a change of a cost, and a session that must not be set up."""
    today, _ = _session()
    cost = options(today, "costs", "one")[0]
    kind, method, change = next(REFUSED["own_prefix"](today, cost.edit(today)))
    refused = Request(kind, method, change, "own_prefix")
    return asked(today, Request("costs", "one", cost), refused)


@cache
def service_request() -> Query:
    """Return a query that requests to raise an MTU and to move a service, with contingencies."""
    text = STORED.with_name("drawn.json").read_text(encoding="utf-8")
    drawn = World.model_validate(json.loads(text)["contingent"])
    for lower in options(drawn, "path_mtu", "lower"):
        today = lower.edit(drawn)
        wide = Request("path_mtu", "raise", options(today, "path_mtu", "raise")[0])
        moved = Request("service_move", "host", options(today, "service_move", "host")[0])
        query = asked(today, wide, moved)
        plan = plan_of(query)
        assert plan.stages.today is not None
        is_narrow = any(
            one.sort == "full" for one in misfits(plan.stages.today, case_of(query).wanted)
        )
        if is_narrow and not plan.doubts():
            return query
    raise AssertionError("no link of the stored world can be narrowed")


def _session() -> tuple[World, Request]:
    for gone in options(world(), "neighbour_remove", "remove"):
        today = gone.edit(world())
        for change in options(today, "neighbour_add", "set_up"):
            told = _Room(today)._told(Request("neighbour_add", "set_up", change))
            if change.key == gone.key and not plan_of(asked(today, told)).doubts():
                return today, told
    raise AssertionError("no session of the stored world can be set up again")


def asked(today: World, *requests: Request) -> Query:
    """Return a query with these requests, without latent faults."""
    return Query(
        id="asked",
        application="route",
        version="6",
        seed=SEED,
        index=0,
        label=f"change_{len(requests)}",
        level="level1",
        text="",
        initial={"world": today.model_dump(mode="json", exclude_defaults=True)},
        actions=tuple(map(action_of, actions_of(Draft(today, (), requests)))),
    )


def with_faults(world: World, *faults: Fault) -> Query:
    """Return a query about a world with these faults, because drawing a query takes seconds."""
    return Query(
        id="faulty",
        application="route",
        version="11",
        seed=SEED,
        index=0,
        label="+".join(fault.kind for fault in faults),
        level="level1",
        text="",
        initial={"world": world.model_dump(mode="json", exclude_defaults=True)},
        actions=tuple(map(action_of, faults)),
    )


# drawing


def draw(sort: Sort) -> Query:
    """Draw a query with the properties of ``sort``."""
    shares = {
        f"_{name.upper()}": value for name, value in sort._asdict().items() if name != "label"
    }
    kept = {name: vars(request)[name] for name in shares}
    vars(request).update(shares)
    try:
        return next(iter(APP.generate(config_of(sort.label), SEED)))
    finally:
        vars(request).update(kept)


def prompts_of(query: Query) -> list[str]:
    """Return the first prompt of a ticket in each style."""
    parts = APP.tickets.prompt(query, None, (), random.Random(1))
    return [render(style, parts) for style in PromptStyle]


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Draw a query of each of two labels; return digests of queries and of prompts."""
    keys = {"briefing": "ticket", "routers": 4, "error_types": ["change_1", "change_2"]}
    drawn = list(APP.generate(BackboneConfig.parse(keys), SEED))
    queries = [query.model_dump_json() + repr(list(APP.solve(query))) for query in drawn]
    return {
        "queries": digest(queries),
        "prompts": digest([text for query in drawn for text in prompts_of(query)]),
    }


def load_digests() -> dict[str, str]:
    """Return the stored ``digests``."""
    found: dict[str, str] = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    STORED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or SORTS:
        text = draw(SORTS[name]).model_dump_json(indent=1)
        (STORED / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
    if not sys.argv[1:]:
        DIGESTS.write_text(f"{json.dumps(digests(), indent=1)}\n", encoding="utf-8")
