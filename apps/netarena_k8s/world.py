"""A shop of services as data, and what its policies let through.

A world is the applications that one namespace runs, the services in front of them, who calls
whom, and the healthy network policies. Everything that is tested is read off it: the pairs are
every application with every other one's service, and a pair is intended if the healthy policies
allow it. Nothing of that is typed in.

A *cluster* (embedded or real) deploys a world; ``Net`` tells what given policies would do there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from netarena.model import JsonValue, Record
from netarena_k8s.block import network_of
from netarena_k8s.mark import labels_by
from netarena_k8s.plan import Grant, Group, Plan, Use
from netarena_k8s.policy import Endpoint, Labels, Manifest, Port, Protocol, Rules
from netarena_k8s.stretch import Stretches

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
    #: what is intended, of a large shop
    plan: Plan | None = None

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        if self.plan is None:
            del found["plan"]
        return found

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

    @cached_property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Application -> the places, among the pairs, of those that it is an end of."""
        found: dict[str, list[int]] = {app.name: [] for app in self.apps}
        for number, pair in enumerate(self.pairs):
            found[pair.source].append(number)
            found[pair.target].append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """What the plan intends beside the pairs: further ports, guests, addresses outside."""
        if self.plan is None:
            return ()
        ends = {guest.name: guest.address for guest in self.plan.guests}
        ends |= {partner.name: partner.address for partner in self.plan.partners}
        found = []
        for grant in self.plan.grants:
            sources, targets = (
                [app.name for app in self.apps if end.has(app.labels)]
                if isinstance(end, Group)
                else [ends[end]]
                for end in (grant.source, grant.target)
            )
            if grant.port is not None or isinstance(grant.source, str):
                found += self._each(sources, targets, grant)
        return tuple(found)

    def _each(self, sources: Sequence[str], targets: Sequence[str], grant: Grant) -> list[Use]:
        found = []
        for target in targets:
            port, protocol = grant.port, grant.protocol
            if port is None:
                tested = target_port(self.by_name[target], self.by_name[target].service[0])
                assert tested is not None
                port, protocol = tested.number, tested.protocol
            found += [
                Use(source=source, target=target, port=port, protocol=protocol)
                for source in sources
                if source != target
            ]
        return found

    @cached_property
    def restricts_egress(self) -> bool:
        """Whether the healthy policies keep any application from calling out freely."""
        net = Net(self, self.policies)
        return not all(net.rules.allow(pod, _OUTSIDE, 443) for pod in net.pods.values())


#: an address that no healthy policy is about
_OUTSIDE = Endpoint("198.51.100.77")


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


#: all that is open, by the names of both ends
Table: TypeAlias = dict[tuple[str, str], Stretches]


class Net:
    """The pods of a world with addresses, under given policies.

    Strangers are pods of other namespaces, one without labels and one with those of each
    application. They and outside addresses are named ``NAMESPACE/APP`` and by their address.
    ``name_servers`` are addresses, ``marks`` the labels where the world runs; none: those of the
    embedded cluster. ``spaces`` are further namespaces and their labels.
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
        spaces: Mapping[str, Labels] = MappingProxyType({}),
    ) -> None:
        self.world = world
        self.namespace = namespace
        marks = marks or world.marks
        own = {**marks.space, NAME_LABEL: namespace}
        guests = world.plan.guests if world.plan is not None else ()
        visited = {guest.space: {NAME_LABEL: guest.space, **guest.space_labels} for guest in guests}
        self.rules = Rules(
            [_manifest(one, namespace) for one in policies],
            {**spaces, **STRANGERS, **visited, namespace: own},
        )
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
        for place, guest in enumerate(guests, start=2):
            # beside each guest one that is none, so that what lets both in is seen
            for number, (name, labels) in enumerate({guest.name: guest.labels, "any": {}}.items()):
                self.strangers[f"{guest.space}/{name}"] = Endpoint(
                    f"10.244.200.{4 * place + number}", guest.space, labels
                )

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

    def allows(self, use: Use) -> bool:
        """Whether what is used beside the pairs works."""
        source, target = (
            self.pods.get(name) or self.strangers.get(name) or Endpoint(name)
            for name in (use.source, use.target)
        )
        by_name = use.source in self.pods and use.target in self.pods
        return (not by_name or self.resolves(use.source)) and self.rules.allow(
            source, target, use.port, use.protocol
        )

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
    found = {_OUTSIDE.ip}
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
