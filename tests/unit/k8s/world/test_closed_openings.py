"""Removal of closed openings from policies, checked against a complete comparison."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

import pytest

from netarena_k8s.source.large import estate
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.exposure import opened, without_openings
from netarena_k8s.world.model import Policy, World

STEPS = 12
#: the last namespace is that of a guest in large worlds
SPACES = ("shop", "default", "telemetry")


def by_complete_comparison(
    world: World, states: tuple[Sequence[Policy], Sequence[Policy], Sequence[Policy]], space: str
) -> tuple[tuple[Policy, ...], ...]:
    """Return the result of ``without_openings``, by comparing all traffic of each policy."""
    initial, before, after = states
    meant = {policy.name: policy for policy in world.policies}
    start = {policy.name: policy for policy in initial}
    now = {policy.name: policy for policy in after}

    def openings(policies: Sequence[Policy]) -> set[Any]:
        return {*opened(world, (world.policies, after), policies, space)}

    def replaced(names: Collection[str]) -> tuple[Policy, ...]:
        return tuple(meant[one.name] if one.name in names else one for one in before)

    closed = openings(before)
    if not closed:
        return ()
    changed = {
        one.name for one in before if one.name in meant and now.get(one.name, one).spec != one.spec
    }
    names = {name for name in changed if now[name].spec == meant[name].spec}
    names |= {name for name in changed if not closed <= openings(replaced({name}))}
    if closed & openings(replaced(names)):
        names = changed
    remaining = replaced(names)
    return remaining, tuple(
        one
        if one.name in names or one.name not in meant or one.spec == meant[one.name].spec
        else start.get(one.name, one)
        for one in remaining
    )


def rewrite(rng: random.Random, world: World, policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """Return the policies after one write: a wider, narrower, intended or deleted policy."""
    held = {one.name: one for one in policies}
    meant = rng.choice(world.policies)
    spec = deepcopy(held.get(meant.name, meant).spec)
    direction, peers = rng.choice([("ingress", "from"), ("egress", "to")])
    block = {"cidr": rng.choice(["0.0.0.0/0", "203.0.113.0/24", "10.244.0.0/24"])}
    peer = rng.choice([{"ipBlock": block}, {"podSelector": {}}, {"namespaceSelector": {}}])
    rules: list[Any] = spec.setdefault(direction, [])  # type: ignore[assignment]  # of the API
    match rng.choice(["intended", "open", "add", "add", "shut", "delete"]):
        case "intended":
            spec = meant.spec
        case "open":
            rules[:] = [{}]
        case "add":
            rules.append({peers: [peer], "ports": [{"port": rng.choice([53, 8080])}]})
        case "shut":
            rules.clear()
        case _:
            held.pop(meant.name, None)
            return tuple(held.values())
    held[meant.name] = Policy(name=meant.name, spec=spec)
    return tuple(sorted(held.values(), key=lambda one: one.name))


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("seed", range(2))  # a drawn application, and a large one
def test_policies_without_closed_openings_equal_those_of_a_complete_comparison(
    seed: int, space: str
) -> None:
    rng = random.Random(seed)
    world = estate(rng, 20, 20) if seed % 2 else varied(rng)
    initial = tuple(world.policies)
    for _ in range(3):
        initial = rewrite(rng, world, initial)
    before, found = initial, 0
    for _ in range(STEPS):
        after = before
        for _ in range(rng.choice([1, 1, 3, 8])):
            after = rewrite(rng, world, after)
        states = initial, before, after
        expected = by_complete_comparison(world, states, space)
        assert without_openings(world, states, space) == expected
        found += len(expected)
        before = after
    assert found


def changed(policies: Sequence[Policy], **specs: dict[str, Any]) -> tuple[Policy, ...]:
    """Return the policies, some of them with other values in their specs."""
    return tuple(
        Policy(name=one.name, spec={**one.spec, **specs.get(one.name, {})}) for one in policies
    )


def test_block_that_only_one_policy_names_is_compared_on_all_links() -> None:
    world = boutique()
    port = [{"port": 9}]
    block = {"from": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": port}
    before = changed(world.policies, adservice={"ingress": [block]}, cartservice={"ingress": [{}]})
    after = changed(world.policies, adservice={"ingress": [{"ports": port}]})
    states = before, before, after
    expected = by_complete_comparison(world, states, "shop")
    assert without_openings(world, states) == expected
    assert expected[0] == world.policies


def test_policy_that_selects_only_a_guest_closes_an_opening_of_the_guest() -> None:
    world = estate(random.Random(1), 20, 20)
    assert world.plan is not None
    guest = world.plan.guests[0]
    shut = Policy(
        name="guest",
        spec={
            "podSelector": {"matchLabels": dict(guest.labels)},
            "policyTypes": ["Egress"],
            "egress": [],
        },
    )
    world = world.model_copy(update={"policies": (*world.policies, shut)})
    # a policy that selects one application, whose ingress is restricted
    (own, *_) = [
        one for one in world.policies if one.spec.get("ingress") == [] and one.spec["podSelector"]
    ]
    before = changed(world.policies, **{own.name: {"ingress": [{}]}, "guest": {"egress": [{}]}})
    nobody = {"to": [{"podSelector": {"matchLabels": {"app": "nobody"}}}]}
    after = changed(world.policies, guest={"egress": [nobody]})
    states = before, before, after
    expected = by_complete_comparison(world, states, guest.space)
    assert without_openings(world, states, guest.space) == expected
    assert expected[0] == world.policies
