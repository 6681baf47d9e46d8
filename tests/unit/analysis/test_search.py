"""The adversarial search over strata, with agents whose weakness is known."""

import random
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netarena.analysis.search import DEPTH, Search
from netarena.analysis.strata import ALL, Feature, Label, Space

KINDS = tuple("abcdefghijklmnop")


def make_space(kinds=KINDS) -> Space:
    labels = [
        Label(
            "+".join(parts),
            frozenset({Feature("faults", str(size))} | {Feature("fault", one) for one in parts}),
            str(size),
        )
        for size in (1, 2, 3)
        for parts in combinations(kinds, size)
    ]
    axes = {
        "world": ("standard", "varied"),
        "hosts": ("1", "2", "4"),
        "briefing": ("full", "ticket"),
    }
    worlds = [
        frozenset(Feature(axis, value) for axis, value in zip(axes, chosen, strict=True))
        for chosen in product(*axes.values())
    ]
    return Space(worlds, labels, {**axes, "faults": ("1", "2", "3")})


SPACE = make_space()
SMALL = make_space(KINDS[:4])


def play(space, fails, seed, budget=400, batch=8):
    """Return a search after ``budget`` draws; the agent fails in cells that ``fails`` selects."""
    search = Search(space, random.Random(seed))
    while len(search.history) < budget:
        draws = [draw for _ in range(batch) if (draw := search.ask()) is not None]
        if not draws:
            break
        for draw in draws:
            search.tell(draw, failed=fails(space.features(draw.cell)))
    return search


def has(**features):
    wanted = {Feature(axis, value) for axis, value in features.items()}
    return lambda cell: wanted <= cell


WEAKNESSES = {
    "a kind of fault": has(fault="c"),
    "a world": has(world="varied"),
    "a size": has(hosts="4"),
    "a number of faults": has(faults="3"),
    "several faults": lambda cell: Feature("faults", "1") not in cell,
    "one of two kinds": lambda cell: bool({Feature("fault", "c"), Feature("fault", "f")} & cell),
    "a kind in a world": has(fault="c", world="varied"),
    "a kind among three": has(fault="c", faults="3"),
    "a world in tickets": has(world="varied", briefing="ticket"),
    "a kind in a world in tickets": has(fault="c", world="varied", briefing="ticket"),
}


@pytest.mark.slow
def test_found_strata_have_the_planted_weakness_in_at_least_nine_of_ten_cases():
    right = 0
    for number, weak in enumerate(WEAKNESSES.values()):
        found = play(SPACE, weak, seed=number).finish()
        rng = random.Random(1)
        fresh = [
            weak(SPACE.features(SPACE.draw(one.stratum, rng))) for one in found for _ in "x" * 50
        ]
        right += bool(fresh) and sum(fresh) >= 0.9 * len(fresh)
    assert right >= 9


def test_weakness_for_one_kind_is_named_without_other_features():
    found = play(SMALL, has(fault="c"), seed=3, budget=250).finish()
    assert [one.stratum for one in found] == [frozenset({Feature("fault", "c")})]


PAIR = frozenset({Feature("fault", "c"), Feature("fault", "k")})


@pytest.mark.parametrize(("seed", "share"), [(0, 0.0), (1, 0.2), (2, 0.4), (0, 0.4)])
def test_pair_of_kinds_is_found_even_if_one_of_them_sometimes_fails(seed, share):
    noise = random.Random(seed)

    def fails(cell):
        return cell >= PAIR or (Feature("fault", "c") in cell and noise.random() < share)

    found = play(SPACE, fails, seed).finish()
    rng = random.Random(1)
    fresh = [SPACE.features(SPACE.draw(one.stratum, rng)) >= PAIR for one in found for _ in "x" * 9]
    assert fresh
    assert sum(fresh) >= 0.9 * len(fresh)


def test_pairs_in_which_one_feature_implies_the_other_are_not_tested():
    labels = [
        Label(name, frozenset({Feature("label", name), Feature("action", name[0])}))
        for name in ("a1", "a2", "b1", "b2")
    ]
    search = Search(Space([frozenset()], labels), random.Random(0))
    assert search._pairs == []


def test_kind_of_a_failed_query_is_replaced_with_one_of_the_same_group():
    labels = make_space("abcdef").labels[:6]
    groups = [frozenset(Feature("fault", kind) for kind in kinds) for kinds in ("abc", "def")]
    search = Search(Space([frozenset()], labels, alike=groups), random.Random(0))
    while (draw := search.ask()).stratum != {Feature("fault", "a")}:
        search.tell(draw, failed=False)
    search.tell(draw, failed=True)
    drawn = {search._mutate() for _ in range(100)}
    others = {frozenset({Feature("fault", kind)}) for kind in "bc"}
    assert drawn == {frozenset(), *others}


def test_search_of_an_agent_that_never_fails_finds_no_stratum():
    search = play(SMALL, lambda _: False, seed=1, budget=100)
    assert search.finish() == []


def test_search_of_an_agent_that_always_fails_finds_the_stratum_of_all_queries():
    search = play(SMALL, lambda _: True, seed=1, budget=200)
    assert [one.stratum for one in search.finish()] == [ALL]
    assert search.ask() is None


def test_search_of_an_agent_with_rare_random_failures_finds_no_stratum():
    noise = random.Random(5)
    search = play(SMALL, lambda _: noise.random() < 0.05, seed=1, budget=200)
    assert search.finish() == []


def test_draw_counts_only_for_its_stratum_and_narrower_ones():
    search = Search(SMALL, random.Random(0))
    draw = search.ask()
    (feature,) = draw.stratum
    search.tell(draw, failed=True)
    others = SMALL.features(draw.cell) - draw.stratum
    assert search.tally(draw.stratum) == (1, 1)
    assert search.tally(ALL) == (0, 0)
    for other in others:
        assert search.tally(frozenset({other})) == (0, 0)
        assert search.tally(frozenset({feature, other})) == (1, 1)


def test_skipped_cell_is_not_drawn_again():
    space = Space([frozenset({Feature("world", "one")})], make_space("ab").labels[:2])
    search = Search(space, random.Random(0))
    first = search.ask()
    search.skip(first)
    assert {search.ask().cell for _ in range(20)} == {(0, 1 - first.cell.label)}


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.booleans(), min_size=60, max_size=60))
def test_searches_with_equal_results_draw_equal_cells_within_their_strata(seed, results):
    searches = [Search(SMALL, random.Random(seed)) for _ in range(2)]
    for number, failed in enumerate(results, start=1):
        one, other = (search.ask() for search in searches)
        assert one == other
        if one is None:
            break
        assert one.number == number
        assert len(one.stratum) <= DEPTH
        features = SMALL.features(one.cell)
        assert one.stratum <= features
        assert not any(found.stratum <= features for found in searches[0].settled)
        for search in searches:
            search.tell(one, failed=failed)
            tally = search.tally(one.stratum)
            assert 0 <= tally.failed <= tally.drawn <= number
    assert searches[0].finish() == searches[1].finish()
