"""Cluster that tests pairs with real connections, filtered by nftables rules in the kernel.

    wired = Wired(Embedded())
    deployed = await wired.deploy(world)
    sight = await deployed.look()

Policies come from the wrapped cluster. A pair works if its source pod can look up a name and
connect to the service's address. The lookup is a datagram to the name server and its reply. All
pairs are tested at the same time with new connections, until two rounds agree.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from netarena.sdk import (
    Caller,
    EnvironmentFailed,
    Servant,
    one_line,
    program,
    surroundings,
    try_out,
)
from netarena_k8s.cluster import Access, Cluster, Deployed, Sight
from netarena_k8s.world.model import (
    NAME_LABEL,
    STRANGERS,
    Net,
    Pair,
    Policy,
    World,
    render_policy,
    target_port,
)
from netarena_k8s.world.policy import Endpoint, Labels

_MODULE = "netarena_k8s.embedded.datapath.plane"
_START_S = 60.0
_STOP_S = 10.0
_ANSWER_S = 60.0
#: Maximum wait for packets that get neither a reply nor a refusal. With the rulesets of module
#: ``rule``, each packet gets one of the two.
_WAIT_S = 1.0
_SETTLE_S = 10.0
#: Prefix of service addresses in this network. The cluster addresses that kubectl shows are not
#: routed.
_SERVICES = "10.96.1"
_DNS = "kube-system/dns"


@dataclass
class Layout:
    """The network of a world: endpoints by name, the ports on which they listen, and services.

    Only tests use ``strangers``, which adds pods of other namespaces, and ``outside``, which adds
    outside addresses.
    """

    world: World
    namespace: str
    strangers: bool = False
    outside: Sequence[str] = ()
    ends: dict[str, Endpoint] = field(init=False)
    listen: dict[str, list[tuple[str, int]]] = field(init=False)
    #: application -> protocol, address and port of the service, address and port of the pod
    services: dict[str, tuple[str, str, int, str, int]] = field(init=False)

    def __post_init__(self) -> None:
        net = Net(self.world, (), namespace=self.namespace)
        self.ends = {**net.pods, _DNS: net.dns[0]}
        if self.strangers:
            self.ends |= net.strangers
        self.ends |= {ip: Endpoint(ip) for ip in self.outside}
        self.listen = {name: [] for name in self.ends}
        self.listen[_DNS] = [("UDP", 53)]
        self.services = {}
        for number, app in enumerate(self.world.apps, start=2):
            ports = {one.number for one in app.ports}
            for service in app.service[:1]:  # Only the first service port is tested.
                if (target := target_port(app, service)) is None:
                    continue
                ports.add(target.number)
                ip = self.ends[app.name].ip
                self.services[app.name] = (
                    service.protocol,
                    f"{_SERVICES}.{number}",
                    service.port,
                    ip,
                    target.number,
                )
            self.listen[app.name] = [(kind, port) for port in sorted(ports) for kind in _KINDS]

    @property
    def places(self) -> dict[str, int]:
        """Map from each endpoint's name to its index."""
        return {name: place for place, name in enumerate(self.ends)}

    @property
    def namespaces(self) -> dict[str, Labels]:
        return {**STRANGERS, self.namespace: {**self.world.labels, NAME_LABEL: self.namespace}}

    def order(self) -> dict[str, Any]:
        """Return the arguments of the request that creates the network."""
        return {
            "pods": [
                {
                    "ip": end.ip,
                    "namespace": end.namespace,
                    "labels": dict(end.labels),
                    "named": [[one.name, one.protocol, one.number] for one in end.ports],
                }
                for end in self.ends.values()
            ],
            "listen": [self.listen[name] for name in self.ends],
            "services": list(self.services.values()),
            "namespaces": {name: dict(labels) for name, labels in self.namespaces.items()},
        }

    def look_up(self, source: str) -> Target:
        """Return the probe that tests whether ``source`` can look up names."""
        places = self.places
        return places[source], "UDP", self.ends[_DNS].ip, 53, places[_DNS]

    def connect(self, pair: Pair) -> Target | None:
        """Return the probe that tests a pair, or None if its service has no usable target port.

        TCP probes use the service's address. UDP probes use the pod's address, because a refusal
        through a service's address is not reported.
        """
        if (service := self.services.get(pair.target)) is None:
            return None
        protocol, ip, port, pod_ip, pod_port = service
        if protocol == "UDP":
            ip, port = pod_ip, pod_port
        return self.places[pair.source], protocol, ip, port, self.places[pair.target]


_KINDS = ("TCP", "UDP")
#: (source, protocol, address, port, expected pod), as in ``plane.Network.probe``
Target = tuple[int, str, str, int, int]


def lacking() -> str:
    """Return in one line why this machine cannot measure pairs, or "" if it can. The check takes a
    second."""
    if shutil.which("nft", path=surroundings()["PATH"]) is None:
        return "nftables is not installed"
    try:
        return one_line(try_out(program(_MODULE), _START_S))
    except EnvironmentFailed as error:
        return str(error)


