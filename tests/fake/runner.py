"""What GitHub does with a workflow's job, as far as it needs no network: its scripts, in order.

Actions (``uses``) are passed over: what they leave behind, a checkout and interpreters, is there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*([\w.]+)\s*\}\}")
#: stands in for a command: notes its words, one call a line, and does nothing
NOTES = 'printf "%s " "$(basename "$0")" "$@" >>"$CALLS"; echo >>"$CALLS"\n'


def run_job(
    path: Path,
    job: str,
    folder: Path,
    *,
    values: Mapping[str, str],
    commands: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    timeout_s: float = 100.0,
) -> list[str]:
    """Run the scripts of ``job`` in ``folder``; returns the calls of ``commands`` that noted them.

    ``values`` are those of the expressions that the workflow may use (``secrets.NAME``, …), and
    ``commands`` bodies of shell scripts that come first in PATH. Fails as the job would.
    """
    workflow = yaml.safe_load(path.read_text())
    calls = folder.parent / f"{folder.name}.calls"
    calls.touch()
    place = folder.parent / f"{folder.name}.bin"
    place.mkdir()
    for name, body in commands.items():
        (place / name).write_text(f"#!/bin/bash\n{body}")
        (place / name).chmod(0o755)
    base = {
        **os.environ,
        "PATH": f"{place}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CALLS": str(calls),
        **(environ or {}),
    }
    table = workflow["jobs"][job]
    for step in table["steps"]:
        if "uses" in step:
            continue
        scopes = [scope.get("env", {}) for scope in (workflow, table, step)]
        told = {name: _fill(text, values) for scope in scopes for name, text in scope.items()}
        if not _holds(step.get("if", ""), values):
            continue
        done = subprocess.run(
            # as GitHub does where no shell is named
            ["bash", "-e", "-c", _fill(step["run"], values)],
            cwd=folder,
            env={**base, **told},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return [line.rstrip() for line in calls.read_text().splitlines()]


def _fill(text: Any, values: Mapping[str, str]) -> str:
    return _EXPRESSION.sub(lambda match: values[match[1]], str(text))


def _holds(condition: str, values: Mapping[str, str]) -> bool:
    if not condition:
        return True
    match = re.fullmatch(r"([\w.]+) ([!=]=) '(\w*)'", condition)
    assert match, condition
    return (values[match[1]] == match[3]) == (match[2] == "==")
