"""Faults of tickets: the policies that are shown are drawn first, and what is intended after them.

The shown policies do not depend on the number of faults, nor on their place: each policy has the
same chance to be chosen, and then its intended spec is drawn. So without the documentation nothing
in the policies shows which ones are wrong, or whether any is.

For an altered policy (``source.alter``) the intended spec is the one from before the alteration.
For any other policy it is drawn by a method that takes something away or adds something.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from netarena_k8s.fault.mask import about_any, doubts
from netarena_k8s.fault.subtle import LOOKUPS, methods_of
from netarena_k8s.fault.table import Fault, Scene, draw_one, make_fault
from netarena_k8s.world.model import Net, Pair, Policy, Spec, World, with_policies
from netarena_k8s.world.plan import Use
from netarena_k8s.world.policy import EGRESS, INGRESS, policy_types, text_of

#: of the draws of several faults, in how many one is to hide another, and of these in how many the
#: order matters
_SHARE, _ORDERED = 0.45, 0.6
#: draws of a place, of what one policy should be, of a fault that another one hides, and of all
_PLACES, _TRIES, _HIDDEN, _STARTS = 60, 16, 3, 6
#: connections that a fault blocks, and policies at the other end of each, of which one may be wrong
_PAIRS, _FAR = 3, 3
#: drafts that are tried for one policy, and policies that are tried for the first of a couple
_CHANCES, _COUPLES = 3, 16
#: methods that give what an unaltered policy should be -> the fault that the shown policy then has
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


#: kinds of method that give what an unaltered policy should be -> how often each is tried; those
#: that apply to nearly every policy seldom
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
    """A policy that is wrong, as it should be."""

    policy: str
    kind: str
    method: str
    meant: Spec


def draw_intended(
    shown: World, altered: Mapping[str, Fault], number: int, rng: random.Random
) -> tuple[World, tuple[Fault, ...]] | None:
    """Return the world in which ``number`` policies of ``shown`` are wrong, and these faults; None
    where none are found.

    Each fault shows when it is the only one left, and every order of repairing them that follows
    ``after`` is safe.
    """
    masked = number > 1 and rng.random() < _SHARE
    ordered = masked and rng.random() < _ORDERED
    source = _Source(shown, altered, rng)
    for _ in range(_STARTS):
        drafts = source.couple(ordered=ordered) if masked else []
        if ordered and not drafts:
            drafts = source.couple(ordered=False)
        for _ in range(_PLACES):
            if len(drafts) >= number:
                break
            drafts = source.one_more(drafts)
        if len(drafts) < number:
            continue
        rng.shuffle(drafts)
        world = meant(shown, drafts)
        faults = source.faults(world, drafts)
        if faults is not None and not doubts(world, faults):
            return world, faults
    return None


def meant(shown: World, drafts: Iterable[Draft]) -> World:
    """The world whose intended policies are the shown ones, but for the drafts."""
    specs = {one.policy: one.meant for one in drafts}
    return with_policies(shown, put(shown.policies, specs))


class _Source:
    """Draws drafts for the policies of ``shown``."""

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
        # the policy that denies everything is the same in every world
        self._places = [policy for policy in shown.policies if policy.spec["podSelector"]]
        self._uses = [use for uses in shown.named for use in uses]
        self._seen: dict[frozenset[tuple[str, str]], tuple[bool, ...]] = {}

    def one_more(self, drafts: Sequence[Draft]) -> list[Draft]:
        """The drafts and one more, if this draw finds one that goes with each of them."""
        policy = self._rng.choice(self._places)
        if policy.name in {one.policy for one in drafts}:
            return [*drafts]
        # each policy gets several chances: none is to be wrong more often because it is large
        for _ in range(_CHANCES):
            one = self._draw(policy)
            if one is not None and self._goes(one, drafts):
                return [*drafts, one]
        return [*drafts]

    def couple(self, *, ordered: bool) -> list[Draft]:
        """A draft and one whose fault the first one's hides; none where none are found.

        The first fault blocks connections at one end. The second one, at the other end of one of
        them, lets it through where it should not if ``ordered``, else blocks it too.
        """
        for place in self._rng.sample(self._places, min(_COUPLES, len(self._places))):
            for _ in range(_CHANCES):
                wide = self._draw(place)
                if wide is not None and (found := self._couple_with(wide, ordered=ordered)):
                    return found
        return []

    def _couple_with(self, wide: Draft, *, ordered: bool) -> list[Draft]:
        rows = zip(self._shown.pairs, self._see(()), self._see([wide]), strict=False)
        blocked = [pair for pair, was, now in rows if now and not was]
        if not blocked:
            return []
        if not ordered:
            blocked = self._half(wide)
        for pair in self._rng.sample(blocked, min(_PAIRS, len(blocked))):
            for place in self._far(wide, pair):
                both = self._hidden(wide, pair, place, ordered=ordered)
                if both is not None:
                    return both
        return []

    def _half(self, wide: Draft) -> list[Pair]:
        """Pairs that the repair of a draft lets through at its end, and the other end blocks."""
        healed = Net(self._shown, put(self._shown.policies, {wide.policy: wide.meant}))
        now = self._shown.healthy
        return [
            pair
            for pair, use in zip(self._shown.pairs, self._shown.needs, strict=True)
            if use is not None
            and (
                (healed.leaves(use) and not now.leaves(use) and not now.enters(use))
                or (healed.enters(use) and not now.enters(use) and not now.leaves(use))
            )
        ]

    def _far(self, wide: Draft, pair: Pair) -> list[Policy]:
        """Policies about the end of a pair that a draft's policy is not about, in any order."""
        (policy,) = (one for one in self._places if one.name == wide.policy)
        healed = Policy(name=wide.policy, spec=wide.meant)
        ends = [
            end
            for end in pair
            if not any(about_any(self._shown, one, {end}) for one in (policy, healed))
        ]
        found = [
            one
            for one in self._places
            if one.name != wide.policy and about_any(self._shown, one, set(ends))
        ]
        self._rng.shuffle(found)
        return found[:_FAR]

    def _hidden(
        self, wide: Draft, pair: Pair, place: Policy, *, ordered: bool
    ) -> list[Draft] | None:
        """A draft for ``place`` whose fault that of ``wide`` hides."""
        kinds = ("remove_ingress", "peer_label") if ordered else ("add_ingress",)
        world, rng = self._shown, self._rng
        near = tuple(world.by_name[end] for end in pair)
        for _ in range(_HIDDEN):
            kind = rng.choice((*kinds, "add_egress"))
            method = rng.choice(sorted(self._methods[kind]))
            spec = self._methods[kind][method](Scene(world, place, rng, near))
            if spec is None or spec == place.spec:
                continue
            other = Draft(place.name, *_INVERSE[kind, method], spec)
            both = [wide, other]
            if not self._is_masked(both, wide, other):
                continue
            if self._harms((), [wide], both) == ordered and not self._harms((), [other], both):
                return both
        return None

    def faults(self, world: World, drafts: Sequence[Draft]) -> tuple[Fault, ...] | None:
        """The faults of the shown policies in ``world``; None where one does not show alone."""
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
        """Whether the fault of ``one`` and each other one show alone, and may be repaired in either
        order."""
        every = [*drafts, one]
        return self._shows(drafts, every) and all(
            self._shows([draft for draft in every if draft is not other], every)
            and not self._harms(rest, [*rest, one], every)
            and not self._harms(rest, [*rest, other], every)
            for other in drafts
            for rest in [[draft for draft in drafts if draft is not other]]
        )

    def _shows(self, repaired: Sequence[Draft], drafts: Sequence[Draft]) -> bool:
        """Whether the faults that are left show."""
        return self._as_judged(repaired, drafts) != self._see(drafts)

    def _is_masked(self, drafts: Sequence[Draft], one: Draft, other: Draft) -> bool:
        """Whether the fault of ``other`` shows alone, and not while that of ``one`` is there."""
        rest = [draft for draft in drafts if draft not in (one, other)]
        with_both = self._as_judged(rest, drafts)
        return (
            with_both == self._as_judged([*rest, other], drafts)
            and self._shows([*rest, one], drafts)
            and self._shows([*rest, other], drafts)
        )

    def _harms(
        self, before: Sequence[Draft], after: Sequence[Draft], drafts: Sequence[Draft]
    ) -> bool:
        """Whether something stops being as intended from one state of repair to another."""
        states = self._as_judged(before, drafts), self._as_judged(after, drafts)
        rows = zip(*states, self._see(drafts), strict=True)
        return any(was == right != now for was, now, right in rows)

    def _as_judged(self, repaired: Sequence[Draft], drafts: Sequence[Draft]) -> tuple[bool, ...]:
        """What works where ``repaired`` are in force.

        A named use that the intended policies do not allow is not judged.
        """
        pairs = len(self._shown.pairs)
        now, right = self._see(repaired), self._see(drafts)
        uses = (
            one if wanted else wanted
            for one, wanted in zip(now[pairs:], right[pairs:], strict=True)
        )
        return (*now[:pairs], *uses)

    def _see(self, repaired: Sequence[Draft]) -> tuple[bool, ...]:
        """Whether each pair and each named use works where these drafts are in force."""
        specs = {one.policy: one.meant for one in repaired}
        key = frozenset((name, text_of(spec)) for name, spec in specs.items())
        if key not in self._seen:
            net = Net(self._shown, put(self._shown.policies, specs))
            self._seen[key] = (*net.reached, *map(net.allows, self._uses))
        return self._seen[key]

    def _draw(self, policy: Policy) -> Draft | None:
        """What a policy should be, so that the shown one is wrong."""
        if (known := self._altered.get(policy.name)) is not None:
            one = Draft(policy.name, known.kind, known.method, _before(known))
            if self._shows((), [one]):
                return one
        for _ in range(_TRIES):
            (kind,) = self._rng.choices(self._kinds, self._weights)
            found = draw_one(self._shown, kind, policy, self._rng, self._methods)
            if found is not None:
                one = Draft(policy.name, *_INVERSE[kind, found.method], found.spec)
                if self._shows((), [one]):
                    return one
        # a policy that allows nothing is as likely to be wrong as any other
        for _ in range(_CHANCES):
            completed = self._completed(policy)
            if completed is not None and self._shows((), [completed]):
                return completed
        return None

    def _completed(self, policy: Policy) -> Draft | None:
        """A policy with a rule more, in force for an application."""
        spec: dict[str, Any] = copy.deepcopy(dict(policy.spec))
        world, rng = self._shown, self._rng
        labels = (spec["podSelector"] or {}).get("matchLabels") or {}
        about = [app for app in world.apps if labels.items() <= app.labels.items()]
        kind, method = "remove_ingress", "rule"
        if not about:
            about = [world.by_name[name] for name in labels.values() if name in world.by_name]
            if not about:
                return None
            spec["podSelector"] = {"matchLabels": dict(about[0].labels)}
            kind, method = "pod_selector", "mark" if world.plan else "typo"
        app = rng.choice(about)
        inward = bool(app.service)
        direction, key, peers = (INGRESS, "ingress", "from") if inward else (EGRESS, "egress", "to")
        if direction not in policy_types(spec):
            kind, method = "policy_types", "egress" if inward else "ingress"
        elif not inward and kind == "remove_ingress":
            kind, method = "add_egress", "fewer" if world.plan else "only_to"
        spec["policyTypes"] = sorted({*policy_types(spec), direction}, reverse=True)
        use = self._one_more_use(app.name, inward=inward)
        if use is None:
            return None
        other = world.by_name[use.source if inward else use.target]
        rules: list[dict[str, Any]] = [
            {
                peers: [{"podSelector": {"matchLabels": dict(other.labels)}}],
                "ports": [{"port": use.port, "protocol": use.protocol}],
            }
        ]
        if not inward and not world.healthy.resolves(app.name):
            rules.append(copy.deepcopy(dict(LOOKUPS)))
        spec[key] = [*(spec.get(key) or ()), *rules]
        return Draft(policy.name, kind, method, spec)

    def _one_more_use(self, name: str, *, inward: bool) -> Use | None:
        """A connection of an application that only its own end blocks."""
        now = self._shown.healthy
        found = [
            use
            for use in self._shown.needs
            if use is not None
            and (use.target if inward else use.source) == name
            and (now.leaves(use) and not now.enters(use) if inward else now.enters(use))
            and not now.allows(use)
        ]
        return self._rng.choice(found) if found else None


def put(policies: Iterable[Policy], specs: Mapping[str, Spec]) -> tuple[Policy, ...]:
    """Policies with other specs for some."""
    return tuple(
        policy.model_copy(update={"spec": specs[policy.name]}) if policy.name in specs else policy
        for policy in policies
    )


def _before(fault: Fault) -> Spec:
    """The spec of a policy before it was altered, by the patch that leads back to it."""
    spec = dict(fault.spec)
    for step in fault.repair:
        part = str(step["path"]).rpartition("/")[2]
        if step["op"] == "remove":
            spec.pop(part, None)
        else:
            spec[part] = step["value"]
    return spec
