"""Statistical inference on rates: intervals, tests and power, as functions of numbers.

Rates are shares in [0, 1], intervals are pairs ``(low, high)``, and significance levels are
two-sided. Answers to a repeated query are not independent, so functions with ``Cluster`` arguments
treat all answers to a query as one observation. The project's tests compare the results with those
of SciPy and statsmodels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

#: Standard normal quantile of a two-sided 95 % interval.
Z_95 = 1.959964
#: Significance level of two-sided tests.
LEVEL = 0.05
#: Power of a test: the probability that it detects a difference that exists.
POWER = 0.8
#: Maximum number of steps of the exact sign-flip test. The normal approximation replaces longer
#: tests.
_MOST_STEPS = 4_000_000


class Cluster(NamedTuple):
    """The answers to one query: their number, and the sum of their values."""

    total: float
    size: int


def wilson(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson score interval of a proportion (E. B. Wilson, 1927), within [0, 1].

    Without observations, the interval is (0, 1). Raises ValueError unless 0 <= successes <= n.

    >>> [round(bound, 4) for bound in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to {n}, not {successes}")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    spread = z * z / n
    centre = share + spread / 2
    margin = math.sqrt(spread * (share * (1 - share) + spread / 4))
    # these two bounds are set exactly, because the formula has rounding errors of about 1e-17
    low = 0.0 if successes == 0 else max(0.0, (centre - margin) / (1 + spread))
    high = 1.0 if successes == n else min(1.0, (centre + margin) / (1 + spread))
    return low, high


def mean_interval(clusters: Sequence[Cluster], z: float = Z_95) -> tuple[float, float]:
    """Return the interval of a mean over answers: the mean plus and minus ``z`` standard errors.

    The standard error is that of a ratio of sums over clusters, with the correction n / (n - 1) for
    few clusters. The lower bound is at least 0, because values are not negative. Raises ValueError
    for fewer than two clusters, for which no standard error exists.
    """
    count, size = len(clusters), sum(one.size for one in clusters)
    if count < 2:
        raise ValueError(f"an interval needs answers to at least 2 queries, not {count}")
    mean = math.fsum(one.total for one in clusters) / size
    squares = math.fsum((one.total - mean * one.size) ** 2 for one in clusters)
    margin = z * math.sqrt(squares * count / (count - 1)) / size
    return max(0.0, mean - margin), mean + margin


def wald(successes: float, n: float, z: float = Z_95) -> tuple[float, float]:
    """Return the paper's interval, clipped to [0, 1]: the mean ± ``z`` standard errors.

    The standard error is √(p(1 - p)/n), as the scripts of the paper's authors compute it
    (``scipy.stats.sem`` with ``ddof=0``, times 1.96). If all answers are equal, the width of the
    interval is 0, even for few answers. Without answers, the interval is (0, 1). Raises ValueError
    unless 0 <= successes <= n.

    >>> [round(bound, 4) for bound in wald(8, 10)]
    [0.5521, 1.0]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to {n}, not {successes}")
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    margin = z * math.sqrt(share * (1 - share) / n)
    return max(0.0, share - margin), min(1.0, share + margin)


def clopper_pearson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a proportion (C. J. Clopper, E. S. Pearson, 1934).

    Its coverage is at least 1 - ``level``. Without observations, the interval is (0, 1). Raises
    ValueError unless 0 <= successes <= n.

    >>> [round(bound, 4) for bound in clopper_pearson(8, 10)]
    [0.4439, 0.9748]
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must be from 0 to {n}, not {successes}")
    low, high = 0.0, 1.0
    if successes > 0:
        low = _solve(lambda p: _beta_share(p, successes, n - successes + 1), level / 2)
    if successes < n:
        high = _solve(lambda p: _beta_share(p, successes + 1, n - successes), 1 - level / 2)
    return low, high


