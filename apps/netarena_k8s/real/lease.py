"""Lease of a namespace that the config names: a ConfigMap that records the holder and its policies.

All objects that NetArena creates, except policies, have NetArena's label. Policies look the same on
every cluster, because agents read them; the lease lists their names. The lease is created before
the first policy and deleted after the last one. In a namespace that the reference implementation
has set up, NetArena replaces the objects of its Online Boutique and changes no other object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from netarena.sdk import ConfigError
from netarena_k8s.real.client import GONE, Api, Json, Refused, each, path_of
from netarena_k8s.real.owner import (
    RENEW_S,
    SILENT_S,
    Listener,
    is_mine,
    is_ours,
    is_seen_alive,
    self_notes,
    why_kept,
)
from netarena_k8s.world.boutique import boutique
from netarena_k8s.world.model import OWNED, OWNER
from netarena_k8s.world.policy import Manifest

log = logging.getLogger(__name__)

#: query parameter that selects NetArena's objects
MINE: Mapping[str, str] = {"labelSelector": f"{OWNED}={OWNER}"}
NAME = "netarena"
_POLICIES = "policies"
_PAUSE_S = 0.5
#: kinds of objects that are removed, in this order, before the lease
_KINDS = (
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "Pod",
    "Service",
    "RoleBinding",
    "Role",
    "ServiceAccount",
)
#: kinds of objects that conflict with a world if another program created them
_CROSSING = ("NetworkPolicy", "Deployment", "Service", "Pod")
#: phases of pods that no longer use the network
_OVER = frozenset({"Succeeded", "Failed"})
#: objects that every cluster has in the namespace ``default``
_EVERYWHERE = frozenset({("Service", "kubernetes")})


@dataclass(frozen=True)
class Claim:
    """The lease of a namespace as read from its ConfigMap: the holder (in ``notes``) and the names
    of its policies."""

    namespace: str
    policies: frozenset[str]
    notes: Mapping[str, str]
    version: str
    uid: str

    @classmethod
    def read(cls, found: Json) -> Self:
        """Return the lease in a ConfigMap. If its list of policies is malformed, the lease has no
        policies."""
        about = found["metadata"]
        names: object = None
        with contextlib.suppress(ValueError, RecursionError):
            names = json.loads((found.get("data") or {}).get(_POLICIES, "[]"))
        listed = names if isinstance(names, list) else []
        return cls(
            about["namespace"],
            frozenset(map(str, listed)),
            about.get("annotations") or {},
            about.get("resourceVersion", ""),
            about.get("uid", ""),
        )


async def claim(api: Api, namespace: str, policies: Iterable[str]) -> None:
    """Take the lease of a namespace, with the names of the policies to be created.

    The objects of an earlier lease are removed first. Raises EnvironmentFailed, and ConfigError if
    another service holds the lease.
    """
    there = await _find(api, namespace)
    if there is not None:
        if not is_mine(there.notes) and why_kept(there.notes, api.now):
            raise _taken(namespace)
        await _seize(api, there)
        await vacate(api, namespace)
    await _make(api, namespace, policies)


async def renew(api: Api, namespace: str) -> bool:
    """Renew the lease, and return whether this process still holds it. Raises EnvironmentFailed."""
    try:
        there = await _find(api, namespace)
        if there is None or not is_mine(there.notes):
            return False
        await _seize(api, there)
    except ConfigError:
        return False
    return True


async def clear(api: Api, there: Claim) -> None:
    """Remove the objects of the lease ``there``, whose service has ended.

    Raises EnvironmentFailed, and ConfigError if another service has taken the lease in the
    meantime.
    """
    await _seize(api, there)
    await vacate(api, there.namespace)


async def claims(api: Api, *namespaces: str) -> list[Claim]:
    """Return the leases in ``namespaces``, by default in all namespaces. Raises Refused if the
    kubeconfig does not permit this."""
    if not namespaces:
        found = await api.find("ConfigMap", **MINE)
        return [Claim.read(one) for one in found if one["metadata"]["name"] == NAME]
    some = []
    for namespace in namespaces:
        with contextlib.suppress(ConfigError):
            some.append(await _find(api, namespace))
    return [one for one in some if one is not None]


async def settle(api: Api, namespace: str) -> None:
    """Take the lease, and remove the objects of earlier services and of the reference's Online
    Boutique.

    Raises ConfigError, before any change, if another service holds the lease or if objects of other
    programs conflict.
    """
    there = await _free(api, namespace)
    ours = there.policies if there is not None else frozenset[str]()
    replaced: list[tuple[str, str, str]] = []
    made = [one["metadata"] for one in await _made_by_us(api, namespace)]
    going = {about["uid"] for about in made}
    for kind in _CROSSING:
        for one in await api.find(kind, namespace):
            about = one["metadata"]
            what = (kind, about["name"])
            labelled = (about.get("labels") or {}).get(OWNED) == OWNER
            if labelled or what in _EVERYWHERE or (kind == _CROSSING[0] and what[1] in ours):
                continue
            if kind == "Pod" and _goes(
                one, going, {about["name"] for about in made} | {name for _, name, _ in replaced}
            ):
                continue
            if what not in _boutique():
                raise _crossing(namespace, kind, about["name"])
            replaced.append((*what, about["uid"]))
    if there is None:
        await _make(api, namespace, ())
    else:
        await _seize(api, there)
    for kind, name, uid in replaced:
        await api.delete(path_of(kind, namespace, name), uid)
    await vacate(api, namespace)


async def _made_by_us(api: Api, namespace: str) -> list[Json]:
    """Return the workloads with NetArena's label. Pods of these workloads do not have the label."""
    found = []
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        # Without the right to list a kind, the service cannot have created objects of this kind.
        with contextlib.suppress(Refused):
            found += await api.find(kind, namespace, **MINE)
    return found


