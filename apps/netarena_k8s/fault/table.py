"""Faults as a table of methods that change a policy's spec.

A fault changes the spec of one policy. The evaluator computes what it breaks and opens; a method
only determines what is written. The paper's kinds come first; each of the others is one mistake
that people make with network policies.

A method gets the policy, its world and a generator, and returns a new spec, or None if it does not
apply. It does not check whether the fault shows: ``draw`` keeps faults that do.
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

from netarena.model import Action, JsonValue, Record
from netarena.task.label import Catalogue
from netarena.task.repair_order import places
from netarena_k8s.world.exposure import opened_by_each, selected_anew
from netarena_k8s.world.matrix import copied, flags, numbers
from netarena_k8s.world.model import App, Net, Policy, Spec, World, target_port
from netarena_k8s.world.port_set import difference, union

#: draws of one part of a combination before it is begun anew, and beginnings before it is given up
_TRIES, _STARTS = 60, 6
#: parts of a spec
_PARTS = ("podSelector", "policyTypes", "ingress", "egress")
SpecDict: TypeAlias = dict[str, Any]


class Fault(Record):
    """One policy made wrong; ``spec`` is what the cluster holds then.

    ``inject`` and ``repair`` are JSON patches of the policy; ``broken`` and ``opened`` the pairs
    that are not as intended while it is the only fault.
    """

    kind: str
    method: str
    policy: str
    spec: Spec
    inject: tuple[dict[str, JsonValue], ...] = ()
    repair: tuple[dict[str, JsonValue], ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    opened: tuple[tuple[str, str], ...] = ()
    #: what is in use beside the pairs and stops while it is the only fault
    stopped: tuple[str, ...] = ()
    #: policies whose faults do not show while this one is there
    masks: tuple[str, ...] = ()
    #: policies that must be repaired before this one, or its repair breaks or opens something
    after: tuple[str, ...] = ()

    @cached_property
    def wrong(self) -> Policy:
        """The policy as it is shown."""
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
    """What a method may look at."""

    world: World
    policy: Policy
    rng: random.Random
    #: applications that a fault is to be about; none: any
    near: tuple[App, ...] = ()

    @property
    def spec(self) -> SpecDict:
        """The healthy spec, to be changed."""
        return cast("SpecDict", copied(self.policy.spec))

    @cached_property
    def app(self) -> App | None:
        """The application that the policy is about, if it is about one."""
        selector = cast("Mapping[str, Any]", self.policy.spec["podSelector"])
        wanted = selector.get("matchLabels") or {}
        for app in self.world.apps:
            if wanted and wanted.items() <= app.labels.items():
                return app
        return None

    def other(self) -> App:
        """An application that the policy is not about."""
        among, own = self.near or self.world.apps, self.app
        return self.rng.choice([app for app in among if app is not own] or [*among])


Method: TypeAlias = Callable[[Scene], SpecDict | None]


def _rules(spec: SpecDict, direction: str) -> list[SpecDict]:
    """Rules that say something: an empty one allows all and has nothing to get wrong."""
    return [rule for rule in spec.get(direction) or [] if rule]


def a_rule(scene: Scene, spec: SpecDict, key: str, direction: str = "ingress") -> SpecDict | None:
    """One of the rules that have ``key``."""
    found = [rule for rule in _rules(spec, direction) if rule.get(key)]
    return scene.rng.choice(found) if found else None


def mistype(text: str, rng: random.Random) -> str:
    """A likely typing mistake in a word."""
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


# the paper's kinds


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
    """A rule that lets in an application that does not belong there."""
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
            entry["port"] = scene.app.ports[0].number  # a name has a protocol of its own
        entry["protocol"] = protocol
        return spec

    return change


def _only_egress_to(scene: Scene) -> SpecDict | None:
    """Calls to one application alone, often one of those that are called.

    With name lookups, without which nothing at all is reached and nobody sees who was meant.
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


# beyond the paper


