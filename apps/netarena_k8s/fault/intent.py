"""Draws the faults of tickets: first the shown policies (as the agent finds them), then the
intended policies.

The shown policies do not depend on the number or position of the faults: each policy is equally
likely to be chosen, and its intended spec is drawn afterwards. Without the documentation, a reader
of the policies cannot find out which policies are wrong, or whether any policy is wrong.

If an intended spec is not suitable, another spec is drawn for the same policy. Trying another
policy instead would favour large policies, because they have many suitable specs. If one fault must
hide another, the two faulty policies are partners in a random matching. Each policy has one
partner, so a policy with many possible partners is not chosen more often than others.

For an altered policy (``source.alter``), the intended spec is usually the spec before the
alteration. For any other policy, a method of ``fault.table`` draws the intended spec, usually by
adding or removing a rule, a peer or a port. If no method succeeds, the intended spec has one more
rule than the shown policy.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from math import fsum
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from netarena_k8s.fault.mask import doubts
from netarena_k8s.fault.subtle import LOOKUPS, methods_of
from netarena_k8s.fault.table import Fault, Scene, draw_one, harms, make_fault, relax
from netarena_k8s.world.matrix import Sides, copied, numbers
from netarena_k8s.world.model import App, Policy, Spec, World, with_policies
from netarena_k8s.world.plan import Use
from netarena_k8s.world.policy import EGRESS, INGRESS, Manifest, policy_types, selects

#: share of combinations in which one fault hides another, and share of such combinations in which
#: the repair order matters
_SHARE, _ORDERED = 0.7, 0.9
#: Maximum numbers of attempts: choices of policies, draws of intended specs for one choice, and
#: drafts for one policy.
_CHOICES, _DRAWS, _CHANCES = 8, 24, 6
#: Maximum numbers of attempts: methods for one policy, and drafts of a hidden fault.
_TRIES, _HIDDEN = 16, 8
#: Number of draws that test whether a kind applies to a policy. Number of rounds in which the
#: probabilities of policies are scaled.
_PROBES, _SCALINGS = 2, 30
#: Minimum number of policies that seem to have a fault of each kind. If only one policy seemed
#: faulty, a script that repairs such policies would find the fault without the documentation.
_ALIKE = 2
#: probability that the intended spec of an altered policy is the spec before the alteration
_ALTERED = 0.85
#: (kind, method) that changes a shown spec into the intended spec -> (kind, method) of the fault
#: that the shown spec then has
_INVERSE: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("remove_ingress", "rule"): ("add_ingress", "rule"),
        ("remove_ingress", "peer"): ("add_ingress", "peer"),
        ("remove_ingress", "value"): ("add_ingress", "value"),
        ("add_ingress", "rule"): ("remove_ingress", "rule"),
        ("add_ingress", "peer"): ("remove_ingress", "peer"),
        ("add_ingress", "value"): ("remove_ingress", "value"),
        ("open_rule", "all"): ("remove_ingress", "rule"),
        ("open_rule", "namespace"): ("remove_ingress", "rule"),
        ("open_rule", "roles"): ("remove_ingress", "rule"),
        ("open_peer", "any_pod"): ("peer_label", "narrow"),
        ("open_peer", "widened"): ("peer_label", "narrow"),
        ("peer_label", "another"): ("peer_label", "another"),
        ("peer_label", "mark"): ("peer_label", "mark"),
        ("peer_label", "narrow"): ("open_peer", "widened"),
        ("empty_rules", "ingress"): ("add_ingress", "rule"),
        ("empty_rules", "egress"): ("add_egress", "more"),
        ("add_egress", "fewer"): ("add_egress", "more"),
        ("add_egress", "more"): ("add_egress", "fewer"),
        ("add_egress", "only_to"): ("add_egress", "more"),
        ("wrong_app", "selector"): ("wrong_app", "selector"),
        ("wrong_app", "of_policy"): ("wrong_app", "of_policy"),
        ("pod_selector", "mark"): ("pod_selector", "mark"),
        ("policy_types", "ingress"): ("policy_types", "both"),
        ("policy_types", "egress"): ("policy_types", "both"),
    }
)


#: kinds of fault that are their own inverse, such as a changed port
_MUTUAL: Mapping[str, Sequence[tuple[str, str, str]]] = MappingProxyType(
    {
        "change_port": [
            ("change_port", "number", "number"),
            ("change_port", "of_another", "of_another"),
        ],
        "change_protocol": [
            ("change_protocol", "udp", "tcp"),
            ("change_protocol", "tcp", "udp"),
        ],
    }
)
#: The reverse map of ``_INVERSE``: kind of fault -> (kind, method) that changes a shown spec into
#: the intended spec, and method of the fault
_INVERTED: Mapping[str, Sequence[tuple[str, str, str]]] = MappingProxyType(
    {
        kind: [
            *((*given, method) for given, (own, method) in _INVERSE.items() if own == kind),
            *_MUTUAL.get(kind, ()),
        ]
        for kind in {*(own for own, _ in _INVERSE.values()), *_MUTUAL}
    }
)
#: kind of the method that draws an intended spec -> its weight; kinds that apply to nearly every
#: policy have a low weight
_WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        "remove_ingress": 6,
        "add_ingress": 6,
        "add_egress": 6,
        "peer_label": 6,
        "open_peer": 4,
        "open_rule": 2,
        "empty_rules": 2,
        "wrong_app": 1,
        "pod_selector": 1,
        "policy_types": 1,
    }
)


class Draft(NamedTuple):
    """The intended spec of a policy whose shown spec is wrong, and the kind and method of the
    fault."""

    kind: str
    method: str
    meant: Policy

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self.meant.name


def _draft(policy: Policy, kind: str, method: str, spec: Spec) -> Draft:
    return Draft(kind, method, Policy(name=policy.name, spec=spec))


def draw_intended(
    shown: World, altered: Mapping[str, Fault], number: int, rng: random.Random
) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the world in which ``number`` policies of ``shown`` are wrong, and the faults of these
    policies. Return None if no such faults are found.

    Each fault by itself changes a tested connection. Every repair order that respects the faults'
    ``after`` is safe.
    """
    masked = number > 1 and rng.random() < _SHARE
    ordered = masked and rng.random() < _ORDERED
    source = _Source(shown, altered, rng)
    for _ in range(_CHOICES):
        chosen = source.choose(number, masked=masked, ordered=ordered)
        for _ in range(_DRAWS):
            drafts = source.draw(chosen, masked=masked, ordered=ordered)
            if drafts is None:
                continue
            rng.shuffle(drafts)
            world = meant(shown, drafts)
            faults = source.faults(world, drafts)
            if faults is not None:
                faults = relax(world, faults)
            if faults is not None and not doubts(world, faults):
                return world, faults
    return None


