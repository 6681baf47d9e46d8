"""Leakage test: measures how well machine-learning models find the fault without a diagnosis.

``examine`` trains simple models (learners) on ``Evidence`` and tests them on other queries.
Candidates, targets, traces, forms and hand-written rules are defined in
``netarena.task.evidence``. Every learner is cross-fitted by query: all candidates of a query are in
the same fold. The test answers three questions, for traces and for forms:

- ``top-1``: is the candidate with the highest score a target? Chance is the share of targets
  among the candidates of each query. Ties count as their expected value.
- ``AUC``: does a target score higher than another candidate of the same role? ``across`` compares
  candidates of all queries, and ``within`` compares only candidates of the same query. ``across``
  is corrected for base rates (see below).
- ``anything``: does the query have any fault? The measure is the balanced accuracy over queries
  with and without a fault.

The share of targets is higher among few candidates than among many candidates. The number of
candidates, which every agent may see, is therefore enough for an AUC above 0.5. To correct
``across``, the AUC that follows from the share of targets in each query and role is subtracted, and
0.5 is added. This correction also removes other differences between queries, such as the number of
faults. Only ``anything`` tests whether a query has any fault.

Intervals are percentiles of a bootstrap over queries. The p-value of top-1 comes from a permutation
test, in which targets are permuted among the candidates of each query. The p-value of ``anything``
comes from Fisher's exact test, one-sided. Both are corrected with Holm's method; all learners form
one family per question. The power is the probability that Holm's first step detects an effect with
the given queries. The effect is twice the top-1 rate of chance (``power_top1``), or a balanced
accuracy of 60 % (``power_anything``).

This module needs scikit-learn (the extra ``audit``); import it only where it is used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom, norm, rankdata
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from netarena.analysis.intervals import holm
from netarena.model import JsonValue, Record
from netarena.task.evidence import RULE, Evidence, Kind

Matrix: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.intp]

#: Error rate of each family of tests.
ALPHA = 0.05
#: Goal: maximum of the upper bound of the AUC's interval, by kind of feature.
LIMITS: Mapping[Kind, float] = {Kind.TRACE: 0.55, Kind.FORM: 0.60}
#: Goal: minimum power of the tests (see the module's docstring).
POWER = 0.9
#: Balanced accuracy that the tests must detect with the minimum power.
SEEN_ACCURACY = 0.6
#: Number of resamples of each bootstrap, and number of draws of each permutation test and each
#: power computation.
RESAMPLES, DRAWS = 1000, 4000
#: Maximum number of columns that a learner uses. It uses the columns that differ most between
#: targets and other rows in its training folds.
COLUMNS = 150
#: Number of features of each kind that a report lists.
TELLING = 20
#: Number of queries above which the test uses five folds instead of ten.
_MANY = 500
#: Minimum number of candidates or queries of each class in a training fold.
_FEWEST = 3


class Estimate(Record):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class Found(Record):
    """Results of one learner on one kind of features.

    A result is null if its question does not apply.
    """

    learner: str
    kind: Kind
    top1: Estimate | None = None
    top1_p: float | None = None
    across: Estimate | None = None
    within: Estimate | None = None
    anything: Estimate | None = None
    anything_p: float | None = None
    #: Goals that this learner's results do not meet, as text.
    missed: tuple[str, ...] = ()


class Telling(Record):
    """Result of one feature that is used as a score: AUC within queries, its z value, and top-1.

    If the AUC is below 0.5, top-1 uses the candidate with the lowest score. ``weight`` is the
    feature's standardised coefficient in the logistic regression, 0 if the feature is unused.
    """

    kind: Kind
    feature: str
    auc: float
    top1: float
    z: float
    weight: float = 0.0


class Report(Record):
    """The result of ``examine``."""

    queries: int
    wrong: int
    false_alarms: int
    candidates: int
    targets: int
    features: dict[Kind, int]
    #: Expected top-1 rate of a random choice among the candidates.
    chance: float
    power_top1: float | None
    power_anything: float | None
    found: tuple[Found, ...]
    telling: tuple[Telling, ...]

    @property
    def missed(self) -> tuple[str, ...]:
        """Return the goals that are not met, as text."""
        return tuple(words for one in self.found for words in one.missed)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as plain JSON, including the goals that are not met."""
        return {**self.model_dump(mode="json"), "missed": list(self.missed)}


