"""What this machine can and cannot run of k8s, tried out, and what is missing."""

from __future__ import annotations

from functools import cache

from netarena.errors import ConfigError, EnvironmentFailed
from netarena.model import Check, Severity
from netarena.sandbox import cell
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.kubectl import program

_KUBECTL_REMEDY = 'pip install "netarena[k8s]"'
#: key -> its only value until the others are built
_ONLY = {"datapath": "evaluator", "microservice_dir": None}


def diagnose() -> list[Check]:
    """Each need, met or not, with its remedy."""
    standing = _cell()
    works = "a command reaches its API server alone"
    found = [
        ("kubectl", _kubectl(), "is there", _KUBECTL_REMEDY),
        ("cell", standing.lacking, "commands run" if standing.reduced else works, cell.REMEDY),
    ]
    checks = [
        Check(
            name=name,
            ok=not problem,
            severity=Severity.RUN,
            detail=problem or works,
            remedy=remedy if problem else "",
        )
        for name, problem, works, remedy in found
    ]
    if standing.reduced:
        checks.append(
            Check(
                name="cell: namespaces",
                ok=False,
                severity=Severity.NOTE,
                detail=standing.reduced,
                remedy=cell.REMEDY,
            )
        )
    return checks


def check(config: KubernetesConfig) -> None:
    """Refuse what this machine, or this version, lacks for ``config``. Raises ConfigError."""
    for key, only in _ONLY.items():
        if (value := getattr(config, key)) != only:
            raise ConfigError(key, f"{value!r} is not supported by this version: leave it out")
    for one in diagnose():
        if not one.ok and one.severity is Severity.RUN:
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