def draw_named(
    shown: World,
    altered: Mapping[str, Fault],
    kinds: Sequence[str],
    among: Sequence[str],
    rng: random.Random,
) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the world in which policies of ``shown`` have one fault of each of ``kinds``, and
    these faults. Return None if no such faults are found.

    ``among`` lists the kinds whose forms occur in ``shown``, including ``kinds``. The result is
    None unless at least two policies have the form of each kind in ``among``. Over all queries with
    the same ``among``, each policy is wrong about equally often. Policies that select no pod are
    left out of the world if none of these kinds applies to them. Each fault by itself changes a
    tested connection, and every repair order is safe.
    """
    source = _Source(shown, altered, rng)
    if any(source.alike(kind) < _ALIKE for kind in among):
        return None
    odds = source.odds(among)
    pods = shown.marks.pods.values()
    idle = {
        policy.name
        for policy in shown.policies
        if not any(policy.name in some for some in odds.values())
        and not any(selects(cast("Manifest", policy.spec["podSelector"]), one) for one in pods)
    }
    if idle:
        shown = with_policies(shown, [one for one in shown.policies if one.name not in idle])
    source = _Source(shown, altered, rng)
    for _ in range(_DRAWS):
        drafts: list[Draft] = []
        for kind in kinds:
            one = source.named(kind, odds[kind], drafts)
            if one is None:
                break
            drafts.append(one)
        else:
            world = meant(shown, drafts)
            faults = source.faults(world, drafts)
            if faults is None or any(fault.after for fault in faults):
                continue
            if not doubts(world, faults, strict=True):
                return world, faults
    return None


def meant(shown: World, drafts: Iterable[Draft]) -> World:
    """Return the intended world: ``shown`` with the intended specs of ``drafts`` in place of the
    shown specs."""
    specs = {one.policy: one.meant.spec for one in drafts}
    return with_policies(shown, put(shown.policies, specs))


class _Reach(NamedTuple):
    """Pairs of applications whose connection a fault of one policy may hide or change, with one bit
    for each pair."""

    #: pairs whose source the policy selects, and which the source's egress policies block
    blocked_out: int
    #: pairs whose target the policy selects, and which the target's ingress policies block
    blocked_in: int
    #: pairs that only one egress rule or peer of the policy allows, if no working pair needs this
    #: rule or peer
    lets_out: int
    #: pairs that only one ingress rule or peer of the policy allows, if no working pair needs this
    #: rule or peer
    lets_in: int


class _Source:
    """Draws intended specs for policies of ``shown``, the world as the agent finds it."""

    def __init__(self, shown: World, altered: Mapping[str, Fault], rng: random.Random) -> None:
        self._shown = shown
        self._altered = altered
        self._rng = rng
        self._methods = {
            kind: {name: method for name, method in own.items() if (kind, name) in _INVERSE}
            for kind, own in methods_of(shown).items()
        }
        self._kinds = [kind for kind in _WEIGHTS if self._methods.get(kind)]
        self._weights = [_WEIGHTS[kind] for kind in self._kinds]
        # The policy that denies everything is the same in every world, so it is never wrong.
        self._places = [policy for policy in shown.policies if policy.spec["podSelector"]]
        self._pairs = (1 << len(shown.pairs)) - 1
        self._now = shown.matrix.sides(shown.effects)
        self._states: dict[frozenset[tuple[str, str]], Sides] = {}

    # Choosing the policies that become faulty

    def choose(self, number: int, *, masked: bool, ordered: bool) -> list[Policy]:
        """Return ``number`` policies, each chosen with the same probability. With ``masked``, the
        first two are partners in a random matching."""
        places = self._rng.sample(self._places, len(self._places))
        if not masked:
            return places[:number]
        first, *others = places
        partner = self._partner(first, ordered=ordered)
        return [first, partner, *(one for one in others if one is not partner)][:number]

    def _partner(self, first: Policy, *, ordered: bool) -> Policy:
        """Return the partner of ``first`` in a random matching of all policies. The matching does
        not depend on ``first``."""
        left = self._rng.sample(self._places, len(self._places))
        reaches = {policy.name: self._reach(policy) for policy in left}
        for fit in (_fit_in_order, _fit)[0 if ordered else 1 :]:
            fits = {
                one.name: [
                    other
                    for other in left
                    if other is not one and fit(reaches[one.name], reaches[other.name])
                ]
                for one in left
            }
            taken: set[str] = set()
            # Policies with the fewest candidate partners are paired first.
            for one in sorted(left, key=lambda one: len(fits[one.name])):
                if one.name in taken:
                    continue
                free = [other for other in fits[one.name] if other.name not in taken]
                if not free:
                    continue
                other = min(free, key=lambda other: len(fits[other.name]))
                if first.name in {one.name, other.name}:
                    return other if first is one else one
                taken |= {one.name, other.name}
            left = [one for one in left if one.name not in taken]
        # Policies without a fitting partner are paired with each other.
        place = left.index(first)
        if place ^ 1 < len(left):
            return left[place ^ 1]
        return self._rng.choice([one for one in self._places if one is not first])

    def _reach(self, policy: Policy) -> _Reach:
        """Return the pairs whose connection a fault of ``policy`` may hide or change."""
        shown, pairs, now = self._shown, self._pairs, self._now
        own = shown.effect(policy)
        lets_out = lets_in = 0
        for other, effect in zip(shown.policies, shown.effects, strict=True):
            if other is not policy:
                lets_out |= effect.lets_out
                lets_in |= effect.lets_in
        ends = []
        for direction, others, far in (
            (EGRESS, lets_out, now.into),
            (INGRESS, lets_in, now.out),
        ):
            parts = shown.matrix.parts(policy.spec, direction)
            removed = (bits & ~others & pairs for bits in _alone(parts))
            ends.append(_union(bits for bits in removed if not bits & far))
        return _Reach(
            blocked_out=own.restricts_source & ~now.out & pairs,
            blocked_in=own.restricts_target & ~now.into & pairs,
            lets_out=ends[0] & now.out,
            lets_in=ends[1],
        )

    # Drafts of intended specs

    def draw(self, chosen: Sequence[Policy], *, masked: bool, ordered: bool) -> list[Draft] | None:
        """Return one draft for each policy of ``chosen``, or None if some policy gets no draft."""
        drafts: list[Draft] = []
        if masked:
            first, second = chosen[:2]
            drafts = self._couple(first, second, ordered=ordered) or []
            if ordered and not drafts:
                drafts = self._couple(first, second, ordered=False) or []
        for policy in chosen[len(drafts) :]:
            for _ in range(_CHANCES):
                one = self.draft(policy)
                if one is not None and self._goes(one, drafts):
                    drafts.append(one)
                    break
            else:
                return None
        return drafts

    def draft(self, policy: Policy) -> Draft | None:
        """Return a draft with a random intended spec, under which the shown spec of ``policy`` is
        faulty. Return None if no such spec is found."""
        if (known := self._altered.get(policy.name)) is not None:
            one = _draft(policy, known.kind, known.method, _before(known))
            if self._rng.random() < _ALTERED and self._shows((), [one]):
                return one
        for _ in range(_TRIES):
            (kind,) = self._rng.choices(self._kinds, self._weights)
            found = draw_one(self._shown, kind, policy, self._rng, self._methods)
            if found is not None:
                one = _draft(policy, *_INVERSE[kind, found.method], found.spec)
                if self._shows((), [one]):
                    return one
        # Without this fallback, policies without rules would be chosen less often than others.
        completed = self._completed(policy)
        return completed if completed is not None and self._shows((), [completed]) else None

    def alike(self, kind: str) -> int:
        """Return the number of policies that seem to have a fault of this kind and for which such a
        fault can be drawn."""
        return sum(
            self._kind_of(policy) == kind and self._of_kind(policy, kind) is not None
            for policy in self._places
        )

    def _kind_of(self, policy: Policy) -> str | None:
        """Return the kind of fault that the policy seems to have, or None."""
        if (known := self._altered.get(policy.name)) is not None:
            return known.kind
        return "pod_selector" if self._selecting(policy) is not None else None

    def odds(self, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the probability weight with which each policy gets a fault of each kind, as kind
        -> policy name -> weight.

        Kinds apply to different sets of policies. The weights are scaled so that, as far as
        possible, each kind is used as often as in ``kinds`` and each policy is faulty equally
        often.
        """
        wanted = Counter(kinds)
        odds = {
            kind: {
                policy.name: 1.0
                for policy in self._places
                if any(self._of_kind(policy, kind) is not None for _ in range(_PROBES))
            }
            for kind in wanted
        }
        for _ in range(_SCALINGS):
            for kind, names in odds.items():
                total = fsum(names.values())  # unlike sum, equal in all Python versions
                for name in names:
                    names[name] *= wanted[kind] / total
            sums: defaultdict[str, float] = defaultdict(float)
            for names in odds.values():
                for name, share in names.items():
                    sums[name] += share
            for names in odds.values():
                for name in names:
                    names[name] /= sums[name]
        return odds

    def named(self, kind: str, odds: Mapping[str, float], drafts: Sequence[Draft]) -> Draft | None:
        """Return a draft whose fault has the kind ``kind`` and can be combined with ``drafts``, or
        None.

        Policies are tried in a random order that is weighted with ``odds``.
        """
        taken = {one.policy for one in drafts}
        free = [policy for policy in self._places if policy.name in odds.keys() - taken]
        # Sorting by exponentially distributed numbers puts each policy first with a probability in
        # proportion to its weight.
        free.sort(key=lambda policy: self._rng.expovariate(odds[policy.name]))
        for policy in free:
            for _ in range(_CHANCES):
                one = self._of_kind(policy, kind)
                if one is not None and self._goes(one, drafts):
                    return one
        return None

    def _of_kind(self, policy: Policy, kind: str) -> Draft | None:
        """Return a draft whose fault has the kind ``kind`` and changes a tested connection, or
        None.

        If the policy was altered by a fault of this kind, the intended spec is the spec before the
        alteration.
        """
        known = self._altered.get(policy.name)
        if known is not None and known.kind == kind:
            one = _draft(policy, kind, known.method, _before(known))
            return one if self._shows((), [one]) else None
        if kind == "pod_selector" and not self._shown.plan:
            selected = self._selecting(policy)
            return selected if selected is not None and self._shows((), [selected]) else None
        methods = methods_of(self._shown)
        inverse = [
            (other, name, method)
            for other, name, method in _INVERTED.get(kind, ())
            if name in methods.get(other, {})
        ]
        if not inverse:
            return None
        other, name, method = self._rng.choice(inverse)
        spec = methods[other][name](Scene(self._shown, policy, self._rng))
        if spec is None or spec == policy.spec:
            return None
        one = _draft(policy, kind, method, spec)
        return one if self._shows((), [one]) else None

    def _selecting(self, policy: Policy) -> Draft | None:
        """Return a draft in which a policy that selects no pod is intended to select the
        application with the most similar labels. Return None for any other policy."""
        selector = cast("Manifest", policy.spec["podSelector"])
        labels: Mapping[str, str] | None = selector.get("matchLabels")
        if not labels or any(selects(selector, pod) for pod in self._shown.marks.pods.values()):
            return None
        app = max(self._shown.apps, key=lambda app: _similarity(labels, app.labels))
        missing, more = app.labels.keys() - labels.keys(), labels.keys() - app.labels.keys()
        method = "key" if missing else "more" if more else "typo"
        spec = {**copied(policy.spec), "podSelector": {"matchLabels": dict(app.labels)}}
        return _draft(policy, "pod_selector", method, spec)

    def _completed(self, policy: Policy, uses: int | None = None) -> Draft | None:
        """Return a draft whose intended spec allows one more connection, or all connections
        ``uses``. Return None if no draft is found.

        ``uses`` has one bit for each connection of ``World.matrix``. All of them must have the
        policy's pods at the same end.
        """
        spec = copied(policy.spec)
        world, rng = self._shown, self._rng
        kind, method = "remove_ingress", "rule"
        selector = spec["podSelector"]
        about = [app for app in world.apps if selects(selector, world.marks.pods[app.name])]
        if uses is None:
            # Prefer a connection of the selected applications, then of similar applications, then
            # of any.
            for some in (about, _nearest(world, selector), world.apps):
                if blocked := self._blocked_once({app.name for app in some}):
                    break
            else:
                return None
            place, inward = rng.choice(blocked)
            uses, use = 1 << place, cast("Use", world.matrix.uses[place])
            if some is not about:
                about = [world.by_name[use.target if inward else use.source]]
                spec["podSelector"] = {"matchLabels": dict(about[0].labels)}
                kind, method = "pod_selector", "mark" if world.plan else "typo"
        names = {app.name for app in about}
        wanted = [cast("Use", world.matrix.uses[place]) for place in numbers(uses)]
        inward = all(use.target in names for use in wanted)
        if not inward and not all(use.source in names for use in wanted):
            return None
        direction, key, peers = (INGRESS, "ingress", "from") if inward else (EGRESS, "egress", "to")
        types = policy_types(spec)
        if direction not in types:
            kind, method = "policy_types", "egress" if inward else "ingress"
        elif not inward and kind == "remove_ingress":
            kind, method = "add_egress", "fewer" if world.plan else "only_to"
        spec["policyTypes"] = sorted({*types, direction}, reverse=True)
        rules = [*(spec.get(key) or ())]
        for use in wanted:
            other = world.by_name[use.source if inward else use.target]
            rules.insert(
                rng.randint(0, len(rules)),
                {
                    peers: [{"podSelector": {"matchLabels": dict(other.labels)}}],
                    "ports": [{"port": use.port, "protocol": use.protocol}],
                },
            )
        if not inward and not all(world.healthy.resolves(use.source) for use in wanted):
            rules.append(copied(LOOKUPS))
        spec[key] = rules
        return _draft(policy, kind, method, spec)

    def _blocked_once(self, names: set[str]) -> list[tuple[int, bool]]:
        """Return (index, inward) of each pair that policies block at only one end, where this end
        is an application in ``names``. ``inward`` is true if this end is the target."""
        out, into = self._now
        return [
            (place, inward)
            for bits, end, inward in ((out & ~into, "target", True), (into & ~out, "source", False))
            for place in numbers(bits & self._pairs)
            if getattr(self._shown.matrix.uses[place], end) in names
        ]

    # Faults that hide other faults

    def _couple(self, first: Policy, second: Policy, *, ordered: bool) -> list[Draft] | None:
        """Return two drafts; the fault of the first draft hides the fault of the second draft.
        Return None if no such drafts are found.

        The first fault blocks connections at one end. The second fault also blocks one of these
        connections at the other end. With ``ordered``, the second fault wrongly allows the
        connection at the other end instead.
        """
        for wide, hidden in self._rng.sample(((first, second), (second, first)), 2):
            near, far = self._reach(wide), self._reach(hidden)
            if ordered:
                shared = near.blocked_out & far.lets_in | near.blocked_in & far.lets_out
            else:
                shared = near.blocked_out & far.blocked_in | near.blocked_in & far.blocked_out
            for place in self._some(shared, _CHANCES):
                use = cast("Use", self._shown.matrix.uses[place])
                for one in self._wide(wide, near, use, place):
                    found = self._hidden(one, use, hidden, ordered=ordered)
                    if found is not None:
                        return found
        return None

    def _wide(self, policy: Policy, reach: _Reach, use: Use, place: int) -> Iterator[Draft]:
        """Yield drafts for a policy whose fault blocks the connection ``use``, which has the index
        ``place`` in ``World.matrix``."""
        one = self.draft(policy)
        if one is not None:
            yield one
        outward = reach.blocked_out >> place & 1
        now = self._now
        # Other connections of the same application that are also blocked only at this end. A draft
        # may allow one of them in addition to ``use``.
        rest = reach.blocked_out & now.into if outward else reach.blocked_in & now.out
        end = use.source if outward else use.target
        more = [
            other
            for other in self._some(rest & ~(1 << place), len(self._shown.pairs))
            if end in cast("Use", self._shown.matrix.uses[other])[:2]
        ]
        for bits in (*(1 << other for other in more[:1]), 0):
            if (two := self._completed(policy, bits | 1 << place)) is not None:
                yield two

    def _hidden(self, wide: Draft, use: Use, place: Policy, *, ordered: bool) -> list[Draft] | None:
        """Return ``wide`` and a draft for the policy ``place``. The fault of ``wide`` hides the
        fault of this draft. Return None if no such draft is found."""
        for other in self._ends_of(use, place, ordered=ordered):
            both = [wide, other]
            if not self._is_masked(both, wide, other):
                continue
            if bool(self._harms((), [wide], both)) == ordered and not self._harms(
                (), [other], both
            ):
                return both
        return None

    def _ends_of(self, use: Use, place: Policy, *, ordered: bool) -> Iterator[Draft]:
        """Yield drafts for a policy at one end of ``use`` whose intended spec allows ``use`` or,
        with ``ordered``, blocks it."""
        kinds = ("remove_ingress", "peer_label") if ordered else ("add_ingress",)
        world, rng = self._shown, self._rng
        near = tuple(world.by_name[end] for end in use[:2] if end in world.by_name)
        for _ in range(_HIDDEN):
            kind = rng.choice((*kinds, "add_egress"))
            method = rng.choice(sorted(self._methods[kind]))
            spec = self._methods[kind][method](Scene(world, place, rng, near))
            if spec is not None and spec != place.spec:
                yield _draft(place, *_INVERSE[kind, method], spec)
        if ordered:
            yield from self._narrowed(place, use)
        elif (one := self._completed(place, 1 << world.matrix.uses.index(use))) is not None:
            yield one

    def _narrowed(self, policy: Policy, use: Use) -> Iterator[Draft]:
        """Yield drafts whose intended spec lacks one of the peers or rules that allow ``use``."""
        place = self._shown.matrix.uses.index(use)
        for direction, key, peers in (("lets_in", "ingress", "from"), ("lets_out", "egress", "to")):
            if not getattr(self._shown.effect(policy), direction) >> place & 1:
                continue
            rules = cast("list[dict[str, Any]]", policy.spec[key])
            kind, method = ("add_ingress", "peer") if key == "ingress" else ("add_egress", "more")
            for number, rule in enumerate(rules):
                # A rule without peers matches every peer, so at least one peer must remain.
                for rest in filter(None, _each_without(rule.get(peers) or ())):
                    some = [*rules[:number], {**rule, peers: rest}, *rules[number + 1 :]]
                    yield _draft(policy, kind, method, {**policy.spec, key: copied(some)})
            method = "rule" if key == "ingress" else method
            for some in _each_without(rules):
                yield _draft(policy, kind, method, {**policy.spec, key: copied(some)})

    def _some(self, bits: int, most: int) -> list[int]:
        """Return the positions of at most ``most`` set bits, chosen at random, in random order."""
        found = [*numbers(bits)]
        return self._rng.sample(found, min(most, len(found)))

    # Checks of the drawn faults

    def faults(self, world: World, drafts: Sequence[Draft]) -> tuple[Fault, ...] | None:
        """Return the faults of the shown policies in the intended world ``world``. Return None if
        one of these faults by itself changes no tested connection."""
        now = {policy.name: policy for policy in self._shown.policies}
        then = {policy.name: policy for policy in world.policies}
        found = []
        for one in drafts:
            spec = now[one.policy].spec
            fault = make_fault(world, one.kind, one.method, then[one.policy], spec)
            if fault is None:
                return None
            masks = [
                other
                for other in drafts
                if other is not one and self._is_masked(drafts, one, other)
            ]
            after = []
            for other in masks:
                rest = [draft for draft in drafts if draft not in (one, other)]
                if self._harms(rest, [*rest, one], drafts):
                    after.append(other.policy)
            found.append(
                fault.model_copy(
                    update={"masks": tuple(one.policy for one in masks), "after": tuple(after)}
                )
            )
        return tuple(found)

    def _goes(self, one: Draft, drafts: Sequence[Draft]) -> bool:
        """Return whether the fault of ``one`` can be combined with ``drafts``.

        Each fault must change a tested connection when it is the only fault left, and repairs must
        be safe in either order.
        """
        every = [*drafts, one]
        return self._shows(drafts, every) and all(
            self._shows([draft for draft in every if draft is not other], every)
            and not self._harms(rest, [*rest, one], every)
            and not self._harms(rest, [*rest, other], every)
            for other in drafts
            for rest in [[draft for draft in drafts if draft is not other]]
        )

    def _shows(self, repaired: Sequence[Draft], drafts: Sequence[Draft]) -> bool:
        """Return whether the faults that remain after the repair of ``repaired`` change a tested
        connection."""
        return self._judged(repaired, drafts) != self._judged(drafts, drafts)

    def _is_masked(self, drafts: Sequence[Draft], one: Draft, other: Draft) -> bool:
        """Return whether the fault of ``one`` hides the fault of ``other``.

        While the fault of ``one`` remains, a repair of ``other`` must change no tested connection.
        Each of the two faults must change a tested connection by itself.
        """
        rest = [draft for draft in drafts if draft not in (one, other)]
        return (
            self._judged(rest, drafts) == self._judged([*rest, other], drafts)
            and self._shows([*rest, one], drafts)
            and self._shows([*rest, other], drafts)
        )

    def _harms(
        self, before: Sequence[Draft], after: Sequence[Draft], drafts: Sequence[Draft]
    ) -> int:
        """Return the connections, as bits, that were as intended after the repair of ``before``,
        but are not after the repair of ``after``."""
        right = self._judged(drafts, drafts)
        return harms(right, self._judged(before, drafts), self._judged(after, drafts))

    def _judged(self, repaired: Sequence[Draft], drafts: Sequence[Draft]) -> int:
        """Return the connections, as bits, that work after the repair of ``repaired``.

        Connections that the plan names but the intended policies do not allow are left out, because
        they are not judged.
        """
        return self._state(repaired).both & (self._pairs | self._state(drafts).both)

    def _state(self, repaired: Sequence[Draft]) -> Sides:
        """Return the connections that policies allow in each direction after the repair of
        ``repaired``."""
        shown = self._shown
        meant = {one.policy: one.meant for one in repaired}
        key = frozenset((name, policy.text) for name, policy in meant.items())
        if key not in self._states:
            effects = (
                shown.effect(meant[policy.name]) if policy.name in meant else effect
                for policy, effect in zip(shown.policies, shown.effects, strict=True)
            )
            self._states[key] = shown.matrix.sides(effects)
        return self._states[key]


