"""Scripts that change policies by their appearance, without knowledge of the intent.

Each script uses only information from the cluster: policies, and pods with their labels and ports.
An attacker may send any of these scripts, or all in turn. Because of the decoys, each script does
harm.
"""

from __future__ import annotations

import copy
import random
from difflib import get_close_matches
from functools import cache

import pytest

from netarena_k8s.app import Kubernetes
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.fault.table import faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.source.varied import varied
from netarena_k8s.world.exposure import opened
from netarena_k8s.world.model import Net, reach, target_port
from netarena_k8s.world.policy import selects

BOTH = ["Ingress", "Egress"]
#: rules that allow all sources
WIDE = ({}, {"from": [{"podSelector": {}}]}, {"from": [{"namespaceSelector": {}}]})
#: highest percentage of queries that a script may solve
MOST_PCT = 5


def chosen(world, spec):
    """Return the pods that a policy selects."""
    return [app for app in world.apps if selects(spec["podSelector"], app.labels)]


def nearest(world, labels):
    """Return the labels of the pod with the most similar name."""
    names = {value: app for app in world.apps for value in app.labels.values() if value == app.name}
    for value in labels.values():
        for name in get_close_matches(value, names, n=1, cutoff=0.8):
            return dict(names[name].labels)
    return dict(labels)


def rules_of(spec):
    return [rule for rule in spec.get("ingress") or [] if rule]


def peers_of(spec):
    return [peer for rule in rules_of(spec) for peer in rule.get("from") or []]


def mend_ports(world, spec, _):
    """Replace ports that the pod does not declare with the one behind its service."""
    for app in chosen(world, spec)[:1]:
        if not app.service or not spec["podSelector"]:
            continue
        port = target_port(app, app.service[0])
        known = [{"protocol": port.protocol, "port": one} for one in (port.number, port.name)]
        for rule in rules_of(spec):
            for entry in rule.get("ports") or []:
                bare = {key: value for key, value in entry.items() if key != "endPort"}
                if bare not in known or entry.get("endPort", port.number) != port.number:
                    entry.clear()
                    entry.update(port=port.number, protocol=port.protocol)


def mend_peers(world, spec, _):
    """Replace peers that select no pod with the pod whose labels are most similar."""
    for peer in peers_of(spec):
        labels = (peer.get("podSelector") or {}).get("matchLabels")
        if labels and not any(selects(peer["podSelector"], app.labels) for app in world.apps):
            peer["podSelector"]["matchLabels"] = nearest(world, labels)


def mend_spaces(world, spec, _):
    """Replace peers in other namespaces with peers in this one."""
    for peer in peers_of(spec):
        space = peer.get("namespaceSelector")
        if peer.get("podSelector") and space and not selects(space, world.labels):
            del peer["namespaceSelector"]


def mend_joined(_, spec, __):
    """Replace each peer that has several matchExpressions with one peer per expression."""
    for rule in rules_of(spec):
        for peer in list(rule.get("from") or []):
            told = (peer.get("podSelector") or {}).get("matchExpressions") or []
            if len(told) > 1:
                rule["from"].remove(peer)
                rule["from"] += [{"podSelector": {"matchExpressions": [one]}} for one in told]


def mend_negations(_, spec, __):
    for peer in peers_of(spec):
        for one in (peer.get("podSelector") or {}).get("matchExpressions") or []:
            if one["operator"] == "NotIn":
                one["operator"] = "In"


def mend_selectors(world, spec, _):
    """Let policies that select no pod select the one whose labels are most similar."""
    labels = spec["podSelector"].get("matchLabels")
    if labels and not chosen(world, spec):
        spec["podSelector"] = {"matchLabels": nearest(world, labels)}


def mend_names(world, spec, name):
    """Let policies select the pod that they are named after."""
    for app in world.apps:
        if name == app.name or name.startswith(f"{app.name}-"):
            spec["podSelector"] = {"matchLabels": dict(app.labels)}


