"""What one state of policies lets through and another does not, exactly: every pod and port of
three protocols, strangers and outside addresses.

Three questions are asked of a step: what it opened (``opened``), what of the healthy it took away
beside the pairs that are tested (``narrowed``), and which name lookups it lets go elsewhere than to
the name servers (``strayed_by_each``). Where a world runs is told by its namespace and ``marks``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

from netarena.model import JsonValue, Record
from netarena_k8s.policy import EGRESS, INGRESS, Endpoint, Labels, Manifest, selects
from netarena_k8s.stretch import NONE, Stretches, difference, intersection, show, union
from netarena_k8s.world import (
    Marks,
    Net,
    Policy,
    Spec,
    Table,
    World,
    count_entries,
    outside_of,
    target_port,
)

#: what name lookups are
_LOOKUPS: Stretches = MappingProxyType({"TCP": ((53, 53),), "UDP": ((53, 53),)})


class Opening(Record):
    """Ports that were opened, or closed: from whom, to whom, as ``stretch.show`` shows them."""

    source: str
    target: str
    ports: str


def weigh(world: World, states: Iterable[Sequence[Policy]]) -> int:
    """What it takes to compare ``states``: the entries of each distinct one, for each pod and each
    address outside that any of them tells from others."""
    distinct = {_key(policies): policies for policies in states}
    outside = outside_of(*distinct.values())
    entries = sum(count_entries([one.spec for one in policies]) for policies in distinct.values())
    return entries * (len(outside) + len(world.apps))


def opened(
    world: World,
    before: Sequence[Sequence[Policy]],
    after: Sequence[Policy],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> tuple[Opening, ...]:
    """What ``after`` lets through and none of the states ``before`` did, exactly: every pod and
    port of three protocols, strangers and outside addresses."""
    outside = outside_of(*before, after)
    # where neither end is selected by a policy that differs, nothing is new
    about = min((selected_anew(world, policies, after, marks) for policies in before), key=len)
    *known, now = (
        Net(world, policies, namespace=namespace, marks=marks).table(outside, about)
        for policies in (*before, after)
    )
    return _beyond(now, known)


def narrowed(
    world: World,
    before: Sequence[Policy],
    after: Sequence[Policy],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> tuple[Opening, ...]:
    """What the healthy policies let through beside the pairs that are tested, ``before`` did too,
    and ``after`` does not: further ports, strangers, outside addresses, and whoever healthy
    policies name and is not there."""
    outside = outside_of(world.policies, before, after)
    about = min(
        (selected_anew(world, policies, after, marks) for policies in (world.policies, before)),
        key=len,
    )
    if not about:
        return ()
    absent = _absent(world, namespace, marks)
    healthy, last, now = (
        {**net.table(outside, about), **_one_sided(net, about, absent)}
        for policies in (world.policies, before, after)
        for net in [_net(world, policies, namespace, marks, absent)]
    )
    tested = _tested(world)
    found = []
    for ends, ports in healthy.items():
        known = union(now.get(ends, NONE), tested.get(ends, NONE))
        if gone := difference(intersection(ports, last.get(ends, NONE)), known):
            found.append(Opening(source=ends[0], target=ends[1], ports=show(gone)))
    return tuple(found)


@dataclass(frozen=True)
class _Absent:
    """A pod that some peer of the healthy policies is about, and no pod that there is."""

    name: str
    endpoint: Endpoint
    #: of its namespace
    space: Labels


def _absent(world: World, namespace: str, marks: Marks | None) -> Sequence[_Absent]:
    net = Net(world, world.policies, namespace=namespace, marks=marks)
    there = [*net.pods.values(), *net.strangers.values(), *net.dns]
    found: dict[str, _Absent] = {}
    for peer in _peers([policy.spec for policy in world.policies]):
        if any(net.rules.matches(peer, namespace, one) for one in there):
            continue
        elsewhere = peer.get("namespaceSelector")
        pod, space = (_labels(peer.get("podSelector") or {}), _labels(elsewhere or {}))
        name = f"pods {_list(pod)}" if pod else "any pod"
        if elsewhere is not None:
            name = f"{name} of namespaces {_list(space)}"
        place = namespace if elsewhere is None else name
        found[name] = _Absent(name, Endpoint("10.244.255.250", place, pod), space)
    return list(found.values())


def _peers(value: JsonValue | Sequence[JsonValue]) -> Iterator[Manifest]:
    """All peers of rules that select pods."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key in {"from", "to"} and isinstance(one, list):
                yield from (
                    peer for peer in one if isinstance(peer, dict) and "ipBlock" not in peer
                )
            else:
                yield from _peers(one)
    elif isinstance(value, list):
        for one in value:
            yield from _peers(one)


def _labels(selector: Manifest) -> Labels:
    """Labels that a selector is about, if any are."""
    found = dict(selector.get("matchLabels") or {})
    for one in selector.get("matchExpressions") or ():
        if one["operator"] in {"In", "Exists"}:
            found.setdefault(one["key"], (one.get("values") or ["any"])[0])
    return found


def _list(labels: Labels) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _net(
    world: World,
    policies: Sequence[Policy],
    namespace: str,
    marks: Marks | None,
    absent: Sequence[_Absent],
) -> Net:
    spaces = {one.endpoint.namespace: one.space for one in absent}
    return Net(world, policies, namespace=namespace, marks=marks, spaces=spaces)