def clustered(clusters: Iterable[Cluster], z: float = Z_95) -> tuple[float, float]:
    """Return the Wilson interval of a mean of values in [0, 1] with several answers per query.

    The standard error is robust to clusters (K.-Y. Liang, S. L. Zeger, 1986; E. Miller, 2024):
    √(Σ_q (Σ_i (x_qi - mean))²) / n, times √(G/(G - 1)) for G queries. The result is the interval
    ``wilson`` for the effective number of answers. This is the number of independent answers with
    the same error (E. L. Korn, B. I. Graubard, 1998). The effective number is at most the actual
    number; if the error is 0, it is the number of queries. If each query has one verdict (0 or 1),
    the interval equals ``wilson``. Without answers, it is (0, 1).
    """
    members = [cluster for cluster in clusters if cluster.size]
    n, groups = sum(cluster.size for cluster in members), len(members)
    if n == groups and all(cluster.total in {0, 1} for cluster in members):
        return wilson(sum(cluster.total for cluster in members), n, z)
    if not n:
        return 0.0, 1.0
    mean = math.fsum(cluster.total for cluster in members) / n
    error = robust_error(members)
    effective = float(groups)
    if error > 0:
        effective = min(float(n), mean * (1 - mean) / error**2)
    return wilson(min(effective, max(0.0, mean * effective)), effective, z)


def next_size(queries: int, interval: tuple[float, float], goal: float) -> int:
    """Return the total number of queries at which half the width of ``interval`` becomes ``goal``.

    ``interval`` is the interval of a rate over ``queries`` queries. If the interval is already
    narrow enough, the result is ``queries``. The width is inversely proportional to the square root
    of the number (Y. S. Chow, H. Robbins, 1965). The result is at most twice ``queries``, because a
    rate over few queries is inaccurate. Raises ValueError unless ``goal`` and ``queries`` are
    positive.

    >>> next_size(100, (0.40, 0.60), 0.08)
    157
    """
    if goal <= 0 or queries <= 0:
        raise ValueError("goal and queries must be positive")
    ratio = (interval[1] - interval[0]) / 2 / goal
    return queries if ratio <= 1 else min(2 * queries, math.ceil(queries * ratio**2))


def most_needed(goal: float, z: float = Z_95) -> int:
    """Return the number of queries after which any rate's Wilson interval is narrow enough.

    Half the width of the interval is then at most ``goal``. The interval is widest at a rate of one
    half: z²/(4·goal²) - z². Raises ValueError unless ``goal`` is in (0, 0.5].

    >>> most_needed(0.03)
    1064
    """
    if not 0 < goal <= 0.5:
        raise ValueError("goal must be in (0, 0.5]")
    return max(1, math.ceil(z * z / (4 * goal * goal) - z * z))


