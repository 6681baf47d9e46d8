"""Journals that grow, are truncated or replaced, or contain unreadable lines."""

from __future__ import annotations

import json
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest

from netarena.analysis.stats import rate_all
from netarena.config import with_seed_text
from netarena.errors import ConfigError
from netarena.model import Episode, Outline, Query
from netarena.report.story import why
from netarena.run.assessment import QUERIES_NAME
from netarena.run.journal import JOURNAL_NAME, lock_folder, read_journal
from netarena.view.index import Library, _Episode
from netarena.view.selection import tally
from netarena.view.site import Site
from tests.fake import gallery

pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Drawn())


def read(*folders: Path) -> Library:
    library = Library(folders)
    library.catch_up()
    return library


def test_outlines_agree_with_the_whole_journal(tmp_path: Path) -> None:
    folder = gallery.mixed(tmp_path / "run")
    (run,) = read(folder).runs
    whole = list(read_journal(folder / JOURNAL_NAME, slim=False).episodes.values())
    assert [entry.outline.ask for entry in run.entries] == [episode.ask for episode in whole]
    lines = (folder / QUERIES_NAME).read_text().splitlines()
    queries = {one.id: one for one in map(Query.model_validate_json, lines)}
    for entry, episode in zip(run.entries, whole, strict=True):
        assert run.read(entry) == episode
        # evidence is read only when the page is shown
        outline = episode.outline(queries[episode.query_id])
        assert entry.outline == replace(outline, evidence=())
        assert entry.why == "" or entry.why[:20] == why(episode)[:20].replace("\x1b", "⟨ESC⟩")
    assert [run.find(entry.name) for entry in run.entries] == run.entries
    assert (run.asked, run.complete, run.agent) == (13, False, "plumber")


@pytest.mark.parametrize("public", [False, True])
def test_rates_count_equal_queries_as_one_cluster_like_a_report(
    tmp_path: Path, public: bool
) -> None:
    queries = [gallery.query(number, initial=number % 2) for number in range(8)]
    kinds = (gallery.solved, gallery.lost)
    folder = gallery.write_run(
        tmp_path / "run", queries, [kinds[one.index % 2](one) for one in queries]
    )
    library = Library([folder], public=public)
    library.catch_up()
    shown = tally(library.entries)["rates"]
    whole = read_journal(folder / JOURNAL_NAME, slim=False).episodes.values()
    outlines = [one.outline(queries[one.index]) for one in whole]
    assert shown["solved_safely"] == rate_all(outlines)["solved_safely"]
    low, high = shown["solved_safely"]["interval"]
    assert high - low > 0.85  # an interval for two queries, not for eight
    # pages with filters number equal queries, so that their content stays hidden
    assert [one["same"] for one in Site(library, live=False)._entries()["entries"]] == [0, 1] * 4


def test_every_field_of_an_outline_is_loaded_from_the_journal() -> None:
    # ``content`` is computed from the query
    computed = {"unsafe_by", "quality", "lost_s"}
    read_fields = _Episode.model_fields.keys() | {"evidence"}
    named = {field.name for field in fields(Outline)} - {*computed, "content"}
    assert named <= read_fields <= Episode.model_fields.keys()


def test_growing_journal_is_read_from_the_last_position(tmp_path: Path) -> None:
    queries = [gallery.query(number) for number in range(4)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.solved(queries[0])])
    library = read(folder)
    (run,) = library.runs
    assert library.catch_up() is False
    line = json.dumps(
        {"event": "episode", "episode": json.loads(gallery.lost(queries[1]).model_dump_json())}
    )
    with (folder / JOURNAL_NAME).open("a") as journal:
        journal.write(line[:100])
    assert library.catch_up() is False  # the line is incomplete
    with (folder / JOURNAL_NAME).open("a") as journal:
        journal.write(line[100:] + "\n")
    before = library.generation
    assert library.catch_up() is True
    assert library.generation > before
    assert [entry.lost for entry in run.entries] == [False, True]
    assert library.progress[0] == library.progress[1]
    # a regraded episode keeps its position
    gallery.add(folder, gallery.lost(queries[0]))
    gallery.end_run(folder)
    library.catch_up()
    assert [entry.lost for entry in run.entries] == [True, True]
    assert [entry.number for entry in run.entries] == [0, 1]
    assert run.complete


def test_episodes_before_a_restart_of_the_run_are_not_shown(tmp_path: Path) -> None:
    queries = [gallery.query(number) for number in range(2)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.lost(queries[0])])
    library = read(folder)
    with (folder / JOURNAL_NAME).open("a") as journal:
        journal.write('{"event": "anew"}\n')
    gallery.add(folder, gallery.solved(queries[1]))
    library.catch_up()
    (run,) = library.runs
    assert [entry.outline.query_id for entry in run.entries] == [queries[1].id]
    assert list(read_journal(folder / JOURNAL_NAME).episodes) == [run.entries[0].outline.ask]


def test_replaced_journal_is_read_from_its_start(tmp_path: Path) -> None:
    queries = [gallery.query(number) for number in range(4)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.solved(queries[0])])
    library = read(folder)
    episodes = [gallery.lost(one, repeat=repeat) for one in queries[2:] for repeat in (1, 2)]
    other = gallery.write_run(tmp_path / "other", queries, episodes, repeats=2)
    (other / JOURNAL_NAME).replace(folder / JOURNAL_NAME)
    library.catch_up()
    assert [entry.lost for entry in library.entries] == [True] * 4
    assert library.runs[0].asked == 8
    # a resumed run truncates the journal
    gallery.add(folder, gallery.solved(queries[3]))
    library.catch_up()
    text = (folder / JOURNAL_NAME).read_text().splitlines(keepends=True)
    (folder / JOURNAL_NAME).write_text("".join(text[:1]))
    library.catch_up()
    assert library.entries == []


