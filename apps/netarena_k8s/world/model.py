"""A world as data, and the traffic that its policies allow.

A world consists of the applications in one namespace, their services, the required calls and the
intended network policies. The tested pairs are derived from the world: every application with the
service of every other application. A pair should work if the intended policies allow it.

A *cluster* (embedded or real) deploys a world. ``Net`` computes the connections that policies allow
in a deployed world.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from netarena.sdk import JsonValue, Kept, Memo, Record
from netarena_k8s.world.block import network_of
from netarena_k8s.world.generated_name import labels_by
from netarena_k8s.world.matrix import Effect, Matrix, flags, numbers
from netarena_k8s.world.placement import Ground
from netarena_k8s.world.plan import Grant, Group, Guest, Plan, Use
from netarena_k8s.world.policy import (
    EGRESS,
    INGRESS,
    Endpoint,
    Labels,
    Manifest,
    Port,
    Protocol,
    Rules,
    Side,
    text_of,
)

#: label of every namespace; its value is the name of the namespace
NAME_LABEL = "kubernetes.io/metadata.name"
#: label of every object that this project creates on a cluster, including namespaces. Policies, and
#: objects that controllers create, do not have this label.
OWNED, OWNER = "app.kubernetes.io/managed-by", "netarena"
#: Labels of other namespaces. The grader checks whether policies expose pods to these namespaces;
#: one of them stands for the namespace of another episode.
STRANGERS: Mapping[str, Labels] = MappingProxyType(
    {
        "default": {NAME_LABEL: "default"},
        "kube-system": {NAME_LABEL: "kube-system"},
        "another-shop": {NAME_LABEL: "another-shop", OWNED: OWNER},
    }
)
#: labels of the name servers' pods in ``kube-system``
DNS_LABELS: Labels = MappingProxyType({"k8s-app": "kube-dns"})
#: maximum numbers of cached deployments (addresses and labels) of each world, and of cached sets of
#: policies for each deployment
_KEPT_PLACES, _KEPT_NETS = 8, 8
Spec: TypeAlias = dict[str, JsonValue]
Workload: TypeAlias = Literal["Deployment", "StatefulSet", "DaemonSet", "Pod"]
#: A ``Headless`` service has no address: its name resolves to the pods' addresses.
ServiceType: TypeAlias = Literal["ClusterIP", "NodePort", "LoadBalancer", "Headless"]


class ServicePort(Record):
    """A port of a service. ``target`` is the number or the name of a container's port."""

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
    """One workload with one pod. It has a service if ``service`` lists ports.

    Tests of connections use the first service port.
    """

    name: str
    #: labels of the pods; the selectors of the deployment and the service contain all of them
    labels: dict[str, str]
    ports: tuple[ContainerPort, ...] = ()
    service: tuple[ServicePort, ...] = ()
    #: name of the service; empty: the application's name
    service_name: str = ""
    service_type: ServiceType = "ClusterIP"
    workload: Workload = "Deployment"
    container: str = "server"
    #: image that the container spec names; empty: the image of the stand-in, a small program that
    #: listens on the ports
    image: str = ""
    #: the service account of its pods
    account: str = "default"

    @property
    def served_as(self) -> str:
        """The name of the service, which clients use to call the application."""
        return self.service_name or self.name


class Policy(Record):
    """A network policy of the world's namespace: the policy's name, and its spec as the API server
    stores it."""

    name: str
    spec: Spec

    @cached_property
    def text(self) -> str:
        """The spec as canonical JSON text, which is equal for equal specs."""
        return text_of(self.spec)

    @cached_property
    def entries(self) -> int:
        """The number of items in all lists of the spec (``count_entries``)."""
        return count_entries(self.spec)

    @cached_property
    def edges(self) -> frozenset[str]:
        """The first and last address of each CIDR block in the spec, and the addresses just before
        and after the block."""
        found = set()
        for block in _blocks(self.spec):
            network = network_of(block)
            for number in (-1, 0, network.num_addresses - 1, network.num_addresses):
                with suppress(ValueError):
                    found.add(str(network.network_address + number))
        return frozenset(found)


