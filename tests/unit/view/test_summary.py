"""The page of a run, and its comparison with others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netarena.run.assessment import QUERIES_NAME
from netarena.run.journal import JOURNAL_NAME
from netarena.view.index import Library
from netarena.view.site import Site
from netarena.view.summary import oppose
from tests.fake import gallery


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.view.index.load", lambda name: gallery.Toy())


def write(folder: Path, right: str, **config: object) -> Path:
    queries = [gallery.query(number) for number in range(len(right))]
    episodes = [
        (gallery.solved if good == "1" else gallery.lost)(query)
        for query, good in zip(queries, right, strict=True)
    ]
    gallery.write_run(folder, queries, episodes)
    path = folder / JOURNAL_NAME
    first, *rest = path.read_text().splitlines(keepends=True)
    event = json.loads(first)
    event["header"]["config"] |= config
    path.write_text("".join([json.dumps(event) + "\n", *rest]))
    return folder


def test_run_has_a_summary_page(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / "first", "111110"),
        write(tmp_path / "second", "110001"),
        write(tmp_path / "third", "000000", max_iterations=3),
        write(tmp_path / "fourth", "010000"),
    ]
    library = Library(folders)
    library.catch_up()
    site = Site(library, live=True)
    page = site.page("run/first.html", {}).content.decode()
    for words in ("toy_operator", "6 of 6", "plumber", "&#34;num_queries&#34;: 6", "83.3 %"):
        assert words in page, words
    # a label links to its episodes, and a number of pairs to these pairs
    assert 'href="../index.html?run=first&amp;label=drought"' in page
    pair = re.search(r'pair=first%2Csecond">(\d)</a></td>\s*<td><a [^>]*>(\d)</a>', page)
    assert pair
    assert pair.groups() == ("3", "1")
    assert "max_iterations is default in this run and 3 in the other" in page
    first, second, _, fourth = library.runs
    tables = {one.run: one.table for one in oppose(first, library.runs)}
    assert tables[fourth]["p_value"] < tables[fourth]["p_holm"] == 2 * tables[fourth]["p_value"]
    assert tables[second]["p_holm"] == tables[second]["p_value"]
    runs = site.page("runs.html", {}).content.decode()
    assert all(f'href="run/{run.slug}.html"' in runs for run in library.runs)
    assert not site.page("run/nobody.html", {}).found


def test_runs_with_the_same_name_have_different_titles(tmp_path: Path) -> None:
    names = ("monday/run", "tuesday/run", "other")
    library = Library([write(tmp_path / name, "1") for name in names])
    assert [run.title for run in library.runs] == list(names)
    library.catch_up()
    page = Site(library, live=True).page("index.html", {}).content.decode()
    assert all(f">{name}</a>" in page for name in names)


def test_seed_that_is_still_in_use_is_not_shown(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", "11")
    queries = folder / QUERIES_NAME
    queries.write_text(queries.read_text().replace('"seed":7,', '"seed":7654321,'))
    path = folder / JOURNAL_NAME
    first, *rest = path.read_text().replace('"secrecy": 0', '"secrecy": 2').splitlines(True)
    event = json.loads(first)
    event["header"]["config"]["seed"] = event["header"]["seed"] = 7_654_321
    path.write_text(json.dumps(event) + "\n" + rest[0])
    library = Library([folder])
    library.catch_up()
    assert "7654321" not in Site(library, live=True).page("run/run.html", {}).content.decode()
    path.write_text(json.dumps(event) + "\n" + "".join(rest))
    library = Library([folder])
    library.catch_up()
    assert "7654321" in Site(library, live=True).page("run/run.html", {}).content.decode()