def _goes(pod: Json, going: Container[str], replaced: Container[str]) -> bool:
    """Return whether a pod has ended or will be removed together with its workload.

    ``going`` has the uids of workloads to be removed, and ``replaced`` the names of deployments to
    be removed. The name of a replica set begins with the name of its deployment.
    """
    about = pod["metadata"]
    if "deletionTimestamp" in about or (pod.get("status") or {}).get("phase") in _OVER:
        return True
    return any(
        one["uid"] in going
        or (one["kind"] == "ReplicaSet" and one["name"].rpartition("-")[0] in replaced)
        for one in about.get("ownerReferences") or ()
    )


async def vacate(api: Api, namespace: str) -> None:
    """Remove NetArena's objects, and then the lease, from a namespace that this process has leased.

    Does nothing if this process does not hold the lease. Raises EnvironmentFailed.
    """
    there = None
    with contextlib.suppress(ConfigError):  # A ConfigMap of this name is not always a lease.
        there = await _find(api, namespace)
    if there is None or not is_mine(there.notes):
        return
    await remove_policies(api, namespace, there.policies)
    for kind in _KINDS:
        try:
            found = await api.find(kind, namespace, **MINE)
        except Refused:  # no right to list this kind, so there are no such objects
            continue
        for one in found:
            about = one["metadata"]
            await api.delete(path_of(kind, namespace, about["name"]), about["uid"])
    await api.delete(path_of("ConfigMap", namespace, NAME), there.uid)


async def remove_policies(api: Api, namespace: str, names: Iterable[str] | None = None) -> None:
    """Delete the policies ``names``, or all policies of the namespace. Finalizers that an agent may
    have added are removed first.

    Raises EnvironmentFailed.
    """
    there = await api.find("NetworkPolicy", namespace)
    if names is not None:
        wanted = frozenset(names)
        there = [one for one in there if one["metadata"]["name"] in wanted]
    await free_policies(api, namespace, there)
    await each(
        api.delete(path_of("NetworkPolicy", namespace, about["name"]), about["uid"])
        for about in (one["metadata"] for one in there)
    )


async def free_policies(api: Api, namespace: str, there: Iterable[Manifest]) -> None:
    """Remove finalizers that prevent the deletion of policies. An agent may have added them."""
    for one in there:
        about = one["metadata"]
        if about.get("finalizers"):
            path = path_of("NetworkPolicy", namespace, about["name"])
            with contextlib.suppress(Refused):  # The policy no longer exists.
                await api.merge(path, {"metadata": {"finalizers": None}})