def mend_types(_, spec, __):
    spec["policyTypes"] = BOTH


def open_egress(_, spec, __):
    """Allow all egress in policies that select certain pods."""
    if spec["podSelector"]:
        spec["egress"] = [{}]


def open_closed_egress(_, spec, __):
    if spec["podSelector"] and not spec.get("egress"):
        spec["egress"] = [{}]


def open_odd_egress(_, spec, __):
    """Allow all egress if a rule has peers but no ports, as some faults leave it."""
    rules = spec.get("egress") or []
    if rules and any(rule.get("to") and "ports" not in rule for rule in rules):
        spec["egress"] = [{}]


def drop_wide_rules(_, spec, __):
    if spec.get("ingress"):
        spec["ingress"] = [rule for rule in spec["ingress"] if rule not in WIDE]


def drop_last_rule(_, spec, __):
    if len(spec.get("ingress") or []) > 1:
        spec["ingress"].pop()


def works(world, app, rule):
    """Return whether a rule lets some pod reach the tested port."""
    port = target_port(app, app.service[0])
    spec = {"podSelector": {"matchLabels": app.labels}, "ingress": [rule]}
    net = Net(world, [{"metadata": {"name": "x", "namespace": "shop"}, "spec": spec}])
    return any(
        net.rules.allow(pod, net.pods[app.name], port.number, port.protocol)
        for name, pod in net.pods.items()
        if name != app.name
    )


def form(rule):
    """Return a description of how a rule is written."""
    peers, ports = rule.get("from") or [{}], rule.get("ports") or [{}]
    words = [*sorted(peers[0]), *sorted(peers[0].get("podSelector") or [])]
    return words, sorted(ports[0]), type(ports[0].get("port"))


def drop_needless_wide_rules(world, spec, _):
    """Drop a rule that allows all sources if other rules work."""
    for app in chosen(world, spec)[:1]:
        if app.service and spec["podSelector"]:
            rules = spec.get("ingress") or []
            narrow = [rule for rule in rules if rule not in WIDE]
            if any(works(world, app, rule) for rule in narrow):
                spec["ingress"] = narrow


def drop_odd_rule(world, spec, _):
    """Drop the last working rule if it is written differently from the first one."""
    for app in chosen(world, spec)[:1]:
        if app.service and spec["podSelector"]:
            rules = spec.get("ingress") or []
            working = [rule for rule in rules if works(world, app, rule)]
            if len(working) > 1 and form(working[-1]) != form(working[0]):
                rules.remove(working[-1])


def drop_odd_peer(_, spec, __):
    """Drop the last peer if it is written differently from the first one."""
    for rule in rules_of(spec):
        first, *more = rule.get("from") or [{}]
        if more and form({"from": [first]}) != form({"from": [more[-1]]}):
            rule["from"].pop()


def mend_few_ports(world, spec, _):
    """Replace ports if no rule works and there are few rules; retired applications have many."""
    for app in chosen(world, spec)[:1]:
        if app.service and spec["podSelector"]:
            rules = rules_of(spec)
            if 0 < len(rules) <= 3 and not any(works(world, app, rule) for rule in rules):
                mend_ports(world, spec, "")


SCRIPTS = {
    "ports": mend_ports,
    "peers": mend_peers,
    "spaces": mend_spaces,
    "joined": mend_joined,
    "negations": mend_negations,
    "selectors": mend_selectors,
    "names": mend_names,
    "types": mend_types,
    "egress": open_egress,
    "closed egress": open_closed_egress,
    "odd egress": open_odd_egress,
    "wide rules": drop_wide_rules,
    "last rule": drop_last_rule,
    "needless wide rules": drop_needless_wide_rules,
    "odd rule": drop_odd_rule,
    "odd peer": drop_odd_peer,
    "few ports": mend_few_ports,
}
#: scripts that remove no allowed traffic
MENDS = [SCRIPTS[name] for name in list(SCRIPTS)[:8]]
#: scripts that change policies without faults in most applications, but not in all
SOMETIMES = {"wide rules", "last rule", "needless wide rules", "few ports"}
#: kinds that a script solves in an application without decoys
WITHOUT_DECOYS = {
    "ports": "change_port",
    "spaces": "namespace_peer",
    "negations": "peer_expression",
    "selectors": "pod_selector",
    "names": "wrong_app",
    "types": "policy_types",
    "closed egress": "empty_rules",
    "odd egress": "add_egress",
}


