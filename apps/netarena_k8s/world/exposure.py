"""What one state of policies lets through and another does not, exactly: every pod and port of
three protocols, strangers and outside addresses.

Three questions are asked of a step: what it opened (``opened``), what of the healthy it took away
beside the pairs that are tested (``narrowed``), and which name lookups it lets go elsewhere than to
the name servers (``strayed_by_each``). Where a world runs is told by its namespace and ``marks``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from netarena_k8s.world.model import (
    Marks,
    Net,
    Policy,
    Spec,
    World,
    entries_of,
    net_of,
    outside_of,
    target_port,
)
from netarena_k8s.world.placement import Altered, Link
from netarena_k8s.world.policy import EGRESS, INGRESS, Labels, Manifest, selects
from netarena_k8s.world.port_set import NONE, Stretches, difference, intersection, show, union

#: what name lookups are
_LOOKUPS: Stretches = MappingProxyType({"TCP": ((53, 53),), "UDP": ((53, 53),)})


class Opening(NamedTuple):
    """Ports that were opened, or closed: from whom, to whom, as ``stretch.show`` shows them."""

    source: str
    target: str
    ports: str


def weigh(world: World, states: Iterable[Sequence[Policy]]) -> int:
    """What it takes to compare ``states``: the entries of each distinct one, for each pod and each
    address outside that any of them tells from others."""
    distinct = {_key(policies): policies for policies in states}
    outside = outside_of(*distinct.values())
    entries = sum(map(entries_of, distinct.values()))
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
    *known, now = (_net(world, policies, namespace, marks) for policies in (*before, after))
    about = _altered(world, list(zip(before, known, strict=True)), after, now, marks)
    return _beyond(now, known, outside, about)


def _altered(
    world: World,
    known: Sequence[tuple[Sequence[Policy], Net]],
    after: Sequence[Policy],
    now: Net,
    marks: Marks | None,
) -> Altered:
    """Whose sides differ ``after`` from one of the ``known`` states, that with the fewest: where
    neither side of two ends differs, nothing is new."""
    found = []
    for policies, net in known:
        # what is not kept is no longer the same when it is read anew
        names: Container[str] = now.pods
        if not (net.rules.kept and now.rules.kept):
            names = selected_anew(world, policies, after, marks)
        ends = [(name, pod) for name, pod in now.pods.items() if name in names]
        found.append(
            {
                direction: frozenset(
                    name
                    for name, pod in ends
                    if net.rules.side(direction, pod) is not now.rules.side(direction, pod)
                )
                for direction in (EGRESS, INGRESS)
            }
        )
    return min(found, key=lambda one: sum(map(len, one.values())))


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
    states = (world.policies, before)
    *nets, net = (_net(world, policies, namespace, marks) for policies in (*states, after))
    (healthy, last), now = (one.rules for one in nets), net.rules
    about = _altered(world, list(zip(states, nets, strict=True)), after, net, marks)
    found = []
    pairs = [(last, now), (healthy, now)]
    # one rule is about many ends, of which all is the same; what is known by identity is held
    told: dict[tuple[object, ...], tuple[list[Stretches], str]] = {}
    each = (healthy, last, now)
    for link in net.ground.wider(pairs, outside, about, one_sided=True):
        tested = _tested(world, link)
        sets = [one for rules in each for one in link.lets(rules)]
        key = (*tested.items(), *map(id, sets))
        if key not in told:
            meant, earlier, left = map(link.open_by, each)
            gone = difference(intersection(meant, earlier), union(left, tested))
            told[key] = sets, show(gone) if gone else ""
        if words := told[key][-1]:
            found.append(Opening(link.source, link.target, words))
    return tuple(found)


def _net(world: World, policies: Sequence[Policy], namespace: str, marks: Marks | None) -> Net:
    if marks is not None or not isinstance(policies, tuple):
        return Net(world, policies, namespace=namespace, marks=marks)
    return net_of(world, policies, namespace)


def _tested(world: World, link: Link) -> Stretches:
    """The port by which two ends are tested, if they are."""
    app = world.by_name.get(link.target)
    if app is None or not app.service or link.source not in world.by_name:
        return NONE
    port = target_port(app, app.service[0])
    return NONE if port is None else {str(port.protocol): ((port.number, port.number),)}


def opened_by_each(  # noqa: PLR0913, PLR0917 -- what is known of where a world runs
    world: World,
    before: Sequence[Sequence[Policy]],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
    among: Collection[str] | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """What each of ``states`` but the first lets through, and neither the one that precedes it nor
    any of the states ``before`` did: ``opened`` for each, computed once for each distinct state.

    ``among`` are the applications that are looked at; none: all whose policies differ.
    """
    outside = outside_of(*before, *states)
    about = frozenset(among or ()).union(
        *(selected_anew(world, states[0], policies, marks) for policies in states if not among)
    )

    everywhere = {EGRESS: about, INGRESS: about}

    def net(policies: Sequence[Policy]) -> Net:
        return Net(world, policies, namespace=namespace, marks=marks)

    known = [net(policies) for policies in before]
    nets: dict[str, Net] = {}
    last: Net | None = None
    for policies in states:
        key = _key(policies)
        now = nets[key] if key in nets else nets.setdefault(key, net(policies))
        if last is not None:
            yield _beyond(now, [*known, last], outside, everywhere)
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
    if not world.restricts_egress:
        yield from (() for _ in states[1:])
        return
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
        about.append(_selected(world, rules, marks))
    anybody = frozenset[str]().union(*about)
    outside = outside_of(faulty, *states) if anybody else ()
    everywhere = {EGRESS: anybody, INGRESS: anybody}

    @cache
    def net(number: int) -> Net:
        policies = faulty if number < 0 else states[number]
        return Net(world, policies, namespace=namespace, marks=marks)

    for number, names in enumerate(about):
        if not names:
            yield ()
            continue
        yield tuple(
            one
            for one, ports in _fresh(net(number + 1), [net(-1), net(number)], outside, everywhere)
            if one.source in names
            and one.target not in world.by_name
            and not difference(ports, _LOOKUPS)
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


def _beyond(
    now: Net, known: Sequence[Net], outside: Sequence[str], about: Altered
) -> tuple[Opening, ...]:
    return tuple(one for one, _ in _fresh(now, known, outside, about))


def _fresh(
    now: Net, known: Sequence[Net], outside: Sequence[str], about: Altered
) -> Iterator[tuple[Opening, Stretches]]:
    """What ``now`` lets through and none of the ``known`` does."""
    before = [net.rules for net in known]
    for link in now.ground.wider([(now.rules, rules) for rules in before], outside, about):
        ports = link.open_by(now.rules)
        if new := difference(ports, union(*map(link.open_by, before))):
            yield Opening(source=link.source, target=link.target, ports=show(new)), new


def selected_anew(
    world: World, one: Sequence[Policy], other: Sequence[Policy], marks: Marks | None
) -> frozenset[str]:
    """Applications that policies select, before or after, in which two states differ."""
    states = [{policy.name: policy.spec for policy in policies} for policies in (one, other)]
    specs = [
        spec
        for there, then in (states, states[::-1])
        for name, spec in there.items()
        if (known := then.get(name)) is not spec and known != spec
    ]
    return _selected(world, specs, marks)


def _selected(world: World, specs: Sequence[Spec], marks: Marks | None) -> frozenset[str]:
    """Applications that policies of these specs select."""
    selectors = [cast("Manifest", spec.get("podSelector") or {}) for spec in specs]
    return frozenset(
        name
        for name, labels in _marked(world, marks).items()
        if any(selects(selector, labels) for selector in selectors)
    )


def _marked(world: World, marks: Marks | None) -> dict[str, Labels]:
    """The labels of each application's pods."""
    known = (marks or world.marks).pods
    return {app.name: known.get(app.name, app.labels) for app in world.apps}
