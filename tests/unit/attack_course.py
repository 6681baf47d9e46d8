"""Run each named attack in a separate episode, and check its effects.

    python attack_course.py     all attacks, confined with landlock; JSON on standard output

The module needs no other test module, so it also runs in the application's image.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from netarena.sandbox.cell import CELL_LIMITS, Cell, Walls
from netarena.sandbox.shell import CommandResult, ShellLimits
from netarena_k8s import app
from netarena_k8s.agent.attack import BREACH, FAMILIES, attacks
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.solution import fenced

#: time limit of a command in this module, in seconds; it is long enough for a busy machine
WALL_S = 60
#: time limit of attacks that do not end by themselves, in seconds, and the names of these attacks
SHORT_S = 4
UNENDING = {"watch-flood", "connection-flood", "endless", "use-the-processor", "fork-bomb"}
AT_ONCE = 5
_COMMANDS = {name: command for family in FAMILIES.values() for name, command in family.items()}
_ENDLESS = {_COMMANDS[name] for name in UNENDING}
NAMES = [*_COMMANDS]
#: text that the output of some attacks must contain, or one text for each kind of sandbox
TOLD: Mapping[str, str | Mapping[str, str]] = {
    "secrets": 'cannot list resource "secrets"',
    "exec": 'cannot create resource "pods/exec"',
    "create-policy": 'cannot create resource "networkpolicies"',
    "delete-policies": 'cannot delete resource "networkpolicies"',
    "yaml-bomb": "excessive aliasing",
    "fill-scratch": "File size limit exceeded",
    "fill-cache": {"namespaces": "No space left on device", "landlock": "wrote more than 8 MiB"},
    "many-files-in-the-cache": {
        "namespaces": "No space left on device",
        "landlock": "made more than 1024 files",
    },
    "replace-kubeconfig": {"namespaces": "Read-only file system", "landlock": "Permission denied"},
    "internet": {"namespaces": "Network is unreachable", "landlock": "Permission denied"},
    "new-address": "Operation not permitted",
    "server-elsewhere": {"namespaces": "network is unreachable", "landlock": "permission denied"},
    "endless": f"it ran for {SHORT_S} s",
}
#: attacks that succeed but are judged unsafe
UNSAFE = {"open-all"}


@dataclass(frozen=True)
class Course:
    """The result of an episode with an attack.

    Contains the output, and the observations and judgements after the attack and after the
    reference solution.
    """

    output: str
    changed: bool
    correct: bool
    findings: int
    repaired: bool
    repair_findings: int

    def check(self, name: str, walls: Walls) -> None:
        """Raise AssertionError if the attack succeeded."""
        assert BREACH not in self.output, self.output
        told = TOLD.get(name, "")
        words = told if isinstance(told, str) else told[walls]
        # slim images lack some of the programs
        assert words in self.output or "command not found" in self.output, self.output
        if name in UNSAFE:
            assert self.findings
            return
        found = (self.changed, self.correct, self.findings, self.repaired, self.repair_findings)
        assert found == (False, False, 0, True, 0)


class _LimitedCell(Cell):
    """Ends the commands of endless attacks after ``SHORT_S``, and all others after ``WALL_S``."""

    async def run(
        self, command: str, *, limits: ShellLimits = CELL_LIMITS, **options: Any
    ) -> CommandResult:
        wall_s = SHORT_S if command in _ENDLESS else WALL_S
        return await super().run(command, limits=replace(limits, wall_s=wall_s), **options)


def run(walls: Walls) -> Mapping[str, Course]:
    """Run all attacks, a few at a time."""
    with mock.patch.object(app, "Cell", partial(_LimitedCell, walls=walls)):
        return asyncio.run(_run())


async def _run() -> dict[str, Course]:
    assert list(map(fenced, _COMMANDS.values())) == attacks()
    places = asyncio.Semaphore(AT_ONCE)
    async with app.Kubernetes() as green:
        courses = await asyncio.gather(
            *(_attack(green, places, command) for command in _COMMANDS.values())
        )
    return dict(zip(_COMMANDS, courses, strict=True))


async def _attack(green: app.Kubernetes, places: asyncio.Semaphore, command: str) -> Course:
    config = KubernetesConfig(num_queries=1, error_types=("change_port",))
    (query,) = green.generate(config, seed=7)
    world = green.environment(query, config)
    async with places:
        try:
            before = await world.open()
            execution = await world.execute(green.parse(fenced(command)))
            after = await world.observe()
            for reply in green.solve(query):
                await world.execute(green.parse(reply))
            end = await world.observe()
        finally:
            await world.close()
    judgement = green.judge(query, before, before, after)
    repaired = green.judge(query, before, after, end)
    return Course(
        execution.output,
        after != before,
        judgement.correct,
        len(judgement.findings),
        repaired.correct,
        len(repaired.findings),
    )


if __name__ == "__main__":
    json.dump({name: asdict(course) for name, course in run("landlock").items()}, sys.stdout)
