"""Decoys of large worlds: ineffective entries in the form of real rules.

Each decoy has the form of some fault in such a world, with labels, ports and namespaces that other
entries use too. A decoy seems to allow a connection, but it changes nothing: the connection stays
blocked, or another policy already allows it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from netarena.sdk import JsonValue
from netarena_k8s.fault.subtle import LOOKUPS
from netarena_k8s.source.decoy import BOTH
from netarena_k8s.source.ruleset import draw_names
from netarena_k8s.source.varied import key_of, pod_port
from netarena_k8s.world.model import App, Policy, World, count_entries

Rule: TypeAlias = dict[str, Any]
#: number of applications per decoy rule, and number of applications per decoy policy
_RULE_OF, _POLICY_OF = 2, 6
#: Minimum number of characters of a dump of all policies. It exceeds the 64 KiB of output that an
#: agent gets from a command.
_DUMP_CHARS = 72_000
#: number of characters of kubectl's YAML per character of JSON, and number of additional characters
#: per policy
_PER_CHAR, _PER_POLICY = 1.3, 260
#: maximum number of entries of a policy to which a decoy rule is added
_ROOM = 80


@dataclass(frozen=True)
class Spot:
    """The applications of a decoy that seems to allow ``caller`` to call ``app``. ``third`` is
    another application."""

    world: World
    app: App
    caller: App
    third: App
    rng: random.Random

    def rule(self, peer: Rule | None = None, port: Rule | None = None) -> Rule:
        """Return an ingress rule that allows ``caller`` on the tested port, unless ``peer`` or
        ``port`` replaces it."""
        tested = pod_port(self.app)
        return {
            "from": [peer or {"podSelector": {"matchLabels": self.named(self.caller)}}],
            "ports": [port or {"port": tested.number, "protocol": tested.protocol}],
        }

    def named(self, app: App) -> dict[str, str]:
        """Return labels that only the pods of ``app`` have, for a peer."""
        return {key_of(app): app.name} if self.rng.random() < 0.5 else dict(app.labels)

    def mixed(self, app: App) -> dict[str, str]:
        """Return the name label of ``app`` with the team or role of another application, so that no
        pod has both labels."""
        assert self.world.plan is not None
        key = self.rng.choice((self.world.plan.team_key, self.world.plan.role_key))
        others = sorted({one.labels[key] for one in self.world.apps} - {app.labels[key]})
        return {key_of(app): app.name, key: self.rng.choice(others)}


def other_port(world: World, app: App, rng: random.Random) -> int:
    """Return a port number that other applications use, but on which ``app`` does not listen."""
    own = {port.number for port in app.ports}
    known = {port.number for one in world.apps for port in one.ports[:1]}
    known |= {port.port for port in app.service[:1]}
    return rng.choice(sorted(known - own) or [max(own) + 1])


def _port_of_another(spot: Spot) -> Rule:
    number = other_port(spot.world, spot.app, spot.rng)
    return spot.rule(port={"port": number, "protocol": pod_port(spot.app).protocol})


def _protocol_other(spot: Spot) -> Rule:
    port = pod_port(spot.app)
    other = "UDP" if port.protocol == "TCP" else "TCP"
    return spot.rule(port={"port": port.number, "protocol": other})


def _range_beside(spot: Spot) -> Rule:
    port = pod_port(spot.app)
    width = spot.rng.randint(1, 4)
    low = spot.rng.choice((port.number + 1, port.number - 1 - width))
    return spot.rule(port={"port": low, "endPort": low + width, "protocol": port.protocol})


def _peer_mixed(spot: Spot) -> Rule:
    return spot.rule({"podSelector": {"matchLabels": spot.mixed(spot.caller)}})


def _peer_elsewhere(spot: Spot) -> Rule:
    assert spot.world.plan is not None
    guest = spot.rng.choice(spot.world.plan.guests)
    space = {"matchLabels": dict(guest.space_labels)}
    pods = {"matchLabels": spot.named(spot.caller)}
    return spot.rule({"namespaceSelector": space, "podSelector": pods})


def _peers_joined(spot: Spot) -> Rule:
    expressions = [
        {"key": key_of(app), "operator": "In", "values": [app.name]}
        for app in (spot.caller, spot.third)
    ]
    return spot.rule({"podSelector": {"matchExpressions": expressions}})


def _block_of_partner(spot: Spot) -> Rule:
    """Return an ingress rule for a partner's addresses, with a port name that only other
    applications use."""
    assert spot.world.plan is not None
    block = {"cidr": spot.rng.choice(spot.world.plan.partners).cidr}
    own = {port.name for port in spot.app.ports}
    names = sorted({port.name for app in spot.world.apps for port in app.ports} - own)
    port = {"port": spot.rng.choice(names), "protocol": pod_port(spot.app).protocol}
    return spot.rule({"ipBlock": block}, port)


#: functions that return a decoy ingress rule; repeated functions are chosen more often
_RULES: Sequence[Callable[[Spot], Rule]] = (
    _port_of_another,
    _protocol_other,
    _range_beside,
    _peer_mixed,
    _peer_mixed,
    _peer_elsewhere,
    _peers_joined,
    _block_of_partner,
)


def _selects_nobody(spot: Spot) -> Rule:
    return {"podSelector": {"matchLabels": spot.mixed(spot.app)}, "policyTypes": [*BOTH]}


def _not_in_force(spot: Spot) -> Rule:
    """Return a spec without rules, of type Egress only. An ingress rule that is added to it is not
    in force."""
    return {"podSelector": {"matchLabels": spot.named(spot.app)}, "policyTypes": ["Egress"]}


#: functions that return the spec of a decoy policy without rules
_HEADS: Sequence[Callable[[Spot], Rule]] = (_selects_nobody, _not_in_force)


def add_lookalikes(world: World, quiet: Sequence[App], rng: random.Random) -> list[Policy]:
    """Return the policies of ``world`` with added decoys, sorted by name.

    The ``quiet`` applications call no other application, so ineffective egress rules can be added
    for them.
    """
    places = [
        (world.by_name[pair.target], world.by_name[pair.source], granted)
        for pair, granted in zip(world.pairs, world.intended, strict=True)
    ]
    granted, strange = ([one for one in places if one[2] == wanted] for wanted in (True, False))

    def spot() -> Spot:
        # For about half of the decoys, another policy already allows the caller.
        app, caller, _ = rng.choice(rng.choice((granted, strange)))
        number = pod_port(app).number
        others = [one for one in world.apps if one.name not in {app.name, caller.name}]
        third = [one for one in others if all(port.number != number for port in one.ports)]
        return Spot(world, app, caller, rng.choice(third or others), rng)

    policies = [*world.policies]

    def add(spec: Rule) -> None:
        (name,) = draw_names(1, (one.name for one in policies), rng)
        policies.append(Policy(name=name, spec=spec))

    left = _DUMP_CHARS - sum(map(_weigh, policies))
    most = len(world.apps) // _RULE_OF
    while most > 0 or left > 0:
        most -= 1
        place = spot()
        rule = rng.choice(_RULES)(place)
        # Prefer policies with real rules about the same application.
        near = [
            number
            for number, one in enumerate(policies)
            if one.spec.get("ingress") and _is_about(one, place.app)
            if count_entries(one.spec) < _ROOM
        ]
        if near:
            number = rng.choice(near)
            left += _weigh(policies[number])
            spec = dict(policies[number].spec)
            rules = [*cast("list[JsonValue]", spec["ingress"])]
            rules.insert(rng.randint(0, len(rules)), cast("JsonValue", rule))
            spec["ingress"] = rules
            policies[number] = policies[number].model_copy(update={"spec": spec})
            left -= _weigh(policies[number])
        else:
            selector = {"matchLabels": place.named(place.app)}
            add({"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [rule]})
            left -= _weigh(policies[-1])
    for number in range(max(2, len(world.apps) // _POLICY_OF)):
        place = spot()
        add({**_HEADS[number % len(_HEADS)](place), "ingress": [place.rule()]})
    for _ in range(2):
        app, other = rng.choice(quiet), rng.choice(world.apps)
        to = {"podSelector": {"matchLabels": dict(other.labels)}}
        selector = {"matchLabels": {key_of(app): app.name}}
        add({"podSelector": selector, "policyTypes": ["Egress"], "egress": [{"to": [to]}]})
        # The decoy policy has only the type Ingress, so its egress rules are not in force.
        app, other = rng.choice(quiet), rng.choice([one for one in world.apps if one.service])
        tested = pod_port(other)
        ports = [{"port": tested.number, "protocol": tested.protocol}]
        to = {"podSelector": {"matchLabels": {key_of(other): other.name}}}
        selector = {"matchLabels": dict(app.labels)}
        egress = [{"to": [to], "ports": ports}, dict(LOOKUPS)]
        add({"podSelector": selector, "policyTypes": ["Ingress"], "egress": egress})
    return sorted(policies, key=lambda policy: policy.name)


def _weigh(policy: Policy) -> float:
    """Return the approximate length of a policy in a dump, in characters."""
    return _PER_CHAR * len(json.dumps(policy.spec)) + _PER_POLICY


def _is_about(policy: Policy, app: App) -> bool:
    """Return whether a policy selects an application by its name, with plain labels."""
    selector = cast("dict[str, Any]", policy.spec["podSelector"])
    wanted = selector.get("matchLabels") or {}
    return wanted.get(key_of(app)) == app.name and wanted.items() <= app.labels.items()
