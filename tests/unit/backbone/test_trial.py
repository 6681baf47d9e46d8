"""Judgement of observed contingencies."""

from __future__ import annotations

from typing import Any

import pytest
from backbone_requests import load

from netarena_backbone.query import Case, case_of
from netarena_backbone.trial import MAX_DIFFERENCES, endure, failed
from netarena_backbone.world.contingency import during
from netarena_backbone.world.intent import expected
from netarena_backbone.world.lab_spec import Observation
from netarena_backbone.world.model import World

#: Differences between a wrong observation during a contingency and the expected one.
DEAF = {"neighbours": ()}


def observed(world: World, **changes: Any) -> Any:
    return expected(world).model_copy(update=changes).model_dump(mode="json")


@pytest.fixture(scope="module")
def right(contingent: World) -> list[dict[str, Any]]:
    """Return trials in which everything is as documented."""
    return [
        {"name": one.name, "state": observed(during(contingent, one)), "restored": None}
        for one in Case(contingent).contingencies
    ]


def test_world_that_matches_its_documentation_in_each_contingency_passes(
    contingent: World, right: list[dict[str, Any]]
) -> None:
    verdict = endure(Case(contingent), right)
    assert verdict.correct
    assert verdict.safe
    assert verdict.detail is None
    assert not verdict.reason


def test_contingency_that_was_not_tried_counts_as_failed(
    contingent: World, right: list[dict[str, Any]]
) -> None:
    for tried in (right[:-1], []):
        verdict = endure(Case(contingent), tried)
        assert not verdict.correct
        assert verdict.detail == {"contingency": "not tried"}


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (DEAF, "session of"),
        ({"settled": False}, "the network did not converge"),
        ({"down": ("r1/bgpd",)}, "r1/bgpd has ended"),
    ],
)
def test_first_difference_in_a_contingency_is_reported(
    contingent: World, right: list[dict[str, Any]], place: int, changes: Any, said: str
) -> None:
    case = Case(contingent)
    contingency = case.contingencies[place]
    trials = [*right]
    trials[place] = trials[place] | {"state": observed(during(contingent, contingency), **changes)}
    verdict = endure(case, trials)
    assert not verdict.correct
    assert isinstance(verdict.detail, dict)
    assert verdict.detail["contingency"] == contingency.name
    assert contingency.name in verdict.reason
    differences = verdict.detail["differences"]
    assert isinstance(differences, list)
    assert 0 < len(differences) <= MAX_DIFFERENCES
    assert any(said in str(one) for one in differences)


def test_trial_fails_if_a_difference_remains_after_the_restoration_of_a_link(
    contingent: World, right: list[dict[str, Any]]
) -> None:
    case = Case(contingent)
    trials = [right[0] | {"restored": observed(contingent, settled=False)}]
    found = failed(case, trials)
    assert found is not None
    assert found.restored
    link = " - ".join(case.world.contingencies[0])
    when = f"the restoration of link {link} after its failure"
    reason = f"The network is not as documented after {when} (1 difference): "
    assert endure(case, trials).reason == f"{reason}the network did not converge."


def test_observation_without_the_link_failure_fails_the_trial(
    contingent: World, right: list[dict[str, Any]]
) -> None:
    """An observation of the state before the link failure does not count as one during it."""
    whole = Observation.model_validate(observed(contingent))
    trials = [right[0] | {"state": whole.model_dump(mode="json")}, *right[1:]]
    assert not endure(Case(contingent), trials).correct


def test_requested_setting_that_is_lost_in_a_contingency_fails_the_trial() -> None:
    """No traffic test detects that a key was not saved before the daemons restarted."""
    case = case_of(load("latent"))
    assert case.plan is not None
    part = case.plan.settings[0]
    (restart,) = (one for one in case.contingencies if one.cable is None)
    state = observed(case.goal, leftover=(part,))
    found = failed(case, [{"name": restart.name, "state": state, "restored": None}])
    assert found is not None
    assert found.wrong == []
    assert found.tell() == [f"not as requested: {case.plan.told[part]}"]
    # a fault that remains without any effect does not count as a difference
    state = observed(case.goal, leftover=(0,))
    assert failed(case, [{"name": restart.name, "state": state, "restored": None}]) is None
