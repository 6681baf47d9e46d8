from __future__ import annotations

import random

import pytest

from netarena.config import Briefing
from netarena.errors import ConfigError
from netarena.model import Query
from netarena.task.label import COUNTED
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.subtle import KINDS_OF_LARGE
from netarena_k8s.fault.table import action_of, draw_one, faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.source.large import estate
from netarena_k8s.state import judge, make_state
from netarena_k8s.ticket import _SEEN, _SEEN_BESIDE
from netarena_k8s.world.model import Net, Policy, reach

SMALL = {"briefing": "ticket", "num_apps": 20, "error_types": ["faults_0", "faults_1", "faults_3"]}


def _told(world, use, form):
    names = {one.address: f"{one.name} in namespace {one.space}" for one in world.plan.guests}
    names |= {one.address: one.name for one in world.plan.partners}
    source, target = (names.get(end, end) for end in (use.source, use.target))
    return form.format(source=source, target=target, port=f"{use.port}/{use.protocol}")


def state_of(world, policies):
    return make_state(Sight(tuple(policies), reach(world, policies)))


@pytest.fixture(scope="module")
def drawn():
    application = Kubernetes()
    config = KubernetesConfig.parse(SMALL)
    return application, config, list(application.generate(config, 3))


def test_ticket_briefing_has_its_own_defaults_and_does_not_change_the_queries():
    config = KubernetesConfig.parse({"briefing": "ticket"})
    assert (config.world, config.num_apps, config.max_iterations) == ("varied", (40, 60), None)
    assert config.error_types == tuple(COUNTED)
    asked = {"world": "varied", "num_apps": [20, 60], "error_types": ["faults_2", "faults_5"]}
    full = KubernetesConfig.parse(asked)
    assert KubernetesConfig.parse({"briefing": "ticket", **asked}).shape() == full.shape()
    assert "num_apps" not in KubernetesConfig.parse({}).shape()
    given = KubernetesConfig.parse({"briefing": "ticket", "world": "standard"})
    assert given.num_apps is None


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"error_types": ["faults_0"]}, "faults_0, a false alarm"),
        ({"error_types": ["faults_1"], "num_apps": 30}, "must be null unless world is 'varied'"),
        ({"world": "varied", "num_apps": [40, 20]}, "with the smaller number first"),
        ({"world": "varied", "num_apps": 5}, "greater than or equal to 20"),
        ({"world": "varied", "num_apps": 61}, "less than or equal to 60"),
        ({"briefing": "ticket", "error_types": ["faults_1+change_port"]}, "'faults_1' is not one"),
    ],
)
def test_invalid_ticket_config_is_refused_with_a_reason(values, why):
    with pytest.raises(ConfigError, match=why):
        list(Kubernetes().generate(KubernetesConfig.parse(values), 1))


def test_first_prompt_of_a_ticket_names_the_namespace(drawn):
    """On a real cluster, each episode has a separate namespace."""
    application, config, queries = drawn
    for query in queries[:2]:
        parts = str(application.brief(config, query, {"namespace": "shop-of-this-one"}, ()))
        assert "shop-of-this-one" in parts


def test_ticket_reports_are_true_and_include_normal_observations(drawn):
    application, config, queries = drawn
    for query in queries:
        world = world_of(query)
        parts = application.brief(config, query, {}, ())
        assert parts == application.brief(config, query, {}, ())
        assert parts.situation == "Turn 1 of 12. A declaration uses up one turn, too."
        healthy, now = Net(world, world.policies), Net(world, faulty(world, faults_of(query)))
        seen = [
            (pair, works, now.reaches(pair) != healthy.reaches(pair))
            for pair in world.pairs
            for works, forms in _SEEN.items()
            for form in forms
            if form.format(source=pair.source, target=pair.target) in parts.task
        ]
        assert all(now.reaches(pair) == works for pair, works, _ in seen)
        for use in world.uses:
            for works, forms in _SEEN_BESIDE.items():
                for form in forms:
                    if _told(world, use, form) in parts.task:
                        assert now.allows(use) == works
                        seen.append((use, works, not works))
        symptoms = sum(wrong for *_, wrong in seen)
        assert symptoms < len(seen)
        assert bool(symptoms) == bool(query.actions)
        assert symptoms <= 3
        # the prompt describes pairs with groups instead of a table
        assert not [pair for pair in world.calls if " -> ".join(pair) in parts.rules]


