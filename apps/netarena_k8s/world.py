"""A shop of services as data, and what its policies let through.

A world is the applications that one namespace runs, the services in front of them, who calls
whom, and the healthy network policies. Everything that is tested is read off it: the pairs are
every application with every other one's service, and a pair is intended if the healthy policies
allow it. Nothing of that is typed in.

A *cluster* (embedded or real) deploys a world; ``Net`` tells what given policies would do there.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from pydantic import Field

from netarena.model import JsonValue, Record
from netarena_k8s.block import network_of
from netarena_k8s.mark import labels_by
from netarena_k8s.policy import Endpoint, Labels, Manifest, Port, Protocol, Rules, selects
from netarena_k8s.stretch import NONE, Stretches, difference, intersection, show, union

#: the label that every namespace has of its own name
NAME_LABEL = "kubernetes.io/metadata.name"
#: the label of every object that is ours on a cluster, namespaces too, but not of policies and what
#: controllers make
OWNED, OWNER = "app.kubernetes.io/managed-by", "netarena"
#: labels of the namespaces beside the world's own, from which the wide table looks in; one is
#: another episode's
STRANGERS: Mapping[str, Labels] = MappingProxyType(
    {
        "default": {NAME_LABEL: "default"},
        "kube-system": {NAME_LABEL: "kube-system"},
        "another-shop": {NAME_LABEL: "another-shop", OWNED: OWNER},
    }
)
#: of the pods that answer name lookups, in ``kube-system``
DNS_LABELS: Labels = MappingProxyType({"k8s-app": "kube-dns"})
Spec: TypeAlias = dict[str, JsonValue]
Workload: TypeAlias = Literal["Deployment", "StatefulSet", "DaemonSet", "Pod"]
#: Headless: its name leads to the pods themselves, not to an address of its own
ServiceType: TypeAlias = Literal["ClusterIP", "NodePort", "LoadBalancer", "Headless"]


class ServicePort(Record):
    """A port of a service; ``target`` is a number, or the name of a container's port."""

    port: int
    target: int | str
    protocol: Protocol = "TCP"
    name: str = ""


class ContainerPort(Record):
    """A port that an application's container declares."""

    number: int
    protocol: Protocol = "TCP"
    name: str = ""


class Service(Record):
    """A service in front of one application."""

    name: str
    app: str
    ports: tuple[ServicePort, ...]
    type: ServiceType = "ClusterIP"


class App(Record):
    """One workload of one pod, and the service in front of it if it has ``service`` ports.

    The first service port is the one that is tested.
    """

    name: str
    #: of the pods; deployments and services select by all of them
    labels: dict[str, str]
    ports: tuple[ContainerPort, ...] = ()
    service: tuple[ServicePort, ...] = ()
    #: of the service, where it is not that of the application
    service_name: str = ""
    service_type: ServiceType = "ClusterIP"
    workload: Workload = "Deployment"
    container: str = "server"
    #: what the container says that it runs; none: the stand-in
    image: str = ""
    #: the service account of its pods
    account: str = "default"

    @property
    def served_as(self) -> str:
        """The name under which others call it."""
        return self.service_name or self.name


class Policy(Record):
    """A network policy of the world's namespace: its name and its spec as the API stores it."""

    name: str
    spec: Spec


class Write(Record):
    """What a policy became by a write, in words ``what``; ``spec`` is null where it is gone."""

    what: str
    name: str
    spec: Spec | None


class Pair(Record):
    """What is tested: whether the pods of ``source`` reach the service of ``target``."""

    source: str
    target: str


class Marks(Record):
    """All labels that there are where a world runs: of each application's pods, and of the
    namespace."""

    pods: dict[str, dict[str, str]]
    space: dict[str, str]


class World(Record):
    """One namespace; ``calls`` is what the applications need, as (source, target)."""

    apps: tuple[App, ...]
    calls: tuple[tuple[str, str], ...] = ()
    policies: tuple[Policy, ...]
    #: those that no pair is tested by: a second one in front of the same application
    services: tuple[Service, ...] = ()
    #: of the namespace itself, beside ``kubernetes.io/metadata.name``
    labels: dict[str, str] = Field(default_factory=dict)

    @cached_property
    def by_name(self) -> dict[str, App]:
        return {app.name: app for app in self.apps}

    @cached_property
    def all_services(self) -> tuple[Service, ...]:
        """Those that are tested, in the order of the applications, and the others."""
        tested = (
            Service(name=app.served_as, app=app.name, ports=app.service, type=app.service_type)
            for app in self.apps
            if app.service
        )
        return (*tested, *self.services)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every application with every other one's service, in the order of the applications."""
        return tuple(
            Pair(source=source.name, target=target.name)
            for source in self.apps
            for target in self.apps
            if target.service and target is not source
        )

    @cached_property
    def marks(self) -> Marks:
        """Those of the embedded cluster."""
        return Marks(
            pods={app.name: labels_by(app.workload, app.name, app.labels) for app in self.apps},
            space={**self.labels, OWNED: OWNER},
        )

    @cached_property
    def intended(self) -> tuple[bool, ...]:
        """Whether each pair is to work: what the healthy policies allow."""
        return reach(self, self.policies)


