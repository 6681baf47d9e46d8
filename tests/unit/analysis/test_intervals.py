"""Intervals and tests for rates of samples, compared with SciPy and statsmodels."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm, permutation_test, sem
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar as their_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import (
    confint_proportions_2indep,
    proportion_confint,
    samplesize_proportions_2indep_onetail,
)

from netarena.analysis.intervals import (
    Cluster,
    clopper_pearson,
    clustered,
    holm,
    mcnemar,
    mean_interval,
    most_needed,
    next_size,
    paired_interval,
    paired_size,
    pass_all,
    robust_error,
    sign_flip,
    unpaired_interval,
    unpaired_size,
    wald,
    wilson,
)

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


# Wilson


@given(st.floats(0.005, 0.5), st.floats(0, 1))
def test_number_of_queries_for_a_rate_of_one_half_suffices_for_any_rate(goal, rate):
    n = most_needed(goal)
    low, high = wilson(rate * n, n)
    assert (high - low) / 2 <= goal * (1 + 1e-9)
    low, high = wilson((n - 1) / 2, n - 1)
    assert (high - low) / 2 > goal or n == 1


@pytest.mark.parametrize(
    ("interval", "wanted"),
    [((0.45, 0.55), 100), ((0.44, 0.56), 144), ((0.0, 1.0), 200), ((0.4, 0.5), 100)],
)
def test_next_sample_size_follows_the_square_root_law_and_at_most_doubles(interval, wanted):
    assert next_size(100, interval, 0.05) == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize("wrong", [(0, 0.1), (10, 0.0)])
def test_sample_size_without_queries_or_a_valid_goal_is_refused(wrong):
    with pytest.raises(ValueError, match="positive"):
        next_size(wrong[0], (0, 1), wrong[1])
    with pytest.raises(ValueError, match="goal"):
        most_needed(0.6)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [  # computed by hand from the formula; 8 of 10 and 0 of 10 are in many textbooks
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 2, 0.0945, 0.9055),
        (50, 100, 0.4038, 0.5962),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval_equals_textbook_values(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_contains_the_rate_and_is_symmetric(pair):
    successes, n = pair
    low, high = wilson(successes, n)
    assert 0.0 <= low <= successes / n <= high <= 1.0
    assert low < high
    mirrored = wilson(n - successes, n)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-9)


@given(st.integers(1, 500), st.integers(0, 500))
def test_wilson_interval_narrows_with_more_trials_at_the_same_rate(n, successes):
    successes = min(successes, n)
    low, high = wilson(successes, n)
    more_low, more_high = wilson(10 * successes, 10 * n)
    assert more_high - more_low < high - low


@pytest.mark.parametrize(("successes", "n"), [(-1, 3), (4, 3), (1, 0)])
def test_wilson_interval_of_impossible_counts_is_refused(successes, n):
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


# McNemar


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 0, 1.0),
        (0, 5, 0.0625),
        (1, 9, 0.021484375),
        (10, 2, 0.03857421875),
    ],
)
def test_mcnemar_equals_the_binomial_test(only_first, only_second, p_value):
    assert mcnemar(only_first, only_second) == p_value


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_is_a_symmetric_probability(only_first, only_second):
    p_value = mcnemar(only_first, only_second)
    assert 0.0 <= p_value <= 1.0
    assert p_value == mcnemar(only_second, only_first)


@pytest.mark.parametrize("n", [1001, 2001])
def test_mcnemar_of_many_pairs_equals_the_exact_p_value(n):
    fewer = n // 2 - 20
    exact = 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / (1 << n)
    assert mcnemar(fewer, n - fewer) == pytest.approx(exact, rel=1e-9)


def test_mcnemar_of_negative_counts_is_refused():
    with pytest.raises(ValueError, match="negative"):
        mcnemar(-1, 3)


# Holm


def test_holm_corrects_p_values_for_the_number_of_tests():
    # computed by hand: 4 x 0.005, 3 x 0.01, 2 x 0.03, and never less than the previous value
    assert holm([0.03, 0.005, 0.04, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


# comparison with SciPy and statsmodels


@given(counts)
def test_intervals_of_a_proportion_equal_those_of_scipy_and_statsmodels(pair):
    successes, n = pair
    theirs = proportion_confint(successes, n, method="wilson")
    assert wilson(successes, n) == pytest.approx(theirs, abs=1e-6)
    theirs = binomtest(successes, n).proportion_ci(method="exact")
    assert clopper_pearson(successes, n) == pytest.approx(theirs, abs=1e-9)
    theirs = proportion_confint(successes, n, method="normal")
    assert wald(successes, n) == pytest.approx(theirs, abs=1e-6)


def test_wald_interval_equals_the_interval_of_the_papers_scripts():
    answers = [1] * 8 + [0] * 2
    margin = 1.96 * sem(answers, ddof=0)
    assert wald(8, 10) == pytest.approx((0.8 - margin, 1.0), abs=1e-4)


@pytest.mark.parametrize(("successes", "n"), [(1, 100_000), (50_000, 100_000), (99_990, 100_000)])
def test_clopper_pearson_interval_of_many_trials_equals_that_of_scipy(successes, n):
    theirs = binomtest(successes, n).proportion_ci(method="exact")
    assert clopper_pearson(successes, n) == pytest.approx(theirs, rel=1e-8)


def test_intervals_without_data_cover_the_whole_range():
    for interval in (wilson, wald, clopper_pearson):
        assert interval(0, 0) == (0.0, 1.0)
        with pytest.raises(ValueError, match="successes"):
            interval(4, 3)
    assert clustered([]) == clustered([Cluster(0, 0)]) == (0.0, 1.0)
    assert paired_interval([]) == (-1.0, 1.0)


clusters = st.lists(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=3,
    max_size=30,
).map(lambda pairs: [Cluster(*pair) for pair in pairs])


@given(clusters)
def test_robust_error_equals_that_of_a_regression_with_clusters(members):
    values, groups = [], []
    for number, (total, size) in enumerate(members):
        values += [1.0] * total + [0.0] * (size - total)
        groups += [number] * size
    if len(set(values)) < 2:
        return
    fitted = OLS(values, np.ones(len(values))).fit(
        cov_type="cluster", cov_kwds={"groups": np.array(groups)}
    )
    assert robust_error(members) == pytest.approx(float(fitted.bse[0]), rel=1e-9, abs=1e-12)


@given(clusters)
def test_clustered_interval_contains_the_mean_and_is_at_least_as_wide_as_the_plain_one(members):
    total, n = sum(one.total for one in members), sum(one.size for one in members)
    low, high = clustered(members)
    assert 0 <= low <= total / n <= high <= 1
    plain = wilson(total, n)
    assert high - low >= plain[1] - plain[0] - 1e-9


@pytest.mark.parametrize("total", [15, 7, 22, 1])
def test_clusters_with_equal_rates_count_as_one_trial_each_despite_rounding(total):
    alike = [Cluster(total, 22)] * 10
    assert robust_error(alike) == 0
    assert clustered(alike) == pytest.approx(wilson(10 * total / 22, 10))


def test_clustered_interval_of_equal_repetitions_is_close_to_that_of_single_answers():
    for solved in range(21):
        again = [Cluster(5.0, 5)] * solved + [Cluster(0.0, 5)] * (20 - solved)
        plain, by_query = wilson(solved, 20), clustered(again)
        # equal except for the correction factor for few queries
        assert by_query == pytest.approx(plain, abs=0.01)
        assert clustered([Cluster(1, 1)] * solved + [Cluster(0, 1)] * (20 - solved)) == plain


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_and_sign_flip_test_equal_mcnemar_of_statsmodels(only_first, only_second):
    theirs = their_mcnemar([[7, only_first], [only_second, 9]], exact=True)
    assert mcnemar(only_first, only_second) == pytest.approx(theirs.pvalue, abs=1e-12)
    signs = [1] * only_first + [-1] * only_second + [0] * 5
    assert sign_flip(signs) == mcnemar(only_first, only_second)


@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9))
def test_sign_flip_test_equals_an_enumeration_of_all_signs(differences):
    observed = abs(sum(differences))
    every = list(itertools.product((1, -1), repeat=len(differences)))
    as_far = sum(
        abs(sum(sign * one for sign, one in zip(signs, differences, strict=True))) >= observed
        for signs in every
    )
    assert sign_flip(differences) == pytest.approx(as_far / len(every), abs=1e-12)


def test_sign_flip_test_equals_the_permutation_test_of_scipy():
    differences = [3, 1, 1, -2, 4, 0, 2, -1, 1, 5]
    theirs = permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip(differences) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_approximate_sign_flip_test_is_close_to_the_exact_one(monkeypatch):
    differences = [3, -2, 1, 2, -1, 1, 3, -3, 2, 1] * 12
    exact = sign_flip(differences)
    monkeypatch.setattr("netarena.analysis.intervals._MOST_STEPS", 1)
    assert sign_flip(differences) == pytest.approx(exact, rel=0.1)
    assert sign_flip([2, -2]) == 1.0


@pytest.mark.parametrize(
    "p_values", [[0.5], [0.04, 0.01, 0.03], [0.0, 1.0, 0.2, 0.2], [0.001 * n for n in range(1, 13)]]
)
def test_holm_correction_equals_that_of_statsmodels(p_values):
    theirs = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(list(theirs), abs=1e-12)


# differences


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_paired_interval_equals_the_adjusted_wald_interval(only_first, only_second, same):
    if not only_first + only_second + same:
        return
    n = only_first + only_second + same + 2
    ahead, behind = (only_first + 1) / n, (only_second + 1) / n
    margin = norm.ppf(0.975) * math.sqrt((ahead + behind - (ahead - behind) ** 2) / n)
    seen = [(1, 1)] * only_first + [(-1, 1)] * only_second + [(0, 1)] * same
    got = paired_interval([Cluster(*one) for one in seen])
    assert got == pytest.approx(
        (max(-1, ahead - behind - margin), min(1, ahead - behind + margin)), abs=1e-6
    )


@given(counts, counts)
def test_unpaired_interval_equals_newcombes_interval(first, second):
    theirs = confint_proportions_2indep(*first, *second, method="newcomb", compare="diff")
    ours = unpaired_interval(*((k / n, wilson(k, n)) for k, n in (first, second)))
    assert ours == pytest.approx(theirs, abs=1e-6)


# power


@pytest.mark.parametrize(("first", "second"), [(0.9, 0.8), (0.55, 0.5), (0.2, 0.9), (0.1, 0.05)])
def test_unpaired_sample_size_equals_that_of_statsmodels_with_continuity_correction(first, second):
    theirs = samplesize_proportions_2indep_onetail(
        first - second,
        second,
        power=0.8,
        alpha=0.025,
        value=0,
        alternative="larger" if first > second else "smaller",
    )
    corrected = theirs / 4 * (1 + math.sqrt(1 + 4 / (theirs * abs(first - second)))) ** 2
    assert unpaired_size(first, second) == pytest.approx(corrected, abs=1)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [(1.0, 0.0, None), (0.8, 0.3, None), (0.95, 0.6, 0.35), (0.9, 0.8, None), (0.9, 0.8, 0.12)],
)
def test_paired_sample_size_gives_the_exact_test_80_percent_power(first, second, apart):
    """With this number of queries, the exact test has a power of 80 % or slightly more."""
    n = paired_size(first, second, apart)
    apart = first * (1 - second) + second * (1 - first) if apart is None else apart
    share = (apart + first - second) / 2 / apart

    def is_told(d: int, wins: int) -> bool:
        return mcnemar(wins, d - wins) <= 0.05

    def power(queries: int) -> float:
        found = 0.0
        for d in range(queries + 1):
            # the test is symmetric, and its probability grows with the smaller number of wins
            few = [*itertools.takewhile(partial(is_told, d), range(d // 2 + 1))]
            told = [*{*few, *(d - k for k in few)}]
            found += binom.pmf(d, queries, apart) * sum(binom.pmf(told, d, share))
        return found

    assert power(n) >= 0.8
    assert power(math.floor(0.8 * n)) < 0.8


def test_equal_rates_have_no_sample_size_and_invalid_rates_are_refused():
    assert unpaired_size(0.4, 0.4) is paired_size(0.4, 0.4) is None
    for size in (unpaired_size, paired_size):
        with pytest.raises(ValueError, match=r"a rate must be from 0 to 1, not 1\.5"):
            size(1.5, 0.2)


# pass^k


@given(counts, st.data())
def test_pass_all_equals_the_share_of_samples_with_only_correct_answers(pair, data):
    right, asked = (min(value, 8) for value in pair)
    right = min(right, asked)
    k = data.draw(st.integers(1, asked))
    answers = [1] * right + [0] * (asked - right)
    samples = list(itertools.combinations(answers, k))
    assert pass_all(right, asked, k) == pytest.approx(sum(map(all, samples)) / len(samples))


@pytest.mark.parametrize("wrong", [(3, 2, 1), (-1, 2, 1), (1, 2, 3), (1, 2, 0)])
def test_pass_all_of_impossible_counts_is_refused(wrong):
    with pytest.raises(ValueError, match="successes must be"):
        pass_all(*wrong)


def test_interval_of_a_mean_uses_the_standard_error_of_scipy():
    values = [0.0, 0.3, 0.9, 1.0, 1.4]
    low, high = mean_interval([Cluster(value, 1) for value in values])
    assert math.isclose(high, np.mean(values) + 1.959964 * sem(values))
    assert math.isclose(low, np.mean(values) - 1.959964 * sem(values))
    assert mean_interval([Cluster(0.0, 1), Cluster(0.2, 1)])[0] == 0.0
    with pytest.raises(ValueError, match="at least 2 queries, not 1"):
        mean_interval([Cluster(1.0, 3)])
