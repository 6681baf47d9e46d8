"""``benchmarks/bench_changes.py``: its proofs, its agents, and its tables."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from backbone_requests import asked, link_pair, load, plan_of

from netarena_backbone.declaration import REFUSALS
from netarena_backbone.fault.change import outer_peers
from netarena_backbone.planned.plan import Plan
from netarena_backbone.planned.refusal import REFUSED, bridges, inner_links, options
from netarena_backbone.planned.request import Request
from netarena_backbone.state import predicted
from netarena_backbone.world.model import World

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "bench_changes.py"
KEYS = {"world": "backbone", "emulator": "netns", "briefing": "ticket", "error_types": ["change_2"]}


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_changes", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan without a change to refuse, in which the order of changes matters."""
    found = plan_of(load("ordered"))
    assert not found.refused
    return found


def test_no_proof_of_a_reason_for_refusal_applies_to_possible_changes(
    bench: Any, plan: Plan
) -> None:
    for one in plan.requests:
        assert [word for word in REFUSALS if bench.PROOFS[word](plan, one)] == []


def test_proof_of_reason_own_prefix_reads_the_text_of_the_request(bench: Any, plan: Plan) -> None:
    one = plan.requests[0]
    for prefixes, is_own in ((plan.world.block, True), ("192.0.2.0/24", False)):
        words = f"Set up a session. This peer announces {prefixes}"
        told = one._replace(change=replace(one.change, words=words))
        assert bench.PROOFS["own_prefix"](plan, told) == is_own


@pytest.fixture(scope="module")
def small(world: World) -> Plan:
    """Return a plan that changes one cost of the stored world."""
    return plan_of(asked(world, Request("costs", "one", options(world, "costs", "one")[0])))


def test_removal_of_a_link_is_a_cut_if_and_only_if_the_link_is_a_bridge(
    bench: Any, small: Plan
) -> None:
    graph = nx.Graph([sorted(pair) for pair in inner_links(small.world)])
    bridges = {frozenset(pair) for pair in nx.bridges(graph)}
    found = {
        change.machines: bench.PROOFS["no_redundancy"](small, Request("link_out", "remove", change))
        for change in options(small.target, "link_out", "remove")
        if predicted(
            change.edit(small.target)
        )  # with equally good routes, the lost traffic is unknown
    }
    assert {machines for machines, is_cut in found.items() if is_cut} == bridges & {*found}
    assert {*found.values()} == {True, False}


def test_link_that_has_a_detour_today_or_afterwards_is_not_a_cut(bench: Any) -> None:
    # the second link is a bridge until the first one is in service
    today, first, second = link_pair()
    removal = next(
        one
        for one in options(today, "link_out", "remove")
        if one.machines == second.change.machines
    )
    plan = plan_of(asked(today, first))
    assert removal.machines in bridges(inner_links(today))
    assert not bench.PROOFS["no_redundancy"](plan, Request("link_out", "remove", removal))


def test_removal_of_the_only_session_with_a_neighbour_is_a_cut(bench: Any, small: Plan) -> None:
    number = Counter(peer.asn for _, peer in outer_peers(small.world))
    asn = {f"{router.name} {peer.address}": peer.asn for router, peer in outer_peers(small.world)}
    for change in options(small.target, "neighbour_remove", "remove"):
        is_cut = bench.PROOFS["no_redundancy"](small, Request("neighbour_remove", "remove", change))
        assert is_cut == (number[asn[change.key]] == 1)


def test_address_of_another_link_is_proven_to_be_in_use(bench: Any, small: Plan) -> None:
    prove = bench.PROOFS["address_in_use"]
    wrong = [*REFUSED["address_in_use"](small.world, small.target)]
    assert wrong
    for kind, method, change in wrong:
        assert prove(small, Request(kind, method, change, "address_in_use"))
    # new addresses for the same links are not in use
    for change in options(small.world, "renumber", "link"):
        assert not prove(small, Request("renumber", "link", change, "address_in_use"))


def test_proof_of_reason_documented_service_requires_a_documented_service(
    bench: Any, world: World
) -> None:
    prove = bench.PROOFS["documented_service"]
    first, *others = (
        Request("service_filter", "close", one) for one in options(world, "service_filter", "close")
    )
    plan = plan_of(asked(world, first))
    assert not prove(plan, first)  # the target documents that the service is blocked
    assert others
    assert all(prove(plan, one) for one in others)
    cost = Request("costs", "one", options(world, "costs", "one")[0])
    assert not prove(plan, cost)


def test_noop_agent_makes_no_change_and_all_parts_at_once_make_every_change(
    bench: Any, plan: Plan
) -> None:
    stages = plan.stages
    assert bench.walk(stages, bench.AGENTS["noop"](plan, random.Random(1))) == {
        "done": False,
        "safe": True,
    }
    assert bench.walk(stages, [stages.every])["done"]


def test_push_agent_breaks_traffic_if_the_order_matters(bench: Any, plan: Plan) -> None:
    played = bench.walk(plan.stages, bench.AGENTS["push"](plan, random.Random(1)))
    assert played == {"done": True, "safe": False}


def test_every_part_of_a_change_is_required(bench: Any, plan: Plan) -> None:
    assert all(bench.required(plan))
    assert list(bench.left_out(plan)) == []


RECORD = {
    "label": "change_2",
    "index": 0,
    "seed": 1,
    "invalid": [],
    "requests": [
        {"name": "link_back.add", "because": "", "forms": ["link_back.add"]},
        {"name": "link_out.remove", "because": "no_redundancy", "forms": ["link_out.remove"]},
    ],
    "parts": 2,
    "routers": 5,
    "orders": {"text": {}, "name": {}},
    "latent": None,
    "agents": {
        agent: {"done": agent != "noop", "safe": True}
        for agent in ("push", "push, random order", "heuristic", "text order", "noop")
    },
    "refused": ["2 no_redundancy"],
    "worlds": 4,
    "drawing": 1.5,
}


def test_program_prints_tables_of_earlier_results_and_fails_if_one_is_invalid(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for said, status in (([], 0), (["an agent that does nothing solves the request"], 1)):
        path = tmp_path / "results.jsonl"
        path.write_text(json.dumps({**RECORD, "invalid": said}) + "\n", encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["bench", "--requests", "0", "--read", str(path)])
        with pytest.raises(SystemExit) as ended:
            bench.main()
        assert int(ended.value.code or 0) == status
        text = capsys.readouterr().out
        assert "| push | 0 of 1 (0 %, 0 to 98) |" in text  # push refuses no change
        assert "| 2 no_redundancy | 1 of 1 (100 %, 2 to 100) |" in text
