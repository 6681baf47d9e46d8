"""Lease of a given namespace: a ConfigMap that records the holder and its objects.

NetArena's objects have its label, except policies, which an agent reads and which must look as
elsewhere. Their names are in the lease, which is created before the first of them and deleted after
the last. In a namespace of the reference's set-up, objects with the names of its boutique are
replaced, and nothing else is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from netarena.errors import ConfigError
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

#: objects of ours
MINE: Mapping[str, str] = {"labelSelector": f"{OWNED}={OWNER}"}
NAME = "netarena"
_POLICIES = "policies"
_PAUSE_S = 0.5
#: what is removed of ours, in this order; the claim goes last
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
#: of others, these would be in our way
_CROSSING = ("NetworkPolicy", "Deployment", "Service", "Pod")
#: phases of pods that use no network any more
_OVER = frozenset({"Succeeded", "Failed"})
#: every cluster has it in its namespace ``default``
_EVERYWHERE = frozenset({("Service", "kubernetes")})


@dataclass(frozen=True)
class Claim:
    """On a namespace: whose, and the names of its policies, as of a version of it."""

    namespace: str
    policies: frozenset[str]
    notes: Mapping[str, str]
    version: str
    uid: str

    @classmethod
    def read(cls, found: Json) -> Self:
        """From its ConfigMap; whoever has tampered with it has claimed no policies."""
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
    """Say that a namespace is in our use, and that these policies are ours. What is left there of
    a claim goes first.

    Raises EnvironmentFailed, and ConfigError where another service is at work.
    """
    there = await _find(api, namespace)
    if there is not None:
        if not is_mine(there.notes) and why_kept(there.notes, api.now):
            raise _taken(namespace)
        await _seize(api, there)
        await vacate(api, namespace)
    await _make(api, namespace, policies)


async def renew(api: Api, namespace: str) -> bool:
    """Say that the claim's owner lives; whether it is still ours. Raises EnvironmentFailed."""
    try:
        there = await _find(api, namespace)
        if there is None or not is_mine(there.notes):
            return False
        await _seize(api, there)
    except ConfigError:
        return False
    return True


async def clear(api: Api, there: Claim) -> None:
    """Remove what a service that is no more left. Raises EnvironmentFailed, and ConfigError where
    another has taken it in the meantime."""
    await _seize(api, there)
    await vacate(api, there.namespace)


async def claims(api: Api, *namespaces: str) -> list[Claim]:
    """In all namespaces, or in these. Raises Refused where they may not be seen."""
    if not namespaces:
        found = await api.find("ConfigMap", **MINE)
        return [Claim.read(one) for one in found if one["metadata"]["name"] == NAME]
    some = []
    for namespace in namespaces:
        with contextlib.suppress(ConfigError):
            some.append(await _find(api, namespace))
    return [one for one in some if one is not None]


