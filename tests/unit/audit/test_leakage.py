"""The machine-learning models that find leaks, and their statistics, on synthetic evidence."""

import random

import numpy as np
import pytest

from netarena.audit import leakage
from netarena.audit.leakage import examine, power_anything, power_top1
from netarena.task.evidence import Candidate, Evidence, Kind

CANDIDATES = 8


def make(number, seed, *, leak=0.0, wrong_leak=0.0, kind=Kind.TRACE, rule=False, alarms=4):
    """Return evidence of ``number`` queries, of which every fourth is a false alarm.

    A target differs from other candidates by ``leak`` standard deviations in one of six features. A
    query with a fault differs by ``wrong_leak`` in one of three features.
    """
    rng = random.Random(seed)
    found = []
    for index in range(number):
        wrong = bool(index % alarms)
        faulty = rng.randrange(CANDIDATES) if wrong else -1
        level = rng.gauss(0, 3)  # the level of the values differs between queries
        candidates = []
        for place in range(CANDIDATES):
            features = {f"f{one}": level + rng.gauss(0, 1) for one in range(6)}
            features["f3"] += leak * (place == faulty)
            features["same"] = 1500.0
            if rng.random() < 0.5:
                features["sometimes"] = rng.random()
            if rule:
                features["rule.youngest"] = rng.random() + leak * (place == faulty)
            candidates.append(
                Candidate(name=f"m{place}", target=place == faulty, **{kind.value: features})
            )
        own = {f"q{one}": rng.gauss(0, 1) + wrong_leak * wrong * (one == 1) for one in range(3)}
        found.append(
            Evidence(
                id=f"q-{index}",
                label="" if wrong else "none",
                wrong=wrong,
                candidates=tuple(candidates),
                **{kind.value: own},
            )
        )
    return found


@pytest.fixture
def without_trees(monkeypatch):
    """Replace the boosted trees, which take most of the time, by the fastest learner."""

    def single(train, is_target, test, seed):
        return leakage._single(train, is_target, test)

    monkeypatch.setattr(leakage, "_boosted", single)


def test_evidence_without_candidates_is_refused():
    with pytest.raises(ValueError, match="no candidates"):
        examine([Evidence(id="q", label="", candidates=())])


def test_planted_leak_is_found_and_its_feature_comes_first():
    report = examine(make(120, 1, leak=2.5))
    assert report.queries == 120
    assert report.false_alarms == 30
    assert report.chance == pytest.approx(1 / CANDIDATES)
    by_name = {one.learner: one for one in report.found}
    for name in ("logistic regression", "boosted trees", "best single feature"):
        found = by_name[name]
        assert found.top1.low > 0.3, found
        assert found.within.low > 0.75, found
        assert found.top1_p < 0.01, found
        assert found.missed, found
    assert {one.feature.partition("~")[0] for one in report.telling[:2]} == {"f3"}
    assert any("top-1" in words for words in report.missed)


def of_sizes(number: int, seed: int, leak: float) -> list[Evidence]:
    """Return queries of 2 to 12 candidates with one target each, and a feature that shows the
    number of candidates; the target's value is higher by ``leak``."""
    rng = random.Random(seed)
    found = []
    for index in range(number):
        size = rng.randrange(2, 13)
        faulty = rng.randrange(size)
        candidates = tuple(
            Candidate(
                name=f"m{place}",
                target=place == faulty,
                trace={"size": size + rng.gauss(0, 0.5) - leak * (place == faulty)},
            )
            for place in range(size)
        )
        found.append(Evidence(id=f"q-{index}", label="", wrong=True, candidates=candidates))
    return found


@pytest.mark.parametrize(("leak", "is_found"), [(0.0, False), (2.0, True)])
def test_number_of_candidates_is_not_reported_as_a_leak(leak: float, is_found: bool) -> None:
    report = examine(of_sizes(150, 4, leak))
    by_name = {one.learner: one for one in report.found}
    found = by_name["logistic regression"].across
    assert (found.low > 0.55) == is_found, found
    assert is_found or abs(found.value - 0.5) < 0.05, found