@dataclass(frozen=True)
class _Table:
    """Features as named columns, with one row per candidate or per query.

    Missing values are NaN.
    """

    names: tuple[str, ...]
    values: Matrix
    is_target: Flags
    #: Query number of each row, in ascending order.
    group: Places
    #: Role number of each row. The rows of one query and role are consecutive.
    role: Places

    def rows(self, chosen: Flags) -> tuple[Matrix, Flags]:
        return self.values[chosen], self.is_target[chosen]

    def sets(self) -> list[slice]:
        """Return the groups of rows whose scores are compared, one group per query and role."""
        return _slices(self.group * (int(self.role.max(initial=0)) + 1) + self.role)


Learner: TypeAlias = Callable[[Matrix, Flags, Matrix], tuple[Matrix, Matrix]]


def examine(
    evidence: Sequence[Evidence],
    seed: int = 0,
    told: Callable[[str], None] = lambda _: None,
) -> Report:
    """Train all learners on ``evidence``, test them, and return the result.

    ``told`` is called with the name of each step. Raises ValueError for evidence without
    candidates.
    """
    evidence = [one for one in evidence if one.candidates]
    if not evidence:
        raise ValueError("the evidence has no candidates")
    # if the processors are busy, OpenMP threads cost more time than they save
    with threadpool_limits(1):
        return _examine(evidence, seed, told)


def _examine(evidence: Sequence[Evidence], seed: int, told: Callable[[str], None]) -> Report:
    wrongs = [one.wrong for one in evidence if one.wrong is not None]
    folds = _folds(evidence, seed)
    found: list[Found] = []
    telling: list[Telling] = []
    counts: dict[Kind, int] = {}
    chances: Matrix = np.array([])
    for kind in Kind:
        own = _by_candidate(evidence, kind)
        counts[kind] = len([name for name in own.names if "~" not in name])
        asks = bool(sum(wrongs)) and not all(wrongs)
        whole = _by_query(evidence, kind, own) if asks else None
        if not own.names and (whole is None or not whole.names):
            continue
        shares = [own.is_target[mine].mean() for mine in own.sets()]
        mixed = np.array([share for share in shares if 0 < share < 1])
        # the power is computed for the kind of features with fewer queries, because it is lower
        # there
        if not len(chances) or 0 < len(mixed) < len(chances):
            chances = mixed
        results: dict[str, Found] = {}
        weights: Mapping[str, float] = {}
        for name, learner in _learners(own, seed).items():
            told(f"training on {kind} features of candidates: {name}")
            scores, used = _cross_fit(own, learner, folds)
            if name == "logistic regression":
                weights = dict(zip(own.names, used, strict=True))
            results[name] = _score_candidates(Found(learner=name, kind=kind), own, scores, seed)
        if whole is not None:
            for name, learner in _learners(whole, seed).items():
                told(f"training on {kind} features of queries: {name}")
                before = results.get(name, Found(learner=name, kind=kind))
                scores, _ = _cross_fit(whole, learner, folds)
                results[name] = _score_queries(before, whole, scores, folds, seed)
        found += results.values()
        telling += _telling(own, kind, weights)
    found = _judge(found)
    tests_top1 = sum(one.top1_p is not None for one in found)
    tests_anything = sum(one.anything_p is not None for one in found)
    return Report(
        queries=len(evidence),
        wrong=sum(wrongs),
        false_alarms=len(wrongs) - sum(wrongs),
        candidates=sum(len(one.candidates) for one in evidence),
        targets=sum(each.target for one in evidence for each in one.candidates),
        features=counts,
        chance=float(chances.mean()) if len(chances) else 0.0,
        power_top1=power_top1(chances, ALPHA / tests_top1) if tests_top1 else None,
        power_anything=(
            power_anything(sum(wrongs), len(wrongs) - sum(wrongs), ALPHA / tests_anything)
            if tests_anything
            else None
        ),
        found=tuple(found),
        telling=tuple(telling),
    )


