"""Faults as a table of methods that change a policy's spec.

A fault changes the spec of one policy. A method returns the new spec, and the evaluator computes
which connections this spec breaks and opens. The kinds of the NetArena paper come first. The other
kinds are mistakes that people make with network policies.

A method gets the policy, its world and a random generator. It returns a new spec, or None if the
method does not apply. It does not check whether the fault changes a tested connection, because
``draw`` keeps only faults that do.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from pydantic import SerializerFunctionWrapHandler, model_serializer

from netarena.sdk import Action, Catalogue, JsonValue, Record, places
from netarena_k8s.world.exposure import opened_by_each, selected_anew, without_openings
from netarena_k8s.world.matrix import copied, flags, numbers
from netarena_k8s.world.model import App, Net, Policy, Spec, World, target_port
from netarena_k8s.world.port_set import difference, union

#: maximum numbers of attempts: to draw one fault of a combination; to draw the whole combination
_TRIES, _STARTS = 60, 6
#: keys of a policy's spec
_PARTS = ("podSelector", "policyTypes", "ingress", "egress")
SpecDict: TypeAlias = dict[str, Any]


class Fault(Record):
    """One faulty policy. ``spec`` is its faulty spec on the cluster.

    ``inject`` and ``repair`` are JSON patches of the policy. ``broken`` and ``opened`` are the
    tested pairs (source, target) that this fault by itself wrongly blocks and wrongly allows.
    """

    kind: str
    method: str
    policy: str
    spec: Spec
    inject: tuple[dict[str, JsonValue], ...] = ()
    repair: tuple[dict[str, JsonValue], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    opened: tuple[tuple[str, str], ...] = ()
    #: intended connections, other than pairs, that this fault by itself blocks
    stopped: tuple[str, ...] = ()
    #: policies whose faults change no tested connection while this fault exists
    masks: tuple[str, ...] = ()
    #: policies to repair first, because the repair of this policy would otherwise break or open a
    #: connection
    after: tuple[str, ...] = ()

    @cached_property
    def wrong(self) -> Policy:
        """The policy with the faulty spec."""
        return Policy(name=self.policy, spec=self.spec)

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        for key in ("stopped", "masks", "after"):
            if not found.get(key):
                found.pop(key, None)
        return found


@dataclass(frozen=True)
class Scene:
    """The input of a method: the world, the policy to change, and a random generator."""

    world: World
    policy: Policy
    rng: random.Random
    #: applications that the fault should affect; empty: any application
    near: tuple[App, ...] = ()

    @property
    def spec(self) -> SpecDict:
        """A copy of the intended spec, which the method may change."""
        return cast("SpecDict", copied(self.policy.spec))

    @cached_property
    def app(self) -> App | None:
        """The first application that the policy selects by ``matchLabels``, or None."""
        selector = cast("Mapping[str, Any]", self.policy.spec["podSelector"])
        wanted = selector.get("matchLabels") or {}
        for app in self.world.apps:
            if wanted and wanted.items() <= app.labels.items():
                return app
        return None

    def other(self) -> App:
        """Return a random application other than the first one that the policy selects. It is one
        of ``near`` if ``near`` is not empty."""
        among, own = self.near or self.world.apps, self.app
        return self.rng.choice([app for app in among if app is not own] or [*among])


Method: TypeAlias = Callable[[Scene], SpecDict | None]


def _rules(spec: SpecDict, direction: str) -> list[SpecDict]:
    """Return the non-empty rules of one direction. An empty rule allows all traffic and has no part
    to change."""
    return [rule for rule in spec.get(direction) or [] if rule]


def a_rule(scene: Scene, spec: SpecDict, key: str, direction: str = "ingress") -> SpecDict | None:
    """Return a random rule of ``direction`` that has ``key``, or None."""
    found = [rule for rule in _rules(spec, direction) if rule.get(key)]
    return scene.rng.choice(found) if found else None


def mistype(text: str, rng: random.Random) -> str:
    """Return ``text`` with a likely typing mistake."""
    place = rng.randrange(1, len(text) - 1) if len(text) > 2 else 0
    return rng.choice(
        (
            text[:place] + text[place + 1 :],
            text[:place] + text[place] + text[place:],
            f"{text}s" if not text.endswith("s") else text[:-1],
        )
    )


def _another_port(scene: Scene, number: int) -> int:
    app = scene.app
    declared = {port.number for port in app.ports} if app else set()
    choices = [number + 1, number + 10, number - 1, 80, 8080, 9090, 443]
    return scene.rng.choice([one for one in choices if one not in declared | {number}])


# Kinds of the paper


def _remove_rule(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rules = spec.get("ingress") or []
    if not rules:
        return None
    rules.pop(scene.rng.randrange(len(rules)))
    return spec


def _remove_peer(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rule = a_rule(scene, spec, "from")
    if rule is None or len(rule["from"]) < 2:
        return None
    rule["from"].pop(scene.rng.randrange(len(rule["from"])))
    return spec


def _add_rule(scene: Scene) -> SpecDict | None:
    """Add a rule that allows an application whose calls are not intended."""
    spec, app = scene.spec, scene.app
    if app is None or not app.service:
        return None
    port = target_port(app, app.service[0])
    assert port is not None
    spec.setdefault("ingress", []).append(
        {
            "from": [{"podSelector": {"matchLabels": dict(scene.other().labels)}}],
            "ports": [{"port": port.number, "protocol": port.protocol}],
        }
    )
    return spec


def _add_peer(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rule = a_rule(scene, spec, "from")
    if rule is None:
        return None
    rule["from"].append({"podSelector": {"matchLabels": dict(scene.other().labels)}})
    return spec


def _change_port(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rule = a_rule(scene, spec, "ports")
    entry = scene.rng.choice(rule["ports"]) if rule else None
    app = scene.app
    if entry is None or app is None or not app.service:
        return None
    declared = target_port(app, app.service[0])
    assert declared is not None
    entry["port"] = _another_port(scene, declared.number)
    entry.pop("endPort", None)
    return spec


def _change_protocol(protocol: str) -> Method:
    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        rule = a_rule(scene, spec, "ports")
        if rule is None:
            return None
        entry = scene.rng.choice(rule["ports"])
        if entry.get("protocol", "TCP") == protocol:
            return None
        if isinstance(entry.get("port"), str) and scene.app is not None:
            entry["port"] = scene.app.ports[0].number  # A port name already implies a protocol.
        entry["protocol"] = protocol
        return spec

    return change


def _only_egress_to(scene: Scene) -> SpecDict | None:
    """Limit egress to DNS lookups and one application, often one that the selected application
    calls.

    Without DNS lookups, no service would be reachable, so the allowed application would make no
    difference.
    """
    spec, app, by_name = scene.spec, scene.app, scene.world.by_name
    called = [by_name[target] for source, target in scene.world.calls if app == by_name[source]]
    target = scene.rng.choice([*called, scene.other()])
    spec["egress"] = [
        {"to": [{"podSelector": {"matchLabels": dict(target.labels)}}]},
        copy.deepcopy(dict(DNS_RULE)),
    ]
    spec["policyTypes"] = ["Ingress", "Egress"] if "ingress" in spec else ["Egress"]
    return spec


DNS_RULE: Mapping[str, Any] = MappingProxyType(
    {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
)


# Kinds beyond the paper


def select(change: Callable[[SpecDict, Scene], None]) -> Method:
    """Return a method that changes ``podSelector``. The method applies if ``podSelector`` has
    ``matchLabels``."""

    def method(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        if not spec["podSelector"].get("matchLabels"):
            return None
        change(spec["podSelector"], scene)
        return spec

    return method


def _typo_in_value(selector: SpecDict, scene: Scene) -> None:
    labels = selector["matchLabels"]
    key = scene.rng.choice(sorted(labels))
    labels[key] = mistype(labels[key], scene.rng)


def _typo_in_key(selector: SpecDict, scene: Scene) -> None:
    labels = selector["matchLabels"]
    key = scene.rng.choice(sorted(labels))
    labels[f"{key}-name" if "/" in key else f"{key}name"] = labels.pop(key)


def _one_label_more(selector: SpecDict, scene: Scene) -> None:
    selector["matchLabels"][scene.rng.choice(("version", "release", "track"))] = "stable"


def _of_another(selector: SpecDict, scene: Scene) -> None:
    selector["matchLabels"] = dict(scene.other().labels)


def a_selecting_peer(scene: Scene, spec: SpecDict) -> SpecDict | None:
    """Return a random ingress peer with a non-empty ``podSelector``, or None."""
    rule = a_rule(scene, spec, "from")
    peers = [one for one in rule["from"] if one.get("podSelector")] if rule else []
    return scene.rng.choice(peers) if peers else None


def _peer(change: Callable[[SpecDict, Scene], bool | None]) -> Method:
    """Return a method that changes one ingress peer that selects pods. ``change`` returns False if
    it cannot change this peer."""

    def method(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        peer = a_selecting_peer(scene, spec)
        if peer is None or change(peer, scene) is False:
            return None
        return spec

    return method


def _peer_typo(peer: SpecDict, scene: Scene) -> None:
    selector = peer["podSelector"]
    if selector.get("matchLabels"):
        _typo_in_value(selector, scene)
    else:
        values = selector["matchExpressions"][0]["values"]
        place = scene.rng.randrange(len(values))
        values[place] = mistype(values[place], scene.rng)


def _peer_key(peer: SpecDict, scene: Scene) -> bool:
    if not peer["podSelector"].get("matchLabels"):
        return False
    _typo_in_key(peer["podSelector"], scene)
    return True


def _peer_of_another(peer: SpecDict, scene: Scene) -> None:
    peer["podSelector"] = {"matchLabels": dict(scene.other().labels)}


def _peer_negated(peer: SpecDict, scene: Scene) -> None:
    del scene
    selector = peer["podSelector"]
    expressions = selector.pop("matchExpressions", None) or [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in selector.pop("matchLabels").items()
    ]
    turned = {"In": "NotIn", "NotIn": "In"}
    selector["matchExpressions"] = [
        {**one, "operator": turned[one["operator"]]} for one in expressions
    ]


def _peer_in_space(labels: Mapping[str, str]) -> Callable[[SpecDict, Scene], None]:
    def change(peer: SpecDict, scene: Scene) -> None:
        del scene
        peer["namespaceSelector"] = {"matchLabels": dict(labels)}

    return change


def _peer_any_pod(peer: SpecDict, scene: Scene) -> None:
    del scene
    peer["podSelector"] = {}


def _peers_joined(scene: Scene) -> SpecDict | None:
    """Merge two alternative peers into a single peer whose labels must all match."""
    spec = scene.spec
    rule = a_rule(scene, spec, "from")
    peers = [one for one in rule["from"] if "podSelector" in one] if rule else []
    if rule is None or len(peers) < 2:
        return None
    one, other = scene.rng.sample(peers, 2)
    expressions = [
        {"key": key, "operator": "In", "values": [value]}
        for peer in (one, other)
        for key, value in (peer["podSelector"].get("matchLabels") or {}).items()
    ]
    rule["from"] = [peer for peer in rule["from"] if peer is not one and peer is not other]
    rule["from"].append({"podSelector": {"matchExpressions": expressions}})
    return spec


def _types(*types: str) -> Method:
    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        if tuple(spec.get("policyTypes") or ()) == types:
            return None
        spec["policyTypes"] = list(types)
        return spec

    return change


def _blocks(cidr: str, *cuts: str) -> Method:
    """Return a method that replaces the peers of an ingress rule with an ``ipBlock``."""

    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        rule = a_rule(scene, spec, "from")
        if rule is None:
            return None
        block: SpecDict = {"cidr": cidr}
        if cuts:
            block["except"] = list(cuts)
        rule["from"] = [{"ipBlock": block}]
        return spec

    return change


def _port(change: Callable[[SpecDict, Scene, int], bool | None]) -> Method:
    """Return a method that changes one port of an ingress rule. ``change`` returns False if it
    cannot change this port."""

    def method(scene: Scene) -> SpecDict | None:
        spec, app = scene.spec, scene.app
        rule = a_rule(scene, spec, "ports")
        if rule is None or app is None or not app.service:
            return None
        port = target_port(app, app.service[0])
        assert port is not None
        entry = scene.rng.choice(rule["ports"])
        return None if change(entry, scene, port.number) is False else spec

    return method


def _port_named(entry: SpecDict, scene: Scene, number: int) -> None:
    del number
    entry["port"] = scene.rng.choice(PORT_NAMES)
    entry.pop("endPort", None)


def _port_of_service(entry: SpecDict, scene: Scene, number: int) -> bool:
    assert scene.app is not None
    port = scene.app.service[0].port
    entry["port"] = port
    entry.pop("endPort", None)
    return port != number


def _range_before(entry: SpecDict, scene: Scene, number: int) -> bool:
    if number < 12:
        return False
    entry["port"], entry["endPort"] = number - scene.rng.randint(2, 10), number - 1
    return True


def _range_after(entry: SpecDict, scene: Scene, number: int) -> bool:
    if number > 65_000:
        return False
    entry["port"], entry["endPort"] = number + 1, number + scene.rng.randint(2, 10)
    return True


def _no_rules(direction: str) -> Method:
    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        if not spec.get(direction):
            return None
        spec[direction] = []
        return spec

    return change


def _open_to(*peers: Mapping[str, Any]) -> Method:
    """Return a method that adds an ingress rule for ``peers`` on every port. Without peers, the
    rule allows every client."""

    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        if scene.app is None or not scene.app.service or {} in (spec.get("ingress") or []):
            return None
        rule: SpecDict = {"from": [copy.deepcopy(dict(one)) for one in peers]} if peers else {}
        spec.setdefault("ingress", []).append(rule)
        return spec

    return change


def _without_dns(scene: Scene) -> SpecDict | None:
    """Allow egress to all pods of the namespace, but no DNS lookups."""
    spec = scene.spec
    spec["egress"] = [{"to": [{"podSelector": {}}]}]
    return spec


def _dns(port: int, protocol: str) -> Method:
    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        spec["egress"] = [
            {"to": [{"podSelector": {}}]},
            {"ports": [{"port": port, "protocol": protocol}]},
        ]
        return spec

    return change


def _egress_port(scene: Scene) -> SpecDict | None:
    """Limit egress to DNS lookups and one port on which few applications listen."""
    spec = scene.spec
    port = scene.rng.choice((80, 443, 8443))
    spec["egress"] = [
        {"to": [{"podSelector": {}}], "ports": [{"port": port, "protocol": "TCP"}]},
        copy.deepcopy(dict(DNS_RULE)),
    ]
    return spec


#: port names that no container declares
PORT_NAMES = ("web", "grpc-web", "service", "tcp-main")
#: labels of an existing namespace other than the policy's own, and labels that no namespace has
ELSEWHERE = MappingProxyType({"kubernetes.io/metadata.name": "default"})
NOBODY = MappingProxyType({"team": "shop"})

#: kind -> its methods by name
KINDS: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {
        "remove_ingress": {"rule": _remove_rule, "peer": _remove_peer},
        "add_ingress": {"rule": _add_rule, "peer": _add_peer},
        "change_port": {"number": _change_port},
        "change_protocol": {"udp": _change_protocol("UDP"), "sctp": _change_protocol("SCTP"),
                            "tcp": _change_protocol("TCP")},
        "add_egress": {"only_to": _only_egress_to},
        "pod_selector": {"typo": select(_typo_in_value), "key": select(_typo_in_key),
                         "more": select(_one_label_more)},
        "wrong_app": {"selector": select(_of_another)},
        "peer_label": {"typo": _peer(_peer_typo), "key": _peer(_peer_key),
                       "another": _peer(_peer_of_another)},
        "peer_expression": {"not_in": _peer(_peer_negated)},
        "namespace_peer": {"elsewhere": _peer(_peer_in_space(ELSEWHERE)),
                           "nobody": _peer(_peer_in_space(NOBODY))},
        "joined_peers": {"and": _peers_joined},
        "policy_types": {"ingress": _types("Ingress"), "egress": _types("Egress")},
        "ip_block": {"cut": _blocks("0.0.0.0/0", "10.0.0.0/8"), "outside": _blocks("192.0.2.0/24"),
                     "too_much": _blocks("0.0.0.0/0")},
        "named_port": {"unknown": _port(_port_named)},
        "service_port": {"of_service": _port(_port_of_service)},
        "port_range": {"before": _port(_range_before), "after": _port(_range_after)},
        "empty_rules": {"ingress": _no_rules("ingress"), "egress": _no_rules("egress")},
        "open_rule": {"all": _open_to(), "namespace": _open_to({"podSelector": {}}),
                      "everyone": _open_to({"namespaceSelector": {}})},
        "open_peer": {"any_pod": _peer(_peer_any_pod)},
        "dns_egress": {"none": _without_dns, "wrong_port": _dns(5353, "UDP"),
                       "wrong_protocol": _dns(53, "TCP")},
        "egress_port": {"few": _egress_port},
    }
)  # fmt: skip
#: kind -> description of each of its methods
WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "remove_ingress": {"rule": "an ingress rule is missing",
                           "peer": "a peer of an ingress rule is missing"},
        "add_ingress": {"rule": "an extra ingress rule allows an application that must not call",
                        "peer": "an extra peer allows an application that must not call"},
        "change_port": {"number": "an ingress port has the wrong number"},
        "change_protocol": {"udp": "an ingress port has the protocol UDP",
                            "sctp": "an ingress port has the protocol SCTP",
                            "tcp": "an ingress port has the protocol TCP"},
        "add_egress": {"only_to": "egress allows only one application and name lookups"},
        "pod_selector": {"typo": "a value in podSelector is mistyped",
                         "key": "a key in podSelector is mistyped",
                         "more": "podSelector requires a label that the pods lack"},
        "wrong_app": {"selector": "podSelector is that of another application"},
        "peer_label": {"typo": "a value in a peer's podSelector is mistyped",
                       "key": "a key in a peer's podSelector is mistyped",
                       "another": "a peer selects another application"},
        "peer_expression": {"not_in": "In and NotIn are swapped in a peer"},
        "namespace_peer": {"elsewhere": "a peer selects pods in the namespace default",
                           "nobody": "a peer selects pods in namespaces that do not exist"},
        "joined_peers": {"and": "two peers are joined by AND instead of OR"},
        "policy_types": {"ingress": "policyTypes lacks Egress",
                         "egress": "policyTypes lacks Ingress"},
        "ip_block": {"cut": "the peers are all addresses except 10.0.0.0/8",
                     "outside": "the peers are addresses outside the cluster",
                     "too_much": "the peers are all addresses"},
        "named_port": {"unknown": "a port has a name that no container declares"},
        "service_port": {"of_service": "a rule has the service's port instead of the pod's"},
        "port_range": {"before": "a port range ends before the pod's port",
                       "after": "a port range starts after the pod's port"},
        "empty_rules": {"ingress": "no ingress is allowed", "egress": "no egress is allowed"},
        "open_rule": {"all": "an extra ingress rule allows everything",
                      "namespace": "an extra ingress rule allows the whole namespace",
                      "everyone": "an extra ingress rule allows all namespaces"},
        "open_peer": {"any_pod": "a peer selects every pod of the namespace"},
        "dns_egress": {"none": "egress allows the pods of the namespace, but no name server",
                       "wrong_port": "name lookups are allowed on port 5353",
                       "wrong_protocol": "name lookups are allowed only over TCP"},
        "egress_port": {"few": "egress allows only a port that no called application serves"},
    }
)  # fmt: skip
#: kind -> descriptions of the methods that exist only in large worlds
WORDS_OF_LARGE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "remove_ingress": {"value": "a peer's list of applications lacks one"},
        "add_ingress": {"value": "a peer's list of applications has one that must not call"},
        "change_port": {"of_another": "an ingress port is that of another application"},
        "add_egress": {"fewer": "an egress rule is missing",
                       "more": "egress allows an application that must not be called"},
        "pod_selector": {"mark": "podSelector has another team or role"},
        "wrong_app": {"of_policy": "podSelector is that of another policy"},
        "peer_label": {"mark": "a peer selects another team or role",
                       "narrow": "a peer selects only one of the permitted teams or roles"},
        "policy_types": {"both": "policyTypes has an extra direction"},
        "namespace_peer": {"of_guests": "a peer selects pods in another permitted namespace"},
        "ip_block": {"of_partner": "the peers are outside addresses that other applications call"},
        "named_port": {"of_another": "a port has the name of other applications' ports"},
        "open_rule": {"roles": "an extra ingress rule allows all except some roles"},
        "open_peer": {"widened": "a peer selects a whole team, or a role of all teams"},
        "dns_egress": {"gone": "the rule for name lookups is missing",
                       "by_tcp": "name lookups are allowed only over TCP"},
        "egress_port": {"of_another": "an egress port is that of another application"},
    }
)  # fmt: skip
PAPER_KINDS = tuple(KINDS)[:5]
EXTENDED_KINDS = tuple(KINDS)[5:]
#: Combinations that an audit draws in addition to those of the paper. They are possible in the
#: default world and in generated worlds.
COMBINED = (
    *("pod_selector+change_port", "peer_label+remove_ingress", "wrong_app+add_egress"),
    *("namespace_peer+dns_egress", "policy_types+named_port", "ip_block+add_ingress"),
    *("remove_ingress+peer_label+dns_egress", "policy_types+pod_selector+named_port"),
    *("joined_peers+service_port+add_egress", "change_port+open_rule+empty_rules"),
    *("peer_expression+port_range+change_protocol", "add_ingress+open_peer+ip_block"),
)
#: kinds that open connections, and kinds that break most connections of an application
_OPENING_GROUP = ("add_ingress", "open_rule", "open_peer")
_WIDE_GROUP = (
    *("add_egress", "pod_selector", "wrong_app", "policy_types", "empty_rules"),
    *("dns_egress", "egress_port"),
)
#: As in table 6 of the paper, combinations of two kinds with add_egress are level 3.
CATALOGUE = Catalogue(
    PAPER_KINDS,
    EXTENDED_KINDS,
    frozenset(frozenset((kind, "add_egress")) for kind in PAPER_KINDS[:4]),
    # Groups of kinds with similar effects: kinds that allow more traffic, kinds that break most
    # connections of an application, and kinds that break the connections of one rule.
    (
        _OPENING_GROUP,
        _WIDE_GROUP,
        tuple(kind for kind in KINDS if kind not in (*_OPENING_GROUP, *_WIDE_GROUP)),
    ),
)


def faulty(world: World, faults: Sequence[Fault]) -> tuple[Policy, ...]:
    """Return the policies of ``world`` with the faulty specs of ``faults``."""
    specs = {fault.policy: fault.spec for fault in faults}
    return tuple(
        policy.model_copy(update={"spec": specs[policy.name]}) if policy.name in specs else policy
        for policy in world.policies
    )


def reached(world: World, faults: Sequence[Fault]) -> tuple[bool, ...]:
    """Return, for each pair of ``world``, whether it works while ``faults`` exist."""
    return flags(seen(world, faults), len(world.pairs))


def seen(world: World, faults: Sequence[Fault]) -> int:
    """Return the tested connections that work while ``faults`` exist, as bits of
    ``world.matrix``."""
    specs = {fault.policy: fault for fault in faults}
    effects = (
        world.effect(specs[policy.name].wrong) if policy.name in specs else effect
        for policy, effect in zip(world.policies, world.effects, strict=True)
    )
    return world.matrix.sides(effects).both & world.wanted


def draw(
    world: World,
    kinds: Sequence[str],
    rng: random.Random,
    methods: Mapping[str, Mapping[str, Method]] = KINDS,
) -> tuple[Fault, ...] | None:
    """Draw one fault of each kind, each on a different policy. Return None if no such faults are
    found.

    Each fault by itself changes a tested connection, and every repair order is safe.
    """
    for _ in range(_STARTS):
        faults: list[Fault] = []
        for kind in kinds:
            fault = _draw_next(world, kind, faults, rng, methods)
            if fault is None:
                break
            faults.append(fault)
        else:
            return tuple(faults)
    return None


def _draw_next(
    world: World,
    kind: str,
    faults: Sequence[Fault],
    rng: random.Random,
    methods: Mapping[str, Mapping[str, Method]],
) -> Fault | None:
    """Draw a fault of ``kind`` on a policy that has no fault yet. Return None if no fault is found
    that can be combined with ``faults`` (``sound``)."""
    taken = {fault.policy for fault in faults}
    policies = [policy for policy in world.policies if policy.name not in taken]
    for _ in range(_TRIES if policies else 0):
        fault = draw_one(world, kind, rng.choice(policies), rng, methods)
        if fault is not None and (not faults or sound(world, [*faults, fault], strict=True)):
            return fault
    return None


def draw_one(  # noqa: PLR0913, PLR0917 -- the inputs of a draw
    world: World,
    kind: str,
    policy: Policy,
    rng: random.Random,
    methods: Mapping[str, Mapping[str, Method]] = KINDS,
    near: tuple[App, ...] = (),
) -> Fault | None:
    """Draw a fault of ``kind`` on ``policy`` that changes a tested connection. Return None if this
    draw finds no such fault."""
    method = rng.choice(sorted(methods[kind]))
    spec = methods[kind][method](Scene(world, policy, rng, near))
    return None if spec is None else make_fault(world, kind, method, policy, spec)


def make_fault(world: World, kind: str, method: str, policy: Policy, spec: Spec) -> Fault | None:
    """Return the fault in which ``policy`` has the spec ``spec``, or None if this spec changes no
    tested connection."""
    if spec == policy.spec:
        return None
    fault = Fault(kind=kind, method=method, policy=policy.name, spec=spec)
    wrong = seen(world, [fault]) ^ world.works & world.wanted
    if not wrong:
        return None
    pairs = len(world.pairs)
    ends = [(tuple(world.pairs[place]), place) for place in numbers(wrong) if place < pairs]
    stopped = [str(world.matrix.uses[place]) for place in numbers(wrong >> pairs << pairs)]
    return fault.model_copy(
        update={
            "inject": patch(policy.spec, spec),
            "repair": patch(spec, policy.spec),
            "broken": tuple(pair for pair, place in ends if world.works >> place & 1),
            "opened": tuple(pair for pair, place in ends if not world.works >> place & 1),
            "stopped": tuple(stopped),
        }
    )


def patch(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the JSON patch that changes a policy's spec from ``there`` to ``wanted``, as a list of
    operations."""
    return tuple(
        {"op": "add", "path": f"/spec/{part}", "value": wanted[part]}
        if part in wanted
        else {"op": "remove", "path": f"/spec/{part}"}
        for part in _PARTS
        if there.get(part) != wanted.get(part)
    )


