"""Scripted operator that works through a checklist, as a baseline for the difficulty of queries.

The operator knows only the prompts of its conversation. It lists the policies, takes the first
wrong connection, and compares the policies at both ends with the documentation. It patches the
first policy that differs from the documentation, the receiver's before the sender's. It understands
only plain labels and port numbers, and treats label expressions, other namespaces, address blocks,
named ports and port ranges as different from the documentation.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from netarena_k8s.solution import fenced

SpecDict: TypeAlias = dict[str, Any]
#: command that prints all policies, one per line, as name, tab and spec in JSON
_DUMP = (
    "kubectl get networkpolicies -o "
    r"""jsonpath='{range .items[*]}{.metadata.name}{"\t"}{.spec}{"\n"}{end}'"""
)
_BOTH = ["Ingress", "Egress"]
#: egress rule for DNS lookups at the name servers that the prompt describes
_LOOKUP = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ],
    "ports": [{"port": 53, "protocol": "UDP"}],
}

_APP = re.compile(r"^- (\S+) \(([^)]*)\): (.+)$", re.MULTILINE)
_PORT = re.compile(r"port \d+/(\w+) to pod port (\d+)")
_MISMATCH = re.compile(r"^(\S+) -> (\S+): expected to (work|be blocked),", re.MULTILINE)
_POLICY = re.compile(r"^(\S+)\t(\{.*\})$", re.MULTILINE)


@dataclass(frozen=True)
class Plan:
    """The intended state as the prompt describes it."""

    #: application -> labels of its pods
    labels: Mapping[str, Mapping[str, str]]
    #: application -> tested pod port, as a port entry of a rule
    ports: Mapping[str, Mapping[str, Any]]

    @classmethod
    def read(cls, prompt: str) -> Plan:
        """Return the plan in ``prompt``. Raises ValueError if the prompt names no application."""
        labels, ports = {}, {}
        for name, told, service in _APP.findall(prompt):
            labels[name] = dict(pair.split("=", 1) for pair in told.split(", "))
            if found := _PORT.search(service):
                ports[name] = {"port": int(found[2]), "protocol": found[1]}
        if not labels:
            raise ValueError("the prompt lists no applications")
        return cls(labels, ports)

    def owners(self, policies: Mapping[str, SpecDict], app: str) -> list[str]:
        """Return the policies that select the application by its labels."""
        return [
            name
            for name, spec in policies.items()
            if _selects(spec.get("podSelector", {}), self.labels[app], by_name=True)
        ]

    def named_after(self, policies: Mapping[str, SpecDict], app: str) -> list[str]:
        """Return the policies whose names contain the application's name."""
        longer = [one for one in self.labels if one.startswith(f"{app}-")]
        return [
            name
            for name in policies
            if name == app
            or (name.startswith(f"{app}-") and not name.startswith(tuple(longer) or ("\0",)))
        ]


@dataclass
class Operator:
    """The operator in one conversation. Call ``reply`` with each prompt in turn."""

    _sent: set[str] = field(default_factory=set)

    def reply(self, prompt: str) -> str:
        """Return the next command of the checklist. Raises ValueError if the prompt names no
        application."""
        plan = Plan.read(prompt)
        situation = prompt.rpartition("Connections that differ from the intended state")[2]
        policies = _read_policies(prompt)
        for source, target, wanted in _MISMATCH.findall(situation):
            find = _unblock if wanted == "work" else _block
            for name, patch in find(plan, policies, source, target):
                command = (
                    f"kubectl patch networkpolicy {name} --type=json "
                    f"-p {shlex.quote(json.dumps(patch))} && {_DUMP}"
                )
                if command not in self._sent:
                    self._sent.add(command)
                    return fenced(command)
        return fenced(_DUMP)


#: policy name, and a JSON patch of this policy
Change: TypeAlias = tuple[str, list[SpecDict]]