def select(change: Callable[[SpecDict, Scene], None]) -> Method:
    """A method on the labels by which the policy selects its own pods."""

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
    """One of the peers of ingress that select pods."""
    rule = a_rule(scene, spec, "from")
    peers = [one for one in rule["from"] if one.get("podSelector")] if rule else []
    return scene.rng.choice(peers) if peers else None


def _peer(change: Callable[[SpecDict, Scene], bool | None]) -> Method:
    """A method on one peer of an ingress rule that selects pods; False: does not apply."""

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
    """Two alternatives made one peer whose labels must hold all at once."""
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
    """Peers given as addresses, which leave out the pods that they should let in."""

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
    """A method on one port of an ingress rule; False: does not apply."""

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
    """An extra rule that lets far too many in, at every port."""

    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        if scene.app is None or not scene.app.service or {} in (spec.get("ingress") or []):
            return None
        rule: SpecDict = {"from": [copy.deepcopy(dict(one)) for one in peers]} if peers else {}
        spec.setdefault("ingress", []).append(rule)
        return spec

    return change


def _without_dns(scene: Scene) -> SpecDict | None:
    """Everything may be called, and no name can be looked up."""
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
    """Calls are allowed on one port that hardly any callee has."""
    spec = scene.spec
    port = scene.rng.choice((80, 443, 8443))
    spec["egress"] = [
        {"to": [{"podSelector": {}}], "ports": [{"port": port, "protocol": "TCP"}]},
        copy.deepcopy(dict(DNS_RULE)),
    ]
    return spec


