"""Decoys of drawn shops: healthy entries that look like faults and are none.

Each decoy is written as some fault is (a label mistyped, a port that nothing listens on, a rule
that is not in force), changes no connection, and would open one if it were "put right". So a
script that puts policies in order without reading what is intended does harm in every drawn shop,
also one that touches only what nobody reaches: two applications are not called at all.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from netarena.model import JsonValue
from netarena_k8s.fault.table import DNS_RULE, ELSEWHERE, NOBODY, PORT_NAMES, mistype
from netarena_k8s.world.model import App, ContainerPort, Policy, World, target_port

SpecDict: TypeAlias = dict[str, Any]
BOTH = ("Ingress", "Egress")
#: words that policies of an application are named by
SUFFIXES = ("policy", "rules", "access", "traffic", "calls", "guard", "net", "scope", "limits")
#: addresses that documentation may use, and nobody has
_OUTSIDE = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
#: how many of the forms of egress that look wrong a shop has, beside the empty one
_EGRESS_FORMS = 2
#: rules that let nobody in, of a retired application: sometimes as few as a fault leaves
_RETIRED_RULES = (1, 2, 5)


@dataclass(frozen=True)
class Spot:
    """Where a decoy of ingress stands: ``stranger`` could call ``app`` if ``app`` let it in, and
    must not; ``third`` is another such application."""

    app: App
    stranger: App
    third: App
    rng: random.Random

    @property
    def port(self) -> ContainerPort:
        return _tested(self.app)

    def rule(self, peer: SpecDict | None = None, port: SpecDict | None = None) -> SpecDict:
        """Lets the stranger in to the port that is tested, but for what is given."""
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
    """For outside addresses: some real enforcers open every port for a name that is not declared,
    which must not show between applications."""
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


#: rules of ingress, each in the policy of an application
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
    """For pods that are not there."""
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
    """Of egress, so that its rule of ingress is not in force."""
    return {"podSelector": {"matchLabels": dict(spot.app.labels)}, "policyTypes": ["Egress"]}


def _of_another(spot: Spot) -> SpecDict:
    """In force on another application than the one that it is named after."""
    return {"podSelector": {"matchLabels": dict(spot.third.labels)}, "policyTypes": [*BOTH]}


#: policies of a retired application that are not in force on it, but for what they let in
_HEADS: Sequence[Callable[[Spot], SpecDict]] = (_selects_nothing, _not_in_force, _of_another)


def _egress_forms(rng: random.Random, app: App) -> list[list[SpecDict]]:
    """Rules of egress as faults leave them, for an application that calls nobody."""
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
    """The policies of ``world`` with decoys of every sort.

    ``world.policies`` has ``deny-all``, then each application's own in the order of ``world.apps``.
    Two are ``retired``: they run, and nobody calls them. The own policy of the first gets rules
    that let nobody in; those of the second are not in force. So what nobody reaches is not
    therefore broken. Each sort of rule stands beside others' healthy rules too. Those of ``quiet``
    call nobody, and their own policy allows no egress.
    """
    deny = world.policies[0]
    own = {app.name: policy for app, policy in zip(world.apps, world.policies[1:], strict=True)}
    taken = {policy.name for policy in world.policies}
    spots = [
        (world.by_name[pair.target], world.by_name[pair.source])
        for pair, intended in zip(world.pairs, world.intended, strict=True)
        # whoever calls out freely is kept out by the target alone
        if not intended
        and own[pair.source].spec["egress"] == [{}]
        and pair.source != retired[1].name
    ]

    def spot(*apps: App) -> Spot:
        app, stranger = rng.choice([one for one in spots if not apps or one[0] in apps])
        # its own port is another, so that a rule about that of ``app`` opens nothing there
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
    """The port behind the service of an application."""
    found = target_port(app, app.service[0])
    assert found is not None
    return found


def _name_key(app: App) -> str:
    """The label that tells an application from all others."""
    return next(key for key, value in app.labels.items() if value == app.name)


def _name(app: App, taken: set[str], rng: random.Random) -> str:
    """One more name for a policy of ``app``."""
    free = [f"{app.name}-{word}" for word in SUFFIXES if f"{app.name}-{word}" not in taken]
    name = rng.choice(free)
    taken.add(name)
    return name
