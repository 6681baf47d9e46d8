"""Checks of a real cluster, and of the service's rights on this cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from netarena.sdk import Check, ConfigError, EnvironmentFailed, Severity
from netarena_k8s.config import EMBEDDED, KubernetesConfig
from netarena_k8s.fault.table import ELSEWHERE
from netarena_k8s.real.context import (
    check_context,
    current_context,
    kubeconfig_paths,
    namespace_of,
)
from netarena_k8s.source.checkout import read_checkout
from netarena_k8s.world.model import NAME_LABEL

if TYPE_CHECKING:
    from netarena_k8s.real.client import Api

_WITHIN_S = 20.0
#: start of the message about missing rights, which selects the remedy
_LACKS = "the kubeconfig lacks these permissions"
_RIGHTS = "docs/cluster.md lists the rights"
_T = TypeVar("_T")
#: name of a namespace that must differ from the world's, because faults of kind namespace_peer
#: select it
_ELSEWHERE = ELSEWHERE[NAME_LABEL]


def check(config: KubernetesConfig) -> None:
    """Check the keys of ``config`` and its cluster.

    Raises ConfigError if keys conflict, or if the cluster cannot be used.
    """
    if config.cluster == EMBEDDED:
        for key, default in (("namespace", None), ("images", "standin")):
            if getattr(config, key) != default:
                raise ConfigError(
                    f"config.{key}", "is available only on a real cluster: set cluster too"
                )
        return
    if config.images != "standin" and config.microservice_dir is None:
        raise ConfigError(
            "config.images",
            "'boutique' runs the workloads of microservice_dir: set microservice_dir to a "
            "checkout of "
            "microservices-demo, whose manifests name the images",
        )
    if config.namespace and config.world == "varied":
        raise ConfigError(
            "config.world",
            "must be 'standard' if namespace is set, because 'varied' also draws the namespace's "
            "labels",
        )
    if config.namespace == _ELSEWHERE and any(
        "namespace_peer" in label for label in config.error_types or ()
    ):
        raise ConfigError(
            "config.error_types",
            f"namespace_peer uses {_ELSEWHERE} as the other namespace: set namespace to another "
            "name",
        )
    if config.namespace and config.concurrency > 1:
        raise ConfigError(
            "config.concurrency",
            "must be 1 if namespace is set: omit namespace to run more episodes at once",
        )
    check_context(config.cluster, kubeconfig_paths())
    folder = config.microservice_dir
    kinds = {app.workload for app in read_checkout(folder).apps} if folder else set()
    if problem := examine(config.cluster, config.namespace, kinds):
        raise ConfigError("config.cluster", f"{config.cluster}: {problem}")


def why_embedded(environ: Mapping[str, str]) -> str:
    """Return a clause which states that ``KUBECONFIG`` does not name a readable file, or "" if it
    does."""
    if not environ.get("KUBECONFIG"):
        return ""
    with suppress(ConfigError):
        if current_context(environ["KUBECONFIG"]) is None:
            return ": KUBECONFIG does not name a readable file"
    return ""


def diagnose(environ: Mapping[str, str]) -> list[Check]:
    """Return checks of the cluster that KUBECONFIG names, or an empty list if KUBECONFIG is not
    set."""
    if not environ.get("KUBECONFIG"):
        return []
    try:
        context = current_context(environ["KUBECONFIG"])
    except ConfigError as error:
        return [_check("cluster", str(error))]
    if context is None:
        told = f"KUBECONFIG does not name a readable file: {environ['KUBECONFIG']}"
        remedy = "set KUBECONFIG to a kubeconfig, or unset it to use the embedded cluster"
        return [Check(name="cluster", ok=False, severity=Severity.NOTE, detail=told, remedy=remedy)]
    namespace = namespace_of(context, environ["KUBECONFIG"])
    own, given = _in_a_thread(_lacking(context, None, namespace))
    name = f"cluster {context}"
    if own and not given:
        one = f"namespace={namespace}"
        return [_check(name, "", f"answers, and allows one episode at a time, with {one}; {own}")]
    return [_check(name, own)]


def examine(context: str, namespace: str | None, workloads: AbstractSet[str] = frozenset()) -> str:
    """Return in one line why a cluster cannot be used for a world with these kinds of workloads.

    The result is "" if the cluster responds and grants all needed rights.
    """
    (problem,) = _in_a_thread(_lacking(context, namespace, workloads=workloads))
    return problem


def _in_a_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a thread, because the caller may be in an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _lacking(
    context: str, *namespaces: str | None, workloads: AbstractSet[str] = frozenset()
) -> list[str]:
    """Return, for each namespace, why the context's cluster cannot be used, or "" if it can. None
    stands for namespaces that the service creates."""
    # Importing the client takes a second.
    from netarena_k8s.real.client import CHECK_S, Api

    try:
        async with asyncio.timeout(_WITHIN_S):
            api = await Api.connect(context)
            api.hurry(CHECK_S)
            try:
                return [await _lacks(api, one, workloads) for one in namespaces]
            finally:
                await api.close()
    except TimeoutError:
        return [f"its API did not answer within {_WITHIN_S:g} s"] * len(namespaces)
    except (ConfigError, EnvironmentFailed) as error:
        problem = error.problem if isinstance(error, ConfigError) else str(error)
        return [problem] * len(namespaces)


async def _lacks(api: Api, namespace: str | None, workloads: AbstractSet[str]) -> str:
    from netarena_k8s.real.client import Refused, path_of
    from netarena_k8s.real.lease import absent
    from netarena_k8s.real.rbac import missing_rights

    if namespace:
        try:
            await api.get(path_of("Namespace", name=namespace))
        except Refused as refused:  # The service may have no right to read the namespace.
            if refused.status == 404:
                return absent(namespace)
    missing = await missing_rights(api, namespace, workloads)
    where = f"in namespace {namespace}" if namespace else "in namespaces that NetArena creates"
    return f"{_LACKS} {where}: {', '.join(missing)}" if missing else ""


def _check(
    name: str, problem: str, works: str = "the API answers and grants all required permissions"
) -> Check:
    return Check(
        name=name,
        ok=not problem,
        severity=Severity.RUN,
        detail=problem or works,
        remedy=_remedy(problem),
    )


def _remedy(problem: str) -> str:
    if not problem:
        return ""
    return _RIGHTS if problem.startswith(_LACKS) else "run kubectl get namespaces"
