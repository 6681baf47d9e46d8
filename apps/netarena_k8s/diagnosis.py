"""Checks whether this machine can run the Kubernetes application, with a remedy for each missing
requirement."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

from netarena.sdk import Check, ConfigError, EnvironmentFailed, Severity, cell
from netarena_k8s.config import EMBEDDED, KubernetesConfig
from netarena_k8s.embedded.datapath import wired
from netarena_k8s.kubectl import program
from netarena_k8s.source.checkout import read_checkout

_KUBECTL_REMEDY = 'pip install "netarena[k8s]"'
_PLANE_REMEDY = f"apt-get install nftables; {cell.REMEDY}"


def diagnose() -> list[Check]:
    """Return the results of all checks, required and optional. Each failed check has a remedy."""
    with ThreadPoolExecutor() as pool:  # Each check runs a test in its own process.
        pool.submit(_cell)
        unmeasured = pool.submit(_plane).result()
    notes = [
        ("sandbox: namespaces", _cell().reduced, "each command has its own namespaces", cell.REMEDY)
    ]
    notes.append(("data plane", unmeasured, "connections can be measured", _PLANE_REMEDY))
    return [*_needs(), *(_check(Severity.NOTE, *note) for note in notes)]


def _needs() -> list[Check]:
    return [
        _check(Severity.RUN, "kubectl", _kubectl(), "installed", _KUBECTL_REMEDY),
        _check(
            Severity.RUN, "sandbox", _cell().lacking, "commands run in the sandbox", cell.REMEDY
        ),
    ]


def _check(severity: Severity, name: str, problem: str, works: str, remedy: str) -> Check:
    return Check(
        name=name,
        ok=not problem,
        severity=severity,
        detail=problem or works,
        remedy=remedy if problem else "",
    )


def check(config: KubernetesConfig) -> None:
    """Check that this machine can run ``config``, and that its folder of manifests is readable.

    Raises ConfigError.
    """
    if config.microservice_dir is not None:
        read_checkout(config.microservice_dir)
    if config.datapath == "netns":
        if config.cluster != EMBEDDED:
            raise ConfigError(
                "datapath", "'netns' works only on the embedded cluster: omit datapath"
            )
        if problem := _plane():
            raise ConfigError("datapath", f"'netns': {problem}; {_PLANE_REMEDY}")
    for one in _needs():
        if not one.ok:
            raise ConfigError(
                "", f"this machine cannot run k8s: {one.name}: {one.detail}; {one.remedy}"
            )


@cache
def _kubectl() -> str:
    try:
        program()
    except EnvironmentFailed as error:
        return str(error)
    return ""


@cache
def _cell() -> cell.Standing:
    return cell.examine()


@cache
def _plane() -> str:
    return wired.lacking()