def read_policy(found: Mapping[str, Any]) -> Policy:
    """Return the policy described by ``found``. Equal small policies share one cached object.

    Raises pydantic.ValidationError.
    """
    text = json.dumps(found)
    return _READ.get(text) or _remember(text, Policy.model_validate(found))


def _remember(text: str, policy: Policy) -> Policy:
    return policy if len(text) > _READ_CHARS else _READ.keep(text, policy)


_READ: Memo[str, Policy] = Memo(1024)
_READ_CHARS = 4096


class Write(Record):
    """One write to a policy. ``what`` describes the write. ``spec`` is the policy's new spec, or
    None if the policy was deleted."""

    what: str
    name: str
    spec: Spec | None


class Pair(NamedTuple):
    """One tested connection: from the pods of ``source`` to the service of ``target``.

    A named tuple rather than a model, because a large world has thousands of pairs.
    """

    source: str
    target: str


class Marks(Record):
    """All labels of each application's pods and of the namespace, including labels that the cluster
    adds."""

    pods: dict[str, dict[str, str]]
    space: dict[str, str]


class World(Record):
    """The contents of one namespace. ``calls`` are the required calls as (source, target)."""

    apps: tuple[App, ...]
    calls: tuple[tuple[str, str], ...] = ()
    policies: tuple[Policy, ...]
    #: additional services that no pair tests, such as a second service of the same application
    services: tuple[Service, ...] = ()
    #: labels of the namespace, without ``kubernetes.io/metadata.name``
    labels: dict[str, str] = Field(default_factory=dict)
    #: the intended access in a large world, otherwise None
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
        """The services that tests of pairs use, in the order of the applications, and then the
        additional services."""
        tested = (
            Service(name=app.served_as, app=app.name, ports=app.service, type=app.service_type)
            for app in self.apps
            if app.service
        )
        return (*tested, *self.services)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """All tested pairs: each application with the service of each other application, in the
        order of the applications."""
        return tuple(
            Pair(source=source.name, target=target.name)
            for source in self.apps
            for target in self.apps
            if target.service and target is not source
        )

    @cached_property
    def marks(self) -> Marks:
        """The labels that the embedded cluster sets on pods and the namespace."""
        return Marks(
            pods={app.name: labels_by(app.workload, app.name, app.labels) for app in self.apps},
            space={**self.labels, OWNED: OWNER},
        )

    @cached_property
    def intended(self) -> tuple[bool, ...]:
        """Return whether each pair should work, as the intended policies define it."""
        return flags(self.works, len(self.pairs))

    @cached_property
    def works(self) -> int:
        """The connections of ``matrix`` that the intended policies allow, as bits."""
        return self.matrix.sides(self.effects).both

    @cached_property
    def wanted(self) -> int:
        """The tested connections of ``matrix``, as bits: all pairs, and all other connections that
        should work."""
        return (1 << len(self.pairs)) - 1 | self.works

    @cached_property
    def effects(self) -> tuple[Effect, ...]:
        """The connections that each intended policy restricts and allows."""
        return tuple(self.effect(policy) for policy in self.policies)

    def effect(self, policy: Policy) -> Effect:
        """Return the connections of this world that ``policy`` restricts and allows."""
        return self.matrix.effect(policy.spec, policy.text)

    @cached_property
    def matrix(self) -> Matrix:
        """The evaluator of connections on the embedded cluster: first all pairs, then all other
        connections that the plan names."""
        uses = [*self.needs, *(use for uses in self.named for use in uses)]
        return Matrix(_place(self, "shop", {}, (), None).ground, uses)

    @cached_property
    def places(self) -> dict[str, tuple[int, ...]]:
        """Map from each application to the indices of the pairs that have it as an end."""
        found: dict[str, list[int]] = {app.name: [] for app in self.apps}
        for number, pair in enumerate(self.pairs):
            found[pair.source].append(number)
            found[pair.target].append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    @cached_property
    def uses(self) -> tuple[Use, ...]:
        """Intended connections other than pairs: to additional ports, from guests, and to outside
        addresses.

        The plan names them, and the intended policies allow them.
        """
        return tuple(use for uses in self.granted for use in uses)

    @cached_property
    def granted(self) -> tuple[tuple[Use, ...], ...]:
        """For each grant of the plan, its connections in ``named`` that the intended policies
        allow."""
        number, found = len(self.pairs), []
        for uses in self.named:
            places = enumerate(uses, start=number)
            found.append(tuple(use for place, use in places if self.works >> place & 1))
            number += len(uses)
        return tuple(found)

    @cached_property
    def named(self) -> tuple[tuple[Use, ...], ...]:
        """For each grant of the plan, its connections other than pairs, even if the intended
        policies do not allow them."""
        if self.plan is None:
            return ()
        ends = {guest.name: guest.address for guest in self.plan.guests}
        ends |= {partner.name: partner.address for partner in self.plan.partners}
        found: list[tuple[Use, ...]] = []
        for grant in self.plan.grants:
            sources, targets = (
                [app.name for app in self.apps if end.has(app.labels)]
                if isinstance(end, Group)
                else [ends[end]]
                for end in (grant.source, grant.target)
            )
            beside = grant.port is not None or isinstance(grant.source, str)
            uses = self._each(sources, targets, grant) if beside else []
            found.append(tuple(uses))
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

    @property
    def healthy(self) -> Net:
        """The deployed world under its intended policies.

        It is cached with the deployment instead of the world, because there are many worlds.
        """
        return net_of(self, self.policies)

    @cached_property
    def needs(self) -> tuple[Use | None, ...]:
        """For each pair, the connection from pod to pod that it needs, or None if the service has
        no usable target port."""
        found: list[Use | None] = []
        for pair in self.pairs:
            app = self.by_name[pair.target]
            port = target_port(app, app.service[0])
            found.append(None if port is None else Use(*pair, port.number, port.protocol))
        return tuple(found)

    @cached_property
    def restricts_egress(self) -> bool:
        """Return whether the intended policies restrict the egress of any application."""
        net = self.healthy
        return not all(net.rules.allow(pod, _OUTSIDE, 443) for pod in net.pods.values())

    @cached_property
    def opens_egress(self) -> bool:
        """Return whether the intended policies leave the egress of every application
        unrestricted."""
        free = all(policy.spec.get("egress") in (None, [{}]) for policy in self.policies)
        return free and not self.restricts_egress