@pytest.mark.parametrize(("world", "told"), [("varied", True), ("standard", False)])
def test_prompt_states_that_policy_names_are_meaningless_only_in_large_worlds(world, told):
    values = {"briefing": "ticket", "world": world, "error_types": "faults_0"}
    config = KubernetesConfig.parse({**values, **({"num_apps": 20} if told else {})})
    (query,) = Kubernetes().generate(config, 1)
    rules = Kubernetes().brief(config, query, {}, ()).rules
    assert ("The name of a policy does not say" in rules) == told
    assert "\n\n\n" not in rules
    assert "$" not in rules


def test_stopped_traffic_outside_the_pairs_can_be_the_symptom():
    world = estate(random.Random(4), 20, 20)
    rng = random.Random(1)
    fault = next(
        fault
        for policy in world.policies
        for kind in ("remove_ingress", "peer_label", "add_egress")
        for fault in [draw_one(world, kind, policy, rng, KINDS_OF_LARGE)]
        if fault is not None and not fault.broken and not fault.opened
    )
    query = Query(
        id="k8s-x",
        application="k8s",
        version="2",
        seed=1,
        index=0,
        label="faults_1",
        level="level1",
        text="x",
        initial={"world": world.model_dump(mode="json")},
        actions=(action_of(fault),),
    )
    config = KubernetesConfig.parse({"briefing": "ticket"})
    task = Kubernetes().brief(config, query, {}, ()).task
    stopped = [use for use in world.uses if str(use) in fault.stopped]
    assert [u for u in stopped for form in _SEEN_BESIDE[False] if _told(world, u, form) in task]


def test_number_of_faults_depends_on_the_label_and_is_not_in_the_prompt(drawn):
    application, config, queries = drawn
    assert [len(query.actions) for query in queries] == [0, 1, 3]
    assert [query.level for query in queries] == ["level1", "level1", "level3"]
    for query in queries:
        parts = application.brief(config, query, {}, ())
        assert "faults_" not in str(parts)
        assert config.briefing is Briefing.TICKET


def test_change_in_response_to_a_false_alarm_is_not_correct(drawn):
    *_, queries = drawn
    world = world_of(queries[0])
    start = state_of(world, world.policies)
    assert judge(world, start, start, start).correct
    *rest, last = world.policies
    wider = Policy(name=last.name, spec={**last.spec, "policyTypes": ["Egress", "Ingress"]})
    other = state_of(world, [*rest, wider])
    changed = judge(world, start, start, other, false_alarm=True)
    assert not changed.correct
    assert changed.findings == ()


@pytest.mark.slow
def test_traffic_outside_the_pairs_is_judged(drawn):
    *_, queries = drawn
    query = queries[1]
    world, faults = world_of(query), faults_of(query)
    broken = faulty(world, faults)
    start = state_of(world, broken)
    named = {fault.policy for fault in faults}
    now = Net(world, broken)
    use = next(
        use for use in world.uses if "/" in use.source and use.port == 9464 and now.allows(use)
    )
    # rules derived from a table of pairs do not include metrics
    bare = [
        policy.model_copy(
            update={"spec": {**policy.spec, "ingress": [
                rule for rule in policy.spec.get("ingress") or ()
                if rule.get("ports") != [{"port": 9464, "protocol": "TCP"}]
            ]}}
        )
        if policy.name not in named
        else policy
        for policy in broken
    ]  # fmt: skip
    verdict = judge(world, start, start, state_of(world, bare))
    assert ("use_broken", str(use)) in {(one.rule, one.element) for one in verdict.findings}
    healed = judge(world, start, start, state_of(world, world.policies))
    assert healed.correct
    assert healed.safe
    without = [policy for policy in bare if policy.name not in named]
    fixed = [*without, *(policy for policy in world.policies if policy.name in named)]
    assert not judge(world, start, start, state_of(world, fixed)).correct