def _one_sided(net: Net, about: Iterable[str], absent: Sequence[_Absent]) -> Table:
    """What the policies of applications let through to and from who is not there: what its own
    policies would be nobody knows."""
    found: Table = {}
    for name in about:
        pod = net.pods[name]
        for one in absent:
            found[one.name, name] = net.rules.lets(INGRESS, pod, one.endpoint, pod)
            found[name, one.name] = net.rules.lets(EGRESS, pod, one.endpoint, one.endpoint)
    return found


def _tested(world: World) -> Table:
    """The port of each pair that is tested."""
    found: Table = {}
    for pair in world.pairs:
        app = world.by_name[pair.target]
        if (port := target_port(app, app.service[0])) is not None:
            found[pair.source, pair.target] = {str(port.protocol): ((port.number, port.number),)}
    return found


def opened_by_each(
    world: World,
    before: Sequence[Sequence[Policy]],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """What each of ``states`` but the first lets through, and neither the one that precedes it nor
    any of the states ``before`` did: ``opened`` for each, computed once for each distinct state."""
    outside = outside_of(*before, *states)
    about = frozenset[str]().union(
        *(selected_anew(world, states[0], policies, marks) for policies in states)
    )

    def table(policies: Sequence[Policy]) -> Table:
        return Net(world, policies, namespace=namespace, marks=marks).table(outside, about)

    known = [table(policies) for policies in before]
    tables: dict[str, Table] = {}
    last: Table | None = None
    for policies in states:
        key = _key(policies)
        now = tables[key] if key in tables else tables.setdefault(key, table(policies))
        if last is not None:
            yield _beyond(now, [*known, last])
        last = now


def strayed_by_each(
    world: World,
    faulty: Sequence[Policy],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """Name lookups that each of ``states`` but the first lets go elsewhere than to the name
    servers, and neither the one that precedes it nor ``faulty`` did: port 53, and nothing beside
    it, of other namespaces and outside addresses.

    The healthy policy of an application that calls out freely allows this and more, and that of
    another does not, which nobody sees: so a rule for lookups is judged alike in all. What a
    policy is that was put right is not looked at, and nothing in a world where all call out freely.
    """
    healthy = {policy.name: policy.spec for policy in world.policies}
    about = []
    for last, now in pairwise(states):
        known = {policy.name: policy.spec for policy in last}
        rules = [
            policy.spec
            for policy in now
            if _plain(policy.spec)
            not in (_plain(known.get(policy.name)), _plain(healthy.get(policy.name)))
            and _looks_up(policy.spec)
        ]
        about.append(_selected(world, rules, marks) if world.restricts_egress else frozenset())
    anybody = frozenset[str]().union(*about)
    outside = outside_of(faulty, *states) if anybody else ()

    @cache
    def table(number: int) -> Table:
        policies = faulty if number < 0 else states[number]
        net = Net(world, policies, namespace=namespace, marks=marks)
        return net.table(outside, anybody)

    for number, names in enumerate(about):
        if not names:
            yield ()
            continue
        yield tuple(
            Opening(source=source, target=target, ports=show(ports))
            for (source, target), ports in _fresh(table(number + 1), [table(-1), table(number)])
            if source in names and target not in world.by_name and not difference(ports, _LOOKUPS)
        )


def _plain(spec: Spec | None) -> Spec | None:
    """Without empty lists, which the API leaves out of what it was sent."""
    return None if spec is None else {key: value for key, value in spec.items() if value != []}


def _looks_up(spec: Spec) -> bool:
    """Whether a rule of egress is about port 53."""
    rules = cast("list[dict[str, Any]]", spec.get("egress") or [])
    return any(entry.get("port") == 53 for rule in rules for entry in rule.get("ports") or [])


def _key(policies: Sequence[Policy]) -> str:
    return json.dumps([policy.model_dump() for policy in policies], sort_keys=True)


def _beyond(now: Table, known: Sequence[Table]) -> tuple[Opening, ...]:
    return tuple(
        Opening(source=source, target=target, ports=show(ports))
        for (source, target), ports in _fresh(now, known)
    )


def _fresh(now: Table, known: Sequence[Table]) -> Iterator[tuple[tuple[str, str], Stretches]]:
    for ends, ports in now.items():
        if new := difference(ports, union(*(table.get(ends, NONE) for table in known))):
            yield ends, new


def selected_anew(
    world: World, one: Sequence[Policy], other: Sequence[Policy], marks: Marks | None
) -> frozenset[str]:
    """Applications that policies select, before or after, in which two states differ."""
    states = [{policy.name: policy.spec for policy in policies} for policies in (one, other)]
    specs = [
        spec
        for there, then in (states, states[::-1])
        for name, spec in there.items()
        if then.get(name) != spec
    ]
    return _selected(world, specs, marks)


def _selected(world: World, specs: Sequence[Spec], marks: Marks | None) -> frozenset[str]:
    """Applications that policies of these specs select."""
    selectors = [cast("Manifest", spec.get("podSelector") or {}) for spec in specs]
    return frozenset(
        name
        for name, pod in Net(world, (), marks=marks).pods.items()
        if any(selects(selector, pod.labels) for selector in selectors)
    )