#: names that no port has
PORT_NAMES = ("web", "grpc-web", "service", "tcp-main")
#: labels of another namespace, and of none
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
#: kind -> what each of its methods comes to, in words
WORDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "remove_ingress": {"rule": "a rule of ingress is missing",
                           "peer": "a peer of a rule of ingress is missing"},
        "add_ingress": {"rule": "one more rule lets in an application that must not call",
                        "peer": "one more peer lets in an application that must not call"},
        "change_port": {"number": "a port of a rule of ingress has another number"},
        "change_protocol": {"udp": "a port of a rule of ingress is of UDP",
                            "sctp": "a port of a rule of ingress is of SCTP",
                            "tcp": "a port of a rule of ingress is of TCP"},
        "add_egress": {"only_to": "egress is allowed to one application and to name lookups alone"},
        "pod_selector": {"typo": "a value in podSelector is mistyped: its pods fall to deny-all",
                         "key": "a key in podSelector is mistyped",
                         "more": "podSelector asks for a label that the pods do not have"},
        "wrong_app": {"selector": "podSelector is that of another application"},
        "peer_label": {"typo": "a value in a peer's podSelector is mistyped",
                       "key": "a key in a peer's podSelector is mistyped",
                       "another": "a peer is another application"},
        "peer_expression": {"not_in": "In and NotIn are mixed up in a peer"},
        "namespace_peer": {"elsewhere": "a peer is looked for in the namespace default",
                           "nobody": "a peer is looked for in namespaces that are not there"},
        "joined_peers": {"and": "two peers are joined by AND instead of OR"},
        "policy_types": {"ingress": "policyTypes lacks Egress",
                         "egress": "policyTypes lacks Ingress"},
        "ip_block": {"cut": "peers are all addresses but 10.0.0.0/8",
                     "outside": "peers are addresses outside",
                     "too_much": "peers are all addresses"},
        "named_port": {"unknown": "a port has a name that no container declares"},
        "service_port": {"of_service": "a port is the service's instead of the pod's"},
        "port_range": {"before": "a range of ports ends before the pod's port",
                       "after": "a range of ports begins behind the pod's port"},
        "empty_rules": {"ingress": "no ingress is allowed", "egress": "no egress is allowed"},
        "open_rule": {"all": "one more rule lets everything in",
                      "namespace": "one more rule lets the whole namespace in",
                      "everyone": "one more rule lets all namespaces in"},
        "open_peer": {"any_pod": "a peer is every pod of the namespace"},
        "dns_egress": {"none": "egress goes to all pods of the namespace, and to no name server",
                       "wrong_port": "name lookups are allowed on port 5353",
                       "wrong_protocol": "name lookups are allowed by TCP alone"},
        "egress_port": {"few": "egress is allowed on one port that callees do not have"},
    }
)  # fmt: skip
#: kind -> what its methods that other shops do not have come to, in words
WORDS_OF_LARGE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "remove_ingress": {"value": "a list of applications in a peer lacks one"},
        "add_ingress": {"value": "a list of applications in a peer has one that must not call"},
        "change_port": {"of_another": "a port of a rule of ingress is another application's"},
        "add_egress": {"fewer": "a rule of egress is missing",
                       "more": "egress is allowed to an application that must not be called"},
        "pod_selector": {"mark": "podSelector has another team or role"},
        "wrong_app": {"of_policy": "podSelector is that of another policy"},
        "peer_label": {"mark": "a peer has another team or role",
                       "narrow": "a peer is one team or one role of those that may call"},
        "policy_types": {"both": "policyTypes has a direction that should not be in force"},
        "namespace_peer": {"of_guests": "a peer is looked for in a guest's namespace"},
        "ip_block": {"of_partner": "peers are addresses outside that others call"},
        "named_port": {"of_another": "a port has a name that other applications' ports have"},
        "open_rule": {"roles": "one more rule lets all but some roles in"},
        "open_peer": {"widened": "a peer is a whole team, or a role of all teams"},
        "dns_egress": {"gone": "the rule for name lookups is missing",
                       "by_tcp": "name lookups are allowed by TCP alone"},
        "egress_port": {"of_another": "a port of a rule of egress is another application's"},
    }
)  # fmt: skip
PAPER_KINDS = tuple(KINDS)[:5]
EXTENDED_KINDS = tuple(KINDS)[5:]
#: combinations beyond the paper's that an audit draws too: there is room for each in either world
COMBINED = (
    *("pod_selector+change_port", "peer_label+remove_ingress", "wrong_app+add_egress"),
    *("namespace_peer+dns_egress", "policy_types+named_port", "ip_block+add_ingress"),
    *("remove_ingress+peer_label+dns_egress", "policy_types+pod_selector+named_port"),
    *("joined_peers+service_port+add_egress", "change_port+open_rule+empty_rules"),
    *("peer_expression+port_range+change_protocol", "add_ingress+open_peer+ip_block"),
)
#: the paper's Table 6: pairs with add_egress are level 3
CATALOGUE = Catalogue(
    PAPER_KINDS,
    EXTENDED_KINDS,
    frozenset(frozenset((kind, "add_egress")) for kind in PAPER_KINDS[:4]),
)


def faulty(world: World, faults: Sequence[Fault]) -> tuple[Policy, ...]:
    """The policies of ``world`` with ``faults`` in them."""
    specs = {fault.policy: fault.spec for fault in faults}
    return tuple(
        policy.model_copy(update={"spec": specs[policy.name]}) if policy.name in specs else policy
        for policy in world.policies
    )


def reached(world: World, faults: Sequence[Fault]) -> tuple[bool, ...]:
    """Return for each pair of ``world`` whether it works while ``faults`` are in force."""
    return flags(seen(world, faults), len(world.pairs))


