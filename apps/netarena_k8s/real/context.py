"""Contexts of a kubeconfig, read without contacting a cluster.

Unlike the client of clusters, this module can be imported quickly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from netarena.sdk import ConfigError, suggest

#: kubectl's default namespace
_DEFAULT = "default"


def kubeconfig_paths(environ: Mapping[str, str] = os.environ) -> str:
    """Return the paths of the kubeconfig files that kubectl would read, separated by colons."""
    return environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def current_context(paths: str) -> str | None:
    """Return the current context, or None if no file is readable.

    Raises ConfigError if a file is not a kubeconfig or no file has a current context.
    """
    found = _read(paths)
    if not found:
        return None
    for config in found:
        if isinstance(config.get("current-context"), str) and config["current-context"]:
            return str(config["current-context"])
    raise ConfigError(
        "KUBECONFIG",
        f"{paths} has no current-context: set it with 'kubectl config use-context NAME'",
    )


def namespace_of(name: str, paths: str) -> str:
    """Return the namespace that kubectl would use in a context. Raises ConfigError."""
    for config in _read(paths):
        for one in config.get("contexts") or ():
            if isinstance(one, Mapping) and one.get("name") == name:
                context = one.get("context")
                found = context.get("namespace") if isinstance(context, Mapping) else None
                return str(found or _DEFAULT)
    return _DEFAULT


def check_context(name: str, paths: str) -> None:
    """Check that a context exists. Raises ConfigError."""
    found = _read(paths)
    known = [
        str(one["name"])
        for config in found
        for one in config.get("contexts") or ()
        if isinstance(one, Mapping) and "name" in one
    ]
    if name not in known:
        there = f"has {', '.join(known)}" if known else "cannot be read, or has no context"
        near = suggest(name, ["embedded", *known])
        raise ConfigError(
            "config.cluster",
            f"{name!r} must be 'embedded' or a context of {paths}, which {there}{near}",
        )


def _read(paths: str) -> list[Mapping[str, Any]]:
    """Return the contents of the kubeconfig files that exist, in the order of ``paths``."""
    found = []
    for path in filter(None, paths.split(os.pathsep)):
        try:
            config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
        except OSError:
            continue
        except (yaml.YAMLError, UnicodeDecodeError):
            raise ConfigError("KUBECONFIG", f"{path} is not YAML") from None
        if not isinstance(config, Mapping) or not isinstance(config.get("contexts") or [], list):
            raise ConfigError("KUBECONFIG", f"{path} is not a kubeconfig")
        found.append(config)
    return found
