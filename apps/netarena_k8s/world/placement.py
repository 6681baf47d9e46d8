"""Where a world stands: everybody who sends or receives there, always the same for the same place,
so that what policies mean for them is found out once (``policy.Book``)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

from netarena.cache import Memo
from netarena.model import JsonValue
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

#: addresses outside, and what a side says of all pairs, that are remembered
_KEPT_OUTSIDE, _KEPT_WORKS = 1024, 1024
_BOTH = (EGRESS, INGRESS)
#: direction -> applications
Altered: TypeAlias = Mapping[str, Container[str]]


class Link(NamedTuple):
    """Two ends by name, and what they are; of who is not there only the other's policies are
    asked, in one of ``directions``."""

    source: str
    target: str
    sender: Endpoint
    receiver: Endpoint
    directions: tuple[str, ...] = _BOTH

    def open_by(self, rules: Rules) -> Stretches:
        """Ports that rules let through."""
        first, *more = self.lets(rules)
        return intersection(first, *more) if more else first

    def lets(self, rules: Rules) -> list[Stretches]:
        """The same of each direction."""
        return [rules.lets(direction, self.sender, self.receiver) for direction in self.directions]


class Absent(NamedTuple):
    """A pod that some peer of the healthy policies is about, and no pod that there is."""

    name: str
    endpoint: Endpoint


class Ground:
    """``pods`` by application, ``strangers`` by name, the name servers ``dns``; ``namespaces`` maps
    each to its labels, ``specs`` are of the healthy policies."""

    def __init__(  # noqa: PLR0913, PLR0917 -- all who are there
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
        #: (application, direction, what is in force) -> the pairs that it lets through, as bits
        self.works: Memo[tuple[str, str, Side | None], int] = Memo(_KEPT_WORKS)
        self._specs = specs
        self._outside: Memo[str, Endpoint] = Memo(_KEPT_OUTSIDE)

    def end(self, name: str) -> Endpoint:
        """A pod, a stranger, or an address outside."""
        return self.pods.get(name) or self.strangers.get(name) or self.outside(name)

    def outside(self, ip: str) -> Endpoint:
        return self._outside.get(ip) or self._outside.keep(ip, Endpoint(ip))

    @cached_property
    def absent(self) -> Sequence[Absent]:
        """Whoever healthy policies name and is not there."""
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
        """Of ``links``, and of ``one_sided`` ones too if asked for, those of which in each pair of
        rules the first lets more through than the second, in one direction at least; where that is
        so in none, both directions together let nothing more through."""
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
        """Source and target of links of which a direction lets more through by ``rules``."""
        spaces = rules.namespaces | others.namespaces
        # a guest's namespace may be the world's own, and policies speak of it
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
        """From and to pods, strangers and the addresses ``outside``, in both directions: those
        whose sender's egress or receiver's ingress is among what is ``about``."""
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
        """Likewise from and to who is not there: what their own policies would be nobody knows."""
        for name, pod in self.pods.items():
            for one in self.absent if name in about[INGRESS] else ():
                yield Link(one.name, name, one.endpoint, pod, (INGRESS,))
            for one in self.absent if name in about[EGRESS] else ():
                yield Link(name, one.name, pod, one.endpoint, (EGRESS,))


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