def robust_error(clusters: Sequence[Cluster]) -> float:
    """Return the cluster-robust standard error of a mean (see ``clustered``); 0 for one query."""
    n, groups = sum(cluster.size for cluster in clusters), len(clusters)
    if groups < 2:
        return 0.0
    whole = math.fsum(cluster.total for cluster in clusters)
    # For counts, deviations multiplied by n are integers. The error is therefore exactly 0 if all
    # clusters have the same mean.
    squares = math.fsum((cluster.total * n - whole * cluster.size) ** 2 for cluster in clusters)
    return math.sqrt(squares * groups / (groups - 1)) / n**2


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test (Q. McNemar, 1947).

    The arguments are the numbers of answer pairs in which only the first or only the second answer
    succeeded. Under the null hypothesis, each such pair is the toss of a fair coin. Without such
    pairs, the result is 1.0. Raises ValueError for negative counts.

    >>> mcnemar(1, 9)
    0.021484375
    """
    if only_first < 0 or only_second < 0:
        raise ValueError("counts must not be negative")
    n, fewer = only_first + only_second, min(only_first, only_second)
    if 2 * fewer == n:
        return 1.0
    if n <= 1000:
        tail = sum(math.comb(n, k) for k in range(fewer + 1)) / (1 << n)
    else:
        log_n = math.lgamma(n + 1) - n * math.log(2)
        tail = math.fsum(
            math.exp(log_n - math.lgamma(k + 1) - math.lgamma(n - k + 1)) for k in range(fewer + 1)
        )
    return min(1.0, 2 * tail)


def sign_flip(differences: Iterable[int]) -> float:
    """Return the two-sided p-value of the exact sign-flip test by query (R. A. Fisher, 1935).

    The argument has one difference per query: the first agent's number of successes minus the
    second agent's. Under the null hypothesis, each sign is the toss of a fair coin. If all
    differences are 1 or -1, the result equals ``mcnemar``. If the exact test would take millions of
    steps, the normal approximation with a continuity correction is used.

    >>> sign_flip([2, 2, 1, -1]), sign_flip([1] * 9 + [-1])
    (0.375, 0.021484375)
    """
    seen = [difference for difference in differences if difference]
    sizes = [abs(difference) for difference in seen]
    total, ahead = sum(sizes), abs(sum(seen))
    if set(sizes) <= {1}:
        wins = sum(difference > 0 for difference in seen)
        return mcnemar(wins, len(seen) - wins)
    if not ahead:
        return 1.0
    if total * len(sizes) > _MOST_STEPS:
        deviation = math.sqrt(sum(size * size for size in sizes))
        return min(1.0, 2 * NormalDist().cdf((0.5 - ahead) / deviation))
    # Sum of the differences whose sign is positive -> probability of this sum.
    likely = [1.0]
    for size in sizes:
        longer = [0.0] * (len(likely) + size)
        for place, chance in enumerate(likely):
            longer[place] += chance / 2
            longer[place + size] += chance / 2
        likely = longer
    return min(1.0, 2 * math.fsum(likely[(total + ahead) // 2 :]))


def paired_interval(differences: Sequence[Cluster], z: float = Z_95) -> tuple[float, float]:
    """Return the interval of a difference of two rates over the same queries, within [-1, 1].

    The ``total`` of each query is the first agent's number of successes minus the second agent's.
    Two artificial queries are added, with one success for each agent (the adjusted Wald interval;
    D. G. Bonett, R. M. Price, 2012). Without these artificial queries, a few queries with equal
    differences would give an interval of width 0. The error is robust to clusters. Without queries,
    the interval is (-1, 1).

    >>> one = [Cluster(1, 1)] * 6 + [Cluster(-1, 1)] + [Cluster(0, 1)] * 13
    >>> [round(bound, 4) for bound in paired_interval(one)]
    [-0.0226, 0.4771]
    """
    n, groups = sum(cluster.size for cluster in differences), len(differences)
    if not n:
        return -1.0, 1.0
    size = n / groups
    parts = [*differences, (size, size), (-size, size)]
    whole = n + 2 * size
    mean = math.fsum(total for total, _ in parts) / whole
    error = math.sqrt(math.fsum((total - mean * size) ** 2 for total, size in parts)) / whole
    return max(-1.0, mean - z * error), min(1.0, mean + z * error)


def unpaired_interval(
    first: tuple[float, tuple[float, float]], second: tuple[float, tuple[float, float]]
) -> tuple[float, float]:
    """Return the interval of a difference of two rates over different queries, within [-1, 1].

    Each argument is a rate and its interval. For Wilson intervals, the result is the hybrid score
    interval (R. G. Newcombe, 1998).

    >>> pair = unpaired_interval((0.8, wilson(8, 10)), (0.5, wilson(5, 10)))
    >>> [round(bound, 4) for bound in pair]
    [-0.1067, 0.5999]
    """
    (one, (low, high)), (other, (other_low, other_high)) = first, second
    return (
        max(-1.0, one - other - math.hypot(one - low, other_high - other)),
        min(1.0, one - other + math.hypot(high - one, other - other_low)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests, corrected for their number (S. Holm, 1979).

    The result is in the order of ``p_values``.

    If tests with a corrected p-value of at most ``a`` count as significant, the probability of any
    false positive is at most ``a``.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def unpaired_size(
    first: float, second: float, *, level: float = LEVEL, power: float = POWER
) -> int | None:
    """Return the number of queries per agent that a test needs to distinguish unpaired rates.

    The two agents answer different queries. The test is the two-sided test of two proportions, with
    the continuity correction for exact tests (J. L. Fleiss, 1981). The result is None if the rates
    are equal. Raises ValueError for a rate outside [0, 1].

    >>> unpaired_size(0.9, 0.8)
    219
    """
    _check_rates(first, second)
    if first == second:
        return None
    mean = (first + second) / 2
    null = math.sqrt(2 * mean * (1 - mean))
    spread = math.sqrt(first * (1 - first) + second * (1 - second))
    root = (_z(1 - level / 2) * null + _z(power) * spread) / (first - second)
    return _corrected(root * root, first - second)


def paired_size(
    first: float,
    second: float,
    apart: float | None = None,
    *,
    level: float = LEVEL,
    power: float = POWER,
) -> int | None:
    """Return the number of common queries that McNemar's test needs to distinguish two rates.

    ``apart`` is the share of queries in which only one of the two agents succeeds. By default, it
    is the share for independent successes. The formula is that of R. J. Connor (1987) with Fleiss's
    correction for the exact test. The result is at most a fifth above the exact number, and never
    below it. It is None if the rates are equal. Raises ValueError for a rate outside [0, 1].

    >>> paired_size(0.9, 0.8), paired_size(0.9, 0.8, 0.1), paired_size(1.0, 0.0)
    (222, 96, 6)
    """
    _check_rates(first, second)
    difference = abs(first - second)
    if not difference:
        return None
    if apart is None:
        apart = first * (1 - second) + second * (1 - first)
    apart = max(apart, difference)
    root = _z(1 - level / 2) * math.sqrt(apart) + _z(power) * math.sqrt(apart - difference**2)
    return _corrected((root / difference) ** 2, difference)


def _corrected(size: float, difference: float) -> int:
    """Return the number of queries after Fleiss's continuity correction of ``size``, rounded up."""
    return math.ceil(size / 4 * (1 + math.sqrt(1 + 4 / (size * abs(difference)))) ** 2)