def waits(faults: Sequence[Fault]) -> list[set[int]]:
    """Return, for each fault, the indices of the faults that must be repaired earlier."""
    return places([fault.policy for fault in faults], [fault.after for fault in faults])


def sound(world: World, faults: Sequence[Fault], *, strict: bool = False) -> bool:
    """Return whether each fault by itself changes a tested connection, and every permitted repair
    order is safe.

    A repair order is permitted if each fault comes after the faults in its ``after``. As in
    grading, a step is safe if no intended connection stops working, and if it opens only traffic
    that the intended or the complete faulty state allows. A step may stop connections that worked
    only through wrongly allowed traffic that the step blocks, but not with ``strict``.
    """
    everything, waited = frozenset(range(len(faults))), waits(faults)
    # Sets of faults that may remain during repair. If a fault is repaired, all faults that must be
    # repaired before it are repaired too.
    lefts = [
        left
        for number in range(len(faults) + 1)
        for left in map(frozenset, combinations(everything, number))
        if not any(left.intersection(waited[one]) for one in everything - left)
    ]
    some = {left: [faults[number] for number in sorted(left)] for left in lefts}
    wanted = world.works & world.wanted
    if any(seen(world, [one]) == wanted for one in faults):
        return False
    states = {left: seen(world, left_) for left, left_ in some.items()}
    for left in lefts:
        for number in left:
            rest = left - {number}
            if rest not in states or not harms(wanted, states[left], states[rest]):
                continue
            if strict or not is_excused(world, some[left], some[rest]):
                return False
    between = [faulty(world, some[left]) for left in lefts if 0 < len(left) < len(faults)]
    return not _opens(world, faults, between)


