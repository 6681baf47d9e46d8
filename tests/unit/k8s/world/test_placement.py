"""Caching of policies and skipping of unchanged ones do not change any verdict."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from netarena_k8s.fault.table import KINDS, draw, faulty
from netarena_k8s.source.varied import varied
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.exposure import narrowed, opened
from netarena_k8s.world.model import Net, Policy, World, outside_of
from netarena_k8s.world.placement import Ground, Link
from netarena_k8s.world.policy import EGRESS, INGRESS, Book, Endpoint, Port, Rules, Side
from netarena_k8s.world.port_set import NONE, difference, intersection, show, union

STEPS = 6
GONE = {"matchLabels": {"app": "gone"}}
ELSEWHERE = {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}


class Exact:
    """The traffic that a state allows, computed for all endpoints and without caches."""

    def __init__(self, world: World, policies: Sequence[Policy], space: str) -> None:
        self._ground = Net(world, (), namespace=space).ground
        self._manifests = [
            {"metadata": {"name": one.name, "namespace": space}, "spec": deepcopy(one.spec)}
            for one in policies
        ]

    def rules(self) -> Rules:
        return Rules(self._manifests, Book(self._ground.book.namespaces))

    def table(self, outside: Sequence[str]) -> dict[tuple[str, str], Any]:
        ground, rules = self._ground, self.rules()
        others = {**ground.strangers, **{ip: ground.outside(ip) for ip in outside}}
        links = []
        for name, pod in ground.pods.items():
            links += [
                Link(name, other, pod, end)
                for other, end in {**ground.pods, **others}.items()
                if end is not pod
            ]
            links += [Link(other, name, end, pod) for other, end in others.items()]
        for name, pod in ground.pods.items():
            links += [Link(one.name, name, one.endpoint, pod, (INGRESS,)) for one in ground.absent]
            links += [Link(name, one.name, pod, one.endpoint, (EGRESS,)) for one in ground.absent]
        return {link[:2]: link.open_by(rules) for link in links}


def alter(rng: random.Random, world: World, policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """Return the policies after one typical write of an agent: right, wrong, or a new policy."""
    held = {one.name: one for one in policies}
    healthy = {one.name: one for one in world.policies}
    name = rng.choice(sorted({*healthy, *held}))
    spec = deepcopy((held.get(name) or healthy[name]).spec)
    direction, peers = rng.choice([("ingress", "from"), ("egress", "to")])
    rules: list[Any] = spec.setdefault(direction, [])  # type: ignore[assignment]  # of the API
    block = {"cidr": rng.choice(["0.0.0.0/0", "10.244.0.0/24", "10.244.0.4/32"])}
    peer = rng.choice(
        [
            {"ipBlock": block},
            {"podSelector": {}},
            {"podSelector": GONE},
            {"namespaceSelector": ELSEWHERE, "podSelector": GONE},
            {"namespaceSelector": {}},
        ]
    )
    named = [one.name for app in world.apps for one in app.ports if one.name]
    ports: list[Any] = [{"port": 53, "protocol": "UDP"}, {"port": 8080, "endPort": 8980}]
    ports += [{"port": one} for one in rng.sample(named, min(2, len(named)))]
    match rng.choice(["healthy", "delete", "shut", "add", "ports", "new"]):
        case "healthy":
            spec = healthy[name].spec
        case "delete":
            held.pop(name, None)
            return tuple(held.values())
        case "shut":
            rules.clear()
        case "add":
            rules.append({peers: [peer], "ports": [rng.choice(ports)]})
        case "ports" if rules:
            rules[0].pop("ports", None)
        case _:
            name, whom = "new", rng.choice([{}, spec["podSelector"]])
            types = [direction.capitalize()]
            spec = {
                "podSelector": whom,
                direction: [{peers: [peer], "ports": [rng.choice(ports)]}],
                "policyTypes": types,
            }
    held[name] = Policy(name=name, spec=spec)
    return tuple(sorted(held.values(), key=lambda one: one.name))


@pytest.mark.parametrize(
    ("seed", "space"),
    [
        # all combinations of an application and of whether a policy selects every pod
        *((seed, "shop") for seed in range(6, 10)),
        # the application's namespace has the name of one of the other namespaces
        *((seed, "default") for seed in (6, 7)),
    ],
)
def test_caching_changes_no_verdict(seed: int, space: str) -> None:
    rng = random.Random(seed)
    world = boutique() if seed % 2 else varied(rng)
    if seed % 4 > 1:  # some pods are selected by no policy
        few = rng.sample(world.policies, len(world.policies) // 2)
        few = [one for one in few if one.spec["podSelector"]]
        world = world.model_copy(update={"policies": tuple(few)})
    initial = faulty(world, draw(world, (rng.choice(sorted(KINDS)),), rng) or ())
    tested = {
        (use.source, use.target): {str(use.protocol): ((use.port, use.port),)}
        for use in world.needs
        if use is not None
    }
    before, found = tuple(initial), 0
    for _ in range(STEPS):
        after = alter(rng, world, before)
        rules = Exact(world, after, space).rules()
        place = Net(world, (), namespace=space)
        pods, (server,) = place.pods, place.dns
        assert Net(world, after, namespace=space).reached == tuple(
            use is not None
            and rules.allow(pods[use.source], server, 53, "UDP")
            and rules.allow(pods[use.source], pods[use.target], use.port, use.protocol)
            for use in world.needs
        )
        states = (world.policies, tuple(initial), before, after)
        outside = outside_of(*states)
        healthy, faulty_, last, now = (Exact(world, one, space).table(outside) for one in states)
        there = set(pods) | set(place.strangers) | set(outside)
        anew = {
            ends: show(new)
            for ends, ports in now.items()
            if there.issuperset(ends)
            and (new := difference(ports, union(healthy[ends], faulty_[ends], last[ends])))
        }
        seen = opened(world, states[:3], after, space)
        assert [(one[:2], one.ports) for one in seen] == [*anew.items()]
        lost = {
            ends: show(gone)
            for ends, ports in healthy.items()
            if (
                gone := difference(
                    intersection(ports, last[ends]), union(now[ends], tested.get(ends, NONE))
                )
            )
        }
        # only the outside addresses in these states are compared
        few = set(outside_of(world.policies, before, after)) | there - set(outside)
        less = narrowed(world, before, after, space)
        absent = {one.name for one in place.ground.absent}
        assert [(one[:2], one.ports) for one in less] == [
            (ends, ports) for ends, ports in lost.items() if (few | absent).issuperset(ends)
        ]
        found += len(anew) + len(lost)
        before = after
    assert found


def test_long_spec_is_evaluated_without_caching() -> None:
    book = Book({"shop": {}})
    pod, other = Endpoint("10.0.0.1", "shop"), Endpoint("10.0.0.2", "shop")
    many = [{"ipBlock": {"cidr": f"10.0.{number}.0/24"}} for number in range(256)]
    spec = {"podSelector": {}, "ingress": [{"from": many}]}
    long, short = (Rules([book.read("shop", one)], book) for one in (spec, {"podSelector": {}}))
    assert (long.kept, short.kept) == (False, True)
    assert long.allow(other, pod, 80)
    again = Rules([book.read("shop", spec)], book)
    assert again.side(INGRESS, pod) is not long.side(INGRESS, pod)
    assert again.allow(other, pod, 80)
    assert Rules([book.read("shop", {"podSelector": {}})], book).side(INGRESS, pod) is short.side(
        INGRESS, pod
    )


def test_named_port_is_resolved_for_each_pod() -> None:
    book = Book({"shop": {}})
    one, other = (
        Endpoint(f"10.0.0.{number}", "shop", ports=(Port(number, "TCP", "web"),))
        for number in (81, 82)
    )
    rules = Rules(
        [book.read("shop", {"podSelector": {}, "ingress": [{"ports": [{"port": "web"}]}]})], book
    )
    assert rules.open_ports(one, other) == {"TCP": ((82, 82),)}
    assert rules.open_ports(other, one) == {"TCP": ((81, 81),)}


def test_world_has_one_placement_per_namespace() -> None:
    world = boutique()
    grounds = [Net(world, (), namespace=name).ground for name in ("shop", "shop", "another")]
    assert isinstance(grounds[0], Ground)
    assert grounds[0] is grounds[1] is not grounds[2]
    assert world == boutique()


def test_reachability_through_a_long_policy_is_not_cached() -> None:
    world = boutique()
    known = Net(world, world.policies)
    assert known.reached == world.intended
    number = len(known.ground.works._found)
    assert number
    many: list[Any] = [{"ipBlock": {"cidr": f"10.0.{number}.0/24"}} for number in range(256)]
    long = Policy(name="long", spec={"podSelector": {}, "ingress": [{"from": many}]})
    assert Net(world, (*world.policies, long)).reached == world.intended
    assert len(known.ground.works._found) == number


def test_concurrent_port_lookup_does_not_mix_up_cached_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cached results keyed by identity are valid only while both port sets exist."""
    pods = {f"p{n}": Endpoint(f"10.0.0.{n + 1}", "shop", {"n": f"{n}"}) for n in range(40)}

    def side(*more: dict[str, Any]) -> Side:
        book = Book({"shop": {}}, pods.values())
        rules: list[dict[str, Any]] = [
            {
                "from": [{"podSelector": {"matchLabels": {"n": f"{n}"}}}],
                "ports": [{"port": 100 + n}],
            }
            for n in range(40)
        ]
        first = {"matchLabels": {"n": "0"}}
        spec = {"podSelector": first, "policyTypes": ["Ingress"], "ingress": [*rules, *more]}
        found = Rules([book.read("shop", spec)], book).side(INGRESS, pods["p0"])
        assert found is not None
        return found

    odd = {"key": "n", "operator": "In", "values": [f"{n}" for n in range(1, 40, 2)]}
    seven = {"ports": [{"port": 7}]}
    wide = side(seven, {"from": [{"podSelector": {"matchExpressions": [odd]}}], **seven})
    wider = side(
        seven, {"from": [{"podSelector": {"matchExpressions": [odd]}}], "ports": [{"port": 9}]}
    )
    found_out = Side.lets

    def stored_by_another(self: Side, peer: Endpoint) -> Any:
        fresh = peer not in self._lets
        found = found_out(self, peer)
        if fresh:
            self._lets[peer] = dict(found)
        return found

    monkeypatch.setattr(Side, "lets", stored_by_another)
    assert [*wide.narrower(wider, pods)] == [f"p{n}" for n in range(1, 40, 2)]
