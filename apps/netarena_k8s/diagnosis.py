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
_ONLY = {"cluster": "embedded", "datapath": "evaluator", "microservice_dir": None}


def diagnose() -> list[Check]:
    """Each need, met or not, with its remedy."""
    found = [("kubectl", _kubectl(), "is there", _KUBECTL_REMEDY)]
    found.append(("cell", _cell(), "a command reaches its API server alone", cell.REMEDY))
    return [
        Check(
            name=name,
            ok=not problem,
            severity=Severity.RUN,
            detail=problem or works,
            remedy=remedy if problem else "",
        )
        for name, problem, works, remedy in found
    ]


def check(config: KubernetesConfig) -> None:
    """Refuse what this machine, or this version, lacks for ``config``. Raises ConfigError."""
    for key, only in _ONLY.items():
        if (value := getattr(config, key)) != only:
            raise ConfigError(
                key, f"{value!r} is not supported by this version: leave it out (embedded cluster)"
            )
    for one in diagnose():
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
def _cell() -> str:
    return cell.lacking()
