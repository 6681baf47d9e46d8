"""Features of policies that are visible without the documentation: forms and traces.

A leakage audit tests whether such features reveal the faulty policies. The candidates are the
network policies of a query, as the cluster shows them. ``form`` contains counts that describe a
policy's spec, by itself and in relation to the pods and other policies. ``trace`` contains the data
that the API server adds, such as order, versions, times and identifiers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

from netarena.sdk import RULE, Candidate, Evidence, Query, relative
from netarena_k8s.cluster import NAMESPACE
from netarena_k8s.embedded.apiserver.default_objects import applied, objects
from netarena_k8s.embedded.apiserver.kind import NETWORK_POLICIES
from netarena_k8s.embedded.apiserver.store import Store
from netarena_k8s.fault.table import faulty
from netarena_k8s.query import faults_of, world_of
from netarena_k8s.world.matrix import numbers
from netarena_k8s.world.model import App, Net, Policy, World, with_policies
from netarena_k8s.world.plan import Use
from netarena_k8s.world.policy import EGRESS, INGRESS, Labels, policy_types, selects

Features: TypeAlias = dict[str, float]
_Json: TypeAlias = Mapping[str, Any]
#: A peer is wide if it matches more than this share of the pods.
_WIDE = 0.4
#: role of the policy that selects every pod; this policy allows no traffic and never has a fault
_EVERY_POD = "every pod"
#: a fixed time, because only differences between policies matter
_NOW = datetime(2024, 1, 1, tzinfo=UTC)


def evidence(query: Query) -> Evidence:
    """Return the policies of a query with their features, and features of the query as a whole."""
    world, faults = world_of(query), faults_of(query)
    shown = with_policies(world, faulty(world, faults))
    wrong = {fault.policy for fault in faults}
    forms = forms_of(shown)
    traces = relative(_traces(world, shown.policies))
    return Evidence(
        id=query.id,
        label=query.label,
        wrong=bool(faults),
        candidates=tuple(
            Candidate(
                name=policy.name,
                target=policy.name in wrong,
                role="" if policy.spec["podSelector"] else _EVERY_POD,
                form=forms[policy.name],
                trace=traces[policy.name],
            )
            for policy in shown.policies
        ),
        form=_total(forms),
        trace=_total(traces),
    )


def forms_of(shown: World) -> dict[str, Features]:
    """Return the ``form`` features of all policies in ``shown``, a world with faults, by policy
    name."""
    reader = _Reader(shown)
    return relative({policy.name: reader.form(policy) for policy in shown.policies})


def _total(features: Mapping[str, Features]) -> Features:
    """Return the number of policies, and the mean and maximum of each of their features.

    Ranks and distances from the median, which have ``~`` in the key, are left out.
    """
    values: dict[str, list[float]] = {}
    for own in features.values():
        for key, value in own.items():
            if "~" not in key:
                values.setdefault(key, []).append(value)
    found: Features = {"candidates": float(len(features))}
    for key, some in values.items():
        found[f"{key.removeprefix(RULE)}.mean"] = sum(some) / len(some)
        found[f"{key.removeprefix(RULE)}.max"] = max(some)
    return found


def _traces(world: World, shown: Sequence[Policy]) -> dict[str, Features]:
    """Return the ``trace`` features of each policy by name, in the order in which the API server
    lists the policies.

    The store is filled as on the embedded cluster at the start of an episode.
    """
    addresses = {app.name: f"10.244.0.{place}" for place, app in enumerate(world.apps, start=2)}
    store = Store()
    store.fill(objects(world, NAMESPACE, addresses, _NOW))
    for policy in shown:
        there = store.get(NETWORK_POLICIES, NAMESPACE, policy.name)
        assert there is not None
        store.amend(NETWORK_POLICIES, applied(there, policy.spec))
    found: dict[str, Features] = {}
    for place, (_, one) in enumerate(store.find(NETWORK_POLICIES)):
        head = one["metadata"]
        managed = head.get("managedFields") or []
        found[head["name"]] = {
            "place": float(place),
            "version": float(head["resourceVersion"]),
            "generation": float(head.get("generation", 0)),
            "created": datetime.fromisoformat(head["creationTimestamp"]).timestamp(),
            "uid": int(head["uid"][:8], 16) / 2**32,
            "managers": float(len(managed)),
            "managed": float(sum(len(json.dumps(entry)) for entry in managed)),
            "annotations": float(len(head.get("annotations") or {})),
            "labels": float(len(head.get("labels") or {})),
            "keys": float(len(head)),
            "name": float("".join(filter(str.isdigit, head["name"])) or 0),
            "name_chars": float(len(head["name"])),
        }
    return found


class _Reader:
    """Computes the ``form`` features of policies in ``shown``, a world with faults."""

    def __init__(self, shown: World) -> None:
        self._world = shown
        self._net = Net(shown, shown.policies)
        self._sides = shown.matrix.sides(shown.effects)
        self._labels = {app.name: shown.marks.pods[app.name] for app in shown.apps}
        self._about = {
            policy.name: [
                app for app in shown.apps if _selected(policy.spec, self._labels[app.name])
            ]
            for policy in shown.policies
        }
        texts = [policy.text for policy in shown.policies]
        self._same = Counter(texts)
        self._selectors = Counter(
            json.dumps(policy.spec.get("podSelector"), sort_keys=True) for policy in shown.policies
        )
        self._peers = Counter(
            json.dumps(peer, sort_keys=True)
            for policy in shown.policies
            for _, rule in _rules(policy)
            for peer in _peers(rule)
        )
        self._values = Counter(pair for policy in shown.policies for pair in _pairs(policy.spec))
        self._ports = Counter(
            json.dumps(entry, sort_keys=True)
            for policy in shown.policies
            for _, rule in _rules(policy)
            for entry in rule.get("ports") or ()
        )
        self._groups: dict[tuple[str, ...], list[App]] = {}
        for app in shown.apps:
            self._groups.setdefault(self._group(app), []).append(app)
        self._sizes: dict[str, int] = {}
        #: namespace -> the labels of its pods
        self._ends: dict[str, list[Labels]] = {}
        net = self._net
        for end in (*net.pods.values(), *net.strangers.values(), *net.dns):
            self._ends.setdefault(end.namespace, []).append(end.labels)
        self._names = {
            name: frozenset(app.name for app in about) for name, about in self._about.items()
        }

    def _group(self, app: App) -> tuple[str, ...]:
        plan = self._world.plan
        if plan is None:
            return ()
        return app.labels.get(plan.team_key, ""), app.labels.get(plan.role_key, "")

    def form(self, policy: Policy) -> Features:
        """Return the ``form`` features of one policy."""
        spec = cast("dict[str, Any]", policy.spec)
        types, about = policy_types(spec), self._about[policy.name]
        found: Features = {
            "pods": float(len(about)),
            "ingress_rules": float(len(spec.get("ingress") or ())),
            "egress_rules": float(len(spec.get("egress") or ())),
            "ingress_type": float(INGRESS in types),
            "egress_type": float(EGRESS in types),
            "ingress_key": float("ingress" in spec),
            "egress_key": float("egress" in spec),
            "ingress_not_in_force": float(bool(spec.get("ingress")) and INGRESS not in types),
            "egress_not_in_force": float(bool(spec.get("egress")) and EGRESS not in types),
            "ingress_empty": float(INGRESS in types and not spec.get("ingress")),
            "egress_empty": float(EGRESS in types and not spec.get("egress")),
            "entries": float(policy.entries),
            "chars": float(len(policy.text)),
            "same": float(self._same[policy.text]),
            "selector_keys": float(len((spec.get("podSelector") or {}).get("matchLabels") or {})),
            "selector_same": float(
                self._selectors[json.dumps(spec.get("podSelector"), sort_keys=True)]
            ),
            "others_about": float(
                sum(
                    not other.isdisjoint(self._names[policy.name])
                    for name, other in self._names.items()
                    if name != policy.name and len(other) < len(self._world.apps)
                )
            ),
            "rarest_value": float(min(map(self._values.__getitem__, _pairs(spec)), default=0)),
        }
        found |= self._peer_form(policy)
        found |= self._port_form(policy, about)
        found |= self._pair_form(policy)
        found |= {
            f"{RULE}selects_nothing": float(not about),
            f"{RULE}port_without_pod": found["ports_without_pod"],
            f"{RULE}wide_peer": found["peer_pods_max"],
            f"{RULE}not_in_force": found["egress_not_in_force"] + found["ingress_not_in_force"],
            f"{RULE}peer_of_nobody": found["peers_of_nobody"],
            f"{RULE}no_lookup": found["egress_without_lookup"],
            f"{RULE}other_end_only": found["let_in_by_this_end_only"]
            + found["let_out_by_this_end_only"],
        }
        return found

    def _peer_form(self, policy: Policy) -> Features:
        sizes, rare, kinds = [], [], Counter[str]()
        for _, rule in _rules(policy):
            for peer in _peers(rule):
                kinds.update(list(peer))
                selector = peer.get("podSelector") or {}
                kinds["expression"] += bool(selector.get("matchExpressions"))
                kinds["negated"] += '"NotIn"' in json.dumps(peer)
                kinds["labels"] += len(selector.get("matchLabels") or {})
                rare.append(self._peers[json.dumps(peer, sort_keys=True)])
                if "ipBlock" in peer:
                    continue
                sizes.append(self._size(peer))
        wide = _WIDE * len(self._net.pods)
        return {
            "peers": float(len(rare)),
            "peers_of_nobody": float(sizes.count(0)),
            "peer_pods_max": float(max(sizes, default=0)),
            "peer_pods_mean": sum(sizes) / len(sizes) if sizes else 0.0,
            "peers_wide": float(sum(size > wide for size in sizes)),
            "peer_rarest": float(min(rare, default=0)),
            "peer_blocks": float(kinds["ipBlock"]),
            "peer_spaces": float(kinds["namespaceSelector"]),
            "peer_expressions": float(kinds["expression"]),
            "peer_negated": float(kinds["negated"]),
            "peer_labels_mean": kinds["labels"] / len(rare) if rare else 0.0,
            "rules_for_all": float(sum(not _peers(rule) for _, rule in _rules(policy))),
        }

    def _size(self, peer: _Json) -> int:
        """Return the number of pods, in all namespaces, that a peer matches."""
        text = json.dumps(peer, sort_keys=True)
        if text not in self._sizes:
            net = self._net
            labels = net.ground.book.namespaces
            where = peer.get("namespaceSelector")
            spaces = (
                [net.namespace]
                if where is None
                else [name for name in self._ends if selects(where, labels[name])]
            )
            pods = peer.get("podSelector") or {}
            self._sizes[text] = sum(
                selects(pods, one) for name in spaces for one in self._ends[name]
            )
        return self._sizes[text]

    def _port_form(self, policy: Policy, about: Sequence[App]) -> Features:
        without = named = ranges = other = lookups = 0
        rare = []
        for direction, rule in _rules(policy):
            for entry in rule.get("ports") or ():
                port, protocol = entry.get("port"), entry.get("protocol", "TCP")
                named += isinstance(port, str)
                ranges += "endPort" in entry
                other += protocol != "TCP"
                rare.append(self._ports[json.dumps(entry, sort_keys=True)])
                lookups += port == 53 and protocol == "UDP"
                among: Sequence[App] = about
                if direction == EGRESS:
                    peers = [peer for peer in _peers(rule) if "namespaceSelector" not in peer]
                    among = [
                        app
                        for app in self._world.apps
                        if any(
                            selects(peer.get("podSelector") or {}, self._labels[app.name])
                            for peer in peers
                            if "ipBlock" not in peer
                        )
                    ]
                without += bool(among) and not any(_serves(app, entry) for app in among)
        egress = [rule for direction, rule in _rules(policy) if direction == EGRESS]
        return {
            "ports": float(len(rare)),
            "ports_without_pod": float(without),
            "ports_named": float(named),
            "port_ranges": float(ranges),
            "ports_not_tcp": float(other),
            "port_rarest": float(min(rare, default=0)),
            "egress_without_lookup": float(bool(egress) and not lookups and {} not in egress),
        }

    def _pair_form(self, policy: Policy) -> Features:
        """Return features that compare a policy with the policies at the other ends of its
        connections, and with the groups of applications."""
        matrix, pairs = self._world.matrix, len(self._world.pairs)
        own = self._world.effect(policy)
        entering, leaving = ([*_first(bits, pairs)] for bits in (own.lets_in, own.lets_out))
        callers: dict[str, set[str]] = {}
        for place in entering:
            use = cast("Use", matrix.uses[place])
            callers.setdefault(use.target, set()).add(use.source)
        half_in = sum(not self._sides.out >> place & 1 for place in entering)
        half_out = sum(not self._sides.into >> place & 1 for place in leaving)
        nearly = few = 0
        for target, sources in callers.items():
            for members in self._groups.values():
                among = {app.name for app in members} - {target}
                let = len(among & sources)
                nearly += len(among) > 2 and let == len(among) - 1
                few += len(among) > 2 and let == 1
        return {
            "lets_in": float(len(entering)),
            "lets_out": float(len(leaving)),
            "let_in_by_this_end_only": float(half_in),
            "let_out_by_this_end_only": float(half_out),
            "groups_but_one": float(nearly),
            "groups_one_only": float(few),
        }


def _first(bits: int, most: int) -> Iterator[int]:
    """Yield the positions of the set bits, up to but not including ``most``."""
    return numbers(bits & (1 << most) - 1)


def _selected(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return selects(spec.get("podSelector") or {}, labels)


def _rules(policy: Policy) -> Iterator[tuple[str, _Json]]:
    spec = cast("dict[str, Any]", policy.spec)
    for direction, key in ((INGRESS, "ingress"), (EGRESS, "egress")):
        for rule in spec.get(key) or ():
            yield direction, rule


def _peers(rule: _Json) -> Sequence[_Json]:
    return rule.get("from") or rule.get("to") or ()


def _pairs(value: object) -> Iterator[tuple[str, str]]:
    """Yield each (label key, value) that selectors anywhere in ``value`` name."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key == "matchLabels":
                yield from one.items()
            elif key == "matchExpressions":
                for each in one:
                    yield from ((each["key"], name) for name in each.get("values") or ())
            else:
                yield from _pairs(one)
    elif isinstance(value, list):
        for one in value:
            yield from _pairs(one)


def _serves(app: App, entry: _Json) -> bool:
    """Return whether a pod of the application declares the port in an entry of a rule."""
    port, protocol = entry.get("port"), entry.get("protocol", "TCP")
    for one in app.ports:
        if one.protocol != protocol:
            continue
        if port is None or port in (one.number, one.name):
            return True
        if isinstance(port, int) and port <= one.number <= int(entry.get("endPort") or port):
            return True
    return False
