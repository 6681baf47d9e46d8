"""Faults of large worlds: the kinds of ``table``, but the wrong values occur correctly in other
policies.

No label is mistyped and no port is unknown, so no value looks wrong by itself. Only the
documentation shows the fault. The kinds have the same effects as in ``table``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from netarena_k8s.fault.table import (
    KINDS,
    Method,
    Scene,
    SpecDict,
    a_rule,
    a_selecting_peer,
    select,
)
from netarena_k8s.world.model import World, target_port
from netarena_k8s.world.plan import Use

#: maximum number of target applications that are tried when drawing an additional egress rule
_CALLEES = 12
#: egress rule for DNS lookups in the intended policies of generated worlds
LOOKUPS: Mapping[str, Any] = MappingProxyType(
    {
        "to": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": "kube-system"}
                },
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
    }
)


def _marks(scene: Scene) -> tuple[str, str]:
    plan = scene.world.plan
    assert plan is not None
    return plan.team_key, plan.role_key


def _another_mark(labels: SpecDict, scene: Scene) -> None:
    """Replace the team or the role in ``labels`` with a value that other applications have, or add
    a wrong team or role."""
    key = scene.rng.choice([key for key in _marks(scene) if key in labels] or _marks(scene))
    app = scene.app
    own = labels.get(key) or (app.labels[key] if app is not None else None)
    labels[key] = scene.rng.choice(sorted({one.labels[key] for one in scene.world.apps} - {own}))


def _selected_mark(selector: SpecDict, scene: Scene) -> None:
    _another_mark(selector["matchLabels"], scene)


def _peer_mark(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    peer = a_selecting_peer(scene, spec)
    if peer is None:
        return None
    labels = peer["podSelector"].get("matchLabels")
    if labels:
        key = scene.rng.choice([one for one in _marks(scene) if one in labels] or _marks(scene))
        values = sorted({one.labels[key] for one in scene.world.apps} - {labels.get(key)})
        labels[key] = scene.rng.choice(values)
        return spec
    expression = scene.rng.choice(peer["podSelector"]["matchExpressions"])
    key = expression["key"]
    # The peer may select pods of another namespace, whose labels need not occur in this world.
    known = {one.labels[key] for one in scene.world.apps if key in one.labels}
    if others := sorted(known - {*expression["values"]}):
        place = scene.rng.randrange(len(expression["values"]))
        expression["values"][place] = scene.rng.choice(others)
        return spec
    return None


def _values(scene: Scene, spec: SpecDict) -> list[str] | None:
    """Return the values of an ``In`` expression that lists several applications, or None if there
    is no such expression."""
    found = [
        expression["values"]
        for rule in spec.get("ingress") or []
        for peer in rule.get("from") or []
        for expression in (peer.get("podSelector") or {}).get("matchExpressions") or []
        if expression["operator"] == "In" and len(expression["values"]) > 1
    ]
    return scene.rng.choice(found) if found else None


def _value_gone(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    values = _values(scene, spec)
    if values is None:
        return None
    values.pop(scene.rng.randrange(len(values)))
    return spec


def _value_more(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    values = _values(scene, spec)
    name = scene.other().name
    if values is None or name in values:
        return None
    values.insert(scene.rng.randint(0, len(values)), name)
    return spec


def _port_of_another(direction: str) -> Method:
    """Return a method that replaces a port number with a port number of another application."""

    def change(scene: Scene) -> SpecDict | None:
        spec = scene.spec
        rule = a_rule(scene, spec, "ports", direction)
        entry = scene.rng.choice(rule["ports"]) if rule else None
        if entry is None or not isinstance(entry.get("port"), int) or entry["port"] == 53:
            return None
        own = {port.number for port in scene.app.ports} if scene.app else set()
        ports = {port.number for app in scene.world.apps for port in app.ports}
        entry["port"] = scene.rng.choice(sorted(ports - own - {entry["port"]}) or [8081])
        entry.pop("endPort", None)
        return spec

    return change


def _name_of_another(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rule = a_rule(scene, spec, "ports")
    entry = scene.rng.choice(rule["ports"]) if rule else None
    if entry is None or scene.app is None:
        return None
    own = {port.name for port in scene.app.ports}
    names = {port.name for app in scene.world.apps for port in app.ports} - own
    entry["port"] = scene.rng.choice(sorted(names))
    entry.pop("endPort", None)
    return spec


def _peer_of_guests(scene: Scene) -> SpecDict | None:
    """Make a peer select pods in the namespace of a guest (a client from another namespace)."""
    spec, plan = scene.spec, scene.world.plan
    peer = a_selecting_peer(scene, spec)
    assert plan is not None
    spaces = [dict(guest.space_labels) for guest in plan.guests]
    if peer is None or (peer.get("namespaceSelector") or {}).get("matchLabels") in spaces:
        return None
    peer["namespaceSelector"] = {"matchLabels": scene.rng.choice(spaces)}
    return spec


def _peer_widened(scene: Scene) -> SpecDict | None:
    """Keep only the team or only the role in the labels of a peer.

    Return None if the drawn peer has neither, or no other label.
    """
    spec = scene.spec
    peer = a_selecting_peer(scene, spec)
    labels = (peer or {}).get("podSelector", {}).get("matchLabels") or {}
    keys = [key for key in _marks(scene) if key in labels]
    if not keys or len(labels) < 2:
        return None
    kept = scene.rng.choice(keys)
    assert peer is not None
    peer["podSelector"]["matchLabels"] = {kept: labels[kept]}
    return spec


def _peer_narrowed(scene: Scene) -> SpecDict | None:
    """Add a team or a role to the labels of a peer."""
    spec = scene.spec
    peer = a_selecting_peer(scene, spec)
    labels = (peer or {}).get("podSelector", {}).get("matchLabels") or {}
    keys = [key for key in _marks(scene) if key not in labels]
    if not labels or not keys:
        return None
    key = scene.rng.choice(keys)
    labels[key] = scene.rng.choice(sorted({one.labels[key] for one in scene.world.apps}))
    return spec


def _rule_for_roles(scene: Scene) -> SpecDict | None:
    """Add an ingress rule that allows pods of all roles except two."""
    spec, app = scene.spec, scene.app
    if app is None or not app.service or not spec.get("ingress"):
        return None
    port = target_port(app, app.service[0])
    assert port is not None
    _, role = _marks(scene)
    known = sorted({one.labels[role] for one in scene.world.apps})
    out = sorted(scene.rng.sample(known, 2))
    expression = {"key": role, "operator": "NotIn", "values": out}
    rule = {
        "from": [{"podSelector": {"matchExpressions": [expression]}}],
        "ports": [{"port": port.number, "protocol": port.protocol}],
    }
    spec["ingress"].insert(scene.rng.randint(0, len(spec["ingress"])), rule)
    return spec


def _block_of_partner(scene: Scene) -> SpecDict | None:
    spec, plan = scene.spec, scene.world.plan
    rule = a_rule(scene, spec, "from")
    assert plan is not None
    if rule is None or any("ipBlock" in peer for peer in rule["from"]):
        return None
    rule["from"] = [{"ipBlock": {"cidr": scene.rng.choice(plan.partners).cidr}}]
    return spec


def _anywhere(method: Method) -> Method:
    """Return a variant of ``method`` that inserts the new rule or peer at a random position instead
    of at the end."""

    def change(scene: Scene) -> SpecDict | None:
        spec = method(scene)
        if spec is None:
            return None
        lists = [spec["ingress"], *(rule["from"] for rule in spec["ingress"] if "from" in rule)]
        known = scene.spec.get("ingress") or []
        was = [known, *(rule["from"] for rule in known if "from" in rule)]
        sizes = [len(one) for one in was]
        for number, rules in enumerate(lists):
            if number < len(sizes) and len(rules) > sizes[number]:
                rules.insert(scene.rng.randrange(len(rules)), rules.pop())
                break
        return spec

    return change


def _only_to(scene: Scene) -> SpecDict | None:
    """Limit egress to DNS lookups and one application or group."""
    spec, app, by_name = scene.spec, scene.app, scene.world.by_name
    if app is None or not spec.get("egress"):
        return None
    called = [by_name[target] for source, target in scene.world.calls if source == app.name]
    rules = [rule for rule in spec["egress"] if rule and not _looks_up(rule)]
    if rules:
        spec["egress"] = [rule for rule in spec["egress"] if rule is rules[0] or _looks_up(rule)]
    elif called:
        target = scene.rng.choice(called)
        port = target_port(target, target.service[0])
        assert port is not None
        ports = [{"port": port.number, "protocol": port.protocol}]
        spec["egress"] = [
            {"to": [{"podSelector": {"matchLabels": dict(target.labels)}}], "ports": ports},
            copy.deepcopy(dict(LOOKUPS)),
        ]
    return spec


def _callee_gone(scene: Scene) -> SpecDict | None:
    """Remove one of the egress rules that are not for DNS lookups."""
    spec = scene.spec
    rules = [rule for rule in spec.get("egress") or [] if rule and not _looks_up(rule)]
    if not rules:
        return None
    gone = scene.rng.choice(rules)
    spec["egress"] = [rule for rule in spec["egress"] if rule is not gone]
    return spec


def _callee_more(scene: Scene) -> SpecDict | None:
    """Add an egress rule that allows calls to an application that must not be called.

    Only applications whose ingress policies allow the caller are used, so that the call then works.
    """
    spec, app = scene.spec, scene.app
    if app is None or not spec.get("egress") or {} in spec["egress"]:
        return None
    among = scene.near or scene.world.apps
    served = [one for one in among if one.service and one is not app]
    # The ingress policies of most applications block the caller, so several applications are tried.
    for target in scene.rng.sample(served, min(_CALLEES, len(served))):
        port = target_port(target, target.service[0])
        assert port is not None
        use = Use(app.name, target.name, port.number, port.protocol)
        if scene.world.healthy.leaves(use) or not scene.world.healthy.enters(use):
            continue
        rule = {
            "to": [{"podSelector": {"matchLabels": dict(target.labels)}}],
            "ports": [{"port": port.number, "protocol": port.protocol}],
        }
        spec["egress"].insert(scene.rng.randint(0, len(spec["egress"])), rule)
        return spec
    return None


def _looks_up(rule: SpecDict) -> bool:
    return any(entry.get("port") == 53 for entry in rule.get("ports") or [])


def _lookups_gone(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    rules = [rule for rule in spec.get("egress") or [] if not _looks_up(rule)]
    if len(rules) == len(spec.get("egress") or []):
        return None
    spec["egress"] = rules
    return spec


def _lookups_by_tcp(scene: Scene) -> SpecDict | None:
    spec = scene.spec
    for rule in filter(_looks_up, spec.get("egress") or []):
        rule["ports"] = [{"port": 53, "protocol": "TCP"}]
        return spec
    return None


def _for_pods_of(scene: Scene) -> SpecDict | None:
    """Replace ``podSelector`` with the ``podSelector`` of another policy."""
    spec = scene.spec
    policies = [copy.deepcopy(one.spec["podSelector"]) for one in scene.world.policies]
    others = [one for one in policies if one and one != spec["podSelector"]]
    if not spec["podSelector"]:
        return None
    spec["podSelector"] = scene.rng.choice(others)
    return spec


#: kind -> its methods by name, for large worlds
KINDS_OF_LARGE: Mapping[str, Mapping[str, Method]] = MappingProxyType(
    {
        **KINDS,
        "remove_ingress": {**KINDS["remove_ingress"], "value": _value_gone},
        "add_ingress": {
            **{name: _anywhere(method) for name, method in KINDS["add_ingress"].items()},
            "value": _value_more,
        },
        "change_port": {"of_another": _port_of_another("ingress")},
        "change_protocol": {name: KINDS["change_protocol"][name] for name in ("tcp", "udp")},
        "add_egress": {"fewer": _callee_gone, "only_to": _only_to, "more": _callee_more},
        "pod_selector": {"mark": select(_selected_mark)},
        "wrong_app": {"of_policy": _for_pods_of},
        "peer_label": {
            "mark": _peer_mark,
            "narrow": _peer_narrowed,
            "another": KINDS["peer_label"]["another"],
        },
        "namespace_peer": {"of_guests": _peer_of_guests},
        "ip_block": {"of_partner": _block_of_partner},
        "named_port": {"of_another": _name_of_another},
        "open_rule": {"roles": _rule_for_roles},
        "open_peer": {"widened": _peer_widened},
        "dns_egress": {"gone": _lookups_gone, "by_tcp": _lookups_by_tcp},
        "egress_port": {"of_another": _port_of_another("egress")},
    }
)


def methods_of(world: World) -> Mapping[str, Mapping[str, Method]]:
    """Return the methods of each kind of fault that apply to ``world``, as kind -> name ->
    method."""
    return KINDS if world.plan is None else KINDS_OF_LARGE