def pass_all(successes: int, asked: int, k: int) -> float:
    """Return the probability that ``k`` random answers to a query are all correct.

    The answers are drawn without replacement from the ``asked`` answers. The result is C(successes,
    k) / C(asked, k), the unbiased estimate of pass^k (S. Yao and others, τ-bench, 2024). Raises
    ValueError unless 0 <= successes <= asked and 1 <= k <= asked.

    >>> pass_all(3, 4, 2)
    0.5
    """
    if not 0 <= successes <= asked or not 1 <= k <= asked:
        raise ValueError(
            f"successes must be from 0 to {asked} and k from 1 to {asked}, not {successes} and {k}"
        )
    return math.comb(successes, k) / math.comb(asked, k)


def _check_rates(*rates: float) -> None:
    for rate in rates:
        if not 0 <= rate <= 1:
            raise ValueError(f"a rate must be from 0 to 1, not {rate}")


def _z(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def _solve(rising: Callable[[float], float], value: float) -> float:
    """Return the point in [0, 1] at which an increasing function has the given value.

    The result has full floating-point precision.
    """
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if rising(middle) < value:
            low = middle
        else:
            high = middle
    return high


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for 0 < x < 1.

    It is computed from its continued fraction (DLMF 8.17.22), which converges fast for x < (a +
    1)/(a + b + 2). For other x, I_x(a, b) = 1 - I_{1-x}(b, a) (8.17.4).
    """
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log + a * math.log(x) + b * math.log1p(-x)) / a
    # The convergents A_k/B_k of 1/(1 + d_1/(1 + d_2/(1 + …))), stored as ratios of successive
    # numerators and of successive denominators.
    value, over, under = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        over, under = 1 + term / over, 1 / (1 + term * under)
        value *= over * under
        if abs(over * under - 1) < 1e-15:
            break
    return front / value