# The functions below build tables of features.


def _by_candidate(evidence: Sequence[Evidence], kind: Kind) -> _Table:
    """Return the candidates' features, and the ranks of features within the same query and role."""
    chosen = [
        (number, one)
        for number, each in enumerate(evidence)
        for one in sorted(each.candidates, key=lambda one: one.role)
        if one.features(kind)
    ]
    names, values = _matrix([one.features(kind) for _, one in chosen])
    roles = sorted({one.role for _, one in chosen})
    table = _Table(
        names,
        values,
        np.array([one.target for _, one in chosen], dtype=bool),
        np.array([number for number, _ in chosen], dtype=np.intp),
        np.array([roles.index(one.role) for _, one in chosen], dtype=np.intp),
    )
    plain = [place for place, name in enumerate(names) if "~" not in name]
    if plain:
        ranks = np.concatenate([_ranks(values[mine][:, plain]) for mine in table.sets()])
        names = (*names, *(f"{names[place]}~rank" for place in plain))
        values = np.concatenate([values, ranks], axis=1)
    # centred per role, so that no learner can use differences between roles
    for number in range(len(roles)):
        mine = table.role == number
        values[mine] -= _medians(values[mine])
    # skip ranks that the application has already computed
    first = {name: place for place, name in reversed([*enumerate(names)])}
    kept = _varied(values, sorted(first.values()))
    return replace(table, names=tuple(names[place] for place in kept), values=values[:, kept])


def _by_query(evidence: Sequence[Evidence], kind: Kind, own: _Table) -> _Table:
    """Return the queries' features, and statistics of the features of their candidates.

    The statistics are minimum, mean, maximum, and the share of candidates that have the feature.
    """
    names, values = _matrix([one.features(kind) for one in evidence])
    plain = [place for place, name in enumerate(own.names) if "~" not in name]
    parts = []
    with np.errstate(all="ignore"):
        for number in range(len(evidence)):
            part = own.values[own.group == number][:, plain]
            having = ~np.isnan(part)
            if not len(part):
                parts.append(np.full(4 * len(plain), np.nan))
                continue
            least = np.where(having, part, np.inf).min(axis=0)
            most = np.where(having, part, -np.inf).max(axis=0)
            mean = np.where(having, part, 0).sum(axis=0) / having.sum(axis=0)
            parts.append(np.concatenate([least, mean, most, having.mean(axis=0)]))
    folded = np.array(parts)
    folded[~np.isfinite(folded)] = np.nan
    values = np.concatenate([values, folded], axis=1)
    names = (
        *names,
        *(
            f"{RULE}{how} {own.names[place].removeprefix(RULE)}"
            if own.names[place].startswith(RULE) and how == "most"
            else f"{how} {own.names[place]}"
            for how in ("least", "mean", "most", "share")
            for place in plain
        ),
    )
    asked = np.array([one.wrong is not None for one in evidence])
    kept = _varied(values, range(len(names)))
    wrong = np.array([bool(one.wrong) for one in evidence])
    return _Table(
        tuple(names[place] for place in kept),
        values[asked][:, kept],
        wrong[asked],
        np.arange(len(evidence))[asked],
        np.zeros(int(asked.sum()), dtype=np.intp),
    )


def _matrix(rows: Sequence[Mapping[str, float]]) -> tuple[tuple[str, ...], Matrix]:
    names = tuple(sorted({name for row in rows for name in row}))
    values = np.full((len(rows), len(names)), np.nan)
    places = {name: place for place, name in enumerate(names)}
    for number, row in enumerate(rows):
        for name, value in row.items():
            values[number, places[name]] = value
    # no infinite values, so that means and medians are finite
    return names, np.clip(values, -1e15, 1e15)