#: an address outside all blocks of the intended policies
_OUTSIDE = Endpoint("198.51.100.77")


def target_port(app: App, port: ServicePort) -> ContainerPort | None:
    """Return the pod port of a service port. A container need not declare a port that is given as a
    number.

    Returns None if no container declares the named port.
    """
    for one in app.ports:
        if port.target in {one.number, one.name} and one.protocol == port.protocol:
            return one
    return (
        None
        if isinstance(port.target, str)
        else ContainerPort(number=port.target, protocol=port.protocol)
    )


class Net:
    """The endpoints of a deployed world, and the connections that given policies allow between
    them.

    Pods of other namespaces are named ``NAMESPACE/NAME``. Each such namespace has a pod without
    labels (``any``). It also has either the guest or, for each application, a pod with the same
    labels. Outside addresses are named by their address. ``name_servers`` are IP addresses.
    ``marks`` are the labels in the cluster, or None for the labels of the embedded cluster.
    """

    def __init__(  # noqa: PLR0913 -- the parts of a placement
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
        self.ground = _place(world, namespace, addresses or {}, name_servers, marks).ground
        book = self.ground.book
        self.rules = Rules(
            [
                book.read(namespace, one.spec, one.text) if isinstance(one, Policy) else one
                for one in policies
            ],
            book,
        )

    @property
    def pods(self) -> Mapping[str, Endpoint]:
        """Map from each application to its pod."""
        return self.ground.pods

    @property
    def strangers(self) -> Mapping[str, Endpoint]:
        """Map from ``NAMESPACE/NAME`` to a pod of another namespace."""
        return self.ground.strangers

    @property
    def dns(self) -> tuple[Endpoint, ...]:
        """The name servers."""
        return self.ground.dns

    @cached_property
    def reached(self) -> tuple[bool, ...]:
        """Return whether each pair of the world works when the source uses the name of the target's
        service."""
        leaving = entering = 0
        for name, pod in self.pods.items():
            leaving |= self._works(name, EGRESS, self.rules.side(EGRESS, pod))
            entering |= self._works(name, INGRESS, self.rules.side(INGRESS, pod))
        bits = reversed(f"{leaving & entering:0{len(self.world.pairs) or 1}b}")
        return tuple(bit == "1" for bit, _ in zip(bits, self.world.pairs, strict=False))

    def _works(self, name: str, direction: str, side: Side | None) -> int:
        """Return the pairs, as bits, with ``name`` as source (egress) or target (ingress) that
        ``side`` allows.

        For egress, the result is 0 unless the source may also look up names.
        """
        key = (name, direction, side)
        if (known := self.ground.works.get(key)) is not None:
            return known
        found = 0
        if direction == INGRESS or self.resolves(name):
            for number in self.world.places[name]:
                use = self.world.needs[number]
                if use is None:
                    continue
                mine, other = (use.source, use.target)[:: 1 if direction == EGRESS else -1]
                if mine == name and (
                    side is None or side.passes(self.pods[other], use.port, use.protocol)
                ):
                    found |= 1 << number
        # If policies are not cached, each state has new ``Side`` objects, so caching by them is
        # useless.
        kept = side is None or self.rules.kept
        return self.ground.works.keep(key, found) if kept else found

    def resolves(self, source: str) -> bool:
        """Return whether the pods of ``source`` can look up names at every name server."""
        return all(self.rules.allow(self.pods[source], server, 53, "UDP") for server in self.dns)

    def connects(self, pair: Pair) -> bool:
        """Return whether a pair works when the source uses the address of the service, on its first
        port."""
        app = self.world.by_name[pair.target]
        port = target_port(app, app.service[0])
        return port is not None and self.rules.allow(
            self.pods[pair.source], self.pods[pair.target], port.number, port.protocol
        )

    def reaches(self, pair: Pair) -> bool:
        """Return whether a pair works when the source uses the name of the service, as applications
        do."""
        return self.resolves(pair.source) and self.connects(pair)

    def allows(self, use: Use) -> bool:
        """Return whether a connection is allowed at both ends."""
        return self.leaves(use) and self.enters(use)

    def leaves(self, use: Use) -> bool:
        """Return whether the source's egress policies allow a connection.

        Between pods of the world, they must also allow the name lookup.
        """
        by_name = use.source in self.pods and use.target in self.pods
        return (not by_name or self.resolves(use.source)) and self._passes(EGRESS, use)

    def enters(self, use: Use) -> bool:
        """Return whether the target's ingress policies allow a connection."""
        return self._passes(INGRESS, use)

    def _passes(self, direction: str, use: Use) -> bool:
        source, target = self.ground.end(use.source), self.ground.end(use.target)
        return self.rules.passes(direction, source, target, use.port, use.protocol)


def net_of(world: World, policies: tuple[Policy, ...], namespace: str = "shop") -> Net:
    """Return the connections that ``policies`` allow in ``world``.

    The result is cached for this tuple object, because all steps are compared with the same states.
    """
    nets = _place(world, namespace, {}, (), None).nets
    return nets.get(policies, lambda: Net(world, policies, namespace=namespace))


#: attributes of a world that do not depend on its policies
_LASTING = ("by_name", "pairs", "marks", "places", "named", "needs", "matrix")


def with_policies(world: World, policies: Sequence[Policy]) -> World:
    """Return ``world`` with other policies as its intended policies, and with the calls that they
    allow."""
    plain = World(
        apps=world.apps,
        policies=tuple(policies),
        services=world.services,
        labels=world.labels,
        plan=world.plan,
    )
    vars(plain).update({key: getattr(world, key) for key in _LASTING})
    calls = (plain.pairs[place] for place in numbers(plain.works) if place < len(plain.pairs))
    found = plain.model_copy(update={"calls": tuple((one.source, one.target) for one in calls)})
    vars(found).update({key: getattr(plain, key) for key in (*_LASTING, "effects", "works")})
    return found


class _Place(NamedTuple):
    """The endpoints of a deployed world, and the recently used ``Net`` objects, by the policies'
    identity."""

    ground: Ground
    nets: Kept[Net]


#: Cached results take about 10 MB for a large world, so only a few worlds are cached. No other
#: object may hold a reference to the cached results, because they would then stay in memory.
_PLACES: Kept[Memo[tuple[object, ...], _Place]] = Kept(16)


def _place(
    world: World,
    namespace: str,
    addresses: Mapping[str, str],
    name_servers: Sequence[str],
    marks: Marks | None,
) -> _Place:
    """Return the deployed world for these arguments. It is created at first use and cached."""
    key = (
        namespace,
        tuple(sorted(addresses.items())),
        tuple(name_servers),
        None if marks is None else marks.model_dump_json(),
    )
    places = _PLACES.get(world, lambda: Memo(_KEPT_PLACES))
    if (known := places.get(key)) is not None:
        return known
    marks = marks or world.marks
    guests = world.plan.guests if world.plan is not None else ()
    visited = {guest.space: {NAME_LABEL: guest.space, **guest.space_labels} for guest in guests}
    pods = {
        app.name: Endpoint(
            addresses.get(app.name, f"10.244.0.{number}"),
            namespace,
            marks.pods.get(app.name, app.labels),
            tuple(Port(one.number, one.protocol, one.name) for one in app.ports),
        )
        for number, app in enumerate(world.apps, start=2)
    }
    dns = tuple(
        Endpoint(ip, "kube-system", DNS_LABELS, (Port(53, "UDP", "dns"),))
        for ip in name_servers or ("10.244.2.200",)
    )
    ground = Ground(
        namespace,
        {**STRANGERS, **visited, namespace: {**marks.space, NAME_LABEL: namespace}},
        pods,
        _strangers(pods, guests, namespace),
        dns,
        [policy.spec for policy in world.policies],
    )
    return places.keep(key, _Place(ground, Kept(_KEPT_NETS)))


def _strangers(
    pods: Mapping[str, Endpoint], guests: Sequence[Guest], own: str
) -> dict[str, Endpoint]:
    """Return the pods of other namespaces by ``NAMESPACE/NAME``. ``own``, the world's namespace,
    may be ``default``."""
    found = {
        f"{space}/{name}": Endpoint(f"10.244.{place}.{number}", space, labels)
        for place, space in enumerate(STRANGERS, start=1)
        if space != own
        for number, (name, labels) in enumerate(
            [("any", {}), *((name, pod.labels) for name, pod in pods.items())], start=2
        )
    }
    for place, guest in enumerate(guests, start=2):
        # The pod without labels reveals policies that allow more pods of this namespace than the
        # guest.
        for number, (name, labels) in enumerate({guest.name: guest.labels, "any": {}}.items()):
            found[f"{guest.space}/{name}"] = Endpoint(
                f"10.244.200.{4 * place + number}", guest.space, labels
            )
    return found


def outside_of(*sets: Iterable[Policy]) -> tuple[str, ...]:
    """Return addresses that stand for all addresses outside the cluster under these policies.

    They are the first and last address of each CIDR block, the addresses just before and after the
    block, and one address that no intended policy contains.
    """
    found = {_OUTSIDE.ip}.union(*(policy.edges for policies in sets for policy in policies))
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
    """Return the number of items in all lists: rules, peers, ports, blocks, exceptions, values."""
    if isinstance(value, dict):
        return sum(map(count_entries, value.values()))
    if isinstance(value, list):
        return len(value) + sum(map(count_entries, value))
    return 0


def entries_of(policies: Sequence[Policy]) -> int:
    """Return the size of a state: the number of its policies plus the number of items in all their
    lists."""
    return len(policies) + sum(policy.entries for policy in policies)


def reach(world: World, policies: Sequence[Policy | Manifest]) -> tuple[bool, ...]:
    """Return whether each of ``world.pairs`` works under ``policies``."""
    return Net(world, policies).reached


def render_policy(policy: Policy, namespace: str) -> dict[str, Any]:
    """Return the manifest of a policy for ``kubectl apply``."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": policy.name, "namespace": namespace},
        "spec": policy.spec,
    }