def target_port(app: App, port: ServicePort) -> ContainerPort | None:
    """Where a service's port leads in the pod: a declared port, or one that nothing names.

    None where a name is declared by no container.
    """
    for one in app.ports:
        if port.target in {one.number, one.name} and one.protocol == port.protocol:
            return one
    return (
        None
        if isinstance(port.target, str)
        else ContainerPort(number=port.target, protocol=port.protocol)
    )


class Opening(Record):
    """Ports that were opened, or closed: from whom, to whom, as ``stretch.show`` shows them."""

    source: str
    target: str
    ports: str


#: all that is open, by the names of both ends
Table: TypeAlias = dict[tuple[str, str], Stretches]


class Net:
    """The pods of a world with addresses, under given policies.

    Strangers are pods of other namespaces, one without labels and one with those of each
    application. They and outside addresses are named ``NAMESPACE/APP`` and by their address.
    ``name_servers`` are addresses, ``marks`` the labels where the world runs; none: those of the
    embedded cluster.
    """

    def __init__(  # noqa: PLR0913 -- what is known of where a world runs
        self,
        world: World,
        policies: Iterable[Policy | Manifest],
        *,
        namespace: str = "shop",
        addresses: Mapping[str, str] | None = None,
        name_servers: Sequence[str] = (),
        marks: Marks | None = None,
    ) -> None:
        self.world = world
        self.namespace = namespace
        marks = marks or world.marks
        spaces = {**STRANGERS, namespace: {**marks.space, NAME_LABEL: namespace}}
        self.rules = Rules([_manifest(one, namespace) for one in policies], spaces)
        given = addresses or {}
        self.pods: dict[str, Endpoint] = {
            app.name: Endpoint(
                given.get(app.name, f"10.244.0.{number}"),
                namespace,
                marks.pods.get(app.name, app.labels),
                tuple(Port(one.number, one.protocol, one.name) for one in app.ports),
            )
            for number, app in enumerate(world.apps, start=2)
        }
        self.strangers: dict[str, Endpoint] = {
            f"{space}/{name}": Endpoint(f"10.244.{place}.{number}", space, labels)
            for place, space in enumerate(STRANGERS, start=1)
            for number, (name, labels) in enumerate(
                [("any", {}), *((name, pod.labels) for name, pod in self.pods.items())], start=2
            )
        }

        self.dns = tuple(
            Endpoint(ip, "kube-system", DNS_LABELS, (Port(53, "UDP", "dns"),))
            for ip in name_servers or ("10.244.2.200",)
        )
        self._resolving: dict[str, bool] = {}

    def resolves(self, source: str) -> bool:
        """Whether an application's pods can look a service's name up, whichever server is asked."""
        if source not in self._resolving:
            self._resolving[source] = all(
                self.rules.allow(self.pods[source], server, 53, "UDP") for server in self.dns
            )
        return self._resolving[source]

    def connects(self, pair: Pair) -> bool:
        """Whether a pair works by the service's address: its first port, the pod's port."""
        app = self.world.by_name[pair.target]
        port = target_port(app, app.service[0])
        return port is not None and self.rules.allow(
            self.pods[pair.source], self.pods[pair.target], port.number, port.protocol
        )

    def reaches(self, pair: Pair) -> bool:
        """Whether a pair works as applications use it: by the service's name."""
        return self.resolves(pair.source) and self.connects(pair)

    def table(self, outside: Iterable[str], about: Container[str]) -> Table:
        """All that is open between pods, strangers and the addresses ``outside``; by name.

        Pairs of which neither is a pod of the applications ``about`` are not in it, nor are those
        with nothing open.
        """
        others = {**self.strangers, **{ip: Endpoint(ip) for ip in outside}}
        found = {}
        for name, pod in self.pods.items():
            ends = {**self.pods, **others}
            if name not in about:
                ends = {other: end for other, end in self.pods.items() if other in about}
            for other, end in ends.items():
                if pod is not end and (ports := self.rules.open_ports(pod, end)):
                    found[name, other] = ports
            for other, end in others.items() if name in about else ():
                if ports := self.rules.open_ports(end, pod):
                    found[other, name] = ports
        return found


def outside_of(*sets: Iterable[Policy]) -> tuple[str, ...]:
    """Addresses that stand for all others, by the blocks of all policies: the ends of each block,
    what lies just beyond them, and one that no block is about."""
    found = {"198.51.100.77"}
    for block in _blocks([policy.spec for policies in sets for policy in policies]):
        network = network_of(block)
        for number in (-1, 0, network.num_addresses - 1, network.num_addresses):
            with suppress(ValueError):
                found.add(str(network.network_address + number))
    return tuple(sorted(found))


def _blocks(value: JsonValue | Sequence[JsonValue]) -> Iterator[str]:
    if isinstance(value, dict):
        block = value.get("ipBlock")
        if isinstance(block, dict):
            yield str(block["cidr"])
            cuts = block.get("except")
            yield from map(str, cuts if isinstance(cuts, list) else ())
        yield from _blocks(list(value.values()))
    elif isinstance(value, list):
        for one in value:
            yield from _blocks(one)