class Plane:
    """The service's side of the process of module ``plane``. The process starts with the first
    request."""

    def __init__(self) -> None:
        self._servant = Servant(
            "the data plane",
            lambda end: program(_MODULE, end),
            start_s=_START_S,
            stop_s=_STOP_S,
            answer_s=_ANSWER_S,
        )
        # The process handles one request at a time. Time spent waiting for other requests must not
        # count towards a timeout.
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process id, or None while the process does not run."""
        return self._servant.pid

    async def ask(self, do: str, episode: int, **arguments: Any) -> Any:
        """Send a request to the process. If this raises EnvironmentFailed, the next request
        restarts the process."""
        async with self._turn:
            await self._servant.start()
            return await self._servant.ask(do, episode=episode, **arguments)

    async def start(self) -> None:
        """Start the process. Raises EnvironmentFailed with the reason if this machine cannot run
        it."""
        await self._servant.start()

    async def stop(self) -> None:
        """Stop the process and remove all its networks."""
        async with self._turn:
            await self._servant.stop()


class Wired(Cluster):
    """A cluster that tests pairs with real connections.

    Its policies and objects come from the cluster ``inner``.

    Other clusters may use ``inner`` too, so ``stop`` does not stop it.
    """

    def __init__(self, inner: Cluster) -> None:
        self._inner = inner
        self._episodes = 0
        self.plane = Plane()

    async def start(self) -> None:
        await self._inner.start()
        await self.plane.start()

    async def deploy(self, world: World) -> Deployed:
        self._episodes += 1
        number = self._episodes
        inner = await self._inner.deploy(world)
        layout = Layout(world, inner.access.namespace)
        try:
            await self.plane.ask("lay", number, **layout.order())
        except BaseException:
            await asyncio.shield(inner.close())
            await asyncio.shield(self._forget(number))
            raise
        return WiredShop(inner, self.plane, number, layout)

    async def stop(self) -> None:
        await self.plane.stop()

    async def _forget(self, number: int) -> None:
        if self.plane.pid is not None:
            with contextlib.suppress(EnvironmentFailed):
                await self.plane.ask("close", number)


class WiredShop(Deployed):
    """A deployed world, with its objects on the inner cluster and its pods in network
    namespaces."""

    def __init__(self, inner: Deployed, plane: Plane, number: int, layout: Layout) -> None:
        self._inner = inner
        self._plane = plane
        self._number = number
        self._layout = layout

    @property
    def access(self) -> Access:
        return self._inner.access

    async def write(self, policies: Sequence[Policy]) -> None:
        await self._inner.write(policies)

    def admit(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        return self._inner.admit(caller)

    async def look(self) -> Sight:
        deadline = time.monotonic() + _SETTLE_S
        before: Sight | None = None
        while True:
            seen = await self._inner.look()
            reached = await measure_pairs(self._plane, self._number, self._layout, seen.policies)
            differing = self._differing(seen.reached, reached)
            now = replace(seen, reached=reached, disagreement=differing, predicted=seen.reached)
            if now == before:
                return now
            if before is not None and time.monotonic() > deadline:
                raise EnvironmentFailed(
                    "the measured connections of the data plane did not become stable in time"
                )
            before = now

    async def close(self) -> None:
        await self._inner.close()
        # If the process has ended, the pods no longer exist.
        if self._plane.pid is not None:
            with contextlib.suppress(EnvironmentFailed):
                await self._plane.ask("close", self._number)

    def _differing(self, computed: Iterable[bool], reached: Iterable[bool]) -> tuple[str, ...]:
        pairs = zip(self._layout.world.pairs, computed, reached, strict=True)
        return tuple(
            f"{pair.source} -> {pair.target}" for pair, one, other in pairs if one != other
        )


async def measure_pairs(
    plane: Plane, number: int, layout: Layout, policies: Sequence[Policy]
) -> tuple[bool, ...]:
    """Apply ``policies`` to the network of episode ``number``, and return whether each pair works.
    Raises EnvironmentFailed."""
    world = layout.world
    finding = {app.name: layout.look_up(app.name) for app in world.apps}
    connecting = [layout.connect(pair) for pair in world.pairs]
    found = await measure(
        plane,
        number,
        [render_policy(one, layout.namespace) for one in policies],
        [*finding.values(), *(one for one in connecting if one is not None)],
    )
    return tuple(
        target is not None and found[finding[pair.source]] and found[target]
        for pair, target in zip(world.pairs, connecting, strict=True)
    )


async def measure(
    plane: Plane, number: int, policies: Sequence[Mapping[str, Any]], targets: Sequence[Target]
) -> dict[Target, bool]:
    """Apply policies to the network of episode ``number``, and return whether each target is
    reached. All targets are tested at the same time.

    Raises EnvironmentFailed.
    """
    unique = list(dict.fromkeys(targets))
    found = await plane.ask("measure", number, policies=policies, targets=unique, wait_s=_WAIT_S)
    return dict(zip(unique, found, strict=True))