def _alone(parts: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield, for each rule and each peer, the connections (as bits) that only this rule or peer
    allows.

    ``parts`` has, for each rule, the connections that each of its peers allows.
    """
    for number, peers in enumerate(parts):
        rest = _union(bits for other, some in enumerate(parts) if other != number for bits in some)
        yield _union(peers) & ~rest
        for place, bits in enumerate(peers):
            yield bits & ~rest & ~_union(some for other, some in enumerate(peers) if other != place)


def _union(some: Iterable[int]) -> int:
    found = 0
    for bits in some:
        found |= bits
    return found


def _each_without(some: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the list without its first item, then without its second item, and so on."""
    for place in range(len(some)):
        yield [*some[:place], *some[place + 1 :]]


def _fit(one: _Reach, other: _Reach) -> bool:
    """Return whether the policies select the two ends of some pair, and the pair is blocked at both
    ends."""
    return bool(one.blocked_out & other.blocked_in | one.blocked_in & other.blocked_out)


def _fit_in_order(one: _Reach, other: _Reach) -> bool:
    """Return whether some pair is blocked at the end that one policy selects, and allowed by a rule
    of the other policy at the other end."""
    return bool(
        one.blocked_out & other.lets_in
        | one.blocked_in & other.lets_out
        | one.lets_in & other.blocked_out
        | one.lets_out & other.blocked_in
    )


def _nearest(world: World, selector: Any) -> list[App]:
    """Return the applications whose labels share the most values with a selector."""
    wanted = {*(selector.get("matchLabels") or {}).values()}
    # A matching name counts more than a team or a role.
    shared = {
        app.name: 2 * (app.name in wanted) + len(wanted.intersection(app.labels.values()))
        for app in world.apps
    }
    return [app for app in world.apps if shared[app.name] == max(shared.values())]


def _similarity(one: Mapping[str, str], other: Mapping[str, str]) -> float:
    """Return how similar the texts of two sets of labels are, from 0 to 1."""
    first, second = (
        ",".join(f"{key}={labels[key]}" for key in sorted(labels)) for labels in (one, other)
    )
    return SequenceMatcher(None, first, second, autojunk=False).ratio()


def put(policies: Iterable[Policy], specs: Mapping[str, Spec]) -> tuple[Policy, ...]:
    """Return ``policies`` with the specs in ``specs`` (policy name -> spec) in place of their
    own."""
    return tuple(
        policy.model_copy(update={"spec": specs[policy.name]}) if policy.name in specs else policy
        for policy in policies
    )


def _before(fault: Fault) -> Spec:
    """Return the spec that a policy had before the alteration ``fault``, computed with the repair
    patch."""
    spec = dict(fault.spec)
    for step in fault.repair:
        part = str(step["path"]).rpartition("/")[2]
        if step["op"] == "remove":
            spec.pop(part, None)
        else:
            spec[part] = step["value"]
    return spec