async def _free(api: Api, namespace: str) -> Claim | None:
    """Wait until no running service holds the lease, and return the previous lease, if any.

    A service on another machine renews its lease every ``RENEW_S`` seconds. It counts as ended
    after ``SILENT_S`` seconds without renewal. Raises ConfigError if another service is active.
    """
    listener, first = Listener(), None
    while (there := await _find(api, namespace)) is not None and not is_mine(there.notes):
        if not (why := listener.why_kept(namespace, there.notes, api.now)):
            break
        if first not in (None, there.notes) or is_seen_alive(there.notes):
            raise _taken(namespace)
        if first is None:
            log.warning(
                "namespace %s is leased (%s): waiting until its service renews the lease (normally "
                "every %.0f s), or until the lease is %.0f s old",
                *(namespace, why, RENEW_S, SILENT_S),
            )
            first = there.notes
        await asyncio.sleep(_PAUSE_S)
    return there


async def _make(api: Api, namespace: str, policies: Iterable[str]) -> None:
    """Create the lease. Raises ConfigError if another service has created it first."""
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "labels": {OWNED: OWNER},
            "annotations": self_notes(api.now),
        },
        "data": {_POLICIES: json.dumps(sorted(policies))},
    }
    await _first(api, namespace, _create(api, namespace, manifest))


async def _create(api: Api, namespace: str, manifest: Manifest) -> Json:
    try:
        return await api.post(path_of("ConfigMap", namespace), manifest)
    except Refused as refused:
        if refused.status != 404:
            raise
        raise ConfigError("namespace", absent(namespace)) from None


def absent(namespace: str) -> str:
    """Return the message for a missing namespace, with the remedy."""
    return f"there is no namespace {namespace}: kubectl create namespace {namespace}"


async def _seize(api: Api, there: Claim) -> None:
    """Make this process the holder of a lease, or renew its lease. Raises ConfigError if the lease
    has changed since it was read."""
    about = {"resourceVersion": there.version, "annotations": self_notes(api.now)}
    path = path_of("ConfigMap", there.namespace, NAME)
    await _first(api, there.namespace, api.merge(path, {"metadata": about}))


async def _first(api: Api, namespace: str, write: Awaitable[Json]) -> None:
    """Execute ``write``, which writes the lease. Raises ConfigError if another service wrote the
    lease first."""
    try:
        await write
    except Refused as refused:
        if refused.status not in GONE:
            raise
        there = await _find(api, namespace)
        # A repeated write is refused if the first attempt succeeded but its response was lost.
        if there is None or not is_mine(there.notes):
            raise _taken(namespace) from None


def _taken(namespace: str) -> ConfigError:
    return ConfigError(
        "namespace",
        f"another NetArena service is currently using namespace {namespace}: wait, "
        "or choose another namespace",
    )


def _crossing(namespace: str, kind: str, name: str) -> ConfigError:
    return ConfigError(
        "namespace",
        f"{namespace} has a {kind} {name} that NetArena did not create: delete that {kind}, or "
        "omit namespace so that each episode gets its own",
    )


async def _find(api: Api, namespace: str) -> Claim | None:
    """Return the lease, or None. Raises ConfigError if a ConfigMap of this name is not a lease."""
    try:
        found = await api.get(path_of("ConfigMap", namespace, NAME))
    except Refused as refused:
        if refused.status == 404:
            return None
        raise
    labelled = (found["metadata"].get("labels") or {}).get(OWNED) == OWNER
    if not labelled or not is_ours(found["metadata"].get("annotations")):
        raise _crossing(namespace, "ConfigMap", NAME)
    return Claim.read(found)


def _boutique() -> frozenset[tuple[str, str]]:
    """Return (kind, name) of the objects of Online Boutique that the reference implementation
    creates.

    The policy ``deny-all`` is left out, because the reference implementation does not have it.
    """
    world = boutique()
    names = [app.name for app in world.apps]
    return frozenset(
        {
            *(("NetworkPolicy", name) for name in names),
            *(("Deployment", name) for name in names),
            *(("Service", service.name) for service in world.all_services),
        }
    )
