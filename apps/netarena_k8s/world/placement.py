"""The endpoints of a deployed world.

A placement always uses the same endpoint objects, so that ``policy.Book`` can cache results for
each endpoint.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from netarena.sdk import JsonValue, Memo
from netarena_k8s.world.policy import (
    EGRESS,
    INGRESS,
    Book,
    Endpoint,
    Labels,
    Manifest,
    Rules,
    Side,
    matches,
)
from netarena_k8s.world.port_set import ALL, Stretches, intersection

#: maximum numbers of cached outside addresses, and of cached sets of pairs that a side allows
_KEPT_OUTSIDE, _KEPT_WORKS = 1024, 1024
_BOTH = (EGRESS, INGRESS)
#: direction -> applications whose sides have changed
Altered: TypeAlias = Mapping[str, Container[str]]


class Link(NamedTuple):
    """A possible connection: the names of its two ends, and the ends as endpoints.

    ``directions`` are those in which policies are evaluated. Policies do not apply to outside
    addresses and to pods of other namespaces, and the policies of absent pods are unknown.
    """

    source: str
    target: str
    sender: Endpoint
    receiver: Endpoint
    directions: tuple[str, ...] = _BOTH

    def open_by(self, rules: Rules) -> Stretches:
        """Return the ports that ``rules`` allow."""
        first, *more = self.lets(rules)
        return intersection(first, *more) if more else first

    def lets(self, *each: Rules) -> list[Stretches]:
        """Return the ports that each of ``each`` allows, for each direction in turn."""
        found = []
        for direction in self.directions:
            ends = (self.sender, self.receiver)
            subject, peer = ends if direction == EGRESS else ends[::-1]
            for rules in each:
                side = rules.side(direction, subject)
                found.append(ALL if side is None else side.lets(peer))
        return found


class Absent(NamedTuple):
    """A pod that does not exist, although a peer of the intended policies selects it."""

    name: str
    endpoint: Endpoint


class Ground:
    """All endpoints of a placement: the pods, pods of other namespaces, and name servers.

    ``pods`` and ``strangers`` map names to endpoints, and ``namespaces`` maps each namespace to its
    labels. ``specs`` are the specs of the intended policies.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- all endpoints of a placement
        self,
        namespace: str,
        namespaces: Mapping[str, Labels],
        pods: Mapping[str, Endpoint],
        strangers: Mapping[str, Endpoint],
        dns: tuple[Endpoint, ...],
        specs: Sequence[JsonValue],
    ) -> None:
        self.namespace = namespace
        self.pods = pods
        self.strangers = strangers
        self.dns = dns
        self.book = Book(namespaces, pods.values())
        #: (application, direction, side) -> the pairs that the side allows, as bits
        self.works: Memo[tuple[str, str, Side | None], int] = Memo(_KEPT_WORKS)
        self._specs = specs
        self._outside: Memo[str, Endpoint] = Memo(_KEPT_OUTSIDE)

    def end(self, name: str) -> Endpoint:
        """Return the pod, the pod of another namespace, or the outside address called ``name``."""
        return self.pods.get(name) or self.strangers.get(name) or self.outside(name)

    def outside(self, ip: str) -> Endpoint:
        return self._outside.get(ip) or self._outside.keep(ip, Endpoint(ip))

    @cached_property
    def absent(self) -> Sequence[Absent]:
        """Pods that do not exist, although peers of the intended policies select them."""
        there = [*self.pods.values(), *self.strangers.values(), *self.dns]
        found: dict[str, Absent] = {}
        for peer in _peers(self._specs):
            if any(matches(peer, self.namespace, one, self.book.namespaces) for one in there):
                continue
            pod = _labels(peer.get("podSelector") or {})
            name, place, space = f"pods {_list(pod)}" if pod else "any pod", self.namespace, None
            if (elsewhere := peer.get("namespaceSelector")) is not None:
                space = _labels(elsewhere)
                place = name = f"{name} of namespaces {_list(space)}"
            found[name] = Absent(name, Endpoint("10.244.255.250", place, pod, space=space))
        return list(found.values())

    def wider(
        self,
        pairs: Sequence[tuple[Rules, Rules]],
        outside: Iterable[str],
        about: Altered,
        *,
        among: Iterable[tuple[str, str]] | None = None,
        one_sided: bool = False,
    ) -> Iterator[Link]:
        """Yield the links on which, in one pair of ``pairs``, the first rules allow more than the
        second rules.

        Only the pair with the fewest changed sides is compared, because this pair has the fewest
        links to examine. A link is yielded if its egress or its ingress allows more, even if both
        together allow no more. ``about`` must contain the sender for egress, or the receiver for
        ingress. With ``among``, the method yields these links, given as (source, target), without a
        comparison. The caller may stop early. ``one_sided`` includes links with absent pods.
        """
        ends = {**self.pods, **self.strangers, **{ip: self.outside(ip) for ip in outside}}
        absent = {one.name: one.endpoint for one in self.absent} if one_sided else {}
        ends |= absent
        subject = self._subject(*(rules for pair in pairs for rules in pair))
        places = {name: place for place, name in enumerate(ends)}

        def order(link: tuple[str, str]) -> tuple[bool, int, bool, int]:
            """Return a key that sorts links by pod. For each pod, links from the pod come before
            links to the pod from ends that are not pods. Links with absent pods are last; there,
            links to a pod come first."""
            source, target = link
            far = source in absent or target in absent
            if source in self.pods:
                return far, places[source], far, places[target]
            return far, places[target], not far, places[source]

        if among is None:
            changed = min((_changed(*pair, subject) for pair in pairs), key=len)
            among = sorted(set(self._beyond(changed, ends, about)), key=order)
        for source, target in among:
            if source not in ends or target not in ends:
                continue
            if source not in about[EGRESS] and target not in about[INGRESS]:
                continue
            directions: tuple[str, ...] = _BOTH
            if source not in subject or target not in subject:
                directions = _BOTH[:1] if source in subject else _BOTH[1:]
            yield Link(source, target, ends[source], ends[target], directions)

    def _subject(self, *each: Rules) -> dict[str, Endpoint]:
        """Return the ends to which policies apply."""
        spaces = frozenset[str]().union(*(rules.namespaces for rules in each))
        # Policies also apply to a guest if its namespace is that of the world.
        guests = {name: end for name, end in self.strangers.items() if end.namespace in spaces}
        return {**guests, **self.pods}

    def _beyond(
        self,
        changed: Iterable[tuple[str, str, Side | None, Side]],
        ends: Mapping[str, Endpoint],
        about: Altered,
    ) -> Iterator[tuple[str, str]]:
        """Yield (source, target) of the links on which a changed side allows more than the other
        side."""
        near = {
            direction: {name: pod for name, pod in self.pods.items() if name in about[opposite]}
            for direction, opposite in (_BOTH, _BOTH[::-1])
        }
        for direction, name, side, other in changed:
            among = ends if name in about[direction] else near[direction]
            for peer in other.narrower(side, among):
                yield (name, peer) if direction == EGRESS else (peer, name)


def _changed(
    rules: Rules, others: Rules, ends: Mapping[str, Endpoint]
) -> list[tuple[str, str, Side | None, Side]]:
    """Return (direction, name, side, other side) for each of ``ends`` whose side differs and whose
    other side restricts traffic."""
    return [
        (direction, name, side, other)
        for direction in _BOTH
        for name, end in ends.items()
        if (side := rules.side(direction, end)) is not (other := others.side(direction, end))
        and other is not None
    ]


def _peers(value: JsonValue | Sequence[JsonValue]) -> Iterator[Manifest]:
    """Yield all peers of rules that select pods or namespaces."""
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
    """Return the labels that the selector requires. If several values match, the label is ``any``
    or the first value."""
    found = dict(selector.get("matchLabels") or {})
    for one in selector.get("matchExpressions") or ():
        if one["operator"] in {"In", "Exists"}:
            found.setdefault(one["key"], (one.get("values") or ["any"])[0])
    return found


def _list(labels: Labels) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
