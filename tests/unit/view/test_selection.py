"""Filters, orders and counts of a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from netarena.analysis.intervals import wilson
from netarena.model import Finding, Judgement, Reply, Usage
from netarena.view.index import Entry, Library
from netarena.view.selection import Selection, tally
from netarena.view.site import Site
from tests.fake import gallery


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
        library = Library([gallery.mixed(tmp_path_factory.mktemp("runs") / "run")])
    library.catch_up()
    return library.entries


@pytest.mark.parametrize(
    ("parameters", "numbers"),
    [
        ({}, range(13)),
        ({"show": "lost"}, [1, 2, 5, 7, 8, 11, 12]),
        ({"show": "solved"}, [0, 3, 6, 9]),
        ({"show": "wrong"}, [1, 5, 7, 11, 12]),
        ({"show": "failed"}, [2, 8]),
        ({"show": "invalid"}, [4, 10]),
        ({"safe": "yes"}, [0, 3, 6, 9]),
        ({"safe": "no"}, [1, 5, 7, 11, 12]),
        ({"show": "lost", "label": "drought"}, [1, 7]),
        ({"level": "level2", "kind": "safety violation"}, [1, 5, 7, 11]),
        ({"text": "THE PUMP"}, [4, 10]),
        ({"text": "7-1"}, [1, 10, 11]),
        ({"run": "nobody"}, []),
        ({"sort": "-graded", "show": "invalid"}, [10, 4]),
        ({"sort": "turns", "show": "invalid"}, [4, 10]),
        ({"show": "nonsense", "page": "-1", "sort": "x"}, range(13)),
    ],
)
def test_selection_returns_matching_entries(entries: list[Entry], parameters, numbers) -> None:
    assert [entry.number for entry in Selection.read(parameters).choose(entries)] == list(numbers)


def test_selection_for_a_pair_of_runs_contains_queries_that_only_the_first_run_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    queries = [gallery.query(number) for number in range(4)]
    answers = {"a": (1, 1, 0, 0), "b": (1, 0, 1, 0)}
    for name, right in answers.items():
        episodes = [
            (gallery.solved if good else gallery.lost)(query)
            for query, good in zip(queries, right, strict=True)
        ]
        gallery.write_run(tmp_path / name, queries, episodes)
    library = Library([tmp_path])
    library.catch_up()

    def paths(pair: str) -> list[str]:
        return [entry.path for entry in Selection.read({"pair": pair}).choose(library.entries)]

    assert paths("a,b") == ["episode/b/toy-1-abc-7-1.html"]
    assert paths("b,a") == ["episode/a/toy-1-abc-7-2.html"]
    assert paths("a,a") == paths("a") == paths("nobody,b") == []
    assert Selection.read({"pair": "a,b", "text": "x"}).search() == "?pair=a%2Cb&text=x"


def test_entries_are_sorted_by_the_requested_column(entries: list[Entry]) -> None:
    def order(sort: str) -> list[int]:
        return [entry.number for entry in Selection.read({"sort": sort}).choose(entries)]

    assert order("outcome")[0] in {1, 2, 5}  # unsolved and unsafe episodes come first
    assert order("time") == list(range(13))  # all times are equal, so the order is that of grading
    assert order("-label") != order("label")
    assert order("-graded") == list(reversed(range(13)))


def test_search_string_contains_only_changed_values() -> None:
    chosen = Selection.read({"show": "lost", "text": "a&b=c", "page": "3", "sort": "-time"})
    assert chosen.search() == "?show=lost&text=a%26b%3Dc&sort=-time"
    assert chosen.search(page=3) == "?show=lost&text=a%26b%3Dc&sort=-time&page=3"
    assert Selection().search() == ""
    assert chosen.filters
    assert not Selection(sort="time").filters
    # even a lone surrogate is accepted
    assert Selection(text="\ud800").search() == "?text=%3F"
    assert Selection.read({"page": "\uff19"}).page == 1


def test_tally_counts_episodes_and_rates(entries: list[Entry]) -> None:
    counts = tally(entries)
    assert (counts["episodes"], counts["lost"]) == (13, 7)
    assert counts["rates"]["solved_safely"] == {
        "successes": 4, "rate": 4 / 11, "interval": list(wilson(4, 11))
    }  # fmt: skip
    assert tally([])["rates"]["safety"]["rate"] is None
    # a second, equal answer to each query does not narrow the interval
    assert tally([*entries, *entries])["rates"]["safety"]["interval"] == pytest.approx(
        counts["rates"]["safety"]["interval"], abs=0.02
    )


def test_search_finds_texts_of_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())
    queries = [gallery.query(number) for number in range(4)]
    queries[0] = gallery.query(0, text="Mend the Fountain.")
    finding = Finding(rule="drained", element="v9", detail="The cistern is empty now.")
    steps = (
        gallery.step([True, False, True], move={"machine": "tap", "command": "turn SCREW"}),
        gallery.step([True, False, True], reply=Reply(text="I think of 😀 rust")),
        gallery.step([True, False, True], output="Valve\0 ÖL 17", prompt="unasked words"),
        gallery.step([True] * 3, judgement=Judgement(correct=True, findings=(finding,))),
    )
    episodes = [
        gallery.solved(query, steps=steps[number : number + 1])
        for number, query in enumerate(queries)
    ]
    library = Library([gallery.write_run(tmp_path / "run", queries, episodes)])
    library.catch_up()

    def found(text: str) -> list[int]:
        chosen = Selection.read({"text": text}).choose(library.entries)
        # exported files for searches without a server contain the same words
        words = [one for one in library.entries if text.lower() in one.run.words(one)]
        assert chosen == words
        return [entry.number for entry in chosen]

    assert found("FOUNTAIN") == found("turn screw") == [0]
    assert found("rust") == [1]
    assert found("valve öl") == [2]
    assert found("cistern") == found("drained") == [3]
    assert found("unasked") == found("nothing of it") == []
    assert found("open v1, please") == [0, 2, 3]
    # a regraded episode is found only by its new words
    gallery.add(tmp_path / "run", gallery.solved(queries[0]))
    library.catch_up()
    assert found("turn screw") == []
    assert found("fountain") == [0]


def test_tokens_and_cost_are_columns_if_reported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Toy())
    queries = [gallery.query(number) for number in range(3)]
    told = [Usage(replies=1, input_tokens=n, output_tokens=5, cost_usd=c)
            for n, c in ((900, 0.01), (10, None), (20, 0.5))]  # fmt: skip
    episodes = [
        gallery.solved(query, usage=usage) for query, usage in zip(queries, told, strict=True)
    ]
    library = Library([gallery.write_run(tmp_path / "run", queries, episodes)])
    library.catch_up()

    def order(sort: str) -> list[int]:
        return [one.number for one in Selection.read({"sort": sort}).choose(library.entries)]

    assert (order("tokens"), order("-cost")) == ([1, 2, 0], [2, 0, 1])
    page = Site(library, live=True).page("index.html", {}).content.decode()
    assert page.index("Tokens</a>") < page.index("905<") < page.index("$0.5000<")
    # if all episodes have one turn, there is no column of turns
    assert "Turns</a>" in page
    other = [gallery.solved(query, iterations=1) for query in queries]
    library = Library([gallery.write_run(tmp_path / "other", queries, other)])
    library.catch_up()
    page = Site(library, live=True).page("index.html", {}).content.decode()
    assert not any(f"{word}</a>" in page for word in ("Turns", "Tokens", "Cost"))