def _slices(group: Places) -> list[slice]:
    """Return the range of rows of each group. The rows of one group are consecutive."""
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return [slice(a, b) for a, b in zip(starts, [*starts[1:], len(group)], strict=True)]


def _ranks(values: Matrix) -> Matrix:
    """Return the mid-ranks of each column, scaled to [0, 1]. NaN remains NaN."""
    ranks = rankdata(values, axis=0, nan_policy="omit")
    counts = (~np.isnan(values)).sum(axis=0)
    ranks = np.where(np.isnan(values), np.nan, ranks)
    return np.asarray((ranks - 1) / np.maximum(1, counts - 1), dtype=np.float64)


def _varied(values: Matrix, places: Sequence[int]) -> list[int]:
    """Return the columns in ``places`` whose values are not the same in all rows.

    A missing value counts as a value. Columns that have only missing values are omitted.
    """
    kept = []
    for place in places:
        column = values[:, place]
        missing = np.isnan(column)
        having = column[~missing]
        if len(having) and (missing.any() or having.min() != having.max()):
            kept.append(place)
    return kept


# The functions below are learners.


def _learners(table: _Table, seed: int) -> dict[str, Learner]:
    """Return the learners by name, including the hand-written rules in ``table``.

    The arguments of a learner are training values, training targets and test values. It returns a
    score for each test row and a weight for each column.
    """
    learners: dict[str, Learner] = {
        "logistic regression": _logistic,
        "boosted trees": lambda train, is_target, test: _boosted(train, is_target, test, seed),
        "best single feature": _single,
    }
    for place, name in enumerate(table.names):
        if name.startswith(RULE) and "~" not in name:
            learners[name] = lambda train, _, test, place=place: (  # type: ignore[misc] # mypy: default
                np.nan_to_num(test[:, place], nan=-1e15),
                np.zeros(train.shape[1]),
            )
    return learners


def _columns(train: Matrix, is_target: Flags) -> Places:
    """Return the columns that differ most between targets and other rows.

    The measure is the AUC, or the difference in the share of missing values.
    """
    effect = np.abs(_aucs(train, is_target) - 0.5)
    missing = np.isnan(train)
    effect = np.maximum(
        effect, np.abs(missing[is_target].mean(axis=0) - missing[~is_target].mean(axis=0)) / 2
    )
    return np.sort(np.argsort(-effect, kind="stable")[:COLUMNS])


def _logistic(train: Matrix, is_target: Flags, test: Matrix) -> tuple[Matrix, Matrix]:
    chosen = _columns(train, is_target)
    middle = _medians(train[:, chosen])

    def filled(values: Matrix) -> Matrix:
        part = values[:, chosen]
        missing = np.isnan(part)
        # use logarithms, so that a few large values do not dominate
        size = np.where(missing, middle, part) - middle
        return np.concatenate([np.sign(size) * np.log1p(np.abs(size)), missing], axis=1)

    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced", max_iter=500)
    )
    model.fit(filled(train), is_target)
    weights = np.zeros(train.shape[1])
    weights[chosen] = model[-1].coef_[0][: len(chosen)]
    return np.asarray(model.decision_function(filled(test))), weights