def test_unreadable_line_is_reported_and_skipped(tmp_path: Path) -> None:
    queries = [gallery.query(number) for number in range(3)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.solved(queries[0])])
    lone = json.loads(gallery.lost(queries[1]).model_dump_json())
    lone["steps"][0]["output"] = lone["detail"] = "half \ud800 a character"
    with (folder / JOURNAL_NAME).open("a") as journal:
        journal.write('{"event": "episode", "episode": {}}\n')
        journal.write("no JSON\n")
        journal.write("[" * 100_000 + "\n")
        journal.write(json.dumps({"event": "episode", "episode": lone}) + "\n")
    gallery.add(folder, gallery.solved(queries[2]))
    (run,) = read(folder).runs
    assert [entry.outline.query_id for entry in run.entries] == [one.id for one in queries]
    assert [problem.split(" ")[1] for problem in run.problems] == ["3", "4", "5"]
    # a lone surrogate is not valid text, but the rest of the line is shown
    assert run.tell(run.entries[1]).turns[0].step.output == "half ? a character"
    (folder / JOURNAL_NAME).write_text("")
    with pytest.raises(ConfigError, match="has changed: reload"):
        run.tell(run.entries[0])


def test_run_with_a_seed_above_2_53_is_shown(tmp_path: Path) -> None:
    queries = [gallery.query(0)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.solved(queries[0])])
    first, *rest = (folder / JOURNAL_NAME).read_text().splitlines(keepends=True)
    event = json.loads(first)
    event["header"] = with_seed_text(event["header"] | {"seed": 2**60 + 1})
    (folder / JOURNAL_NAME).write_text(json.dumps(event) + "\n" + "".join(rest))
    (run,) = read(folder).runs
    assert (run.header.seed, len(run.entries), run.problems) == (2**60 + 1, 1, [])


def test_repetitions_and_unusual_ids_have_separate_pages(tmp_path: Path) -> None:
    queries = [
        gallery.query(0),
        gallery.query(1, id="../../etc/passwd"),
        gallery.query(2, id="a b"),
    ]
    episodes = [gallery.solved(one, repeat=repeat) for one in queries for repeat in (1, 2)]
    library = read(gallery.write_run(tmp_path / "run", queries, episodes, repeats=2))
    assert [entry.path for entry in library.entries] == [
        "episode/run/toy-1-abc-7-0.html", "episode/run/toy-1-abc-7-0~2.html",
        "episode/run/~1.html", "episode/run/~1~2.html",
        "episode/run/~2.html", "episode/run/~2~2.html",
    ]  # fmt: skip
    assert library.runs[0].asked == 6


def test_missing_journal_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = gallery.mixed(tmp_path / "run")
    library = read(folder)
    (folder / JOURNAL_NAME).rename(tmp_path / "aside")
    assert not library.catch_up()
    assert not library.catch_up()
    assert len(library.entries) == 13
    assert len(caplog.records) == 1
    (tmp_path / "aside").rename(folder / JOURNAL_NAME)
    assert not library.catch_up()


def test_runs_with_the_same_name_have_different_slugs(tmp_path: Path) -> None:
    for name in ("a/run", "a/other", "b/run"):
        gallery.mixed(tmp_path / name, 1)
    (tmp_path / "a" / "empty").mkdir()
    library = Library([tmp_path / "a", tmp_path / "b" / "run", tmp_path / "a" / "run"])
    assert [run.slug for run in library.runs] == ["other", "run", "run-2"]
    with pytest.raises(ConfigError, match="has no journal"):
        Library([tmp_path])
    with pytest.raises(ConfigError, match="is not a directory"):
        Library([tmp_path / "nowhere"])


def test_lock_of_a_run_shows_whether_the_run_is_in_progress(tmp_path: Path) -> None:
    queries = [gallery.query(number) for number in range(3)]
    folder = gallery.write_run(tmp_path / "run", queries, [gallery.solved(queries[0])])
    library = read(folder)
    (run,) = library.runs
    assert not run.going
    with lock_folder(folder):
        assert library.catch_up() is True
        assert run.going
        assert library.catch_up() is False
    assert library.catch_up() is True
    assert not run.going


def test_runs_that_start_later_are_added_to_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netarena.view.index._SCAN_EVERY_S", 0.0)
    library = Library([tmp_path], watch=True)
    library.catch_up()
    assert library.runs == []
    gallery.mixed(tmp_path / "one", 1)
    assert library.catch_up() is True
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / QUERIES_NAME).write_text("")
    (begun / JOURNAL_NAME).write_text("")
    library.catch_up()
    gallery.mixed(tmp_path / "two", 1)
    library.catch_up()
    assert [run.slug for run in library.runs] == ["one", "two"]
    assert {entry.run.slug for entry in library.entries} == {"one", "two"}
    assert library.catch_up() is False


def test_background_thread_updates_the_library(tmp_path: Path) -> None:
    library = Library([gallery.mixed(tmp_path / "run")])
    with library:
        deadline = time.monotonic() + 20
        while len(library.entries) < 13 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert len(library.entries) == 13
    assert library.generation >= 1
