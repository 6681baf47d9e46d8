"""Each attack gains nothing, does not affect other episodes, and gets its proper verdict."""

from __future__ import annotations

from functools import cache

import attack_course
import pytest
from attack_course import NAMES, TOLD, UNSAFE

from netarena.sandbox.cell import Walls
from netarena_k8s.agent.attack import attacks

pytestmark = pytest.mark.slow

courses = cache(attack_course.run)


def test_attack_table_has_at_least_forty_attacks() -> None:
    assert len(attacks()) >= 40
    assert set(TOLD) | UNSAFE <= set(NAMES)


@pytest.mark.parametrize(
    "walls",
    [
        pytest.param(
            walls, marks=[pytest.mark.requires(lacking), pytest.mark.xdist_group(f"k8s-{walls}")]
        )
        for walls, lacking in (("namespaces", "namespaces"), ("landlock", "confinement"))
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_attack_on_the_kubernetes_sandbox_gains_nothing(name: str, walls: Walls) -> None:
    courses(walls)[name].check(name, walls)
