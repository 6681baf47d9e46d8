"""Queries, ids and first prompts of each application must equal stored hashes.

A commit that changes a hash on purpose explains the change. If a seed then draws other queries, the
commit also raises the generator's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backbone_requests import digests, load_digests, prompts_of

from netarena.config import PromptStyle
from netarena.model import Query, State
from netarena.task.application import Application, configured, load
from netarena.task.prompt import render
from netarena_backbone.fault.table import KINDS, broken, read, to_fault
from netarena_backbone.query import case_of
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World
from netarena_k8s.cluster import Sight
from netarena_k8s.fault.table import faulty
from netarena_k8s.query import faults_of
from netarena_k8s.query import world_of as shop_of
from netarena_k8s.state import make_state
from netarena_k8s.world.model import reach
from netarena_network.action import action_of, fault_of
from netarena_route.query import world_of as network_of

pytestmark = pytest.mark.every_python
SEED = 20261125
DRAWN = Path(__file__).with_name("backbone") / "drawn.json"
#: configs that use every generator and every text of a prompt; for malt, one config of each version
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "malt": [{}],
    "malt, worded": [{"phrasing": "varied"}, {"phrasing": "held_out"}],
    "route": [{}, {"world": "varied", "num_switches": 3, "num_hosts_per_subnet": 2}],
    "backbone": [{"routers": 4, "error_types": ["ospf_cost+bgp_filter"]}],
    "route, backbone": [
        {"world": "backbone", "routers": 4, "error_types": ["ospf_cost+bgp_filter"]}
    ],
    "k8s": [{}, {"world": "varied"}],
}


def _unseen(query: Query) -> State:
    """Return an empty state, because malt's agent gets the network itself instead."""
    del query
    return {}


def _disconnected(query: Query) -> State:
    size = len(network_of(query).intended)
    rows = ["".join("1" if one == other else "0" for other in range(size)) for one in range(size)]
    return {"matrix": list(rows), "stolen": [], "switches": [], "collateral": []}


def _broken(query: Query) -> State:
    shop = shop_of(query)
    policies = tuple(faulty(shop, faults_of(query)))
    return make_state(Sight(policies, reach(shop, policies)))


def _as_computed(query: Query) -> State:
    world = case_of(query).world
    changes = [read(world, fault) for fault in map(fault_of, query.actions)]
    return expected(broken(world, changes)).model_dump(mode="json")


STATES: dict[str, Callable[[Query], State]] = {
    "malt": _unseen,
    "route": _disconnected,
    "backbone": _as_computed,
    "k8s": _broken,
}


def draw(application: Application, values: list[dict[str, Any]]) -> tuple[Application, list[Query]]:
    served = [configured(application, one) for one in values]
    drawn = [query for serving, config in served for query in serving.generate(config, SEED)]
    return served[-1][0], drawn


def digest(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def told(application: Application, query: Query, style: PromptStyle) -> str:
    return render(style, application.prompt(query, STATES[application.name](query), ()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "queries", "prompts"),
    [
        ("malt", "85ae8b9ca002bccb", "7793e2a53666ece8"),
        ("malt, worded", "49c61a1ed4f7666a", "a327b7733d2c84c6"),
        ("route", "186fd090e1deb2c9", "78182e7b8068051a"),
        # formerly a world of route: the same queries, ids and prompts
        ("backbone", "3af8f8f158d20bb6", "9a1020bb0bca0581"),
        ("route, backbone", "3af8f8f158d20bb6", "9a1020bb0bca0581"),
        ("k8s", "7dd0758a355b04fe", "ee1bd3d84ca96cfd"),
    ],
)
def test_queries_and_prompts_match_the_stored_digests(
    name: str, queries: str, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NETARENA_PHRASING_PACK", raising=False)
    application, drawn = draw(load(name.partition(",")[0]), CONFIGS[name])
    lines = [query.model_dump_json() + repr(list(application.solve(query))) for query in drawn]
    texts = [told(application, query, style) for query in drawn[:60] for style in PromptStyle]
    assert (digest(lines), digest(texts)) == (queries, prompts)


def test_prompts_of_backbone_tickets_match_the_stored_digest() -> None:
    """The ticket is about a stored world, so that nothing is drawn."""
    stored = json.loads(DRAWN.read_text(encoding="utf-8"))["contingent"]
    world = World.model_validate(stored)
    faults = [
        to_fault(world, kind, KINDS[kind][0], next(KINDS[kind][0].changes(world)))
        for kind in ("ospf_cost", "bgp_filter")
    ]
    query = Query(
        id="ticket",
        application="route",
        version="6",
        seed=SEED,
        index=0,
        label="faults_2",
        level="level2",
        text="",
        initial={"world": stored},
        actions=tuple(map(action_of, faults)),
    )
    assert digest(prompts_of(query)) == "24376a705cbf1ce8"


@pytest.mark.slow
def test_change_requests_match_the_stored_digests() -> None:
    """tests/unit/backbone_requests.py, run as a program, stores the digests."""
    assert digests() == load_digests()