def _boosted(train: Matrix, is_target: Flags, test: Matrix, seed: int) -> tuple[Matrix, Matrix]:
    chosen = _columns(train, is_target)
    # a column without values in the training rows cannot be binned
    chosen = chosen[~np.isnan(train[:, chosen]).all(axis=0)]
    model = HistGradientBoostingClassifier(
        max_iter=60,
        learning_rate=0.15,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        min_samples_leaf=min(20, max(3, int(is_target.sum()) // 5)),
        early_stopping=False,
        random_state=seed % 2**32,
    )
    model.fit(train[:, chosen], is_target)
    return np.asarray(model.decision_function(test[:, chosen])), np.zeros(train.shape[1])


def _single(train: Matrix, is_target: Flags, test: Matrix) -> tuple[Matrix, Matrix]:
    """Return as scores the values of the column whose training AUC is furthest from 0.5.

    If this AUC is below 0.5, the sign is changed.
    """
    aucs = _aucs(train, is_target)
    best = int(np.argmax(np.abs(aucs - 0.5)))
    weights = np.zeros(train.shape[1])
    weights[best] = sign = 1.0 if aucs[best] >= 0.5 else -1.0
    return np.nan_to_num(sign * test[:, best], nan=-1e15), weights


def _medians(values: Matrix) -> Matrix:
    """Return the median of each column's present values, or 0 if all its values are missing."""
    columns = (column[~np.isnan(column)] for column in values.T)
    return np.array([np.median(column) if len(column) else 0.0 for column in columns])


def _aucs(values: Matrix, is_target: Flags) -> Matrix:
    """Return the AUC of each column. Missing values rank lowest."""
    ranks = rankdata(np.nan_to_num(values, nan=-1e16), axis=0)
    targets, others = int(is_target.sum()), int((~is_target).sum())
    if not targets or not others:
        return np.full(values.shape[1], 0.5)
    above = ranks[is_target].sum(axis=0) - targets * (targets + 1) / 2
    return np.asarray(above / (targets * others), dtype=np.float64)


def _folds(evidence: Sequence[Evidence], seed: int) -> Places:
    """Return the fold number of each query; the queries of each label are spread evenly over the
    folds."""
    number = 5 if len(evidence) > _MANY else 10
    rng = random.Random(seed)  # noqa: S311 -- not used for secrets
    order = sorted(range(len(evidence)), key=lambda place: (bool(evidence[place].wrong),
                   evidence[place].label, rng.random()))  # fmt: skip
    folds = np.zeros(len(evidence), dtype=np.intp)
    folds[order] = np.arange(len(evidence)) % number
    return folds


def _cross_fit(table: _Table, learner: Learner, folds: Places) -> tuple[Matrix, Matrix]:
    """Return each row's score, and each column's mean weight over the folds.

    The score of a row comes from a learner that was not trained on the row's query.
    """
    scores = np.zeros(len(table.is_target))
    weights = np.zeros(len(table.names))
    if not table.names:
        return scores, weights
    mine = folds[table.group]
    for fold in np.unique(mine):
        train, is_target = table.rows(mine != fold)
        test = mine == fold
        if min(is_target.sum(), (~is_target).sum()) < _FEWEST:
            continue
        scores[test], used = learner(train, is_target, table.values[test])
        weights += used / len(np.unique(mine))
    return scores, weights


# The functions below compute scores.


def _score_candidates(found: Found, table: _Table, scores: Matrix, seed: int) -> Found:
    both = [
        (scores[mine], table.is_target[mine])
        for mine in table.sets()
        if 0 < table.is_target[mine].sum() < len(table.is_target[mine])
    ]
    if not both:
        return found
    rng = np.random.default_rng(seed)
    tops = [part == part.max() for part, _ in both]
    hits = np.array([flags[top].mean() for top, (_, flags) in zip(tops, both, strict=True)])
    counts = np.array(
        [(top.sum(), flags.sum(), len(flags)) for top, (_, flags) in zip(tops, both, strict=True)]
    )
    drawn = rng.hypergeometric(
        counts[:, 1], counts[:, 2] - counts[:, 1], counts[:, 0], (DRAWS, len(both))
    )
    by_chance = (drawn / counts[:, 0]).mean(axis=1)
    return found.model_copy(
        update={
            "top1": _bootstrap(hits, rng),
            "top1_p": float((1 + (by_chance >= hits.mean() - 1e-12).sum()) / (1 + DRAWS)),
            "within": _bootstrap(
                np.array([_aucs(part[:, None], flags)[0] for part, flags in both]), rng
            ),
            "across": _across(scores, table, rng),
        }
    )


def _across(scores: Matrix, table: _Table, rng: np.random.Generator) -> Estimate:
    """Return the AUC over all pairs of candidates of one role, corrected for base rates.

    The interval comes from a bootstrap over queries.
    """
    number = int(table.group.max()) + 1
    target = table.is_target.astype(float)
    share = np.empty_like(target)
    for mine in table.sets():
        share[mine] = target[mine].mean()
    orders = []
    for role in np.unique(table.role):
        rows = np.flatnonzero(table.role == role)
        rows = rows[np.argsort(scores[rows], kind="stable")]
        orders.append((rows, np.flatnonzero(np.diff(scores[rows], prepend=-np.inf))))

    def auc(weight: Matrix, target: Matrix) -> float:
        above = pairs = 0.0
        for rows, starts in orders:
            each = weight[table.group[rows]]
            targets = np.add.reduceat(each * target[rows], starts)
            others = np.add.reduceat(each * (1 - target[rows]), starts)
            above += float((targets * (np.cumsum(others) - others / 2)).sum())
            pairs += float(targets.sum() * others.sum())
        return above / pairs if pairs else 0.5

    def corrected(weight: Matrix) -> float:
        return min(1.0, max(0.0, auc(weight, target) - auc(weight, share) + 0.5))

    drawn = [
        corrected(np.bincount(rng.integers(0, number, number), minlength=number).astype(float))
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Estimate(value=corrected(np.ones(number)), low=float(low), high=float(high))


def _score_queries(found: Found, table: _Table, scores: Matrix, folds: Places, seed: int) -> Found:
    """Return ``found`` with the balanced accuracy and its p-value.

    The threshold of each fold is the best threshold for the other folds.
    """
    wrong = table.is_target
    if not wrong.any() or wrong.all():
        return found
    mine = folds[table.group]
    said = np.zeros(len(wrong), dtype=bool)
    for fold in np.unique(mine):
        rest = mine != fold
        said[~rest] = scores[~rest] > _threshold(scores[rest], wrong[rest])
    rng = np.random.default_rng(seed)
    right = said == wrong
    drawn = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, len(wrong), len(wrong))
        if wrong[chosen].any() and not wrong[chosen].all():
            drawn.append(_balanced(right[chosen], wrong[chosen]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    # Fisher's exact test of the number of true positives, given the actual and the predicted
    # positives
    p = hypergeom.sf(int((said & wrong).sum()) - 1, len(wrong), int(wrong.sum()), int(said.sum()))
    return found.model_copy(
        update={
            "anything": Estimate(value=_balanced(right, wrong), low=float(low), high=float(high)),
            "anything_p": float(p),
        }
    )


def _threshold(scores: Matrix, wrong: Flags) -> float:
    """Return the score threshold for the prediction "wrong" that gives the best balanced
    accuracy."""
    values = np.unique(scores)
    if len(values) < 2 or wrong.all() or not wrong.any():
        return float("inf")
    positive = np.searchsorted(np.sort(scores[wrong]), values, side="right") / wrong.sum()
    negative = np.searchsorted(np.sort(scores[~wrong]), values, side="right") / (~wrong).sum()
    place = int(np.argmax(negative - positive))
    return float((values[place] + values[min(place + 1, len(values) - 1)]) / 2)


def _balanced(right: Flags, wrong: Flags) -> float:
    return float((right[wrong].mean() + right[~wrong].mean()) / 2)


def _bootstrap(values: Matrix, rng: np.random.Generator) -> Estimate:
    means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(value=float(values.mean()), low=float(low), high=float(high))


def _telling(table: _Table, kind: Kind, weights: Mapping[str, float]) -> list[Telling]:
    """Return the features that reveal targets best, by the z value of their AUC within queries."""
    per_query: list[Matrix] = []
    hits_up: list[Matrix] = []
    hits_down: list[Matrix] = []
    for mine in table.sets():
        flags = table.is_target[mine]
        if 0 < flags.sum() < len(flags):
            values = np.nan_to_num(table.values[mine], nan=-1e16)
            per_query.append(_aucs(values, flags))
            for hits, top in (
                (hits_up, values == values.max(axis=0)),
                (hits_down, values == values.min(axis=0)),
            ):
                hits.append((top & flags[:, None]).sum(axis=0) / top.sum(axis=0))
    if len(per_query) < 2:
        return []
    aucs = np.array(per_query)
    mean, error = aucs.mean(axis=0), aucs.std(axis=0, ddof=1) / math.sqrt(len(aucs))
    z = (mean - 0.5) / np.maximum(error, 1e-3)
    up, down = np.mean(hits_up, axis=0), np.mean(hits_down, axis=0)
    order = np.argsort(-np.abs(z), kind="stable")[:TELLING]
    return [
        Telling(
            kind=kind,
            feature=table.names[place],
            auc=float(mean[place]),
            top1=float(up[place] if mean[place] >= 0.5 else down[place]),
            z=float(z[place]),
            weight=float(weights.get(table.names[place], 0.0)),
        )
        for place in map(int, order)
    ]


# The functions below decide whether the goals are met.


def _judge(found: Sequence[Found]) -> list[Found]:
    """Return ``found`` with Holm-corrected p-values, and with the goals that are not met."""
    judged = list(found)
    for key in ("top1_p", "anything_p"):
        places = [place for place, one in enumerate(judged) if getattr(one, key) is not None]
        for place, p in zip(
            places, holm([getattr(judged[place], key) for place in places]), strict=True
        ):
            judged[place] = judged[place].model_copy(update={key: p})
    return [one.model_copy(update={"missed": tuple(_missed(one))}) for one in judged]


def _missed(one: Found) -> list[str]:
    missed = []
    limit = LIMITS[one.kind]
    for how in ("across", "within"):
        auc: Estimate | None = getattr(one, how)
        if auc is not None and auc.high > limit:
            missed.append(
                f"{one.kind}, {one.learner}: the upper bound of the AUC {how} queries is "
                f"{auc.high:.2f}; at most {limit:.2f} is allowed"
            )
    for key, question in (
        ("top1", "top-1 accuracy"),
        ("anything", 'accuracy of "is anything wrong"'),
    ):
        value: Estimate | None = getattr(one, key)
        p: float | None = getattr(one, f"{key}_p")
        if value is not None and p is not None and p < ALPHA:
            missed.append(
                f"{one.kind}, {one.learner}: {question} is {value.value:.1%}, above chance "
                f"(p = {p:.2g} after Holm's correction)"
            )
    return missed


def power_top1(chances: Matrix, alpha: float, seed: int = 0) -> float:
    """Return the power with which a test of level ``alpha`` detects twice the top-1 rate of chance.

    ``chances`` contains, for each query, the probability that a random candidate is a target.
    """
    if not len(chances):
        return 0.0
    rng = np.random.default_rng(seed)
    shape = (DRAWS, len(chances))
    null = np.sort((rng.random(shape) < chances).sum(axis=1))
    critical = null[min(DRAWS - 1, math.ceil((1 - alpha) * DRAWS))]
    seen = (rng.random(shape) < np.minimum(1, 2 * chances)).sum(axis=1)
    return float((seen > critical).mean())


def power_anything(wrong: int, right: int, alpha: float) -> float:
    """Return the power with which a one-sided test detects a balanced accuracy of 60 %.

    ``wrong`` and ``right`` are the numbers of queries with and without a fault. The test has level
    ``alpha`` and uses the normal approximation of two independent proportions.
    """
    if not wrong or not right:
        return 0.0
    effect = 2 * SEEN_ACCURACY - 1
    under_null = math.sqrt(0.25 / wrong + 0.25 / right)
    rate = SEEN_ACCURACY * (1 - SEEN_ACCURACY)
    under_effect = math.sqrt(rate / wrong + rate / right)
    return float(norm.sf((norm.isf(alpha) * under_null - effect) / under_effect))