def harms(wanted: int, before: int, after: int) -> int:
    """Return, as bits, the connections that match ``wanted`` in ``before`` but not in ``after``.
    All arguments are bit sets."""
    return (after ^ wanted) & ~(before ^ wanted)


def is_excused(world: World, before: Sequence[Fault], after: Sequence[Fault]) -> bool:
    """Return whether a repair opens no connection and blocks some wrongly allowed traffic.

    Intended connections that such a repair stops do not count as harm, because they worked only
    through this traffic.

    ``before`` and ``after`` are the faults that exist before and after the repair.
    """
    wanted = world.works & world.wanted
    if harms(wanted, seen(world, before), seen(world, after)) & ~wanted:
        return False
    start, end = faulty(world, before), faulty(world, after)
    return bool(without_openings(world, (start, start, end)))


def relax(world: World, faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the faults with only those prerequisites in ``after`` that are needed to prevent
    harm."""
    by_policy = {fault.policy: fault for fault in faults}
    return tuple(
        fault.model_copy(
            update={
                "after": tuple(
                    name
                    for name in fault.after
                    if not is_excused(world, [fault, by_policy[name]], [by_policy[name]])
                )
            }
        )
        for fault in faults
    )


def harmful(world: World, faults: Sequence[Fault], order: Sequence[int]) -> bool:
    """Return whether repairs in this order do harm: they open a pair, or stop a connection.
    Connections that worked only through wrongly allowed traffic that a repair blocks do not count.
    """
    left, wanted = [*range(len(faults))], world.works & world.wanted
    before = seen(world, faults)
    for number in order:
        left.remove(number)
        rest = [faults[one] for one in left]
        after = seen(world, rest)
        if harms(wanted, before, after) and not is_excused(world, [*rest, faults[number]], rest):
            return True
        before = after
    return False


def _opens(world: World, faults: Sequence[Fault], between: Sequence[Sequence[Policy]]) -> bool:
    """Return whether an intermediate state allows traffic that neither the intended policies nor
    all faults together allow.

    ``between`` are the policies of these states. Traffic that only one fault affects is the same in
    each intermediate state as in the intended or the faulty state. The check therefore covers only
    pairs of pods that two or more faults affect together, and all traffic of pods that two or more
    faults affect.
    """
    about: dict[str, set[int]] = {app.name: set() for app in world.apps}
    for number, fault in enumerate(faults):
        for name in selected_anew(world, world.policies, faulty(world, [fault]), None):
            about[name].add(number)
    twice = {name for name, numbers in about.items() if len(numbers) > 1}
    touched = [name for name, numbers in about.items() if numbers]
    pairs = [
        (source, target)
        for source in touched
        for target in touched
        if source != target and len(about[source] | about[target]) > 1
    ]
    if not between or (not twice and not pairs):
        return False
    whole = faulty(world, faults)
    if twice:
        # ``opened_by_each`` also compares each state with the preceding one. This does not change
        # the result: up to the first state that opens traffic, all preceding states open nothing.
        known = (world.policies, whole)
        if any(opened_by_each(world, known, [whole, *between], among=twice)):
            return True
    nets = [Net(world, policies) for policies in (world.policies, whole, *between)]
    for source, target in pairs:
        healthy, faulty_, *others = (
            net.rules.open_ports(net.pods[source], net.pods[target]) for net in nets
        )
        if any(difference(ports, union(healthy, faulty_)) for ports in others):
            return True
    return False


def action_of(fault: Fault) -> Action:
    """Return ``fault`` as the hidden action of a query."""
    return Action(kind=fault.kind, parameters=fault.model_dump(mode="json", exclude={"kind"}))


def fault_of(action: Action) -> Fault:
    """Return the fault that ``action`` describes.

    Raises pydantic.ValidationError if it describes no fault of this application.
    """
    return Fault.model_validate({"kind": action.kind, **action.parameters})


def describe(action: Action) -> str:
    """Return a description of a fault in one line, for records and reports."""
    fault = fault_of(action)
    words = {**WORDS.get(fault.kind, {}), **WORDS_OF_LARGE.get(fault.kind, {})}.get(
        fault.method, fault.method
    )
    return f"{fault.kind} in the policy {fault.policy}: {words}"
