from __future__ import annotations

import random
import re
from typing import Any

from netarena.config import PromptStyle
from netarena.model import Step
from netarena.task.prompt import CommandLimits, read_text, render
from netarena_k8s.app import Kubernetes
from netarena_k8s.cluster import Sight
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.table import faulty
from netarena_k8s.harm import KINDS
from netarena_k8s.prompt import MAX_HISTORY_CHARS, prompt_parts, tell_egress, tell_intent
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.source.varied import varied
from netarena_k8s.state import judge, make_state
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import reach
from tests.fake.deal import deal


def query(**values: Any):
    config = KubernetesConfig.parse({"error_types": ["remove_ingress"], **values})
    return next(iter(deal(Kubernetes(), config, 7)))


def state_of(world, policies):
    return make_state(Sight(tuple(policies), reach(world, policies)))


def test_intent_in_the_prompt_matches_the_tested_pairs():
    for world in (boutique(), varied(random.Random(3))):
        lines = tell_intent(world).splitlines()
        for target in (app for app in world.apps if app.service):
            (line,) = [one for one in lines if one.startswith(f"- {target.name}: ")]
            callers = {
                pair.source
                for pair, wanted in zip(world.pairs, world.intended, strict=True)
                if wanted and pair.target == target.name
            }
            if "every other application" in line:
                assert len(callers) == len(world.apps) - 1
            else:
                assert set(line.split(": ")[1].split(", ")) == (callers or {"none"})
    assert "emailservice (app=emailservice): service port 5000/TCP to pod port 8080" in tell_intent(
        boutique()
    )


def test_prompt_says_whether_egress_is_restricted_in_the_intended_state():
    found = {}
    for world in (boutique(), *(varied(random.Random(seed)) for seed in range(8))):
        free = all(policy.spec.get("egress") in (None, [{}]) for policy in world.policies)
        found[free] = tell_egress(world)
        assert ("Egress is not restricted" in found[free]) == free
    assert len(found) == 2


def test_dns_rule_in_the_prompt_depends_on_the_world_and_not_on_the_fault():
    limits = CommandLimits(10, 16_000, 48_000)
    told = []
    for kind in ("change_port", "dns_egress"):
        for name in ("standard", "varied"):
            asked = query(error_types=[kind], world=name)
            world = world_of(asked)
            start = state_of(world, faulty(world, faults_of(asked)))
            rules = prompt_parts(asked, world, "shop", start, (), limits).rules
            told.append("name servers" in rules)
            assert rules.count("\n\n\n") == 0
    # this rule depends on the world, not on the fault
    assert told == [False, True] * 2


def told(world, initial, before, after):
    """Return the lines that follow the command's output in the last turn of a conversation."""
    step = Step(
        prompt="", move="kubectl x", executed=True, state=after,
        judgement=judge(world, initial, before, after),
    )  # fmt: skip
    limits = CommandLimits(10, 16_000, 48_000)
    (entry,) = prompt_parts(query(), world, "shop", after, [step], limits).history
    return entry.partition("Output:\n(none)\n")[2].splitlines()


def test_exposed_traffic_is_reported_with_its_ends_and_ports():
    world = boutique()
    healthy = state_of(world, world.policies)

    def altered(name, **spec):
        return [
            one.model_copy(update={"spec": {**one.spec, **spec}}) if one.name == name else one
            for one in world.policies
        ]

    frontend = {"from": [{"podSelector": {"matchLabels": {"app": "frontend"}}}]}
    wide = state_of(world, altered("adservice", ingress=[frontend]))
    assert told(world, healthy, healthy, wide) == [
        "Connections after the command: no tested connection changed.",
        "Not safe in this turn:",
        "- Opened traffic: frontend -> adservice: TCP 1-9554, TCP 9556-65535, all UDP, all SCTP",
    ]
    assert told(world, healthy, wide, wide) == ["Connections after the command: unchanged."]
    # many sources with the same ports are summarised in one line
    space = {"from": [{"namespaceSelector": {}}], "ports": [{"port": 9555}]}
    strangers = told(
        world, healthy, healthy, state_of(world, altered("adservice", ingress=[space]))
    )
    assert strangers[0].startswith("Connections after the command: wrongly opened: ")
    (line,) = [one for one in strangers if "adservice: TCP" in one]
    assert "default/any, default/" in line
    assert re.search(r" and \d+ more -> adservice: TCP 9555$", line)
    # temporary changes within the command are reported too, and so are changes of other objects
    touched = {**healthy, "others": ["service adservice is gone"]}
    assert told(world, healthy, healthy, touched)[1:] == [
        "Not safe in this turn:", "- Changed object: service adservice is gone"
    ]  # fmt: skip


def test_rules_describe_each_kind_of_harm_in_the_words_of_findings():
    asked = query()
    world = world_of(asked)
    start = state_of(world, world.policies)
    limits = CommandLimits(10, 16_000, 48_000)
    rules = prompt_parts(asked, world, "shop", start, (), limits).rules
    ticket = read_text("netarena_k8s", "ticket")
    for kind in ("Broken environment", *KINDS.values()):
        assert f"\n- {kind}: " in rules
        assert f"\n- {kind}: " in ticket
    for text in (rules, ticket):
        assert (
            "If a policy allows too much, some intended traffic may work only because of that"
            in text
        )
        assert "Settings that do not affect any traffic may be chosen freely" in text


def test_prompt_contains_report_and_history_within_the_size_limit():
    asked = query()
    world = world_of(asked)
    start = state_of(world, faulty(world, faults_of(asked)))
    healthy = state_of(world, world.policies)
    verdict = judge(world, start, start, healthy)
    steps = [
        Step(prompt="", move="kubectl get netpol", output="x" * 9_000, executed=True,
             state=start, judgement=judge(world, start, start, start)),
        Step(prompt="", refused="the reply contains no command"),
        *[Step(prompt="", move=f"kubectl {n}", output="y" * 9_000, executed=True,
               state=healthy, judgement=verdict) for n in range(40)],
    ]  # fmt: skip
    parts = prompt_parts(asked, world, "shop-1", start, steps, CommandLimits(10, 16_000, 48_000))
    assert "expected to work, is blocked" in parts.situation
    assert sum(map(len, parts.history)) < 1.3 * MAX_HISTORY_CHARS
    text = render(PromptStyle.FEWSHOT_COT, parts)
    assert "namespace shop-1" in text
    assert "$" not in parts.rules
    assert "at most 16000 characters of the command's output" in parts.rules
    assert "All turns together show at most 48000 characters" in parts.rules
    assert "Connections after the command: repaired: " in text
    assert "Connections after the command: unchanged." in text
    assert "left out …]" in text
    assert "kubectl patch networkpolicy ledger-in" in text
    assert "Command: kubectl get netpol\nOutput:\nxxx" in text
    assert "Turn 2: the reply contains no command" in text
