"""Adversarial search: Thompson sampling over a hierarchy of strata.

The strata (see ``netarena.analysis.strata``) form a hierarchy: the root contains every query, and
each child has one more feature, up to ``DEPTH`` features. A search draws queries one by one and
learns whether the agent failed.

- **Evidence.** A draw is uniform in its stratum. It therefore counts for this stratum and for each
  smaller one that contains the drawn cell. It does not count for other strata: a draw of "fault a"
  is biased evidence about "fault b", even if the query has both.
- **Belief.** The failure rate of a stratum has a Beta posterior. The mean of its prior is the
  highest mean of the strata with one feature fewer; its weight is ``WEIGHT`` draws.
- **Choice.** From the root, each step samples a rate for the stratum and for its eligible children.
  A child is eligible if it has at least ``SEEN`` draws and its mean is higher by more than
  ``MARGIN``. The search descends while a child has the highest sample. Pairs of features are also
  children of the root, if their mean is higher than the confidence intervals of both features.
- **Coverage.** First, each single feature is drawn once. Later a share of the draws (``EVEN``)
  stays uniform. Another share (``MUTATED``) changes one feature of a failed query: the feature gets
  the next harder value or any other value (for a kind of fault: a kind that affects similar
  connections), or is removed.
- **Pairs.** If the mean of the root is below ``LEAST``, a share of the draws (``PAIRED``) tests
  pairs of features. Draws for which the search would otherwise choose the root also test pairs.
  Each query counts for every pair of its features. A pair is suspect if it fails in at least
  ``SUSPECT`` of its queries, and more often than each of its features. Suspect pairs are drawn
  until they are confirmed or refuted. Without suspect pairs, the search draws the pair with the
  fewest queries, and among equal pairs the pair whose features fail most often. These counts are
  biased, because they mix draws of different strata. They are used only to choose draws. Rates and
  settled strata are based on the unbiased counts.
- **Settling.** A stratum is *settled* if its rate is at least ``LEAST`` and is known accurately
  enough (``SETTLED``, ``SHARP``). All later draws and counts exclude its cells, so that the
  rest of the budget is spent on other strata (sequential covering). Before a stratum settles, it
  is compared with larger strata. A larger stratum with about the same failure rate replaces it.
  The stratum is also compared with its children, because one of them may contain the cause.

The sampling rule is W. R. Thompson's (1933). The random generator that is passed in is the only
source of randomness.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

from netarena.analysis.intervals import wilson
from netarena.analysis.strata import ALL, Cell, Feature, Space, Stratum

#: Maximum number of features of a stratum.
DEPTH = 3
#: Weight of a prior, in draws.
WEIGHT = 2.0
#: Shares of the draws after the first pass over all features: uniform draws, mutations of failed
#: queries, and tests of feature pairs.
EVEN, MUTATED, PAIRED = 0.12, 0.12, 0.25
#: Minimum failure rate of a pair that is drawn again, over all queries with both features.
SUSPECT = 0.5
#: Minimum numbers of draws of a stratum: to be chosen as a child; to settle; and to be reported at
#: the end without having settled. In the last case, a larger stratum may replace it (``_widest``).
SEEN, SETTLED, REPORTED = 2, 20, 8
#: Minimum difference between the means of a child and its stratum for the search to move to the
#: child.
MARGIN = 0.05
#: Number of draws of each larger stratum before a stratum settles, unless the larger stratum
#: clearly has a lower failure rate.
WIDER = 12
#: Number of draws of each child before a stratum with a rate below ``PURE`` settles, because one of
#: the children may contain the cause.
DEEPER, PURE = 3, 0.9
#: Number of draws that a child needs before its parent settles, if all queries drawn from the child
#: failed.
SURE = 10
#: Minimum ratio of a larger stratum's rate to a smaller stratum's rate, for the larger stratum to
#: replace the smaller stratum.
SAME = 0.9
#: Minimum ratio of the lower bound of a rate to the rate, for a stratum to settle.
SHARP = 0.75
#: Minimum rate of a settled stratum.
LEAST = 0.4
#: Minimum ratio of the rate of a reported stratum to that of the stratum with the highest rate.
ALIKE = 0.7
#: Minimum ratio of the lower bound of an unsettled stratum's rate to the highest rate. The highest
#: of many rates, each from few draws, is often far above its true rate.
FIRM = 0.6
#: Maximum number of reported strata.
MOST = 6
#: Number of consecutive attempts without a cell after which the search ends.
_VAIN = 200
_PAIR = 2
_NONE = (0, 0)

Why: TypeAlias = Literal["single", "even", "sampled", "mutated", "pair", "due"]


class Tally(NamedTuple):
    """Number of a stratum's draws in which the agent failed, and number of all its draws."""

    failed: int
    drawn: int

    @property
    def rate(self) -> float:
        """Return the share of failed draws; 0 without draws."""
        return self.failed / self.drawn if self.drawn else 0.0

    @property
    def low(self) -> float:
        """Return the lower end of the rate's 95 % Wilson interval."""
        return wilson(self.failed, self.drawn)[0]