def count_entries(value: JsonValue | Sequence[JsonValue]) -> int:
    """All items of all lists: rules, peers, ports, blocks and what they leave out, values."""
    if isinstance(value, dict):
        return sum(map(count_entries, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(count_entries, value))
    return 0


def weigh(world: World, states: Iterable[Sequence[Policy]]) -> int:
    """What it takes to compare ``states``: the entries of each distinct one, for each pod and each
    address outside that any of them tells from others."""
    distinct = {_key(policies): policies for policies in states}
    outside = outside_of(*distinct.values())
    entries = sum(count_entries([one.spec for one in policies]) for policies in distinct.values())
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
    # where neither end is selected by a policy that differs, nothing is new
    about = min((_selected_anew(world, policies, after, marks) for policies in before), key=len)
    *known, now = (
        Net(world, policies, namespace=namespace, marks=marks).table(outside, about)
        for policies in (*before, after)
    )
    return _beyond(now, known)


def narrowed(
    world: World,
    before: Sequence[Policy],
    after: Sequence[Policy],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> tuple[Opening, ...]:
    """What the healthy policies let through beside the pairs that are tested, ``before`` did too,
    and ``after`` does not: further ports, strangers, outside addresses."""
    outside = outside_of(world.policies, before, after)
    about = min(
        (_selected_anew(world, policies, after, marks) for policies in (world.policies, before)),
        key=len,
    )
    if not about:
        return ()
    healthy, last, now = (
        Net(world, policies, namespace=namespace, marks=marks).table(outside, about)
        for policies in (world.policies, before, after)
    )
    tested = _tested(world)
    found = []
    for ends, ports in healthy.items():
        known = union(now.get(ends, NONE), tested.get(ends, NONE))
        if gone := difference(intersection(ports, last.get(ends, NONE)), known):
            found.append(Opening(source=ends[0], target=ends[1], ports=show(gone)))
    return tuple(found)


def _tested(world: World) -> Table:
    """The port of each pair that is tested."""
    found: Table = {}
    for pair in world.pairs:
        app = world.by_name[pair.target]
        if (port := target_port(app, app.service[0])) is not None:
            found[pair.source, pair.target] = {str(port.protocol): ((port.number, port.number),)}
    return found


def opened_by_each(
    world: World,
    before: Sequence[Sequence[Policy]],
    states: Sequence[Sequence[Policy]],
    namespace: str = "shop",
    marks: Marks | None = None,
) -> Iterator[tuple[Opening, ...]]:
    """What each of ``states`` but the first lets through, and neither the one that precedes it nor
    any of the states ``before`` did: ``opened`` for each, computed once for each distinct state."""
    outside = outside_of(*before, *states)
    about = frozenset[str]().union(
        *(_selected_anew(world, states[0], policies, marks) for policies in states)
    )

    def table(policies: Sequence[Policy]) -> Table:
        return Net(world, policies, namespace=namespace, marks=marks).table(outside, about)

    known = [table(policies) for policies in before]
    tables: dict[str, Table] = {}
    last: Table | None = None
    for policies in states:
        key = _key(policies)
        now = tables[key] if key in tables else tables.setdefault(key, table(policies))
        if last is not None:
            yield _beyond(now, [*known, last])
        last = now


def _key(policies: Sequence[Policy]) -> str:
    return json.dumps([policy.model_dump() for policy in policies], sort_keys=True)


def _beyond(now: Table, known: Sequence[Table]) -> tuple[Opening, ...]:
    found = []
    for (source, target), ports in now.items():
        new = difference(ports, union(*(table.get((source, target), NONE) for table in known)))
        if new:
            found.append(Opening(source=source, target=target, ports=show(new)))
    return tuple(found)


def _selected_anew(
    world: World, one: Sequence[Policy], other: Sequence[Policy], marks: Marks | None
) -> frozenset[str]:
    """Applications that policies select, before or after, in which two states differ."""
    specs = [{policy.name: policy.spec for policy in policies} for policies in (one, other)]
    selectors = [
        cast("Manifest", spec.get("podSelector") or {})
        for there, then in (specs, specs[::-1])
        for name, spec in there.items()
        if then.get(name) != spec
    ]
    return frozenset(
        name
        for name, pod in Net(world, (), marks=marks).pods.items()
        if any(selects(selector, pod.labels) for selector in selectors)
    )


def _manifest(policy: Policy | Manifest, namespace: str) -> Manifest:
    if not isinstance(policy, Policy):
        return policy
    return {"metadata": {"name": policy.name, "namespace": namespace}, "spec": policy.spec}


def reach(world: World, policies: Sequence[Policy | Manifest]) -> tuple[bool, ...]:
    """Whether each of ``world.pairs`` works under ``policies``."""
    net = Net(world, policies)
    return tuple(net.reaches(pair) for pair in world.pairs)


def render_policy(policy: Policy, namespace: str) -> dict[str, Any]:
    """The manifest of a policy, as ``kubectl apply`` takes it."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": policy.name, "namespace": namespace},
        "spec": policy.spec,
    }
