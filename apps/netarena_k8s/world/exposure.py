"""Exact differences in the traffic that two states of policies allow.

The differences cover every pod, pods of other namespaces, outside addresses, and every port of TCP,
UDP and SCTP. For each step the module computes:

- the traffic that it opened (``opened``)
- the policies without the openings that it closed (``without_openings``)
- the intended traffic outside the tested pairs that it removed (``narrowed``)
- the name lookups to targets other than the name servers that it allowed (``strayed_by_each``)

The namespace and ``marks`` describe where the world is deployed.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise, zip_longest
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

#: ports for name lookups
_LOOKUPS: Stretches = MappingProxyType({"TCP": ((53, 53),), "UDP": ((53, 53),)})


class Opening(NamedTuple):
    """Ports that a step opened or closed between two ends, in the format of ``port_set.show``."""

    source: str
    target: str
    ports: str


def weigh(world: World, states: Iterable[Sequence[Policy]]) -> int:
    """Return the cost of comparing ``states``.

    The cost is the number of entries of all distinct states, times the number of endpoints.
    Endpoints are the applications, and the groups of outside addresses that the policies treat
    differently.
    """
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
    """Return the traffic that ``after`` allows and that no state in ``before`` allows.

    The comparison is exact: every pod, pods of other namespaces, outside addresses, and every port
    of three protocols.
    """
    return tuple(_openings(world, before, after, namespace, marks))


def without_openings(
    world: World,
    states: tuple[Sequence[Policy], Sequence[Policy], Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> tuple[tuple[Policy, ...], ...]:
    """Return policies with the remaining faults and without the openings that a step closed.

    ``states`` are the policies ``initial`` at the start, ``before`` the step and ``after`` it.
    An opening is traffic that neither the intended policies nor ``after`` allow, whether a fault or
    an earlier step opened it. In each result, the changed policies that cause a closed opening, and
    those that the step repaired, are as intended. If the closed traffic stays open without these
    causes, all changed policies are as intended. The other policies are

    - in the first result, as ``before``
    - in the second result, as ``initial`` unless they are as intended ``before``; a policy that an
      earlier step made worse is not a remaining fault. Therefore an agent gains nothing from an
      opening that it makes and closes itself

    Return no policies if the step closed no opening.
    """
    initial, before, after = states
    meant = {policy.name: policy for policy in world.policies}
    start = {policy.name: policy for policy in initial}
    now = {policy.name: policy for policy in after}
    known = (world.policies, tuple(after))
    closed = opened(world, known, tuple(before), namespace, marks)
    if not closed:
        return ()
    strangers = _net(world, world.policies, namespace, marks).strangers
    #: pods of the world's namespace that are not part of the world; its policies apply to them too
    guests = frozenset(name for name, end in strangers.items() if end.namespace == namespace)
    ends = {end for one in closed for end in (one.source, one.target)}
    outside = ends - world.by_name.keys() - strangers.keys()

    def replaced(names: Collection[str]) -> tuple[Policy, ...]:
        return tuple(meant[one.name] if one.name in names else one for one in before)

    def causes(name: str) -> bool:
        """Return whether one of the closed openings disappears if only this policy is as intended.

        Two kinds of openings can disappear: those of pods that the policy selects, and those of
        outside addresses that no other state distinguishes.
        """
        policies = replaced({name})
        about = selected_anew(world, before, policies, marks) | guests
        about |= outside.difference(outside_of(*known, policies))
        there = [one for one in closed if one.source in about or one.target in about]
        links = ((one.source, one.target) for one in there)
        found = _openings(world, known, policies, namespace, marks, links)
        # ``there`` and ``found`` have the same order, so the comparison ends at the first
        # difference.
        return any(one != other for one, other in zip_longest(there, found))

    changed = [
        one.name for one in before if one.name in meant and now.get(one.name, one).spec != one.spec
    ]
    names = {name for name in changed if now[name].spec == meant[name].spec or causes(name)}
    if not {*opened(world, known, replaced(names), namespace, marks)}.isdisjoint(closed):
        names = {*changed}
    remaining = replaced(names)
    return remaining, tuple(
        one
        if one.name in names or one.name not in meant or one.spec == meant[one.name].spec
        else start.get(one.name, one)
        for one in remaining
    )


def _openings(  # noqa: PLR0913, PLR0917 -- the states and the placement
    world: World,
    before: Sequence[Sequence[Policy]],
    after: Sequence[Policy],
    namespace: str,
    marks: Marks | None,
    among: Iterable[tuple[str, str]] | None = None,
) -> Iterator[Opening]:
    """Yield the result of ``opened``. ``among`` limits the comparison to these links, given as
    (source, target)."""
    outside = outside_of(*before, after)
    *known, now = (_net(world, policies, namespace, marks) for policies in (*before, after))
    about = _altered(world, list(zip(before, known, strict=True)), after, now, marks)
    for one, _ in _fresh(now, known, outside, about, among):
        yield one


def _altered(
    world: World,
    known: Sequence[tuple[Sequence[Policy], Net]],
    after: Sequence[Policy],
    now: Net,
    marks: Marks | None,
) -> Altered:
    """Return the applications whose egress or ingress rules differ between ``after`` and the most
    similar of the ``known`` states.

    The traffic between two applications is unchanged if neither of them is in the result.
    """
    found = []
    for policies, net in known:
        # The sides of uncached policies are new objects in each state, so identity does not show
        # which sides are equal. The comparison then covers only pods that changed policies select.
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
    """Return the traffic outside the tested pairs that the intended policies and ``before`` allow
    but ``after`` does not.

    This covers additional ports, pods of other namespaces, outside addresses, and absent pods that
    the intended policies name.
    """
    outside = outside_of(world.policies, before, after)
    states = (world.policies, before)
    *nets, net = (_net(world, policies, namespace, marks) for policies in (*states, after))
    (healthy, last), now = (one.rules for one in nets), net.rules
    about = _altered(world, list(zip(states, nets, strict=True)), after, net, marks)
    found = []
    # The intended policies come first, because they rarely allow more on many links.
    pairs = [(healthy, now), (last, now)]
    # Many pairs of ends share the same sets of ports, so results are cached by identity. The sets
    # are stored too, so that their ids stay unique.
    told: dict[tuple[object, ...], tuple[list[Stretches], str]] = {}
    each = (healthy, last, now)
    for link in net.ground.wider(pairs, outside, about, one_sided=True):
        tested = _tested(world, link)
        sets = link.lets(*each)
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
    """Return the port with which the connection between two ends is tested, or the empty set if
    this connection is not tested."""
    app = world.by_name.get(link.target)
    if app is None or not app.service or link.source not in world.by_name:
        return NONE
    port = target_port(app, app.service[0])
    return NONE if port is None else {str(port.protocol): ((port.number, port.number),)}


def opened_by_each(  # noqa: PLR0913, PLR0917 -- the states and the placement
    world: World,
    before: Sequence[Sequence[Policy]],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
    among: Collection[str] | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """Yield for each of ``states`` except the first the traffic that it newly allows.

    Traffic is new if neither the preceding state nor any of the states ``before`` allows it.
    ``among`` limits the check to these applications. By default, the applications are those whose
    policies differ between successive states.
    """
    outside = outside_of(*before, *states)
    about = frozenset(among or ()).union(
        *(selected_anew(world, *two, marks) for two in pairwise(states) if not among)
    )
    everywhere = {EGRESS: about, INGRESS: about}
    known = [_net(world, policies, namespace, marks) for policies in before]
    last, *others = (_net(world, policies, namespace, marks) for policies in states)
    for now in others:
        found = _fresh(now, [*known, last], outside, everywhere)
        yield tuple(one for one, _ in found)
        last = now


def strayed_by_each(
    world: World,
    faulty: Sequence[Policy],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """Yield for each of ``states`` except the first the name lookups that it newly allows to
    targets other than the name servers.

    A lookup is new if neither the preceding state nor ``faulty`` allows it. Targets are other
    namespaces and outside addresses, on port 53 only. Among the intended policies, only those of
    applications with unrestricted egress allow such lookups. Agents cannot see which applications
    these are, so the same check applies to all applications. Policies that match their intended
    spec are not checked. Worlds without restricted egress are not checked either.
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
    """Return ``spec`` without empty lists, which the API server omits."""
    return None if spec is None else {key: value for key, value in spec.items() if value != []}


