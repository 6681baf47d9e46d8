"""One world in one namespace of a real cluster, from deployment to removal.

No step waits for a fixed time. A measurement is settled if two rounds agree with the evaluator's
prediction and the policies do not change during the rounds. If a disagreement lasts for
``DISAGREE_S`` seconds, the pairs are reported with the measured and the predicted result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import TypeAlias

from netarena.sdk import Caller, EnvironmentFailed, finish
from netarena_k8s.cluster import Access, Deployed, Sight, render_kubeconfig
from netarena_k8s.embedded.apiserver.rbac import OPERATOR
from netarena_k8s.real.api_proxy import Gate
from netarena_k8s.real.client import Api, Json, Refused, each, encoded, path_of
from netarena_k8s.real.lease import remove_policies, renew
from netarena_k8s.real.manifest import (
    MEASURER,
    app_manifests,
    policy_manifests,
    right_manifests,
)
from netarena_k8s.real.measure import Meter, Place, Round, Wait, addresses_of, places_of
from netarena_k8s.state import digits, make_state
from netarena_k8s.world.model import (
    DNS_LABELS,
    Marks,
    Net,
    Policy,
    World,
    render_policy,
)
from netarena_k8s.world.policy import Manifest

#: maximum time in s to wait until the measurement agrees with the prediction
DISAGREE_S = 10.0
#: Maximum time in s of each trial. A trial measures the pairs again while only the agent's policies
#: can cause a disagreement. A disagreement that remains in all trials counts as an agent failure. A
#: failure of the network plug-in counts as an agent failure only if it affects every trial. The
#: last trial gives a slow plug-in enough time.
TRIALS_S = (10.0, 10.0, 30.0)
#: Time for the network plug-in to apply the agent's policies, as a multiple of its time for the
#: intended policies.
_HEARD_TIMES = 2
#: Initial and maximum wait after which a pair without a reply counts as blocked, if a reply is
#: expected. A reply ends the wait.
_EXPECTED_MS, _MOST_EXPECTED_MS = 250, 4000
#: initial and maximum wait for a pair from which no reply is expected
_UNEXPECTED_MS, _MOST_UNEXPECTED_MS = 150, 1000
#: A pair counts as blocked only after a wait of this multiple of the longest time until a reply in
#: the same round.
_MARGIN = 3
#: Initial wait in rounds that test only pairs whose expected result has changed, and growth factor
#: of this wait. The wait grows after a round in which an expected reply is missing.
_SCOUT_MS, _LONGER = 50, 1.5
#: interval of rounds that test only changed pairs
_SCOUT_PAUSE_S = 0.05
#: number of rounds that must agree
_ROUNDS = 2
#: maximum time for pods to become ready, including the pull of images on a busy machine
_READY_S = 180.0
#: maximum time for pods to become ready if the user's own images are pulled
_PULLED_S = 900.0
#: maximum time until name servers no longer return an earlier service's address; it takes 5 to 30 s
_NAMES_S = 120.0
#: maximum time to replace pods or the API server during a measurement, or to remove deleted
#: policies
_REPLACE_S = 90.0
_PAUSE_S = 0.1
#: maximum number of differences that a message lists
_TOLD = 3
#: metadata fields that may cause the deletion of an object later, independent of this service
_BOUND = frozenset({"finalizers", "ownerReferences", "deletionTimestamp"})
#: Lifetime of an agent's token. It is renewed after half of this time, and becomes invalid when its
#: account is deleted.
_TOKEN_S = 3600
#: interval of checks for an outage of the API server while a command runs
_BEAT_S = 1.0
#: HTTP status codes of a refusal that is due to the policy's content
_CONTENT = frozenset({400, 413, 422})
#: Address of the proxy for the agent's kubectl. The sandbox can reach only one address on this
#: machine, and the API server runs on another machine.
_HOST = "127.0.0.1"
#: reasons for which a container never starts without intervention
_STUCK = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerError",
    }
)


class NotHealthy(EnvironmentFailed):
    """The intended policies are deployed, but the cluster does not enforce them."""


class Shop:
    """A namespace with a deployed world. Call ``build`` once, ``renew`` for each episode, and
    ``look`` to measure its connections."""

    def __init__(  # noqa: PLR0913 -- the parts of a workload set
        self,
        api: Api,
        namespace: str,
        world: World,
        image: str,
        *,
        workloads: Mapping[str, Manifest] | None = None,
        shared: bool = False,
    ) -> None:
        self.namespace = namespace
        self.world = world
        #: application -> manifest of the workload that runs instead of the stand-in
        self._workloads = workloads
        #: whether the namespace may also have objects of other programs
        self._shared = shared
        self._api = api
        self._image = image
        self._meter = Meter(api, namespace, world, None if workloads is None else MEASURER)
        #: service -> its cluster IP
        self._cluster_ips: dict[str, str] = {}
        self._places: dict[str, Place] = {}
        #: application -> pod address, and the addresses of the name servers
        self._pods: dict[str, str] = {}
        self._name_servers: tuple[str, ...] = ()
        #: labels as last read from the cluster
        self._marks = world.marks
        self._deployed: dict[str, str] = {}
        #: result of the last measurement of all pairs
        self._reached: tuple[bool, ...] = ()
        #: last observation without a disagreement, and the policies' specs at that time
        self._seen: tuple[Sight, list[tuple[str, int]]] | None = None
        #: reason why the namespace no longer belongs to this service, or "" while it does
        self.lost = ""

    async def build(self) -> None:
        """Deploy the applications and wait until all pods are ready.

        The namespace must exist and have no policies yet. Raises EnvironmentFailed.
        """
        apps = app_manifests(self.world, self.namespace, self._image, self._workloads)
        made = await each(self._api.apply(one) for one in apps)
        self._cluster_ips = {
            one["metadata"]["name"]: one["spec"]["clusterIP"]
            for one in made
            if one["kind"] == "Service"
        }
        await self._find_pods(_READY_S if self._workloads is None else _PULLED_S)
        await self._wait_for_names()
        self._deployed = await self._others()

    async def renew(self) -> None:
        """Reset the namespace after an episode, and measure the connections.

        The agent's account is recreated, and the intended policies are restored. Raises
        EnvironmentFailed.
        """
        await self._api.delete(path_of("ServiceAccount", self.namespace, OPERATOR))
        for one in right_manifests(self.namespace):
            await self._api.apply(one)
        await self._restore()
        sight = await self.healthy()
        if sight.reached != self.world.intended or sight.others:
            told = (*sight.disagreement, *sight.others)
            more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
            raise NotHealthy(
                f"namespace {self.namespace} did not become healthy: "
                f"{'; '.join(told[:_TOLD])}{more}",
                evidence=make_state(sight),
                proven_ours=True,
            )

    async def healthy(self) -> Sight:
        """Return the last observation if policies' specs, pods and other objects are unchanged.
        Otherwise return a new observation."""
        listed = await self.policies()
        self._check_strangers(listed)
        if (
            self._seen is not None
            and _specs(listed) == self._seen[1]
            and await self._others() == self._deployed
            and places_of(self.world, await self._api.find("Pod", self.namespace)) == self._places
        ):
            return self._seen[0]
        return await self.look()

    async def token(self) -> tuple[str, float]:
        """Return a token for the agent, and its lifetime in seconds.

        The API server may grant a shorter lifetime than requested. Raises EnvironmentFailed.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _TOKEN_S},
        }
        path = path_of("ServiceAccount", self.namespace, OPERATOR, "token")
        granted = (await self._api.post(path, body))["status"]
        until = datetime.fromisoformat(granted["expirationTimestamp"]).timestamp()
        return str(granted["token"]), until - self._api.now

    async def policies(self) -> list[Json]:
        """Return the policies of the namespace, sorted by name."""
        found = await self._api.find("NetworkPolicy", self.namespace)
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    async def version(self) -> int:
        """Return the cluster's current resource version. Earlier states have lower versions."""
        listed = await self._api.get(path_of("NetworkPolicy", self.namespace))
        return int(listed["metadata"]["resourceVersion"])

    async def put(self, manifests: Sequence[Manifest]) -> None:
        """Replace all policies of this service with these.

        Every policy is recreated, so that ages, versions and generations do not reveal which
        policies changed.
        """
        names = {one.name for one in self.world.policies}
        names |= {one["metadata"]["name"] for one in manifests}
        await self._remove(names if self._shared else None)
        try:
            await each(self._api.apply(one) for one in manifests)
        except Refused as refused:
            if refused.status not in _CONTENT:
                raise
            # An agent may have written the content, so the refusal does not prove an environment
            # failure.
            raise EnvironmentFailed(str(refused)) from None

    async def _restore(self) -> None:
        """Restore the intended policies. Remove all other policies, unless the namespace is shared.

        Unchanged policies are not written, to save the network plug-in work. Policies with
        finalizers or owners are recreated, because controllers might delete them later.
        """
        healthy = {one.name for one in self.world.policies}
        unwanted = set()
        for one in await self.policies():
            about = one["metadata"]
            if about["name"] in healthy:
                if about.keys() & _BOUND:
                    unwanted.add(about["name"])
            elif not self._shared:
                unwanted.add(about["name"])
        if unwanted:
            await self._remove(unwanted)
        await each(self._api.replace(one) for one in policy_manifests(self.world, self.namespace))

    async def look(self, disagree_s: float | None = None) -> Sight:
        """Return the settled state of the namespace.

        A state in which measurement and evaluator disagree is returned only if the disagreement
        lasts for ``disagree_s`` seconds (default: DISAGREE_S). Raises EnvironmentFailed if the
        state cannot be measured, or the namespace no longer belongs to this service.
        """
        self._seen = None
        loop = asyncio.get_running_loop()
        within_s = DISAGREE_S if disagree_s is None else disagree_s
        patience = loop.time() + within_s + _REPLACE_S
        known: list[tuple[str, str]] = []
        course = _Course(loop.time(), within_s)
        while True:
            listed = await self.policies()
            self._check_strangers(listed)
            if (versions := _versions(listed)) != known:
                known = versions
                course.begin()
            net = self._net(listed)
            predicted = net.reached
            try:
                await self._scout(net, predicted, course.scout_until)
                found = await self._meter.measure(net, course.wait, self.world.pairs)
            except EnvironmentFailed:
                if loop.time() > patience:
                    raise
                await self._find_pods(patience - loop.time())
                # All traffic of a new pod is allowed until the network plug-in has processed it.
                course = _Course(loop.time(), within_s)
                continue
            self._reached = found.reached
            if course.settles(found, predicted, loop.time()):
                listed = await self.policies()
                if _versions(listed) == known:
                    sight = await self._sight(listed, found, predicted)
                    if not (sight.disagreement or sight.others):
                        self._seen = sight, _specs(listed)
                    return sight
            if loop.time() > patience:
                raise EnvironmentFailed(
                    f"namespace {self.namespace}: the connections did not become stable in time",
                    evidence={
                        "reached": digits(found.reached),
                        "predicted": digits(predicted),
                        "disagreement": list(_differences(self.world, found, predicted)),
                    },
                )

    async def _scout(self, net: Net, predicted: Sequence[bool], until: float) -> None:
        """Measure only the pairs whose expected result has changed, until they are as expected or
        the time ``until`` is reached.

        Before these pairs are as expected, a round of all pairs cannot agree. The results do not
        count for the observation.
        """
        loop = asyncio.get_running_loop()
        pairs = zip(self.world.pairs, predicted, self._reached or predicted, strict=True)
        changed = {pair: now for pair, now, before in pairs if now != before}
        wait_ms = float(_SCOUT_MS)
        while changed and loop.time() < until:
            begun = loop.time()
            wait = Wait(int(wait_ms), _SCOUT_MS)
            found = await self._meter.measure(net, wait, list(changed))
            wrong = [
                now
                for now, seen in zip(changed.values(), found.reached, strict=True)
                if now != seen
            ]
            if not wrong:
                return
            if any(wrong):
                wait_ms = min(wait_ms * _LONGER, _MOST_UNEXPECTED_MS)
            # Pairs that should be blocked but still work reply immediately, so a pause is needed
            # between rounds.
            await asyncio.sleep(begun + _SCOUT_PAUSE_S - loop.time())

    async def close(self) -> None:
        """Stop measuring. The namespace remains."""
        await self._meter.close()

    async def _sight(
        self, listed: Sequence[Manifest], found: Round, predicted: Sequence[bool]
    ) -> Sight:
        names = {one["metadata"]["name"] for one in listed}
        healthy = {policy.name for policy in self.world.policies}
        others = [
            *(f"networkpolicies {self.namespace}/{name} was deleted" for name in healthy - names),
            *(f"networkpolicies {self.namespace}/{name} was created" for name in names - healthy),
        ]
        now = await self._others()
        for name in self._deployed.keys() | now.keys():
            if now.get(name) != self._deployed.get(name):
                what = "changed" if name in now else "deleted"
                others.append(f"{name} was {what if name in self._deployed else 'created'}")
        if others and await self._is_gone():
            raise EnvironmentFailed(
                f"namespace {self.namespace} was deleted or leased by another process, not by the "
                "agent",
                evidence=sorted(others),
                proven_ours=True,
            )
        return Sight(
            tuple(
                Policy(name=one["metadata"]["name"], spec=one.get("spec") or {}) for one in listed
            ),
            found.reached,
            tuple(sorted(others)),
            namespace=self.namespace,
            disagreement=_differences(self.world, found, predicted),
            predicted=tuple(predicted),
            marks=self._marks,
        )

    def _net(self, listed: Sequence[Manifest]) -> Net:
        """Return the predicted connections under these policies in this namespace."""
        return Net(
            self.world,
            listed,
            namespace=self.namespace,
            addresses=self._pods,
            name_servers=self._name_servers,
            marks=self._marks,
        )

    async def _others(self) -> dict[str, str]:
        """Return the objects that the agent must not change, by name, with the fields that clients
        write, as JSON."""
        found = {}
        workloads = {app.workload for app in self.world.apps} - {"Pod"}
        for kind in ("Service", *sorted(workloads)):
            for one in await self._api.find(kind, self.namespace):
                about = one["metadata"]
                facts = [about["uid"], about.get("labels"), one["spec"]]
                name = f"{kind.lower()}s {self.namespace}/{about['name']}"
                found[name] = json.dumps(facts, sort_keys=True)
        return found

    async def _is_gone(self) -> bool:
        """Return whether the namespace belongs to another service or is being deleted."""
        if self._shared:
            return not await renew(self._api, self.namespace)
        try:
            found = await self._api.get(path_of("Namespace", name=self.namespace))
        except Refused as refused:
            return refused.status == 404
        return "deletionTimestamp" in found["metadata"]

    async def _find_dns(self) -> tuple[str, ...]:
        """Return the name servers' addresses, or an empty tuple if they are not readable. The
        evaluator needs these addresses for rules with address blocks."""
        query = ",".join(f"{key}={value}" for key, value in DNS_LABELS.items())
        try:
            pods = await self._api.find("Pod", "kube-system", labelSelector=query)
        except Refused:
            return ()
        found = ((one.get("status") or {}).get("podIP") for one in pods)
        return tuple(sorted(filter(None, found)))

    async def _find_space(self) -> dict[str, str]:
        """Return the labels of the namespace, or an empty dict if they are not readable."""
        try:
            found = await self._api.get(path_of("Namespace", name=self.namespace))
        except Refused:
            return {}
        return dict(found["metadata"].get("labels") or {})

    def _check_strangers(self, listed: Iterable[Manifest]) -> None:
        """Check that the namespace still belongs to this service and has no policies of other
        programs.

        An agent cannot create policies. Raises EnvironmentFailed.
        """
        if self.lost:
            raise EnvironmentFailed(self.lost, proven_ours=True)
        if self._shared:
            known = {policy.name for policy in self.world.policies}
            for name in sorted({one["metadata"]["name"] for one in listed} - known):
                raise EnvironmentFailed(
                    f"NetArena did not create the NetworkPolicy {name} in namespace "
                    f"{self.namespace}: delete that policy",
                    proven_ours=True,
                )

    async def _remove(self, names: AbstractSet[str] | None) -> None:
        """Delete the policies ``names``, or all policies of the namespace, and wait until they no
        longer exist."""
        async with _deadline(
            _REPLACE_S,
            lambda: f"namespace {self.namespace}: the policies still exist after their deletion",
        ):
            await remove_policies(self._api, self.namespace, names)
            while any(
                names is None or one["metadata"]["name"] in names for one in await self.policies()
            ):
                await asyncio.sleep(_PAUSE_S)
                await remove_policies(self._api, self.namespace, names)

    async def _wait_for_names(self) -> None:
        """Wait until each service's name resolves to its address.

        For half a minute, a name server caches the address of an earlier service of the same name,
        or the fact that the name did not exist.
        """
        net = self._net([])
        wait = Wait(_EXPECTED_MS, _UNEXPECTED_MS)
        astray = ""
        async with _deadline(_NAMES_S, lambda: f"namespace {self.namespace}: {astray}"):
            while True:
                try:
                    found = await self._meter.measure(net, wait, self.world.pairs)
                except EnvironmentFailed:
                    await self._find_pods(_REPLACE_S)
                    continue
                pairs = zip(self.world.pairs, found.found, strict=True)
                wrong = [(pair, one.dns) for pair, one in pairs if one.dns != "ok"]
                if not wrong:
                    return
                pair, dns = wrong[0]
                astray = (
                    f"in pod {pair.source}, the name {pair.target} does not resolve to its "
                    f"service: the result of the lookup is {dns}"
                )
                await asyncio.sleep(_PAUSE_S)

    async def _find_pods(self, within_s: float) -> None:
        """Wait until every application has a ready pod, and prepare the measurement from these
        pods."""
        problem = "pods are not ready"
        async with _deadline(within_s, lambda: f"namespace {self.namespace}: {problem}"):
            while True:
                pods = await self._api.find("Pod", self.namespace)
                places = places_of(self.world, pods)
                if missing := [app.name for app in self.world.apps if app.name not in places]:
                    problem = f"{missing[0]} has no ready pod"
                    if stuck := _stuck(pods):
                        raise EnvironmentFailed(stuck, proven_ours=True)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                try:
                    addresses = addresses_of(self.world, self._cluster_ips, places)
                    await self._meter.move(places, addresses)
                except EnvironmentFailed as error:
                    problem = str(error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                self._places = places
                self._pods = {name: place.ip for name, place in places.items()}
                self._name_servers = await self._find_dns()
                self._marks = Marks(
                    pods={name: dict(place.labels) for name, place in places.items()},
                    space=await self._find_space(),
                )
                return


class _Course:
    """The rounds of one observation, until the measurement is settled."""

    def __init__(self, now: float, within_s: float) -> None:
        self._deadline = now + within_s
        #: time until which only changed pairs are measured
        self.scout_until = now + within_s / 4
        self.wait = Wait(_EXPECTED_MS, _UNEXPECTED_MS)
        self.begin()

    def begin(self) -> None:
        """Discard the results so far, because the policies have changed."""
        self._agreed = 0
        self._last: tuple[bool, ...] | None = None
        self._same = 0

    def settles(self, found: Round, predicted: tuple[bool, ...], now: float) -> bool:
        """Add a round, and return whether the measurement is settled.

        The measurement is settled if enough rounds agree with the prediction. After the deadline,
        enough rounds with the longest wait and equal results also settle it, even against the
        prediction.
        """
        wait, agrees = self.wait, found.reached == predicted
        longest = wait.expected_ms >= _MOST_EXPECTED_MS
        enough = min(_MOST_UNEXPECTED_MS, _MARGIN * found.slowest_ms)
        if agrees:
            # A round counts only if the wait was long enough for this machine. Otherwise a pair
            # without a reply may work.
            self._agreed += wait.unexpected_ms >= enough
        else:
            self._agreed = 0
        self._same = self._same + 1 if longest and found.reached == self._last else 0
        self._last = found.reached if longest else None
        self.wait = Wait(
            wait.expected_ms if agrees else min(_MOST_EXPECTED_MS, 2 * wait.expected_ms),
            max(wait.unexpected_ms, enough),
        )
        return self._agreed >= _ROUNDS or (now > self._deadline and self._same >= _ROUNDS - 1)


#: function that is called when an episode has ended
End: TypeAlias = Callable[["RealShop"], Awaitable[None]]
#: function that suspends all episodes except one
Alone: TypeAlias = Callable[["RealShop"], contextlib.AbstractAsyncContextManager[None]]


class RealShop(Deployed):
    """One episode in a namespace of the pool: the agent's token, and its proxy to the API server.

    A disagreement between measurement and evaluator is measured again while all other episodes are
    suspended. The policies of one agent can stop a network plug-in that processes the policies of
    all agents.
    """

    def __init__(self, shop: Shop, api: Api, end: End, alone: Alone) -> None:
        self.shop = shop
        self._api = api
        self._end = end
        self._alone = alone
        #: lock held during commands and observations, and while the episode is suspended
        self._acting = asyncio.Lock()
        #: lock held while all policies are removed or restored, and while the episode ends
        self._moving = asyncio.Lock()
        #: While the episode is suspended: the policies that were removed, otherwise None. Error of
        #: the last attempt to restore these policies, if it failed.
        self._away: list[Json] | None = None
        self._astray: EnvironmentFailed | None = None
        self._closed = False
        #: result of the last measurement that was repeated because it disagreed with the evaluator
        self._doubted: Sight | None = None
        # Each episode has its own proxy, so that all of the agent's connections are closed with the
        # episode.
        self._gate = Gate(api.server, api.ready, self._lend)
        self._lending = asyncio.Lock()
        #: token of the agent's account, and when to renew it
        self._token, self._renew_at = "", 0.0
        self._access: Access | None = None
        # Policies as the service wrote them. Those on the cluster may differ, because a late
        # request of the previous agent may have changed them.
        self._written = {one.name: one for one in shop.world.policies}

    async def open(self) -> None:
        """Create the agent's access. Raises EnvironmentFailed."""
        await self._lend()
        listening = socket.create_server((_HOST, 0))
        port = listening.getsockname()[1]
        await self._gate.start(listening)
        await self._forget()
        server = {
            "server": f"https://{_HOST}:{port}",
            "certificate-authority-data": encoded(self._gate.root),
        }
        kubeconfig = render_kubeconfig(server, self.shop.namespace, OPERATOR, self._gate.word)
        self._access = Access(kubeconfig, _HOST, port, self.shop.namespace)

    async def _lend(self) -> str:
        """Return the token of the agent's account. It is renewed after half of its lifetime. Raises
        EnvironmentFailed."""
        loop = asyncio.get_running_loop()
        async with self._lending:
            if loop.time() >= self._renew_at:
                self._token, life_s = await self.shop.token()
                self._renew_at = loop.time() + life_s / 2
            return self._token

    @property
    def access(self) -> Access:
        assert self._access is not None
        return self._access

    async def write(self, policies: Sequence[Policy]) -> None:
        for policy in policies:
            if policy.name not in self._written:
                raise EnvironmentFailed(f"networkpolicies {policy.name} not found")
            self._written[policy.name] = policy
        async with self._acting:
            await self.shop.put(
                [render_policy(one, self.shop.namespace) for one in self._written.values()]
            )
            await self._forget()

    @contextlib.asynccontextmanager
    async def admit(self, caller: Caller) -> AsyncIterator[None]:
        self._gate.admit(caller)
        try:
            yield
        finally:
            self._gate.dismiss()

    @contextlib.asynccontextmanager
    async def acting(self) -> AsyncIterator[None]:
        async with self._acting:
            if self._away is not None:
                detail = "the policies could not be restored"
                raise self._astray or EnvironmentFailed(detail, proven_ours=True)
            watching = asyncio.create_task(self._watch())
            try:
                yield
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        """Count a failure if the API server is unavailable for a short time while a command of the
        agent runs.

        An agent that stops waiting may send no further request, so no later error would reveal the
        outage.
        """
        while await self._api.ready():  # noqa: ASYNC110 -- there is no event for it
            await asyncio.sleep(_BEAT_S)
        self._gate.failures += 1

    @contextlib.asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Suspend this episode: no command runs, and its policies are removed.

        This raises no error. If the policies cannot be restored, the episode fails later.
        """
        async with self._acting:
            try:
                async with self._moving:
                    if not self._closed:
                        with contextlib.suppress(EnvironmentFailed):
                            if self._away is None:
                                self._away = [_bare(one) for one in await self.shop.policies()]
                            await self.shop.put([])
                yield
            finally:
                await finish(self._bring_back())

    async def _bring_back(self) -> None:
        async with self._moving:
            if self._away is not None and not self._closed:
                self._astray = None
                try:
                    await self.shop.put(self._away)
                    await self._forget()
                except EnvironmentFailed as error:
                    detail = f"the policies could not be restored: {error}"
                    self._astray = EnvironmentFailed(detail, proven_ours=error.proven_ours)
                else:
                    self._away = None

    async def look(self) -> Sight:
        sight = await self._settled(self.shop.look)
        # Checked after the observation, because a command may end before the proxy has recorded the
        # failure of its request.
        if self._gate.failures:
            raise EnvironmentFailed(
                "the cluster's API did not answer during a command", proven_ours=True
            )
        return sight

    async def healthy(self) -> Sight:
        return await self._settled(self.shop.healthy)

    async def _settled(self, look: Callable[[], Awaitable[Sight]]) -> Sight:
        """Return an observation. If it disagrees with the evaluator, and ``doubt`` has not repeated
        it yet, observe again while all other episodes are suspended."""
        async with self.acting():
            sight = await look()
        if sight.disagreement and not self._is_doubted(sight):
            async with self._alone(self):
                sight = await look()
        return sight

    async def doubt(self, sight: Sight) -> Sight:
        if not self._is_doubted(sight):
            async with self._alone(self):
                sight = await self._try_again()
                await self._forget()
            self._doubted = sight
        return sight

    def _is_doubted(self, sight: Sight) -> bool:
        """Return whether this disagreement was already measured again, with the same policies and
        results."""
        doubted = self._doubted
        return doubted is not None and (sight.policies, sight.reached) == (
            doubted.policies,
            doubted.reached,
        )

    async def _try_again(self) -> Sight:
        """Measure the agent's policies in several trials, and return the result. Only the agent's
        policies can cause a disagreement that remains."""
        there = [_bare(one) for one in await self.shop.policies()]
        *trials_s, last_s = TRIALS_S
        for within_s in trials_s:
            sight = await self._trial(there, within_s)
            if not sight.disagreement:
                return sight
        sight = await self._trial(there, last_s)
        if sight.disagreement:
            # If the cluster enforces policies before and after the last trial, it counts as
            # enforcing them during the trial.
            await self._believe()
            await self.shop.put(there)
        return sight

    async def _forget(self) -> None:
        """From now on, treat all current object versions as expired for the agent."""
        self._gate.since = await self.shop.version()

    async def _trial(self, policies: Sequence[Manifest], within_s: float) -> Sight:
        """Apply other policies, then ``policies``, and return the measurement.

        An agreement with the evaluator counts only after the network plug-in had enough time,
        because an earlier result may be that of the previous policies.
        """
        loop = asyncio.get_running_loop()
        enough_s = _HEARD_TIMES * await self._believe()
        await self.shop.put(policies)
        heard = loop.time() + enough_s
        while True:
            sight = await self.shop.look(within_s)
            if sight.disagreement or loop.time() > heard:
                return sight

    async def _believe(self) -> float:
        """Check that the cluster enforces the intended policies, and then policies that allow no
        ingress.

        Both checks are needed: a stopped network plug-in leaves its last rules in force, and these
        might match the policies of one check. Return the longer of the two times in seconds until
        the policies took effect. Raises EnvironmentFailed if the policies do not take effect.
        """
        loop = asyncio.get_running_loop()
        longest_s = 0.0
        healthy = self.shop.world.policies
        shut = [
            Policy(name=one.name, spec={"podSelector": one.spec.get("podSelector") or {}})
            for one in healthy
        ]
        for policies in (healthy, shut):
            await self.shop.put([render_policy(one, self.shop.namespace) for one in policies])
            put = loop.time()
            sight = await self.shop.look()
            longest_s = max(longest_s, loop.time() - put)
            if sight.disagreement:
                raise EnvironmentFailed(
                    "the cluster does not enforce network policies: "
                    + "; ".join(sight.disagreement),
                    evidence=make_state(sight),
                    proven_ours=True,
                )
        return longest_s

    async def close(self) -> None:
        # ``_leave`` runs to its end even after a cancellation. Otherwise the pool would never get
        # the namespace back.
        await finish(self._leave())

    async def _leave(self) -> None:
        async with self._moving:
            self._closed = True
        await self._gate.close()
        await self._end(self)


@contextlib.asynccontextmanager
async def _deadline(within_s: float, problem: Callable[[], str]) -> AsyncIterator[None]:
    """Raise EnvironmentFailed with the text of ``problem()`` if the body takes longer than
    ``within_s`` seconds."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        raise EnvironmentFailed(f"{problem()} after {within_s:.0f} s", proven_ours=True) from None


def _bare(manifest: Manifest) -> Json:
    """Return the manifest of a policy without the fields that the API adds."""
    about = manifest["metadata"]
    kept = {
        key: about[key] for key in ("name", "namespace", "labels", "annotations") if key in about
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": kept,
        "spec": manifest.get("spec") or {},
    }


def _versions(listed: Iterable[Manifest]) -> list[tuple[str, str]]:
    return [(one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in listed]


def _specs(listed: Iterable[Manifest]) -> list[tuple[str, int]]:
    """Return the uid and generation of each policy. These values differ after any change of a spec,
    even a change that was reverted."""
    return [(one["metadata"]["uid"], one["metadata"]["generation"]) for one in listed]


def _differences(world: World, found: Round, predicted: Sequence[bool]) -> tuple[str, ...]:
    """Return the pairs on which measurement and evaluator disagree, as text."""
    return tuple(
        f"{pair.source} -> {pair.target}: the policies "
        f"{'allow' if wanted else 'block'} this connection, but measured: {one}"
        for pair, wanted, one in zip(world.pairs, predicted, found.found, strict=True)
        if wanted != one.works
    )


def _stuck(pods: Iterable[Manifest]) -> str:
    """Return the reason why a pod will never start without intervention, or "" if no pod has such a
    problem."""
    for pod in pods:
        status = pod.get("status") or {}
        started = (status.get("initContainerStatuses"), status.get("containerStatuses"))
        for one in (one for listed in started for one in listed or ()):
            waiting = (one.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _STUCK:
                return (
                    f"pod {pod['metadata']['name']}: {waiting['reason']} of {one['image']}: "
                    "load the image into the cluster (docs/cluster.md)"
                )
    return ""
