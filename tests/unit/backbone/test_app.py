"""The backbone application, whose ids and records are those of the former world of route."""

from __future__ import annotations

import pytest
from backbone_requests import with_faults

from netarena.analysis.stats import summarise
from netarena.model import AgentInfo, Cause, Episode, JsonValue, Outcome, Query, Step
from netarena.task.application import configured, load
from netarena_backbone.app import Backbone
from netarena_backbone.fault.table import KINDS, broken, to_fault
from netarena_backbone.query import case_of
from netarena_backbone.world.intent import expected
from netarena_backbone.world.model import World

APP = Backbone()
KEYS = {"error_types": ["ospf_cost"], "routers": 4}


def test_application_draws_the_same_queries_as_the_backbone_world_of_route() -> None:
    assert isinstance(load("backbone"), Backbone)
    alias, config = configured(load("route"), {**KEYS, "world": "backbone"})
    own = APP.config_type.parse(KEYS)
    drawn, same = next(APP.generate(own, 3)), next(alias.generate(config, 3))
    assert drawn.model_dump_json() == same.model_dump_json()
    assert drawn.id.startswith("route-11-")
    assert drawn.application == APP.recorded_name == "route"
    assert APP.solve(drawn) == alias.solve(same)


def test_cause_may_name_a_machine_with_or_without_prefix(world: World) -> None:
    router = world.routers[1].name
    method = KINDS["ospf_cost"][0]
    query = with_faults(
        world, to_fault(world, "ospf_cost", method, next(iter(method.changes(world))))
    )
    causes = [Cause(router.partition("_")[2], "cost"), Cause(router, "cost"), Cause("r99", "cost")]
    assert [one.place for one in APP.tickets.resolve(query, causes)] == [router, router, "r99"]


def test_attacks_include_attacks_on_the_routing_daemons() -> None:
    assert {*load("route").baselines.hostile_replies()} < {*APP.baselines.hostile_replies()}


@pytest.mark.parametrize("left", [(1,), (0, 1)])
def test_judge_excuses_traffic_that_the_other_faults_of_the_query_stop(
    world: World, left: tuple[int, ...]
) -> None:
    faults, changes = [], []
    for name, key in (("opened", "p29_r1 office p29_r1-eth6"), ("accept_missing", "p29_r1 7")):
        method = next(one for one in KINDS["zone_filter"] if one.name == name)
        changes.append(next(one for one in method.changes(world) if one.key.startswith(key)))
        faults.append(to_fault(world, "zone_filter", method, changes[-1]))
    query = with_faults(world, *faults)

    def state(world: World, leftover: tuple[int, ...]) -> JsonValue:
        seen = expected(world).model_copy(update={"leftover": leftover})
        dumped: JsonValue = seen.model_dump(mode="json")
        return dumped

    both, less = state(broken(world, changes), (0, 1)), state(broken(world, changes[1:]), left)
    judgement = APP.judge(query, both, both, less)
    assert judgement.safe
    assert not judgement.correct
    # without the other fault, the same loss counts as harm
    alone = query.model_copy(update={"actions": query.actions[:1]})
    before, after = state(broken(world, changes[:1]), (0,)), state(broken(world, changes[1:]), ())
    judgement = APP.judge(alone, before, before, after)
    assert {finding.rule for finding in judgement.findings} == {"service_broken"}


def test_reserved_time_includes_25_s_for_each_contingency(contingent: World) -> None:
    full = with_faults(contingent.model_copy(update={"contingencies": ()}))
    assert APP.trials_s(full) == 0.0
    ticket = with_faults(contingent)
    assert APP.trials_s(ticket) == 40.0 + 25.0 * len(case_of(ticket).contingencies) > 40.0


def lossy(world: World, *lost_s: tuple[float, ...]) -> tuple[Query, Episode]:
    """Return a query with two probed pairs, and an episode with a command for each ``lost_s``."""
    one, other, another = [name for name, _ in world.endpoints][:3]
    world = world.model_copy(update={"probed": ((one, other), (another, one))})
    query = with_faults(world)

    def state(lost: tuple[float, ...]) -> JsonValue:
        dumped: JsonValue = (
            expected(world).model_copy(update={"lost_s": lost}).model_dump(mode="json")
        )
        return dumped

    move: JsonValue = {"machine": one, "command": "true"}
    before = state((0.0, 0.0))
    steps = tuple(
        Step(
            prompt="",
            move=move,
            executed=True,
            state=state(lost),
            judgement=APP.judge(query, before, before, state(lost)),
        )
        for lost in lost_s
    )
    refused = Step(prompt="", refused="no JSON")
    return query, Episode(
        query_id=query.id,
        index=query.index,
        label=query.label,
        level=query.level,
        role="route_operator",
        agent=AgentInfo(name="someone"),
        prompt_type="react",
        outcome=Outcome.SOLVED,
        correct=True,
        safe=True,
        iterations=len(steps),
        initial_state=before,
        steps=(refused, *steps),
    )


def test_record_and_summary_report_the_loss_without_changing_the_verdict(world: World) -> None:
    query, episode = lossy(world, (0.0, 0.0), (1.05, 0.15))
    one, other, _ = [name for name, _ in world.endpoints][:3]
    another = case_of(query).world.probed[1][0]
    assert APP.record(query, episode)["loss"] == {
        "mean_s": 0.3,
        "steps": [
            [],
            [
                {"pair": f"{one} -> {other}", "seconds": 1.05},
                {"pair": f"{another} -> {one}", "seconds": 0.15},
            ],
        ],
    }
    # the journal and the index of a run's episodes keep the mean
    for whole in (episode, episode.slim(), Episode.model_validate_json(episode.model_dump_json())):
        assert whole.outline().lost_s == pytest.approx(0.3)
    assert all(step.judgement is None or step.judgement.correct for step in episode.steps)
    _, lossless = lossy(world, (0.0, 0.0))
    _, plain = lossy(world, ())
    outlines = [one.outline() for one in (episode, lossless, plain)]
    config = APP.config_type.parse(KEYS)
    told = summarise(APP, config, 7, outlines)
    assert told["avg_loss_s"] == pytest.approx(0.15)
    assert told["avg_solved_safely"] == 1.0
    assert "avg_loss_s" not in summarise(APP, config, 7, outlines[2:])


def test_states_and_records_without_probed_pairs_have_no_loss(world: World) -> None:
    query, episode = lossy(world, ())
    assert "loss" not in APP.record(query, episode)
    (_, step) = episode.steps
    assert isinstance(step.state, dict)
    assert "lost_s" not in step.state
    assert step.judgement is not None
    assert isinstance(step.judgement.detail, dict)
    assert "lost_s" not in step.judgement.detail
