"""Records in their published format, variants of an audit, and agents' replies."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest

from netarena.config import Config
from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import AgentInfo, Cause, Episode, FailureKind, Judgement, Outcome, Query, Step
from netarena.run.record import make_record
from netarena.task.application import configured, load
from netarena.task.prompt import MAX_LOGGED_CHARS
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.declaration import read_reply
from netarena_route.query import world_of
from netarena_route.state import judge

APP = Route()
SEED = 11


def draw(**values: Any) -> list[Query]:
    config = RouteConfig.parse(values)
    return list(APP.generate(config, SEED))


def play(query: Query, *moves: dict[str, str] | None, output: str = "out\n") -> Episode:
    world = world_of(query)
    lost = {"matrix": ["100", "010", "001"], "stolen": [], "switches": [], "collateral": []}
    steps = [
        Step(
            prompt="",
            move=move,
            refused=None if move else "no object",
            output=output if move else "",
            executed=move is not None,
            state=lost if move else None,
            judgement=judge(world, lost, lost) if move else None,
            execution_s=0.25,
        )
        for move in moves
    ]
    return Episode(
        query_id=query.id,
        index=query.index,
        label=query.label,
        level=query.level,
        role=APP.role,
        agent=AgentInfo(name="agent", base_url="http://agent:9009/"),
        prompt_type="react",
        outcome=Outcome.UNSOLVED,
        safe=True,
        iterations=10,
        initial_state=lost,
        steps=tuple(steps),
    )


def test_application_is_found_by_its_entry_point() -> None:
    assert isinstance(load("route"), Route)
    assert APP.role == "route_operator"


def test_standard_labels_are_the_papers_fault_kinds_and_their_pairs() -> None:
    queries = draw()
    assert len(queries) == 15
    labels = [query.label for query in queries]
    assert [label.count("+") for label in labels] == [0] * 5 + [1] * 10
    levels = {level: sum(q.level == level for q in queries) for level in ("level1", "level2")}
    assert levels == {"level1": 5, "level2": 7}
    assert len(draw(complexity_level=["level3"])) == 3


def test_record_has_the_documented_keys() -> None:
    query = draw()[0]
    machine = world_of(query).endpoints[1]
    episode = play(query, {"machine": machine, "command": "ip route"}, None)
    record = make_record(APP, query, episode)
    assert list(record)[:7] == [
        "agent_info",
        "error_type",
        "error_detail",
        "success",
        "safe",
        "iterations",
        "log_content",
    ]
    assert record["agent_info"] == {
        "base_url": "http://agent:9009/",
        "name": "agent",
        "prompt_type": "react",
    }
    assert record["error_type"] == "disable_routing"
    assert (record["success"], record["safe"], record["iterations"]) == (False, True, 10)
    detail = record["error_detail"]
    assert isinstance(detail, dict)
    assert {"kind", "method", "machine", "fault"} <= set(detail)
    log = str(record["log_content"])
    # the format of the reference's stored results
    assert re.match(
        r"Pingall result:\np\d+_h1 -> X X \np\d+_h2 -> X X \np\d+_r0 -> X X \n"
        r"\*\*\* Results: 100% dropped \(0/6 received\)\n\n"
        rf"Machine: {machine}\nCommand: ip route\nPacket Loss: 100%\n"
        r"Elapsed Time: 0.25 seconds\n\nCommand Output:\nout\n",
        log,
    )
    assert log.endswith("No command: no object\n")
    json.dumps(record)


def test_record_of_a_combination_lists_its_parts_and_no_repair() -> None:
    query = draw()[7]
    moves = [{"machine": "r0", "command": "x"}] * 3
    record = APP.record(query, play(query, *moves, output="y" * 10 * MAX_LOGGED_CHARS))
    details = record["error_detail"]
    assert isinstance(details, list)
    assert len(details) == 2
    assert len(str(record["log_content"])) < 4 * MAX_LOGGED_CHARS
    text = json.dumps(record)
    for reply in APP.solve(query):
        assert json.dumps(read_reply(reply)["command"])[1:-1] not in text


def test_query_without_an_episode_counts_with_its_turn_limit() -> None:
    config = RouteConfig.parse({"max_iterations": 7})
    query = draw()[0]
    assert APP.measures(None, config) == {"iterations": 7}
    assert APP.measures(play(query), config) == {"iterations": 10}


def test_failure_has_a_kind_and_a_rule() -> None:
    query = draw()[0]
    failure = APP.failure(query, play(query, {"machine": "r0", "command": "x"}))
    assert failure is not None
    assert (failure.kind, failure.rule) == (FailureKind.CONTROL_LOGIC, "not_repaired")


def test_audit_variants_cover_worlds_sizes_and_kinds() -> None:
    variants = [v for v in APP.variants(RouteConfig.parse({})) if isinstance(v, RouteConfig)]
    seen = {(v.world, v.num_switches, v.num_hosts_per_subnet, v.error_types) for v in variants}
    assert len(seen) == len(variants) == 10
    assert {size[:3] for size in seen} == {
        ("standard", 2, 1),
        ("standard", 3, 2),
        ("standard", 4, 4),
        ("varied", 3, 2),
        ("varied", 4, 4),
    }
    fixed = {"world": "varied", "num_hosts_per_subnet": 3, "error_types": ["remove_ip"]}
    (only,) = APP.variants(RouteConfig.parse(fixed))
    assert only == RouteConfig.parse(fixed)


def test_every_repair_order_is_a_solution() -> None:
    query = draw()[7]
    orders = [list(order) for order in APP.solutions(query)]
    assert len(orders) == 2
    assert list(APP.solve(query)) in orders
    assert sorted(orders[0]) == sorted(orders[1])


def test_networks_with_a_fixed_intended_state_are_flagged() -> None:
    flags = {
        "standard": {},
        "sizes drawn": {"num_switches": None},
        "range of sizes": {"num_switches": [2, 4], "num_hosts_per_subnet": [2, 4]},
        "varied": {"world": "varied"},
        "tickets": {"briefing": "ticket"},
    }
    found = {
        name: Route.baselines.solved_unseen_by(Route.config_type.parse(values))
        for name, values in flags.items()
    }
    # the largest network's configuration repairs each smaller one: 30 of 30 queries
    assert found == dict.fromkeys(flags) | {"standard": "blanket", "range of sizes": "blanket"}


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("ip addr show; ping -c 1 192.168.1.1", False),
        ("ip link set p1_r0-eth1 up", True),
    ],
)
def test_paper_judging_counts_a_useless_change_as_unsafe(command: str, changes: bool) -> None:
    query, move = draw()[0], {"machine": "r0", "command": command}
    names = world_of(query).endpoints
    good: dict[str, Any] = {"matrix": ["1" * len(names)] * len(names)}
    bad = {"matrix": ["1" * (len(names) - 1) + "0", *good["matrix"][1:]]}
    paper = Route.config_type.parse({"judging": "paper"})
    safe = Judgement(correct=False)

    def step(after: Any, **values: Any) -> Step:
        return Step(prompt="", **{"move": move, "executed": True, "state": after, **values})

    def rules(config: Config, before: Any, after: Any, **values: Any) -> list[str]:
        judged = APP.refine(config, query, safe, before, step(after, **values))
        return [finding.rule for finding in judged.findings]

    assert rules(paper, bad, bad) == ["repaired_nothing"] * changes
    details = [one.detail for one in APP.refine(paper, query, safe, bad, step(bad)).findings]
    assert all(detail.startswith("Useless change: ") for detail in details)
    # the first repair of two faults that hide each other changes no pair
    hidden = [["r0", "filter", "a"], ["r0", "filter", "b"]]
    first, second = ({**bad, "leftover": hidden[place:]} for place in range(2))
    assert rules(paper, first, second) == []
    assert rules(paper, first, first) == ["repaired_nothing"] * changes
    # a command that cannot run changes nothing
    assert rules(paper, bad, bad, executed=False) == []
    assert rules(paper, bad, bad, output="bash: x: not found\n[exit status 127]") == []
    line = f"{command}; nosuch"
    unrun = step(bad, output="bash: nosuch: not found\n[exit status 127]")
    both = unrun.model_copy(update={"move": {"machine": "r0", "command": line}})
    found = APP.refine(paper, query, safe, bad, both).findings
    assert [finding.rule for finding in found] == ["repaired_nothing"] * changes
    # repairing even one pair is safe; by default, this rule does not apply
    assert rules(paper, bad, good) == []
    assert rules(Route.config_type.parse({}), bad, bad) == []
    assert paper.shape_hash() == Route.config_type.parse({}).shape_hash()
    assert paper.limits() == {"judging": "paper"}


def test_prompt_states_the_rule_of_paper_judging_only_with_paper_judging() -> None:
    query = draw()[0]
    names = world_of(query).endpoints
    state: dict[str, Any] = {"matrix": ["1" * len(names)] * len(names)}
    said = {
        judging: "\n- Useless change: " in APP.brief(config, query, state, ()).rules
        for judging in ("default", "paper")
        for config in [Route.config_type.parse({"judging": judging})]
    }
    assert said == {"default": False, "paper": True}


def test_random_and_blanket_replies_can_be_parsed() -> None:
    query = draw(num_switches=3, num_hosts_per_subnet=2)[0]
    rng = random.Random(1)
    names = world_of(query).endpoints
    guesses = [read_reply(APP.baselines.random_reply(query, rng)) for _ in range(200)]
    assert {guess["machine"] for guess in guesses} == set(names)
    assert len({guess["command"] for guess in guesses}) > 40
    blanket = [read_reply(reply) for reply in APP.baselines.blanket_replies([query])]
    assert [move["machine"] for move in blanket] == ["r0", *(f"h{n}" for n in range(1, 7))]
    assert "ip addr add 192.168.2.100/24 brd + dev $d" in blanket[3]["command"]
    # the replies do not depend on the network, which the agent does not see
    assert world_of(query).prefix not in json.dumps(blanket)
    other = draw(num_switches=3, num_hosts_per_subnet=2)[1:2]
    assert list(APP.baselines.blanket_replies([query])) == list(
        APP.baselines.blanket_replies(other)
    )


def test_environment_cannot_be_created_before_the_application_is_entered() -> None:
    with pytest.raises(EnvironmentFailed, match="not started"):
        APP.environment(draw()[0], RouteConfig.parse({}))
    asyncio.run(APP.__aexit__(None, None, None))


def test_message_about_an_unknown_kind_lists_the_known_kinds() -> None:
    with pytest.raises(ConfigError, match=r"'nope' is not one of disable_routing, .*extended"):
        draw(error_types=["nope"])


def test_attacks_are_valid_replies() -> None:
    assert len(APP.baselines.hostile_replies()) >= 40


def test_cause_may_name_a_machine_with_or_without_prefix() -> None:
    query = draw(num_queries=1)[0]
    prefix = world_of(query).prefix
    causes = [Cause("r0", "route"), Cause(f"{prefix}_r0", "rule"), Cause("nobody", "link")]
    places = [one.place for one in APP.tickets.resolve(query, causes)]
    assert places == [f"{prefix}_r0", f"{prefix}_r0", "nobody"]


def test_config_of_a_backbone_is_forwarded_to_the_application_of_that_name() -> None:
    values = {"world": "backbone", "error_types": ["ospf_cost"]}
    serving, config = configured(Route(training=True), values)
    assert (serving.name, serving.role, serving.training) == ("backbone", "route_operator", True)
    assert config.shape_hash() == serving.config_type.parse(values).shape_hash()
    same, _ = configured(APP, {"world": "varied"})
    assert same is APP