def seen(world: World, faults: Sequence[Fault]) -> int:
    """The tested connections that work with ``faults``, as bits of ``world.matrix``."""
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
    """A fault of each kind, each on a policy of its own; None where the world has no room.

    Each shows in the matrix when it is the only one left, and every order of repairing them is
    safe.
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
    """A fault of ``kind`` on a policy that ``faults`` leave alone, sound together with them."""
    taken = {fault.policy for fault in faults}
    policies = [policy for policy in world.policies if policy.name not in taken]
    for _ in range(_TRIES if policies else 0):
        fault = draw_one(world, kind, rng.choice(policies), rng, methods)
        if fault is not None and (not faults or sound(world, [*faults, fault])):
            return fault
    return None


def draw_one(  # noqa: PLR0913, PLR0917 -- what a draw is made of
    world: World,
    kind: str,
    policy: Policy,
    rng: random.Random,
    methods: Mapping[str, Mapping[str, Method]] = KINDS,
    near: tuple[App, ...] = (),
) -> Fault | None:
    """A fault of ``kind`` on ``policy`` that shows, in a pair or in what is used beside; None
    where this draw finds none."""
    method = rng.choice(sorted(methods[kind]))
    spec = methods[kind][method](Scene(world, policy, rng, near))
    return None if spec is None else make_fault(world, kind, method, policy, spec)


def make_fault(world: World, kind: str, method: str, policy: Policy, spec: Spec) -> Fault | None:
    """The fault by which ``policy`` has another ``spec``; None where that shows nowhere."""
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
    """The JSON patch that makes the spec of a policy, which is ``there``, as ``wanted``."""
    return tuple(
        {"op": "add", "path": f"/spec/{part}", "value": wanted[part]}
        if part in wanted
        else {"op": "remove", "path": f"/spec/{part}"}
        for part in _PARTS
        if there.get(part) != wanted.get(part)
    )


def waits(faults: Sequence[Fault]) -> list[set[int]]:
    """For each fault the places of those that must be repaired before it."""
    return places([fault.policy for fault in faults], [fault.after for fault in faults])


def sound(world: World, faults: Sequence[Fault]) -> bool:
    """Whether each fault shows alone, and every order of repair in which none comes before one
    that it waits for is safe at every step.

    Safe as the judge has it: no pair that is as intended stops being so, nothing in use stops, and
    nothing is opened that neither the healthy nor the whole faulty state allows.
    """
    everything, waited = frozenset(range(len(faults))), waits(faults)
    # what may be left on the way: where one is repaired, all that it waits for are
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
            if rest in states and harms(wanted, states[left], states[rest]):
                return False
    between = [faulty(world, some[left]) for left in lefts if 0 < len(left) < len(faults)]
    return not _opens(world, faults, between)


def harms(wanted: int, before: int, after: int) -> int:
    """The connections that stop being as ``wanted``; all are bits."""
    return (after ^ wanted) & ~(before ^ wanted)


def harmful(world: World, faults: Sequence[Fault], order: Sequence[int]) -> bool:
    """Whether repairs in this order break a pair, open one, or stop a use."""
    left, wanted = [*range(len(faults))], world.works & world.wanted
    before = seen(world, faults)
    for number in order:
        left.remove(number)
        after = seen(world, [faults[one] for one in left])
        if harms(wanted, before, after):
            return True
        before = after
    return False


def _opens(world: World, faults: Sequence[Fault], between: Sequence[Sequence[Policy]]) -> bool:
    """Whether a state on the way lets through what neither the healthy policies nor all faults do.

    It cannot where but one fault has a say: there it is as one of the two. So looked at are two
    pods that are about two faults and more, and whatever a pod is open to that is about two itself.
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
        # none has opened anything before the first that does: each is held against both alone
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
    """A fault as the hidden action of a query."""
    return Action(kind=fault.kind, parameters=fault.model_dump(mode="json", exclude={"kind"}))


def fault_of(action: Action) -> Fault:
    """The fault that an action stands for. Raises pydantic.ValidationError for another's."""
    return Fault.model_validate({"kind": action.kind, **action.parameters})


def describe(action: Action) -> str:
    """A fault in words, for records and reports."""
    fault = fault_of(action)
    words = {**WORDS.get(fault.kind, {}), **WORDS_OF_LARGE.get(fault.kind, {})}.get(
        fault.method, fault.method
    )
    return f"{fault.kind} in the policy {fault.policy}: {words}"
