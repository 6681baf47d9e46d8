"""Time limit for the convergence of a contingency."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from backbone_setup import setup

from netarena_backbone.real import lab
from netarena_backbone.world.contingency import CONVERGE_S
from netarena_backbone.world.lab_spec import Observation


class _Slow:
    """Convergence that takes 9 s each time, or until its time limit if this is shorter."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []
        self.took_s = 0.0

    def wait(self, *, changed: bool, neighbours: object, confirmed: bool, within_s: float) -> bool:
        self.limits_s.append(within_s)
        self.took_s = min(9.0, within_s)
        return within_s >= 9.0


def test_failure_and_restoration_of_a_link_share_one_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = cast("Any", lambda *_, **__: None)
    wires = SimpleNamespace(cut=nothing, restore=nothing, follow=nothing)
    net, slow = lab.Lab(cast("Any", None)), _Slow()
    for name, value in (("_setup", setup()), ("_wires", wires), ("_settling", slow)):
        setattr(net, name, value)
    monkeypatch.setattr(lab, "padded", lambda _: nullcontext())
    seen = Observation.model_construct()
    monkeypatch.setattr(
        net, "_look", lambda *, settled: seen.model_copy(update={"settled": settled})
    )

    def settles() -> bool:
        return bool(net.observe()["state"]["settled"])

    assert settles()
    for _ in range(2):  # each contingency has its own limit
        net.cut(["r0", "r1"])
        assert settles()
        net.restore(["r0", "r1"])
        assert settles()
        assert not settles()
    assert slow.limits_s == [
        math.inf,
        *[CONVERGE_S, CONVERGE_S - 9, CONVERGE_S - 18] * 2,
    ]
