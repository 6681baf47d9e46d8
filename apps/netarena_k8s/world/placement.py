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
from netarena_k8s.world.port_set import Stretches, intersection

#: maximum numbers of cached outside addresses, and of cached sets of pairs that a side allows
_KEPT_OUTSIDE, _KEPT_WORKS = 1024, 1024
_BOTH = (EGRESS, INGRESS)
#: direction -> applications whose sides have changed
Altered: TypeAlias = Mapping[str, Container[str]]


class Link(NamedTuple):
    """A possible connection: the names of its two ends, and the ends as endpoints.

    If one end is an absent pod, only the policies of the other end count, and only one direction is
    in ``directions``.
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

    def lets(self, rules: Rules) -> list[Stretches]:
        """Return the ports that ``rules`` allow in each direction."""
        return [rules.lets(direction, self.sender, self.receiver) for direction in self.directions]


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
        one_sided: bool = False,
    ) -> Iterator[Link]:
        """Yield the links on which, in each pair of ``pairs``, the first rules allow more than the
        second rules.

        A link is yielded if its egress or its ingress allows more, even if both together allow no
        more. ``one_sided`` includes links with absent pods.
        """
        outside = [*outside]
        ends = {**self.pods, **self.strangers, **{ip: self.outside(ip) for ip in outside}}
        if one_sided:
            ends |= {one.name: one.endpoint for one in self.absent}
        wide: set[tuple[str, str]] | None = None
        for rules, others in pairs:
            found = set(self._beyond(rules, others, ends, about))
            wide = found if wide is None else wide & found
            if not wide:
                return
        yield from (link for link in self.links(outside, about) if link[:2] in (wide or ()))
        if one_sided:
            yield from (link for link in self.one_sided(about) if link[:2] in (wide or ()))

    def _beyond(
        self, rules: Rules, others: Rules, ends: Mapping[str, Endpoint], about: Altered
    ) -> Iterator[tuple[str, str]]:
        """Yield (source, target) of the links on which ``rules`` allow more than ``others`` in at
        least one direction."""
        spaces = rules.namespaces | others.namespaces
        # A guest may be in the world's own namespace. Policies then apply to the guest too.
        subject_to = {name: end for name, end in self.strangers.items() if end.namespace in spaces}
        subject_to |= self.pods
        for direction, opposite in (_BOTH, _BOTH[::-1]):
            for name, end in subject_to.items():
                side, other = rules.side(direction, end), others.side(direction, end)
                if side is other or other is None:
                    continue
                among = ends
                if name not in about[direction]:
                    among = {
                        peer: pod for peer, pod in self.pods.items() if peer in about[opposite]
                    }
                for peer in other.narrower(side, among):
                    yield (name, peer) if direction == EGRESS else (peer, name)

    def links(self, outside: Iterable[str], about: Altered) -> Iterator[Link]:
        """Yield the links of pods with pods, pods of other namespaces and outside addresses, in
        both directions.

        Only links whose sender's egress or receiver's ingress is in ``about`` are included.
        """
        others = {**self.strangers, **{ip: self.outside(ip) for ip in outside}}
        everybody = {**self.pods, **others}
        entered = {name: pod for name, pod in self.pods.items() if name in about[INGRESS]}
        for name, pod in self.pods.items():
            for other, end in (everybody if name in about[EGRESS] else entered).items():
                if end is not pod:
                    yield Link(name, other, pod, end)
            for other, end in others.items() if name in entered else ():
                yield Link(other, name, end, pod)

    def one_sided(self, about: Altered) -> Iterator[Link]:
        """Yield the links between applications in ``about`` and absent pods. The policies of absent
        pods are unknown."""
        for name, pod in self.pods.items():
            for one in self.absent if name in about[INGRESS] else ():
                yield Link(one.name, name, one.endpoint, pod, (INGRESS,))
            for one in self.absent if name in about[EGRESS] else ():
                yield Link(name, one.name, pod, one.endpoint, (EGRESS,))


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