@dataclass(frozen=True)
class Draw:
    """A request of the search to run a query of ``cell``, which was drawn from ``stratum``."""

    #: Number of the draw, starting at 1. Draws of cells without queries also count.
    number: int
    stratum: Stratum
    cell: Cell
    why: Why


class Found(NamedTuple):
    """A stratum in which the agent fails often, with its draws."""

    stratum: Stratum
    tally: Tally


class Search:
    """A running search. The same space, random generator and results always produce the same
    draws."""

    def __init__(self, space: Space, rng: random.Random) -> None:
        self.space = space
        self.settled: list[Found] = []
        #: All draws with a result, and whether the agent failed.
        self.history: list[tuple[Draw, bool]] = []
        self._rng = rng
        self._tallies: dict[Stratum, list[int]] = {ALL: [0, 0]}
        #: Feature or pair of features -> number of failed queries and number of all queries with
        #: these features, drawn from any stratum.
        self._shared: dict[Stratum, list[int]] = {}
        self._empty: set[Cell] = set()
        #: Strata in which no cell was found.
        self._barren: set[Stratum] = set()
        self._asked = 0
        singles = [*space.singles]
        rng.shuffle(singles)
        self._first = singles
        #: Larger and smaller strata from which to draw before the best stratum can settle.
        self._due: list[Stratum] = []

    def ask(self) -> Draw | None:
        """Return the next draw, or None if no cell is left.

        The caller then passes the draw to ``tell`` or ``skip``. Several draws may be open at the
        same time.
        """
        for _ in range(_VAIN):
            stratum, why = self._choose()
            cell = self._draw(stratum)
            if cell is None:
                self._barren.add(stratum)
            else:
                self._asked += 1
                return Draw(self._asked, stratum, cell, why)
        return None

    def skip(self, draw: Draw) -> None:
        """Record that the cell of ``draw`` has no query, so that the cell is not drawn again."""
        self._empty.add(draw.cell)

    def tell(self, draw: Draw, *, failed: bool) -> None:
        """Record the result of a draw, and settle strata whose rate is now known accurately."""
        self.history.append((draw, failed))
        self._count(draw, failed=failed)
        self._settle()

    def tally(self, stratum: Stratum) -> Tally:
        """Return the draws that count for ``stratum``, without cells of settled strata."""
        return Tally(*self._tallies.get(stratum, (0, 0)))

    def finish(self) -> list[Found]:
        """Return the strata in which the agent fails often, in order of decreasing rate.

        The result contains settled strata, and unsettled strata with a clearly high rate
        (``LEAST``, ``FIRM``), each with at least ``ALIKE`` times the highest rate. A larger stratum
        with about the same rate replaces an unsettled stratum if the larger stratum has at least
        ``DEEPER`` draws. The result is empty if the agent failed too rarely. Do not call ``ask``
        afterwards.
        """
        top = max((one.tally.rate for one in self.settled), default=0.0)
        while len(self.settled) < MOST and (best := self._best(REPORTED)) is not None:
            tally = self.tally(best)
            if tally.low < max(LEAST, FIRM * top):
                break
            best = self._widest(best)
            tally = self.tally(best)
            self._close(best)
            top = max(top, tally.rate)
        clear = [one for one in self.settled if one.tally.rate >= ALIKE * top]
        return sorted(clear, key=lambda one: (-one.tally.rate, -one.tally.drawn))

    # The methods below choose a stratum.

    def _choose(self) -> tuple[Stratum, Why]:
        if self._first:
            return frozenset({self._first.pop()}), "single"
        if self._due:
            return self._due.pop(), "due"
        chance = self._rng.random()
        if chance < EVEN:
            return ALL, "even"
        if chance < EVEN + MUTATED and (mutant := self._mutate()) is not None:
            return mutant, "mutated"
        # if the agent fails most queries, pairs need not be tested
        paired = self._mean(ALL, {}) < LEAST
        if paired and chance < EVEN + MUTATED + PAIRED and (pair := self._pair()) is not None:
            return pair, "pair"
        chosen = self._descend()
        if paired and not chosen and (pair := self._pair()) is not None:
            return pair, "pair"
        return chosen, "sampled"

    def _descend(self) -> Stratum:
        means: dict[Stratum, float] = {}
        chosen = ALL
        children = self._children()
        while len(chosen) < DEPTH:
            best, highest = chosen, self._sample(chosen, means)
            mean = self._mean(chosen, means)
            for child in children.get(chosen, ()):
                # a pair may fail although neither of its features fails more often than others
                least = mean + MARGIN if len(child) <= len(chosen) + 1 else self._bound(child)
                if self._mean(child, means) > least:
                    rate = self._sample(child, means)
                    if rate > highest:
                        best, highest = child, rate
            if best is chosen:
                break
            chosen = best
        return chosen

    def _children(self) -> dict[Stratum, list[Stratum]]:
        """Return each stratum's children with at least ``SEEN`` draws, in a fixed order.

        Pairs are also children of the root.
        """
        found: dict[Stratum, list[Stratum]] = {}
        for stratum, (_, drawn) in self._tallies.items():
            if drawn >= SEEN:
                for feature in sorted(stratum):
                    found.setdefault(stratum - {feature}, []).append(stratum)
                if len(stratum) == _PAIR:
                    found.setdefault(ALL, []).append(stratum)
        return found

    def _mean(self, stratum: Stratum, means: dict[Stratum, float]) -> float:
        """Return the posterior mean of a stratum's failure rate. ``means`` is the cache."""
        if stratum not in means:
            failed, drawn = self.tally(stratum)
            means[stratum] = (failed + WEIGHT * self._prior(stratum, means)) / (drawn + WEIGHT)
        return means[stratum]

    def _prior(self, stratum: Stratum, means: dict[Stratum, float]) -> float:
        if not stratum:
            return 0.5
        return max(self._mean(stratum - {feature}, means) for feature in sorted(stratum))

    def _sample(self, stratum: Stratum, means: dict[Stratum, float]) -> float:
        failed, drawn = self.tally(stratum)
        mean = self._prior(stratum, means)
        # at least 0.01, because both parameters of a beta distribution must be positive
        return self._rng.betavariate(
            failed + WEIGHT * max(mean, 0.01), drawn - failed + WEIGHT * max(1 - mean, 0.01)
        )

    def _mutate(self) -> Stratum | None:
        """Return the stratum of a failed draw, with one feature changed or removed.

        Returns None if no draw outside settled strata failed, or if the chosen draw has no feature
        that distinguishes queries.
        """
        losses = [draw for draw, failed in self.history if failed and not self._covers(draw.cell)]
        if not losses:
            return None
        draw = self._rng.choice(losses)
        known = sorted(self.space.features(draw.cell) & self._telling)
        if not known:
            return None
        feature = self._rng.choice(known)
        kept = (draw.stratum or {self._rng.choice(known)}) - {feature}
        ladder = self.space.ladders.get(feature.axis, ())
        changed: list[Feature] = []
        if feature.value in ladder[:-1] and self._rng.random() < 0.5:
            changed = [Feature(feature.axis, ladder[ladder.index(feature.value) + 1])]
        elif self._rng.random() < 0.5 and (others := self.space.others(feature)):
            changed = [self._rng.choice(others)]
        return frozenset([*changed, *sorted(kept)][:DEPTH])

    def _pair(self) -> Stratum | None:
        """Return the pair of features to test next, or None if no pair is left.

        Suspect pairs come first. They fail more often than each of their features.
        """
        rates = {one: self._shared_rate(frozenset({one})) for one in self.space.singles}
        rank_of_best = (0, 0.0)
        best: list[Stratum] = []
        suspicion = 0.0
        suspects: list[Stratum] = []
        for pair, one, other in self._pairs:
            if self._is_closed(pair):
                continue
            failed, drawn = self._shared.get(pair, _NONE)
            prior = max(rates[one], rates[other])
            if prior >= SUSPECT:  # one feature alone explains the failures
                continue
            if failed and failed >= SUSPECT * drawn:
                mean = (failed + WEIGHT * prior) / (drawn + WEIGHT)
                if mean > prior + MARGIN and self.tally(pair).drawn < SETTLED:
                    if mean > suspicion:
                        suspicion, suspects = mean, []
                    if mean == suspicion:
                        suspects.append(pair)
            rank = (-drawn, prior)
            if not best or rank > rank_of_best:
                rank_of_best, best = rank, []
            if rank == rank_of_best:
                best.append(pair)
        found = suspects or best
        return self._rng.choice(found) if found else None

    def _bound(self, pair: Stratum) -> float:
        """Return the larger of the upper bounds on the failure rates of a pair's two features.

        The failure rate of a feature is computed over all drawn queries with the feature.
        """
        counts = (self._shared.get(frozenset({feature}), _NONE) for feature in pair)
        return max(wilson(*count)[1] for count in counts)

    def _shared_rate(self, stratum: Stratum) -> float:
        """Return the failure rate of all queries with these features, drawn from any stratum."""
        return Tally(*self._shared.get(stratum, _NONE)).rate

    def _is_closed(self, stratum: Stratum) -> bool:
        """Return whether a stratum has no cell left to draw."""
        return stratum in self._barren or any(one.stratum <= stratum for one in self.settled)

    @cached_property
    def _pairs(self) -> Sequence[tuple[Stratum, Feature, Feature]]:
        """Return the pairs of features in which no feature implies the other."""
        singles = {one: self.space.cells_of(frozenset({one})) for one in self.space.singles}
        found = []
        for one, other in combinations(self.space.singles, 2):
            cells = self.space.cells_of(pair := frozenset({one, other}))
            if cells and cells not in {singles[one], singles[other]}:
                found.append((pair, one, other))
        return found

    # The methods below draw cells and count results.

    def _covers(self, cell: Cell) -> bool:
        features = self.space.features(cell)
        return any(one.stratum <= features for one in self.settled)

    def _draw(self, stratum: Stratum) -> Cell | None:
        without = [one.stratum for one in self.settled]
        for _ in range(8):
            cell = self.space.draw(stratum, self._rng, without)
            if cell is None or cell not in self._empty:
                return cell
        return None

    def _count(self, draw: Draw, *, failed: bool) -> None:
        if self._covers(draw.cell):
            return
        for stratum in self._credited(draw):
            tally = self._tallies.setdefault(stratum, [0, 0])
            tally[0] += failed
            tally[1] += 1
        known = sorted(self.space.features(draw.cell) & self._telling)
        for size in (1, _PAIR):
            for shared in combinations(known, size):
                count = self._shared.setdefault(frozenset(shared), [0, 0])
                count[0] += failed
                count[1] += 1

    def _credited(self, draw: Draw) -> Iterator[Stratum]:
        """Yield the strata for which a draw counts.

        These are its own stratum, and smaller strata that contain the cell.
        """
        rest = sorted((self.space.features(draw.cell) & self._telling) - draw.stratum)
        for size in range(DEPTH - len(draw.stratum) + 1):
            for more in combinations(rest, size):
                yield draw.stratum.union(more)

    @cached_property
    def _telling(self) -> Stratum:
        return frozenset(self.space.singles)

    # The methods below settle strata.

    def _settle(self) -> None:
        self._due = []
        while len(self.settled) < MOST and (best := self._best(SETTLED)) is not None:
            tally = self.tally(best)
            if tally.rate < LEAST or tally.low < SHARP * tally.rate:
                return
            best, self._due = self._widen(best)
            self._due = self._due or self._narrow(best)
            if self._due:
                return
            self._close(best)

    def _close(self, stratum: Stratum) -> None:
        """Settle a stratum, and exclude its cells from all counts."""
        self.settled.append(Found(stratum, self.tally(stratum)))
        self._tallies = {ALL: [0, 0]}
        self._shared = {}
        for draw, failed in self.history:
            self._count(draw, failed=failed)

    def _widen(self, stratum: Stratum) -> tuple[Stratum, list[Stratum]]:
        """Return the largest stratum with about the rate of ``stratum``, and strata to draw next.

        The strata to draw next are still larger. A larger stratum has one feature fewer. It is
        drawn until it has ``WIDER`` draws or a clearly lower rate.
        """
        while stratum:
            rate = self.tally(stratum).rate
            larger = [stratum - {feature} for feature in sorted(stratum)]
            tallies = {one: self.tally(one) for one in larger}
            alike = {
                one: tally
                for one, tally in tallies.items()
                if wilson(tally.failed, tally.drawn)[1] >= rate * SAME
            }
            if unsure := [one for one, tally in alike.items() if tally.drawn < WIDER]:
                return stratum, unsure
            same = [one for one, tally in alike.items() if tally.rate >= rate * SAME]
            if not same:
                break
            stratum = max(same, key=lambda one: (alike[one].low, sorted(one)))
        return stratum, []

    def _widest(self, stratum: Stratum) -> Stratum:
        """Return the largest stratum with ``DEEPER`` draws and about the rate of ``stratum``.

        With a higher minimum of draws, the result would have features that do not matter. Most
        found strata would then contain only a small part of the queries that the agent fails.
        """
        while stratum:
            least = SAME * self.tally(stratum).rate
            larger = [stratum - {feature} for feature in sorted(stratum)]
            same = [
                one
                for one in larger
                if self.tally(one).drawn >= DEEPER and self.tally(one).rate >= least
            ]
            if not same:
                break
            stratum = max(same, key=lambda one: (self.tally(one).low, sorted(one)))
        return stratum

    def _narrow(self, stratum: Stratum) -> list[Stratum]:
        """Return the children of ``stratum`` to draw next; one of them may contain the cause."""
        if self.tally(stratum).rate >= PURE or len(stratum) >= DEPTH:
            return []
        children = (stratum | {feature} for feature in self.space.singles if feature not in stratum)
        return [
            child
            for child in children
            if self._is_open(child) and child not in self._barren and self.space.has(child)
        ]

    def _is_open(self, child: Stratum) -> bool:
        """Return whether a child that may contain the cause of the failures needs more draws."""
        tally = self.tally(child)
        if tally.failed == tally.drawn:
            return tally.drawn < SURE
        # queries drawn from other strata can also refute a pair
        failed, drawn = self._shared.get(child, _NONE)
        refuted = drawn >= SURE and failed < SUSPECT * drawn
        return tally.drawn < DEEPER and not refuted

    def _best(self, least: int) -> Stratum | None:
        """Return the stratum with the highest lower bound of its rate and at least ``least`` draws.

        Returns None if no stratum qualifies, or if a smaller stratum clearly has a higher rate.
        """
        known = [
            (stratum, Tally(*tally))
            for stratum, tally in self._tallies.items()
            if tally[1] >= least
        ]
        known = [(stratum, tally) for stratum, tally in known if tally.failed]
        if not known:
            return None
        best, tally = max(known, key=lambda one: (one[1].low, -len(one[0]), sorted(one[0])))
        better = any(
            stratum > best and Tally(*other).low > tally.rate
            for stratum, other in self._tallies.items()
        )
        return None if better else best
