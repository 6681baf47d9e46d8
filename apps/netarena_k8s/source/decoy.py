"""Decoys of random worlds: entries of policies that look like faults although they are correct.

Each decoy has the form of some fault: a mistyped label, a port on which no pod listens, a rule that
is not in force. A decoy changes no connection, but "correcting" it would open one. A script that
corrects policies without reading the documentation therefore causes harm in every random world.
Scripts that change only policies of unreachable applications cause harm too, because two
applications are meant to have no callers.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from netarena.sdk import JsonValue
from netarena_k8s.fault.table import DNS_RULE, ELSEWHERE, NOBODY, PORT_NAMES, mistype
from netarena_k8s.world.model import App, ContainerPort, Policy, World, target_port

SpecDict: TypeAlias = dict[str, Any]
BOTH = ("Ingress", "Egress")
#: name suffixes of an application's policies
SUFFIXES = ("policy", "rules", "access", "traffic", "calls", "guard", "net", "scope", "limits")
#: address blocks reserved for documentation
_OUTSIDE = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
#: number of decoys with egress rules in each world, in addition to policies with an empty list of
#: egress rules
_EGRESS_FORMS = 2
#: possible numbers of ineffective rules in the policy of the first retired application
#: (``decorate``); small numbers also occur after faults
_RETIRED_RULES = (1, 2, 5)


@dataclass(frozen=True)
class Spot:
    """The applications of a decoy with an ingress rule.

    ``stranger`` must not call ``app``, and only the ingress policies of ``app`` prevent it.
    ``third`` is another application, which does not use the port of ``app``.
    """

    app: App
    stranger: App
    third: App
    rng: random.Random

    @property
    def port(self) -> ContainerPort:
        return _tested(self.app)

    def rule(self, peer: SpecDict | None = None, port: SpecDict | None = None) -> SpecDict:
        """Return an ingress rule that allows ``stranger`` on the tested port, unless ``peer`` or
        ``port`` replaces it."""
        return {
            "from": [peer or {"podSelector": {"matchLabels": dict(self.stranger.labels)}}],
            "ports": [port or {"port": self.port.number, "protocol": self.port.protocol}],
        }


def _port_beside(spot: Spot) -> SpecDict:
    number = spot.port.number
    choices = {number + 1, number + 10, number - 1, spot.app.service[0].port} - {number}
    port = spot.rng.choice(sorted(choices))
    return spot.rule(port={"port": port, "protocol": spot.port.protocol})


def _port_unknown(spot: Spot) -> SpecDict:
    """Return an ingress rule for an undeclared port name and addresses outside the cluster.

    It lists only outside addresses, because some network plug-ins open every port for an undeclared
    name.
    """
    return spot.rule(
        {"ipBlock": {"cidr": spot.rng.choice(_OUTSIDE)}},
        {"port": spot.rng.choice(PORT_NAMES), "protocol": spot.port.protocol},
    )


def _protocol_other(spot: Spot) -> SpecDict:
    protocol = spot.rng.choice([one for one in ("TCP", "UDP", "SCTP") if one != spot.port.protocol])
    return spot.rule(port={"port": spot.port.number, "protocol": protocol})


def _range_beside(spot: Spot) -> SpecDict:
    number, width = spot.port.number, spot.rng.randint(2, 10)
    low, high = spot.rng.choice(((number - width, number - 1), (number + 1, number + width)))
    return spot.rule(port={"port": low, "endPort": high, "protocol": spot.port.protocol})


def _peer_mistyped(spot: Spot) -> SpecDict:
    labels = dict(spot.stranger.labels)
    key = _name_key(spot.stranger)
    labels[key] = mistype(labels[key], spot.rng)
    return spot.rule({"podSelector": {"matchLabels": labels}})


def _peer_key_mistyped(spot: Spot) -> SpecDict:
    labels = dict(spot.stranger.labels)
    key = _name_key(spot.stranger)
    labels[f"{key}-name" if "/" in key else f"{key}name"] = labels.pop(key)
    return spot.rule({"podSelector": {"matchLabels": labels}})


def _peer_elsewhere(spot: Spot) -> SpecDict:
    space = dict(spot.rng.choice((ELSEWHERE, NOBODY)))
    labels = dict(spot.stranger.labels)
    return spot.rule(
        {"namespaceSelector": {"matchLabels": space}, "podSelector": {"matchLabels": labels}}
    )


def _peers_joined(spot: Spot) -> SpecDict:
    expressions = [
        {"key": _name_key(app), "operator": "In", "values": [app.name]}
        for app in (spot.stranger, spot.third)
    ]
    return spot.rule({"podSelector": {"matchExpressions": expressions}})


#: functions that return an ineffective ingress rule, which is added to the policy of an application
_RULES: Sequence[Callable[[Spot], SpecDict]] = (
    _port_beside,
    _port_unknown,
    _protocol_other,
    _range_beside,
    _peer_mistyped,
    _peer_key_mistyped,
    _peer_elsewhere,
    _peers_joined,
)


def _selects_nothing(spot: Spot) -> SpecDict:
    """Return a spec without rules that selects no pod."""
    labels, key = dict(spot.app.labels), _name_key(spot.app)
    form = spot.rng.choice(("value", "key", "more"))
    if form == "value":
        labels[key] = mistype(labels[key], spot.rng)
    elif form == "key":
        labels[f"{key}-name" if "/" in key else f"{key}name"] = labels.pop(key)
    else:
        labels[spot.rng.choice(("version", "release", "track"))] = "stable"
    return {"podSelector": {"matchLabels": labels}, "policyTypes": [*BOTH]}


def _not_in_force(spot: Spot) -> SpecDict:
    """Return a spec without rules, of type Egress only. An ingress rule that is added to it is not
    in force."""
    return {"podSelector": {"matchLabels": dict(spot.app.labels)}, "policyTypes": ["Egress"]}


def _of_another(spot: Spot) -> SpecDict:
    """Return a spec without rules that selects ``third``, although the policy is named after
    ``app``."""
    return {"podSelector": {"matchLabels": dict(spot.third.labels)}, "policyTypes": [*BOTH]}


#: functions that return specs without rules for policies that are named after a retired application
#: but do not affect it
_HEADS: Sequence[Callable[[Spot], SpecDict]] = (_selects_nothing, _not_in_force, _of_another)


def _egress_forms(rng: random.Random, app: App) -> list[list[SpecDict]]:
    """Return lists of egress rules that look like faults, for an application that calls no other
    application."""
    anywhere: SpecDict = {"to": [{"podSelector": {}}]}
    few = [{"port": rng.choice((80, 443)), "protocol": "TCP"}]
    return [
        [anywhere],
        [anywhere, {"ports": [{"port": 5353, "protocol": "UDP"}]}],
        [anywhere, {"ports": [{"port": 53, "protocol": "TCP"}]}],
        [{**anywhere, "ports": few}, copy.deepcopy(dict(DNS_RULE))],
        [{"to": [{"podSelector": {"matchLabels": dict(app.labels)}}]}],
    ]


def decorate(
    world: World, retired: Sequence[App], quiet: Sequence[App], rng: random.Random
) -> list[Policy]:
    """Return the policies of ``world`` with decoys of every form.

    ``world.policies`` has ``deny-all``, then each application's policy in the order of
    ``world.apps``. Two applications are ``retired``: they run without callers, so an unreachable
    application is not necessarily a fault. The policy of the first retired application gets rules
    that allow no client. The policies of the second retired application are not in force. Each form
    of ingress rule also occurs among the intended rules of other applications. The ``quiet``
    applications call no other application, and their own policies allow no egress.
    """
    deny = world.policies[0]
    own = {app.name: policy for app, policy in zip(world.apps, world.policies[1:], strict=True)}
    taken = {policy.name for policy in world.policies}
    spots = [
        (world.by_name[pair.target], world.by_name[pair.source])
        for pair, intended in zip(world.pairs, world.intended, strict=True)
        # If the source's egress is unrestricted, only the target's policies block the source.
        if not intended
        and own[pair.source].spec["egress"] == [{}]
        and pair.source != retired[1].name
    ]

    def spot(*apps: App) -> Spot:
        app, stranger = rng.choice([one for one in spots if not apps or one[0] in apps])
        # The port of ``third`` differs, so a rule for the port of ``app`` does not allow
        # connections to ``third``.
        number = _tested(app).number
        others = [one for one in world.apps if one is not stranger and one not in retired]
        third = [one for one in others if all(port.number != number for port in one.ports)]
        return Spot(app, stranger, rng.choice(third), rng)

    def add(place: Spot, rule: SpecDict) -> None:
        policy = own[place.app.name]
        rules = [*cast("list[JsonValue]", policy.spec["ingress"])]
        rules.insert(rng.randint(0, len(rules)), rule)
        own[place.app.name] = policy.model_copy(update={"spec": {**policy.spec, "ingress": rules}})

    extra: list[Policy] = []
    first, second = retired
    for make in _RULES:
        place = spot(*(app for app in world.apps if app not in retired))
        add(place, make(place))
    for make in rng.sample(_RULES, rng.choice(_RETIRED_RULES)):
        place = spot(first)
        add(place, make(place))
    del own[second.name]
    for head in _HEADS:
        place = spot(second)
        spec = {**head(place), "ingress": [place.rule()]}
        extra.append(Policy(name=_name(second, taken, rng), spec=spec))
    for form in rng.sample(_egress_forms(rng, rng.choice(world.apps)), _EGRESS_FORMS):
        app = rng.choice(quiet)
        spec = {"podSelector": {"matchLabels": dict(app.labels)}, "policyTypes": [*BOTH]}
        extra.append(Policy(name=_name(app, taken, rng), spec={**spec, "egress": form}))
    return sorted([deny, *own.values(), *extra], key=lambda policy: policy.name)


def _tested(app: App) -> ContainerPort:
    """Return the pod port behind the first port of an application's service."""
    found = target_port(app, app.service[0])
    assert found is not None
    return found


def _name_key(app: App) -> str:
    """Return the label key whose value is the application's name."""
    return next(key for key, value in app.labels.items() if value == app.name)


def _name(app: App, taken: set[str], rng: random.Random) -> str:
    """Return an unused name for a policy of ``app``, and add the name to ``taken``."""
    free = [f"{app.name}-{word}" for word in SUFFIXES if f"{app.name}-{word}" not in taken]
    name = rng.choice(free)
    taken.add(name)
    return name
