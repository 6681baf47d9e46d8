"""What a real cluster, and the service's rights on it, lack for ``config``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Check, Severity
from netarena_k8s.config import EMBEDDED, KubernetesConfig
from netarena_k8s.real.context import check_context, current_context, kubeconfig_paths

_WITHIN_S = 20.0


def check(config: KubernetesConfig) -> None:
    """Raises ConfigError for keys that do not go together, and a cluster that cannot be used."""
    if config.cluster == EMBEDDED:
        for key, default in (("namespace", None), ("images", "standin")):
            if getattr(config, key) != default:
                raise ConfigError(f"config.{key}", "is for a real cluster: set cluster too")
        return
    if config.images != "standin" and config.microservice_dir is None:
        raise ConfigError(
            "config.images",
            "boutique runs the workloads of microservice_dir: set it to a checkout of "
            "microservices-demo, whose manifests name the images",
        )
    if config.namespace and config.concurrency > 1:
        raise ConfigError(
            "config.concurrency", "must be 1 in one namespace: leave namespace out for more"
        )
    check_context(config.cluster, kubeconfig_paths())
    if problem := examine(config.cluster, config.namespace):
        raise ConfigError("config.cluster", f"{config.cluster}: {problem}")


def diagnose(environ: Mapping[str, str]) -> list[Check]:
    """Of the cluster that KUBECONFIG names; nothing where it names none."""
    if not environ.get("KUBECONFIG"):
        return []
    try:
        context = current_context(environ["KUBECONFIG"])
    except ConfigError as error:
        return [_check("cluster", str(error))]
    if context is None:
        return []
    return [_check(f"cluster {context}", examine(context, None))]


def examine(context: str, namespace: str | None) -> str:
    """Why a cluster cannot be used, in one line; empty when it answers and allows all it must."""
    with ThreadPoolExecutor(1) as thread:  # whoever calls may be in an event loop
        return thread.submit(asyncio.run, _examine(context, namespace)).result()


async def _examine(context: str, namespace: str | None) -> str:
    # the client takes a second to import
    from netarena_k8s.real.client import Api
    from netarena_k8s.real.right import missing_rights

    try:
        async with asyncio.timeout(_WITHIN_S):
            api = await Api.connect(context)
            try:
                missing = await missing_rights(api, namespace)
            finally:
                await api.close()
    except TimeoutError:
        return f"its API does not answer within {_WITHIN_S:g} s"
    except (ConfigError, EnvironmentFailed) as error:
        return error.problem if isinstance(error, ConfigError) else str(error)
    where = f"in namespace {namespace}" if namespace else "in namespaces that it makes"
    return f"the kubeconfig may not, {where}: {', '.join(missing)}" if missing else ""


def _check(name: str, problem: str) -> Check:
    return Check(
        name=name,
        ok=not problem,
        severity=Severity.RUN,
        detail=problem or "answers, and allows all that is needed",
        remedy="docs/cluster.md has the rights" if problem else "",
    )
