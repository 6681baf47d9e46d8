"""Causes in a declaration that are as correct as the injected causes.

Several policies may select the same application, and a connection may be blocked or allowed at
either end. If the repair of another policy has the same effect, a cause with this other policy is
equally correct. A cause with another word that describes the same fault is also correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from netarena.sdk import Cause
from netarena_k8s.declaration import WORD_OF
from netarena_k8s.fault.table import Fault, faulty
from netarena_k8s.world.model import Net, Policy, World
from netarena_k8s.world.plan import Use
from netarena_k8s.world.policy import EGRESS, INGRESS, policy_types, selects

#: kind of fault -> words that also describe it, in addition to its own word
_ALSO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "change_protocol": ("port",),
        "namespace_peer": ("peer",),
        "ip_block": ("peer",),
        "dns_egress": ("egress",),
        "egress_port": ("port",),
    }
)


def as_injected(world: World, faults: Sequence[Fault], named: Sequence[Cause]) -> list[Cause]:
    """Return the named causes, with each equivalent of an injected cause replaced by the injected
    cause."""
    own = [Cause(fault.policy, WORD_OF[fault.kind]) for fault in faults]
    wrong = {fault.policy for fault in faults}
    known: dict[Cause, Cause] = {}
    for fault, cause in zip(faults, own, strict=True):
        for one in accepted(world, fault):
            # A second faulty policy has its own cause, so it does not count as a cause of this one.
            if one.place == fault.policy or one.place not in wrong:
                known.setdefault(one, cause)
    return [one if one in own else known.get(one, one) for one in named]


def accepted(world: World, fault: Fault) -> Iterator[Cause]:
    """Yield all causes that correctly describe a fault if it is the only fault."""
    policies = faulty(world, [fault])
    healthy, now = world.healthy, Net(world, policies)
    uses = [*filter(None, world.needs), *world.uses]
    blocked = [use for use in uses if healthy.allows(use) and not now.allows(use)]
    opened = [use for use in uses if now.allows(use) and not healthy.allows(use)]
    for word in {WORD_OF[fault.kind], *_ALSO.get(fault.kind, ()), *_by_parts(world, fault)}:
        yield Cause(fault.policy, word)
    others = [policy for policy in policies if policy.name != fault.policy]
    if blocked and not opened:
        yield from _may_let(world, now, others, blocked)
    if opened and not blocked:
        yield from _may_stop(world, policies, others, opened)


def _by_parts(world: World, fault: Fault) -> Iterator[str]:
    """Yield words that describe which parts of the spec are wrong."""
    (policy,) = (one for one in world.policies if one.name == fault.policy)
    parts = {
        key for key in {*policy.spec, *fault.spec} if policy.spec.get(key) != fault.spec.get(key)
    }
    if "egress" in parts:
        yield "egress"
    if parts != {"egress"}:
        if fault.broken or fault.stopped:
            yield "missing"
        if fault.opened:
            yield "extra"
            yield "peer"


def _may_let(
    world: World, now: Net, others: Sequence[Policy], blocked: Sequence[Use]
) -> Iterator[Cause]:
    """Yield causes that name policies in which one more rule could allow the blocked
    connections."""
    for direction, passes, other, word in (
        (INGRESS, now.enters, now.leaves, "missing"),
        (EGRESS, now.leaves, now.enters, "egress"),
    ):
        if any(map(passes, blocked)) or not all(map(other, blocked)):
            continue
        ends = {use.target if direction == INGRESS else use.source for use in blocked}
        for policy in others:
            about = _about(world, policy, direction)
            if ends <= about and policy.spec["podSelector"]:
                yield Cause(policy.name, word)
                if word == "egress" and not all(map(now.resolves, ends & {*world.by_name})):
                    yield Cause(policy.name, "lookup")


def _may_stop(
    world: World, policies: Sequence[Policy], others: Sequence[Policy], opened: Sequence[Use]
) -> Iterator[Cause]:
    """Yield causes that name policies that allow the wrongly opened connections. Without the rules
    of such a policy, all of these connections would be blocked."""
    for policy in others:
        for direction, key, words in (
            (INGRESS, "ingress", ("extra", "peer")),
            (EGRESS, "egress", ("egress",)),
        ):
            rules = policy.spec.get(key)
            ends = {use.target if direction == INGRESS else use.source for use in opened}
            if not rules or not ends <= _about(world, policy, direction):
                continue
            # A rule that allows all egress was not written for the opened connections.
            if isinstance(rules, list) and {} in rules:
                continue
            bare = policy.model_copy(update={"spec": {**policy.spec, key: []}})
            net = Net(world, [bare if one is policy else one for one in policies])
            if not any(map(net.allows, opened)):
                for word in words:
                    yield Cause(policy.name, word)


def _about(world: World, policy: Policy, direction: str) -> set[str]:
    """Return the applications to which a policy applies in one direction."""
    if direction not in policy_types(policy.spec):
        return set()
    selector = policy.spec.get("podSelector")
    labels = world.marks.pods
    return {
        name
        for name, own in labels.items()
        if isinstance(selector, dict) and selects(selector, own)
    }