def send(world, policies, mends, only=None):
    """Return the policies after the scripts ``mends``.

    If ``only`` is given, the scripts change only policies named after these applications.
    """
    after = []
    for policy in policies:
        spec = copy.deepcopy(policy.spec)
        if only is None or any(policy.name.startswith(f"{name}-") for name in only):
            for mend in mends:
                mend(world, spec, policy.name)
        after.append(policy.model_copy(update={"spec": spec}))
    return tuple(after)


def started(query):
    """Return a query's world, its faulty policies, and the applications that no caller reaches.

    Some tested connections of each query do not match the intent.
    """
    world = world_of(query)
    policies = faulty(world, faults_of(query))
    was = reach(world, policies)
    assert was != world.intended
    works = {pair.target for pair, now in zip(world.pairs, was, strict=True) if now}
    return world, policies, {app.name for app in world.apps} - works


@cache
def queries():
    """Return labels and ``started`` values of queries with every kind and with the paper's pairs,
    in drawn applications.
    """
    app = Kubernetes()
    found = []
    for types in (None, ["extended"]):
        config = KubernetesConfig.parse({"world": "varied", "num_queries": 1, "error_types": types})
        found += list(app.generate(config, seed=11))
    return [(query.label, *started(query)) for query in found]


def solved_safely(world, policies, unreached, mends, *, only_unreached=False):
    """Return whether a script solves a query and does no harm."""
    after = send(world, policies, mends, unreached if only_unreached else None)
    if after == policies or reach(world, after) != world.intended:
        return False
    return not opened(world, (world.policies, policies), after)


@pytest.mark.slow
@pytest.mark.parametrize("only_unreached", [False, True])
@pytest.mark.parametrize("name", [*SCRIPTS, "all"])
def test_script_that_ignores_the_intent_solves_at_most_one_in_twenty_queries(name, only_unreached):
    mends = MENDS if name == "all" else [SCRIPTS[name]]
    asked = queries()
    won = [
        label
        for label, *start in asked
        if solved_safely(*start, mends, only_unreached=only_unreached)
    ]
    assert 100 * len(won) <= MOST_PCT * len(asked), won


@pytest.mark.parametrize("name", WITHOUT_DECOYS)
def test_script_solves_its_fault_kind_in_a_world_without_decoys(name):
    """The scripts must be effective; otherwise, the test of the decoys would prove little."""
    config = KubernetesConfig.parse({"num_queries": 6, "error_types": [WITHOUT_DECOYS[name]]})
    asked = list(Kubernetes().generate(config, seed=5))
    won = [query for query in asked if solved_safely(*started(query), [SCRIPTS[name]])]
    assert 2 * len(won) >= len(asked)


@pytest.mark.parametrize("seed", range(8))
def test_decoys_of_every_kind_exist_and_allow_no_traffic(seed):
    world = varied(random.Random(seed))
    callers = {target for _, target in world.calls}
    retired = [app.name for app in world.apps if app.service and app.name not in callers]
    assert len(retired) == 2
    for name, mends in {**{n: [m] for n, m in SCRIPTS.items()}, "all": MENDS}.items():
        if name in SOMETIMES:
            continue
        after = send(world, world.policies, mends)
        changed = reach(world, after) != world.intended
        assert changed or opened(world, (world.policies,), after), name
