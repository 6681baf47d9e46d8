"""The checklist operator repairs the faults that it reads in a simulated cluster, and no others."""

from __future__ import annotations

import json
import random
import shlex

import jsonpatch
import pytest

from netarena.config import PromptStyle
from netarena.model import Step
from netarena.task.prompt import CommandLimits, render
from netarena_k8s.agent.heuristic import Operator, Plan
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.table import faulty
from netarena_k8s.prompt import prompt_parts
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.reply import read_reply
from netarena_k8s.state import judge, make_state
from netarena_k8s.world.model import reach

TURNS = 10


def stored(spec):
    """Return a spec as the API stores it, without empty lists."""
    return {key: value for key, value in spec.items() if value != []}


def run(policies, command):
    """Return the policies after one of the operator's commands, and its output."""
    patch, _, dump = command.rpartition(" && ")
    words = shlex.split(patch)
    if words:
        assert words[:3] == ["kubectl", "patch", "networkpolicy"]
        document = {"spec": policies[words[3]]}
        spec = jsonpatch.apply_patch(document, json.loads(words[6]))["spec"]
        policies = {**policies, words[3]: stored(spec)}
    assert dump.startswith("kubectl get networkpolicies -o jsonpath=")
    return policies, "".join(f"{name}\t{json.dumps(spec)}\n" for name, spec in policies.items())


def play(query):
    """Return the judgements of an episode that the checklist operator plays."""
    world, operator = world_of(query), Operator()
    there = {policy.name: stored(policy.spec) for policy in faulty(world, faults_of(query))}

    def seen():
        policies = [p.model_copy(update={"spec": there[p.name]}) for p in world.policies]
        return make_state(Sight(tuple(policies), reach(world, policies)))

    initial = state = seen()
    steps = []
    for _ in range(TURNS):
        parts = prompt_parts(query, world, "shop", state, steps, CommandLimits(10, 16_000, 32_000))
        command = read_reply(operator.reply(render(PromptStyle.ZEROSHOT_BASE, parts)))
        there, output = run(there, command)
        before, state = state, seen()
        verdict = judge(world, initial, before, state)
        steps.append(Step(prompt="", move=command, output=output, executed=True, state=state,
                          judgement=verdict))  # fmt: skip
        if verdict.correct:
            break
    return [step.judgement for step in steps]


def drawn(**values):
    return list(Kubernetes().generate(KubernetesConfig.parse(values), seed=3))


@pytest.mark.parametrize("world", ["standard", "varied"])
@pytest.mark.parametrize("kind", ["remove_ingress", "change_port", "pod_selector", "policy_types"])
def test_checklist_operator_repairs_the_fault_kinds_on_its_list(world, kind):
    won = 0
    for query in drawn(world=world, error_types=[kind], num_queries=3):
        verdicts = play(query)
        won += verdicts[-1].correct and all(verdict.safe for verdict in verdicts)
    assert won


def test_checklist_operator_observes_first_and_never_repeats_a_command():
    (query,) = drawn(error_types=["open_rule"])
    world = world_of(query)
    broken = faulty(world, faults_of(query))
    state = make_state(Sight(broken, reach(world, broken)))
    operator = Operator()
    policies = {policy.name: policy.spec for policy in broken}
    steps = []
    commands = []
    for _ in range(4):
        parts = prompt_parts(query, world, "shop", state, steps, CommandLimits(10, 16_000, 32_000))
        commands.append(read_reply(operator.reply(render(PromptStyle.REACT, parts))))
        _, output = run(policies, commands[-1])
        steps.append(Step(prompt="", move=commands[-1], output=output, executed=True, state=state))
    assert commands[0].startswith("kubectl get")
    assert commands[1].startswith("kubectl patch networkpolicy")
    assert len(set(commands[1:3])) == 2


def test_prompt_without_a_plan_raises_an_error():
    with pytest.raises(ValueError, match="lists no applications"):
        Plan.read("Hello.")


def test_plan_parsed_from_the_prompt_matches_the_intended_plan():
    for seed in range(10):
        rng = random.Random(seed)
        (query,) = drawn(world="varied", error_types=["change_port"], seed=rng.randrange(99))
        world = world_of(query)
        state = make_state(Sight(world.policies, world.intended))
        text = render(
            PromptStyle.FEWSHOT_COT,
            prompt_parts(query, world, "shop", state, [], CommandLimits(10, 16_000, 32_000)),
        )
        plan = Plan.read(text)
        assert plan.labels == {app.name: app.labels for app in world.apps}
        assert set(plan.ports) == {app.name for app in world.apps if app.service}
