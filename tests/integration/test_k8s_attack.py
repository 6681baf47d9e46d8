"""Every attack by name: it gets nothing, hurts no neighbour, and the episode's verdict stands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest

from netarena.model import Judgement, State
from netarena.sandbox.cell import Cell, Walls
from netarena_k8s import app, kubectl
from netarena_k8s.attack import BREACH, FAMILIES, attacks
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.solution import fenced

pytestmark = pytest.mark.slow

#: seconds of one command here: enough for what ends by itself, on a busy machine too
WALL_S = 15
AT_ONCE = 5
#: what is told at the end of some, of which the words matter; by walls where these differ
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
    "endless": f"it ran for {WALL_S} s",
}
#: what is allowed, and judged
UNSAFE = {"open-all"}


@dataclass(frozen=True)
class Course:
    """An episode with an attack: what was seen around it, and after the reference solution."""

    output: str
    before: State
    after: State
    judgement: Judgement
    repaired: Judgement


@cache
def courses(walls: Walls) -> Mapping[str, Course]:
    """All attacks, a few at a time."""
    config = KubernetesConfig(num_queries=1, error_types=("change_port",))

    async def attack(green: app.Kubernetes, places: asyncio.Semaphore, command: str) -> Course:
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
        return Course(
            execution.output,
            before,
            after,
            green.judge(query, before, before, after),
            green.judge(query, before, after, end),
        )

    async def run() -> dict[str, Course]:
        commands = {name: one for family in FAMILIES.values() for name, one in family.items()}
        assert list(map(fenced, commands.values())) == attacks()
        async with app.Kubernetes() as green:
            places = asyncio.Semaphore(AT_ONCE)
            found = await asyncio.gather(
                *(attack(green, places, command) for command in commands.values())
            )
        return dict(zip(commands, found, strict=True))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kubectl, "LIMITS", replace(kubectl.LIMITS, wall_s=WALL_S))
        patched.setattr(app, "Cell", partial(Cell, walls=walls))
        return asyncio.run(run())


def test_there_are_enough() -> None:
    assert len(attacks()) >= 40
    assert set(TOLD) | UNSAFE <= {name for family in FAMILIES.values() for name in family}


@pytest.mark.parametrize(
    "walls",
    [
        pytest.param("namespaces", marks=pytest.mark.requires("namespaces")),
        pytest.param("landlock", marks=pytest.mark.requires("confinement")),
    ],
)
@pytest.mark.parametrize("name", [name for family in FAMILIES.values() for name in family])
def test_an_attack_gains_nothing(name: str, walls: Walls) -> None:
    course = courses(walls)[name]
    assert BREACH not in course.output
    told = TOLD.get(name, "")
    assert (told if isinstance(told, str) else told[walls]) in course.output
    if name in UNSAFE:
        assert course.judgement.findings
        return
    assert course.after == course.before
    assert not course.judgement.findings
    assert not course.judgement.correct
    assert course.repaired.correct
    assert not course.repaired.findings
