"""Scripted agent that repairs policies that look faulty, without knowing the intended connections.

It reads applications and policies, but neither the documentation nor the ticket, and sends no
probe. It treats each suspicious form of a policy as a fault. The forms are those that module
``evidence`` counts for the leakage audit. Examples are a selector that matches no pod, a port that
no pod serves, and rules of a direction that ``policyTypes`` omits. The agent repairs the most
suspicious policies first. If these forms do not reveal the faults, the agent solves no query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from netarena_k8s.agent.triage import read_cluster
from netarena_k8s.evidence import forms_of
from netarena_k8s.fault.subtle import LOOKUPS
from netarena_k8s.solution import patch_command
from netarena_k8s.world.matrix import copied
from netarena_k8s.world.model import App, Policy, World, target_port
from netarena_k8s.world.policy import EGRESS, INGRESS, policy_types, selects

SpecDict: TypeAlias = dict[str, Any]
#: function that returns a spec without the suspicious form, or None if it cannot remove the form
Undo: TypeAlias = Callable[[World, SpecDict], SpecDict | None]


def repairs(packed: str) -> Iterator[str]:
    """Yield commands that repair policies in the output of ``triage.DUMP``, the most suspicious
    policy first.

    Raises ValueError if the dump is not readable.
    """
    apps, specs = read_cluster(packed)
    policies = tuple(Policy(name=name, spec=spec) for name, spec in sorted(specs.items()))
    world = World(apps=tuple(apps), policies=policies)
    forms = forms_of(world)
    for name in sorted(specs, key=lambda name: -_suspicion(forms[name])):
        for form, undo in _UNDO.items():
            if not forms[name][form] or not specs[name]["podSelector"]:
                continue
            spec = undo(world, copied(specs[name]))
            if spec is not None and spec != specs[name]:
                yield patch_command(name, specs[name], spec)
                break


def _suspicion(form: Mapping[str, float]) -> float:
    """Return the suspicion score of a policy. The score is the sum of the policy's ranks (0 to 1)
    among all policies, for each suspicious form that the policy has."""
    return sum(form.get(f"{name}~rank", 0.0) for name in _UNDO if form[name])


def _selecting(world: World, spec: SpecDict) -> SpecDict:
    """Return the spec with the labels of the most similar application as its selector."""
    wanted = {*(spec["podSelector"].get("matchLabels") or {}).values()}
    near = max(world.apps, key=lambda app: len(wanted.intersection(app.labels.values())))
    return {**spec, "podSelector": {"matchLabels": dict(near.labels)}}


def _in_force(world: World, spec: SpecDict) -> SpecDict:
    del world
    return {**spec, "policyTypes": [INGRESS, EGRESS]}


def _served_port(world: World, spec: SpecDict) -> SpecDict | None:
    """Return the spec with the first selected application's port in place of each ingress port that
    this application does not declare.

    Return None if no selected application has a service port.
    """
    about = [app for app in _about(world, spec) if app.service]
    port = target_port(about[0], about[0].service[0]) if about else None
    if port is None:
        return None
    known = {one.number for one in about[0].ports} | {one.name for one in about[0].ports}
    for rule in spec.get("ingress") or ():
        for entry in rule.get("ports") or ():
            if entry.get("port") not in known:
                entry.update(port=port.number, protocol=port.protocol)
                entry.pop("endPort", None)
    return spec


def _with_lookups(world: World, spec: SpecDict) -> SpecDict:
    del world
    return {**spec, "egress": [*spec["egress"], copied(LOOKUPS)]}


def _known_peers(world: World, spec: SpecDict) -> SpecDict:
    """Return the spec with a new selector in each peer that matches no application. The new
    selector selects the most similar application."""
    for peer in _peers(spec):
        labels = peer.get("podSelector", {}).get("matchLabels") or {}
        if "ipBlock" in peer or any(
            selects(peer.get("podSelector") or {}, app.labels) for app in world.apps
        ):
            continue
        wanted = {*labels.values()}
        near = max(world.apps, key=lambda app: len(wanted.intersection(app.labels.values())))
        peer["podSelector"] = {"matchLabels": dict(near.labels)}
    return spec


def _narrow(world: World, spec: SpecDict) -> SpecDict:
    """Return the spec without the ingress rule that matches the most applications."""
    rules: Sequence[SpecDict] = spec.get("ingress") or ()

    def size(rule: SpecDict) -> int:
        peers = rule.get("from") or [{"podSelector": {}}]
        return sum(
            selects(peer.get("podSelector") or {}, app.labels) for peer in peers
            for app in world.apps
        )  # fmt: skip

    widest = max(rules, key=size, default=None)
    return {**spec, "ingress": [rule for rule in rules if rule is not widest]}


def _about(world: World, spec: SpecDict) -> list[App]:
    return [app for app in world.apps if selects(spec["podSelector"], app.labels)]


def _peers(spec: SpecDict) -> Iterator[SpecDict]:
    for direction, key, peers in ((INGRESS, "ingress", "from"), (EGRESS, "egress", "to")):
        if direction in policy_types(spec):
            for rule in spec.get(key) or ():
                yield from rule.get(peers) or ()


#: suspicious form -> function that removes it
_UNDO: Mapping[str, Undo] = {
    "rule.selects_nothing": _selecting,
    "rule.not_in_force": _in_force,
    "rule.port_without_pod": _served_port,
    "rule.no_lookup": _with_lookups,
    "rule.peer_of_nobody": _known_peers,
    "rule.wide_peer": _narrow,
}