def _unblock(
    plan: Plan, policies: Mapping[str, SpecDict], source: str, target: str
) -> Iterator[Change]:
    """Yield changes that may unblock a connection, the most likely change first."""
    port = plan.ports.get(target)
    if port is None:
        return
    owners = plan.owners(policies, target)
    if not owners:
        yield from _claim(plan, policies, target)
    if owners and not any(
        _admits(rule.get("from"), rule.get("ports"), plan.labels[source], port)
        for name in owners
        for rule in _rules(policies[name], "ingress")
    ):
        peer = {"podSelector": {"matchLabels": dict(plan.labels[source])}}
        yield from _add(policies, owners[0], "ingress", [{"from": [peer], "ports": [dict(port)]}])
    owners = plan.owners(policies, source)
    if not owners:
        yield from _claim(plan, policies, source)
        return
    leaving = [rule for name in owners for rule in _rules(policies[name], "egress")]
    lacking: list[SpecDict] = []
    if not any(
        _admits(rule.get("to"), rule.get("ports"), plan.labels[target], port) for rule in leaving
    ):
        peer = {"podSelector": {"matchLabels": dict(plan.labels[target])}}
        lacking.append({"to": [peer], "ports": [dict(port)]})
    if not any(rule == {} or '"port": 53, "protocol": "UDP"' in _text(rule) for rule in leaving):
        lacking.append(_LOOKUP)
    if lacking:
        yield from _add(policies, owners[0], "egress", lacking)


def _block(
    plan: Plan, policies: Mapping[str, SpecDict], source: str, target: str
) -> Iterator[Change]:
    """Yield changes that may block a connection. Each change removes the peer that allows the
    connection, or the whole rule if the rule has no other peer or allows every pod."""
    port = plan.ports.get(target)
    if port is None:
        return
    for name in plan.owners(policies, target):
        for place, rule in enumerate(policies[name].get("ingress", ())):
            peers = rule.get("from") or []
            if not _admits(peers, rule.get("ports"), plan.labels[source], port):
                continue
            path = f"/spec/ingress/{place}"
            exact = [
                number
                for number, peer in enumerate(peers)
                if _matches(peer, plan.labels[source]) and peer.get("podSelector")
            ]
            if exact and len(peers) > 1:
                yield name, [{"op": "remove", "path": f"{path}/from/{exact[0]}"}]
            else:
                yield name, [{"op": "remove", "path": path}]


def _claim(plan: Plan, policies: Mapping[str, SpecDict], app: str) -> Iterator[Change]:
    """Yield changes for an application that no policy selects. Each change makes one of the
    policies named after the application select it."""
    labels = {"matchLabels": dict(plan.labels[app])}
    for name in plan.named_after(policies, app):
        yield name, [{"op": "replace", "path": "/spec/podSelector", "value": labels}]


def _add(
    policies: Mapping[str, SpecDict], name: str, direction: str, rules: Sequence[SpecDict]
) -> Iterator[Change]:
    """Yield a patch that appends rules and lists both directions in ``policyTypes``."""
    spec = policies[name]
    value = [*spec.get(direction, ()), *rules]
    patch: list[SpecDict] = [{"op": "add", "path": f"/spec/{direction}", "value": value}]
    if set(_BOTH) - set(spec.get("policyTypes", ())):
        patch.append({"op": "add", "path": "/spec/policyTypes", "value": _BOTH})
    yield name, patch


def _rules(spec: SpecDict, direction: str) -> Iterable[SpecDict]:
    """Return the rules of a direction. The result is empty if ``policyTypes`` does not list the
    direction."""
    kind = direction.capitalize()
    return spec.get(direction, ()) if kind in spec.get("policyTypes", ()) else ()


def _admits(
    peers: Sequence[SpecDict] | None,
    ports: Sequence[SpecDict] | None,
    labels: Mapping[str, str],
    port: Mapping[str, Any],
) -> bool:
    """Return whether a rule allows pods with these labels on this port.

    Peers other than plain ``matchLabels`` or all namespaces, and ports written differently from
    ``port``, do not count.
    """
    return (not peers or any(_matches(peer, labels) for peer in peers)) and (
        not ports or dict(port) in ports
    )


def _matches(peer: SpecDict, labels: Mapping[str, str]) -> bool:
    if set(peer) == {"podSelector"}:
        return _selects(peer["podSelector"], labels)
    return peer == {"namespaceSelector": {}}


def _selects(selector: SpecDict, labels: Mapping[str, str], *, by_name: bool = False) -> bool:
    """Return whether a selector with only ``matchLabels`` matches the labels. With ``by_name``, an
    empty selector does not match."""
    wanted = selector.get("matchLabels", {})
    if "matchExpressions" in selector or (by_name and not wanted):
        return False
    return set(wanted.items()) <= set(labels.items())


def _read_policies(prompt: str) -> dict[str, SpecDict]:
    """Return the policies in the last output of ``_DUMP`` in the prompt. Truncated lines are
    skipped."""
    found = {}
    for name, text in _POLICY.findall(prompt.rpartition("\nOutput:\n")[2]):
        try:
            found[name] = json.loads(text)
        except ValueError:
            continue
    return found


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
