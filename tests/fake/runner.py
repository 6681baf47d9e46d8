"""Run the scripts of a workflow's job in order, as GitHub does, without the network.

Actions (``uses``) are skipped, because their results (a checkout and interpreters) already exist.
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
#: replacement of a command: only appends its name and arguments as one line to a file
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
    """Run the scripts of ``job`` in ``folder``; return the recorded calls of ``commands``.

    ``values`` are the values of expressions in the workflow (``secrets.NAME``, …). ``commands`` are
    the bodies of shell scripts that come first in PATH. Raises if a script fails, as the job would
    fail.
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
            # as GitHub does if the step names no shell
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
