from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.errors import ConfigError
from netarena.training.reward import PRESETS, Kind, Rewards, rewards_of

TURNS = st.integers(1, 1000)


def earn(rewards: Rewards, steps: list[tuple[Kind, bool, float]], start: float = 0.5) -> float:
    """Return the reward of an episode of (kind, harmed, potential after) steps."""
    total, before = 0.0, start
    for number, (kind, harmed, after) in enumerate(steps, start=1):
        done = number == len(steps)
        parts = rewards.parts(kind, harmed=harmed, done=done, before=before, after=after)
        total, before = total + sum(parts.values()), after
    return total


def test_paper_preset_has_the_papers_rewards():
    paper = rewards_of("paper", 10)
    worth = {kind: earn(paper, [(kind, False, 0.5)]) for kind in Kind}
    assert worth == {"refused": -100.0, "failed": -100.0, "valid": 10.0, "solved": 100.0}
    # this weakness of the paper's reward is the reason for the default reward
    assert earn(paper, [(Kind.VALID, False, 0.5)] * 11) > earn(paper, [(Kind.SOLVED, False, 1.0)])


@given(turns=TURNS, data=st.data())
def test_safe_repair_earns_more_than_any_failed_episode_by_default(turns, data):
    rewards = rewards_of("default", turns)
    steps = st.tuples(st.sampled_from(list(Kind)[:3]), st.booleans(), st.floats(0, 1))
    fixed = data.draw(st.lists(steps, max_size=turns - 1))
    fixed = [*((kind, False, after) for kind, _, after in fixed), (Kind.SOLVED, False, 1.0)]
    idle = data.draw(st.lists(steps, min_size=1, max_size=turns))
    start = data.draw(st.floats(0, 1))
    assert earn(rewards, fixed, start) >= earn(rewards, idle, start) + 60 - 1e-6


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1))
def test_shaping_sum_does_not_depend_on_the_path_of_an_episode(potentials, start):
    rewards = Rewards(progress=20.0)
    steps = [(Kind.VALID, False, after) for after in potentials]
    assert earn(rewards, steps, start) == pytest.approx(-20 * start)


def test_fast_harmful_solution_earns_less_than_a_slow_safe_solution():
    rewards = rewards_of("default", 10)
    slow = [(Kind.VALID, False, 0.5)] * 9 + [(Kind.SOLVED, False, 1.0)]
    assert earn(rewards, slow) > earn(rewards, [(Kind.SOLVED, True, 1.0)])


def test_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="'other' is not one of default, paper"):
        rewards_of("other", 1)
    assert {preset: PRESETS[preset](10).solved for preset in PRESETS} == dict.fromkeys(PRESETS, 100)
