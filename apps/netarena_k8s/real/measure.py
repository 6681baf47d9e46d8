"""Measurement of all pairs from inside the pods, with a new connection each time.

One command (``standin probe``, see ``standin/main.go``) runs in each pod for as long as the pod
exists. In a round, each command receives one line and answers with one line. Each target is tested
through the address of its service. The name of the service is looked up separately, so that a
failed lookup is distinguished from a blocked connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netarena.sdk import EnvironmentFailed
from netarena_k8s.real.client import Api, Stream, each
from netarena_k8s.world.model import App, Net, Pair, World, target_port
from netarena_k8s.world.policy import Manifest

#: cluster IP of a headless service
HEADLESS = "None"
_COMMAND = ("/standin", "probe")
#: maximum time to wait for a pod's answer; probes take a few seconds, and more on a busy machine
_ANSWER_S = 20.0
#: Other rounds may start this many seconds after the start of a round of all pairs. By then, the
#: round only waits for probes without a reply. Of the tested values (0.1 to 0.25 s), this value
#: made eight simultaneous rounds fastest on two processors.
_BUSY_S = 0.15


@dataclass(frozen=True)
class Place:
    """The pod in which an application currently runs."""

    pod: str
    uid: str
    ip: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Address:
    """The address at which clients call an application: that of its service, or that of its pod if
    the service is headless."""

    ip: str
    port: int


@dataclass(frozen=True)
class Wait:
    """Times in ms after which a pair without a reply counts as blocked.

    ``expected_ms`` applies to pairs that should reply, ``unexpected_ms`` to all others. A reply
    ends the wait, so ``expected_ms`` costs no time while all pairs behave as expected.
    """

    expected_ms: int
    unexpected_ms: int


@dataclass(frozen=True)
class Finding:
    """The results of the name lookup and of the connection for one pair in a round."""

    dns: str
    connection: str

    @property
    def works(self) -> bool:
        return self.dns == "ok" and self.connection == "open"

    def __str__(self) -> str:
        return self.connection if self.dns == "ok" else f"{self.connection}, lookup {self.dns}"


@dataclass(frozen=True)
class Round:
    """The measurement of some pairs, in the order of these pairs."""

    found: tuple[Finding, ...]
    #: Longest time in ms until a reply. A missing reply shows a blocked pair only if the wait was
    #: much longer.
    slowest_ms: int

    @property
    def reached(self) -> tuple[bool, ...]:
        return tuple(one.works for one in self.found)


class Meter:
    """Measures one world in one namespace. ``move`` sets the pods and service addresses to test."""

    def __init__(
        self, api: Api, namespace: str, world: World, container: str | None = None
    ) -> None:
        """Create a meter. ``container`` names the container with the probe program in each pod
        (None: the application's own container)."""
        self._api = api
        self._namespace = namespace
        self._world = world
        self._container = container
        self._places: dict[str, Place] = {}
        self._addresses: dict[str, Address] = {}
        self._streams: dict[str, Stream] = {}
        self._rounds = 0

    async def move(self, places: Mapping[str, Place], addresses: Mapping[str, Address]) -> None:
        """From now on, test connections from these pods to these service addresses.

        Commands in pods that are still in ``places`` continue to run. Raises EnvironmentFailed.
        """
        for name in list(self._streams):
            if places.get(name) != self._places.get(name):
                await self._streams.pop(name).close()
        self._places, self._addresses = dict(places), dict(addresses)
        await each(self._connect(app) for app in self._world.apps if app.name not in self._streams)

    async def measure(self, net: Net, wait: Wait, pairs: Sequence[Pair]) -> Round:
        """Measure these pairs once. ``net`` predicts the results. The wait for a reply depends on
        the prediction.

        Raises EnvironmentFailed, after which ``move`` must be called again.
        """
        self._rounds += 1
        targets: dict[str, list[str]] = {}
        for pair in pairs:
            targets.setdefault(pair.source, []).append(pair.target)
        with self._api.busy():
            async with self._api.measuring:
                asking = asyncio.create_task(
                    each(self._ask(source, named, net, wait) for source, named in targets.items())
                )
                try:
                    share = len(pairs) / max(1, len(self._world.pairs))
                    await asyncio.wait({asking}, timeout=_BUSY_S * share)
                except BaseException:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
                    raise
            answers = await asking
        found = {
            (source, target): finding
            for source, answer in zip(targets, answers, strict=True)
            for target, finding in zip(targets[source], answer.found, strict=True)
        }
        return Round(
            tuple(found[pair.source, pair.target] for pair in pairs),
            max((answer.slowest_ms for answer in answers), default=0),
        )

    async def close(self) -> None:
        """End the probe commands in all pods."""
        streams, self._streams = list(self._streams.values()), {}
        await asyncio.gather(*(stream.close() for stream in streams), return_exceptions=True)

    async def _connect(self, app: App) -> None:
        self._streams[app.name] = await self._api.execute(
            self._namespace,
            self._places[app.name].pod,
            self._container or app.container,
            _COMMAND,
        )

    async def _ask(self, source: str, targets: Sequence[str], net: Net, wait: Wait) -> Round:
        """Measure the connections from ``source`` to these targets, in the order of the targets."""
        apps = {app.name: app for app in self._world.apps}
        waits = {True: wait.expected_ms, False: wait.unexpected_ms}
        dns_wait_ms = waits[net.resolves(source)]
        request = {
            "id": self._rounds,
            "targets": [
                {
                    "name": apps[name].served_as,
                    "ip": self._addresses[name].ip,
                    "port": self._addresses[name].port,
                    "protocol": apps[name].service[0].protocol.lower(),
                    "dns_wait_ms": dns_wait_ms,
                    "wait_ms": waits[net.connects(Pair(source=source, target=name))],
                }
                for name in targets
            ],
        }
        stream = self._streams.get(source)
        if stream is None:
            raise EnvironmentFailed(
                f"no probe process is running in pod {source}", proven_ours=True
            )
        try:
            line = await stream.ask(json.dumps(request).encode(), _ANSWER_S)
            return _read(line, self._rounds, len(targets))
        except (ValueError, KeyError, TypeError) as error:
            await self._lose(source)
            detail = f"invalid answer of the probe in pod {source}: {type(error).__name__}: {error}"
            raise EnvironmentFailed(detail, proven_ours=True) from None
        except BaseException:
            await self._lose(source)
            raise

    async def _lose(self, source: str) -> None:
        if (stream := self._streams.pop(source, None)) is not None:
            await stream.close()


def _read(line: bytes, number: int, targets: int) -> Round:
    """Return the results in one pod's answer. Raises ValueError, KeyError or TypeError if the
    answer does not match the request."""
    answer = json.loads(line)
    found = tuple(Finding(one["dns"], one["connection"]) for one in answer["found"])
    if answer["id"] != number or len(found) != targets:
        raise ValueError("it does not match the request")
    return Round(found, int(answer["slowest_ms"]))


def places_of(world: World, pods: Iterable[Manifest]) -> dict[str, Place]:
    """Return the ready pod of each application, by application. If an application has several,
    return the first by name.

    Applications without a ready pod are left out.
    """
    found: dict[str, Place] = {}
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        about, status = pod["metadata"], pod.get("status") or {}
        ready = any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in status.get("conditions") or ()
        )
        if "deletionTimestamp" in about or not ready:
            continue
        for app in world.apps:
            if app.labels.items() <= (about.get("labels") or {}).items():
                place = Place(about["name"], about["uid"], status["podIP"], about["labels"])
                found.setdefault(app.name, place)
    return found


def addresses_of(
    world: World, cluster_ips: Mapping[str, str], places: Mapping[str, Place]
) -> dict[str, Address]:
    """Return the address of each application with a service, by application. ``cluster_ips`` maps
    services to IP addresses."""
    found = {}
    for app in world.apps:
        if not app.service:
            continue
        service, target = app.service[0], target_port(app, app.service[0])
        ip = cluster_ips[app.served_as]
        if ip == HEADLESS:
            number = service.port if target is None else target.number
            found[app.name] = Address(places[app.name].ip, number)
        else:
            found[app.name] = Address(ip, service.port)
    return found