def _looks_up(spec: Spec) -> bool:
    """Return whether an egress rule names port 53."""
    rules = cast("list[dict[str, Any]]", spec.get("egress") or [])
    return any(entry.get("port") == 53 for rule in rules for entry in rule.get("ports") or [])


def _key(policies: Sequence[Policy]) -> tuple[tuple[str, str], ...]:
    return tuple((policy.name, policy.text) for policy in policies)


def _fresh(
    now: Net,
    known: Sequence[Net],
    outside: Sequence[str],
    about: Altered,
    among: Iterable[tuple[str, str]] | None = None,
) -> Iterator[tuple[Opening, Stretches]]:
    """Yield the traffic that ``now`` allows and that none of ``known`` allows."""
    before = [net.rules for net in known]
    each = (now.rules, *before)
    pairs = [(now.rules, rules) for rules in before]
    # Many pairs of ends share the same sets of ports, so results are cached by identity. The sets
    # are stored too, so that their ids stay unique.
    told: dict[tuple[int, ...], tuple[list[Stretches], Stretches, str]] = {}
    for link in now.ground.wider(pairs, outside, about, among=among):
        sets = link.lets(*each)
        key = tuple(map(id, sets))
        if key not in told:
            new = difference(link.open_by(now.rules), union(*map(link.open_by, before)))
            told[key] = sets, new, show(new)
        _, new, words = told[key]
        if new:
            yield Opening(source=link.source, target=link.target, ports=words), new


def selected_anew(
    world: World, one: Sequence[Policy], other: Sequence[Policy], marks: Marks | None
) -> frozenset[str]:
    """Return the applications that are selected, in either state, by policies that differ between
    the states."""
    states = [{policy.name: policy.spec for policy in policies} for policies in (one, other)]
    specs = [
        spec
        for there, then in (states, states[::-1])
        for name, spec in there.items()
        if (known := then.get(name)) is not spec and known != spec
    ]
    return _selected(world, specs, marks)


def _selected(world: World, specs: Sequence[Spec], marks: Marks | None) -> frozenset[str]:
    """Return the applications that policies with these specs select."""
    selectors = [cast("Manifest", spec.get("podSelector") or {}) for spec in specs]
    return frozenset(
        name
        for name, labels in _marked(world, marks).items()
        if any(selects(selector, labels) for selector in selectors)
    )


def _marked(world: World, marks: Marks | None) -> dict[str, Labels]:
    """Return the labels of each application's pods."""
    known = (marks or world.marks).pods
    return {app.name: known.get(app.name, app.labels) for app in world.apps}
