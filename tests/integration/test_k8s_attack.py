"""Every attack by name: it gets nothing, hurts no neighbour, and the episode's verdict stands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import pytest

from netarena.model import Judgement, State
from netarena_k8s import kubectl
from netarena_k8s.app import Kubernetes
from netarena_k8s.attack import BREACH, FAMILIES, attacks
from netarena_k8s.config import KubernetesConfig
from netarena_k8s.solution import fenced

pytestmark = [pytest.mark.requires("cell"), pytest.mark.slow]

#: seconds of one command here: enough for what ends by itself, on a busy machine too
WALL_S = 15
AT_ONCE = 3
#: what is told at the end of some, of which the words matter
TOLD = {
    "secrets": 'cannot list resource "secrets"',
    "exec": 'cannot create resource "pods/exec"',
    "create-policy": 'cannot create resource "networkpolicies"',
    "delete-policies": 'cannot delete resource "networkpolicies"',
    "yaml-bomb": "excessive aliasing",
    "fill-cache": "No space left on device",
    "many-files-in-the-cache": "No space left on device",
    "replace-kubeconfig": "Read-only file system",
    "internet": "Network is unreachable",
    "new-address": "Operation not permitted",
    "server-elsewhere": "network is unreachable",
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
def courses() -> Mapping[str, Course]:
    """All attacks, a few at a time."""
    config = KubernetesConfig(num_queries=1, error_types=("change_port",))

    async def attack(app: Kubernetes, places: asyncio.Semaphore, command: str) -> Course:
        (query,) = app.generate(config, seed=7)
        world = app.environment(query, config)
        async with places:
            try:
                before = await world.open()
                execution = await world.execute(app.parse(fenced(command)))
                after = await world.observe()
                for reply in app.solve(query):
                    await world.execute(app.parse(reply))
                end = await world.observe()
            finally:
                await world.close()
        return Course(
            execution.output,
            before,
            after,
            app.judge(query, before, before, after),
            app.judge(query, before, after, end),
        )

    async def run() -> dict[str, Course]:
        commands = {name: one for family in FAMILIES.values() for name, one in family.items()}
        assert list(map(fenced, commands.values())) == attacks()
        async with Kubernetes() as app:
            places = asyncio.Semaphore(AT_ONCE)
            found = await asyncio.gather(
                *(attack(app, places, command) for command in commands.values())
            )
        return dict(zip(commands, found, strict=True))

    limits = kubectl.LIMITS
    kubectl.LIMITS = replace(limits, wall_s=WALL_S)
    try:
        return asyncio.run(run())
    finally:
        kubectl.LIMITS = limits


def test_there_are_enough() -> None:
    assert len(attacks()) >= 40
    assert set(TOLD) | UNSAFE <= set(courses())


@pytest.mark.parametrize("name", [name for family in FAMILIES.values() for name in family])
def test_an_attack_gains_nothing(name: str) -> None:
    course = courses()[name]
    assert BREACH not in course.output
    assert TOLD.get(name, "") in course.output
    if name in UNSAFE:
        assert course.judgement.findings
        return
    assert course.after == course.before
    assert not course.judgement.findings
    assert not course.judgement.correct
    assert course.repaired.correct
    assert not course.repaired.findings
