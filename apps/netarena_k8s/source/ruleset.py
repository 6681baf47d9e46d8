"""Writer of a large world's intended policies, which implement the grants of its plan.

A grant has two sides: the ingress of its targets and the egress of its sources. Each side is
written either in one policy per application or in one policy for the whole group. The rules of one
application are therefore spread over several policies, and a policy may cover many applications.
Policy names are meaningless.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from netarena_k8s.fault.subtle import LOOKUPS
from netarena_k8s.source.decoy import BOTH
from netarena_k8s.source.varied import SPACE_LABEL, key_of, pod_port
from netarena_k8s.world.model import App, ContainerPort, Policy, Spec, count_entries
from netarena_k8s.world.plan import Grant, Group, Plan

Rule: TypeAlias = dict[str, Any]
#: form of a group's egress: unrestricted, in one policy for the group, or in one policy per
#: application
Leaving: TypeAlias = Literal["open", "shared", "own"]
#: maximum number of entries of one policy; the cluster accepts a few more
MOST_ENTRIES = 70
#: share of grants to groups whose ingress rules are written in one policy for the whole group
_SHARED = 0.4
#: Share of each form of rule that names a whole group, in a world with ``_LARGEST`` applications.
#: The share is proportional to the number of applications, so smaller worlds list more applications
#: individually. All policies together therefore never fit into the output of one command.
_TOGETHER, _LARGEST = 0.25, 60
#: In worlds of at most ``_FEW`` applications, a rule may select a group with ``NotIn`` and the
#: names of all other applications. ``_INVERTED`` is the share of such rules.
_FEW, _INVERTED = 40, 0.06
#: probability that one rule has a peer for each application of a group, instead of one rule per
#: application (in addition to ``_TOGETHER``)
_LISTED = 0.2


@dataclass
class Ruleset:
    """The rules for the pods of one selector."""

    selector: dict[str, Any]
    ingress: list[Rule] = field(default_factory=list)
    #: egress rules; None: the policies for this selector do not restrict egress
    egress: list[Rule] | None = None


@dataclass(frozen=True)
class Writer:
    """Writes the policies of ``apps``. ``tenant`` is a label value of the world's namespace."""

    apps: Sequence[App]
    plan: Plan
    tenant: str
    #: (team, role) of applications that call others -> form of their egress
    leaving: dict[tuple[str, str], Leaving]
    rng: random.Random

    def write(self) -> list[Policy]:
        """Return all policies except the policy that denies everything. Names are meaningless and
        random."""
        own = {app.name: Ruleset(self._selector(app)) for app in self.apps}
        shared: dict[tuple[tuple[str, str], ...], Ruleset] = {}

        def whole(group: Group) -> Ruleset:
            mark = tuple(sorted(group.labels.items()))
            return shared.setdefault(mark, Ruleset({"matchLabels": dict(group.labels)}))

        for grant in self.plan.grants:
            if isinstance(grant.target, Group):
                self._enter(grant, own, whole)
        for mark, style in self.leaving.items():
            group = Group(labels=dict(zip(self._keys, mark, strict=True)))
            members = [app for app in self.apps if group.has(app.labels)]
            if style == "shared":
                whole(group).egress = self._leave(group)
                continue
            for app in members:
                own[app.name].egress = [{}] if style == "open" else self._leave(group)
        return self._name(
            spec for one in (*own.values(), *shared.values()) for spec in self._split(one)
        )

    @property
    def _together(self) -> float:
        return _TOGETHER * len(self.apps) / _LARGEST

    @property
    def _keys(self) -> tuple[str, str]:
        return self.plan.team_key, self.plan.role_key

    def _selector(self, app: App) -> dict[str, Any]:
        labels = {key_of(app): app.name} if self.rng.random() < 0.5 else dict(app.labels)
        return {"matchLabels": labels}

    # Ingress

    def _enter(
        self, grant: Grant, own: dict[str, Ruleset], whole: Callable[[Group], Ruleset]
    ) -> None:
        assert isinstance(grant.target, Group)
        targets = [app for app in self.apps if grant.target.has(app.labels)]
        told = self.plan.role_key in grant.target.labels
        if told and len(targets) > 1 and self.rng.random() < _SHARED:
            ports = self._ports(targets, grant)
            whole(grant.target).ingress += self._rules("from", grant.source, ports)
            return
        for app in targets:
            ports = self._ports([app], grant)
            own[app.name].ingress += self._rules("from", grant.source, ports, app)

    # Egress

    def _leave(self, group: Group) -> list[Rule]:
        """Return the egress rules of a group: for name lookups, and for all connections that grants
        allow the group to open."""
        rules: list[Rule] = []
        for grant in self.plan.grants:
            source = grant.source
            if isinstance(source, str) or not source.labels.items() <= group.labels.items():
                continue
            if isinstance(grant.target, str):
                rules += self._rules("to", grant.target, self._number(grant))
                continue
            targets = [app for app in self.apps if grant.target.has(app.labels)]
            if len(targets) > 1 and self.rng.random() < self._together:
                rules += self._rules("to", grant.target, self._ports(targets, grant))
                continue
            for app in targets:
                ports = self._ports([app], grant)
                rules.append({"to": [self._one(app)], "ports": ports})
        self.rng.shuffle(rules)
        rules.insert(self.rng.randint(0, len(rules)), self._lookups())
        return rules

    def _lookups(self) -> Rule:
        """Return an egress rule for name lookups, over UDP and TCP or over UDP only."""
        return {**copy.deepcopy(dict(LOOKUPS)), "ports": LOOKUPS["ports"][: self.rng.randint(1, 2)]}

    # Peers and ports

    def _rules(
        self,
        key: Literal["from", "to"],
        end: Group | str,
        ports: list[Rule],
        beside: App | None = None,
    ) -> list[Rule]:
        """Return rules that allow connections from or to ``end``: a guest, a partner, or the
        members of a group except ``beside``.

        The form is random: one rule for all, or one rule for each member.
        """
        if isinstance(end, str):
            return [{key: [self._stranger(end)], "ports": ports}]
        members = [app for app in self.apps if end.has(app.labels) and app is not beside]
        form = self.rng.random()
        if form < self._together:
            return [{key: [self._group(end)], "ports": ports}]
        if form < 2 * self._together and len(members) > 1:
            key_ = key_of(members[0])
            names = self.rng.sample([app.name for app in members], len(members))
            expression = {"key": key_, "operator": "In", "values": names}
            return [{key: [{"podSelector": {"matchExpressions": [expression]}}], "ports": ports}]
        if len(members) > 1 and len(self.apps) <= _FEW and self.rng.random() < _INVERTED:
            others = [app.name for app in self.apps if app not in members]
            expression = {"key": key_of(members[0]), "operator": "NotIn", "values": others}
            return [{key: [{"podSelector": {"matchExpressions": [expression]}}], "ports": ports}]
        if form < 3 * self._together or self.rng.random() < _LISTED:
            return [{key: [self._one(app) for app in members], "ports": ports}] if members else []
        return [{key: [self._one(app)], "ports": ports} for app in members]

    def _one(self, app: App) -> Rule:
        """Return a peer that selects a single application."""
        labels = {key_of(app): app.name}
        form = self.rng.randrange(4)
        if form == 0:
            return {"podSelector": {"matchLabels": dict(app.labels)}}
        if form == 1:
            space = {"matchLabels": {SPACE_LABEL: self.tenant}}
            return {"namespaceSelector": space, "podSelector": {"matchLabels": labels}}
        if form == 2:
            labels |= {key: app.labels[key] for key in self._keys}
        return {"podSelector": {"matchLabels": labels}}

    def _group(self, group: Group) -> Rule:
        """Return a peer that selects a whole group."""
        form = self.rng.randrange(3)
        team, role = (group.labels.get(key) for key in self._keys)
        if form == 0 or role is None:
            return {"podSelector": {"matchLabels": dict(group.labels)}}
        if form == 1:
            expressions = [
                {"key": key, "operator": "In", "values": [value]}
                for key, value in group.labels.items()
            ]
            return {"podSelector": {"matchExpressions": expressions}}
        roles = sorted({app.labels[self.plan.role_key] for app in self.apps} - {role})
        expression = {"key": self.plan.role_key, "operator": "NotIn", "values": roles}
        selector: Rule = {"matchExpressions": [expression]}
        if team is not None:
            selector["matchLabels"] = {self.plan.team_key: team}
        return {"podSelector": selector}

    def _stranger(self, name: str) -> Rule:
        for guest in self.plan.guests:
            if guest.name == name:
                return {
                    "namespaceSelector": {"matchLabels": dict(guest.space_labels)},
                    "podSelector": {"matchLabels": dict(guest.labels)},
                }
        (cidr,) = (one.cidr for one in self.plan.partners if one.name == name)
        return {"ipBlock": {"cidr": cidr}}

    def _ports(self, targets: Sequence[App], grant: Grant) -> list[Rule]:
        """Return the entries for the ports of a grant. The ports of a group are given by name,
        because port numbers differ among its members."""
        if grant.port is not None:
            return self._number(grant)
        ports = [pod_port(app) for app in targets]
        protocols = sorted({port.protocol for port in ports})
        if len(targets) > 1:
            return [{"port": ports[0].name, "protocol": one} for one in protocols]
        return [self._port(ports[0])]

    def _port(self, port: ContainerPort) -> Rule:
        form = self.rng.randrange(4)
        if form == 0:
            return {"port": port.name, "protocol": port.protocol}
        entry: Rule = {"port": port.number, "protocol": port.protocol}
        return {**entry, "endPort": port.number} if form == 1 else entry

    def _number(self, grant: Grant) -> list[Rule]:
        return [{"port": grant.port, "protocol": grant.protocol}]

    # Policies

    def _split(self, one: Ruleset) -> Iterator[Spec]:
        """Yield the specs of policies for the rules of one selector. Each spec is small enough for
        an agent to patch."""
        rng = self.rng
        rng.shuffle(one.ingress)
        apart = rng.random() < 0.5
        spec: Spec
        if one.egress is not None and (apart or not one.ingress):
            for rules in _shares(one.egress, rng):
                # The policy that denies everything already isolates the pods for ingress, so type
                # Ingress changes nothing.
                types: Any = [*BOTH] if rng.random() < 0.4 else ["Egress"]
                nothing: Spec = {"ingress": []} if "Ingress" in types else {}
                spec = {"podSelector": one.selector, "policyTypes": types, **nothing}
                yield {**spec, "egress": rules}
        for number, rules in enumerate(_shares(one.ingress, rng)):
            spec = {"podSelector": one.selector, "policyTypes": ["Ingress"], "ingress": rules}
            if not number and one.egress is None and rng.random() < 0.5:
                spec["policyTypes"] = [*BOTH]
            fits = one.egress is None or count_entries([*rules, *one.egress]) <= MOST_ENTRIES
            if not number and one.egress is not None and not apart and fits:
                spec |= {"policyTypes": [*BOTH], "egress": [*one.egress]}
            elif not number and one.egress is not None and not apart:
                for more in _shares(one.egress, rng):
                    yield {"podSelector": one.selector, "policyTypes": ["Egress"], "egress": more}
            yield spec

    def _name(self, specs: Iterable[Spec]) -> list[Policy]:
        found = list(specs)
        return [
            Policy(name=name, spec=spec)
            for name, spec in zip(draw_names(len(found), (), self.rng), found, strict=True)
        ]


def _shares(rules: Sequence[Rule], rng: random.Random) -> Iterator[Any]:
    """Yield parts of ``rules``, each of which fits into one policy. Sometimes there are several
    parts although one policy would suffice."""
    most = MOST_ENTRIES
    if len(rules) > 3 and rng.random() < 0.4:
        most = max(count_entries(list(rules)) // 2, 12)
    part: list[Rule] = []
    for rule in rules:
        if part and count_entries([*part, rule]) > most:
            yield part
            part = []
        part.append(rule)
    if part:
        yield part


def draw_names(number: int, taken: Iterable[str], rng: random.Random) -> list[str]:
    """Return meaningless names for policies, such as ``req-1234``, in random order."""
    known, found = {*taken}, list[str]()
    while len(found) < number:
        name = f"req-{rng.randrange(1000, 9999)}"
        if name not in known:
            known.add(name)
            found.append(name)
    return found