async def settle(api: Api, namespace: str) -> None:
    """Remove what earlier services left in a namespace, and the reference's boutique.

    Raises ConfigError where another service is at work, or others have what is in our way, before
    anything is touched.
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
    """Workloads with our label: their pods have none."""
    found = []
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        with contextlib.suppress(Refused):  # what may not be listed cannot have been made
            found += await api.find(kind, namespace, **MINE)
    return found


def _goes(pod: Json, going: Container[str], replaced: Container[str]) -> bool:
    """Whether a pod is over, or goes with a workload: one of ``going`` by its uid, or a deployment
    that is ours or ``replaced``, by whose name its replica sets are called."""
    about = pod["metadata"]
    if "deletionTimestamp" in about or (pod.get("status") or {}).get("phase") in _OVER:
        return True
    return any(
        one["uid"] in going
        or (one["kind"] == "ReplicaSet" and one["name"].rpartition("-")[0] in replaced)
        for one in about.get("ownerReferences") or ()
    )


async def vacate(api: Api, namespace: str) -> None:
    """Remove what is ours from a namespace that this process has claimed, the claim last; nothing
    where it has not. Raises EnvironmentFailed."""
    there = None
    with contextlib.suppress(ConfigError):  # others have put theirs there
        there = await _find(api, namespace)
    if there is None or not is_mine(there.notes):
        return
    await remove_policies(api, namespace, there.policies)
    for kind in _KINDS:
        try:
            found = await api.find(kind, namespace, **MINE)
        except Refused:  # what may not be listed cannot have been made
            continue
        for one in found:
            about = one["metadata"]
            await api.delete(path_of(kind, namespace, about["name"]), about["uid"])
    await api.delete(path_of("ConfigMap", namespace, NAME), there.uid)


async def remove_policies(api: Api, namespace: str, names: Iterable[str] | None = None) -> None:
    """Delete policies by name, or all there are; what an agent hung on them to keep them goes
    first. Raises EnvironmentFailed."""
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
    """Take off policies what keeps them from being deleted: an agent may have put it there."""
    for one in there:
        about = one["metadata"]
        if about.get("finalizers"):
            path = path_of("NetworkPolicy", namespace, about["name"])
            with contextlib.suppress(Refused):  # gone in the meantime
                await api.merge(path, {"metadata": {"finalizers": None}})


async def _free(api: Api, namespace: str) -> Claim | None:
    """What is left of a claim whose service is no more. Whoever lives elsewhere says so within
    ``RENEW_S``, and is dead after ``SILENT_S``. Raises ConfigError where another is at work."""
    listener, first = Listener(), None
    while (there := await _find(api, namespace)) is not None and not is_mine(there.notes):
        if not (why := listener.why_kept(namespace, there.notes, api.now)):
            break
        if first not in (None, there.notes) or is_seen_alive(there.notes):
            raise _taken(namespace)
        if first is None:
            log.warning(
                "namespace %s is claimed; %s: waiting until it is again (every %.0f s), or was "
                "silent for %.0f s",
                *(namespace, why, RENEW_S, SILENT_S),
            )
            first = there.notes
        await asyncio.sleep(_PAUSE_S)
    return there


async def _make(api: Api, namespace: str, policies: Iterable[str]) -> None:
    """Claim what nobody has. Raises ConfigError for whoever comes second."""
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
    """What to do about it, in words."""
    return f"there is no namespace {namespace}: kubectl create namespace {namespace}"


async def _seize(api: Api, there: Claim) -> None:
    """Have a claim say that it is ours, if it is as it was read. Raises ConfigError if not."""
    about = {"resourceVersion": there.version, "annotations": self_notes(api.now)}
    path = path_of("ConfigMap", there.namespace, NAME)
    await _first(api, there.namespace, api.merge(path, {"metadata": about}))


async def _first(api: Api, namespace: str, write: Awaitable[Json]) -> None:
    """Write, unless somebody else did before. Raises ConfigError."""
    try:
        await write
    except Refused as refused:
        if refused.status not in GONE:
            raise
        there = await _find(api, namespace)
        # a write whose answer was lost is refused when it is repeated
        if there is None or not is_mine(there.notes):
            raise _taken(namespace) from None


def _taken(namespace: str) -> ConfigError:
    return ConfigError("namespace", f"another service of NetArena works in {namespace} just now")


def _crossing(namespace: str, kind: str, name: str) -> ConfigError:
    return ConfigError(
        "namespace",
        f"{namespace} has a {kind} {name} that is not ours: delete it, or leave the key out and "
        "each episode gets a namespace of its own",
    )


async def _find(api: Api, namespace: str) -> Claim | None:
    """Raises ConfigError for a ConfigMap of others by that name."""
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
    """What stands in a namespace where the reference was at work. It never had a deny-all."""
    world = boutique()
    names = [app.name for app in world.apps]
    return frozenset(
        {
            *(("NetworkPolicy", name) for name in names),
            *(("Deployment", name) for name in names),
            *(("Service", service.name) for service in world.all_services),
        }
    )