@pytest.mark.usefixtures("without_trees")
def test_planted_difference_between_faults_and_false_alarms_is_found():
    report = examine(make(160, 2, wrong_leak=2.5))
    by_name = {one.learner: one for one in report.found}
    for name in ("logistic regression", "best single feature"):
        assert by_name[name].anything.low > 0.6
        assert by_name[name].anything_p < 0.01
        assert by_name[name].top1_p > 0.01
    assert any("anything" in words for words in report.missed)


@pytest.mark.usefixtures("without_trees")
def test_hand_written_rule_finds_a_leak_without_training():
    report = examine(make(60, 3, leak=2.0, rule=True, kind=Kind.FORM))
    rule = next(one for one in report.found if one.learner == "rule.youngest")
    assert rule.kind is Kind.FORM
    assert rule.top1.value == 1
    assert rule.within.value == 1


def test_constant_scores_hit_as_often_as_chance():
    flat = [
        one.model_copy(
            update={
                "candidates": tuple(
                    each.model_copy(update={"trace": {"rule.flat": float(index % 2)}})
                    for each in one.candidates
                )
            }
        )
        for index, one in enumerate(make(40, 4))
    ]
    report = examine(flat)
    for found in report.found:
        if found.top1 is not None:
            assert found.top1.value == pytest.approx(1 / CANDIDATES)
            assert found.within.value == pytest.approx(0.5)


@pytest.mark.usefixtures("without_trees")
def test_shuffled_names_of_queries_do_not_change_the_result():
    evidence = make(40, 5)
    renamed = [one.model_copy(update={"id": f"other-{one.id}"}) for one in evidence]
    assert examine(evidence, 7) == examine(renamed, 7)


def test_candidates_of_different_roles_are_not_compared():
    """All faults are on routers, whose values are larger than those of hosts: not a leak."""
    rng = random.Random(9)
    evidence = []
    for index in range(60):
        faulty = rng.randrange(3)
        evidence.append(
            Evidence(
                id=f"q-{index}",
                label="",
                candidates=tuple(
                    Candidate(
                        name=f"m{place}",
                        target=place == faulty,
                        role="router" if place < 3 else "host",
                        trace={"size": rng.gauss(9 * (place < 3), 1)},
                    )
                    for place in range(12)
                ),
            )
        )
    report = examine(evidence)
    assert report.chance == pytest.approx(1 / 3)
    assert report.missed == () or all("AUC" in words for words in report.missed)
    assert all(one.across.value < 0.7 and one.within.value < 0.7 for one in report.found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tests_on_evidence_without_a_leak_reject_at_about_their_nominal_rate():
    """For 4 sets without a signal, a test at 5 % rejects 2 or more with a probability of 1.4 %."""
    rejected = {"top-1": 0, "anything": 0}
    uppers = []
    for seed in range(4):
        report = examine(make(40, 100 + seed))
        for question in rejected:
            rejected[question] += any(question in words for words in report.missed)
        uppers += [one.within.value for one in report.found]
    assert max(rejected.values()) < 2, rejected
    assert np.mean(uppers) == pytest.approx(0.5, abs=0.04)


def test_power_grows_with_the_number_of_queries():
    few, many = np.full(30, 1 / 40), np.full(300, 1 / 10)
    assert power_top1(few, 0.05) < 0.3
    assert power_top1(many, 0.05) > 0.99
    assert power_top1(np.array([]), 0.05) == 0
    assert power_anything(0, 10, 0.05) == 0
    assert power_anything(20, 10, 0.05) < 0.4
    # sample size of two proportions, 0.4 and 0.6: 82 each for 80 % power at one-sided 5 %.
    # statsmodels' NormalIndPower agrees, except for the difference of the two variances.
    assert power_anything(77, 77, 0.05) == pytest.approx(0.8, abs=0.03)
