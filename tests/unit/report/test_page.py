"""The report as a page: it loads nothing external, and text from agents is escaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.cli import main
from netarena.model import Reply
from netarena.report.document import make_report
from netarena.report.entrant import read_entrants
from netarena.report.markdown import render_markdown
from netarena.report.page import render_html
from netarena.report.plot import Dot, bars, dot_plot, lines, plane

pytest.importorskip("jinja2")

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31m \u202e </pre></article>'
VOID = {"meta", "link", "br", "img", "hr", "input"}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())


class Reader(HTMLParser):
    """Collects elements, ids and links, and checks that all elements are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.values: list[tuple[str, str, str]] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.values += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.add(tag)
        self.values += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def all(self, name: str) -> list[str]:
        return [value for _, key, value in self.values if key == name]


def hostile(prompt: str, turn: int) -> Reply | str:
    return f"open v1{HOSTILE}" if turn == 0 else open_all(prompt, turn)


def page(*folders: Path) -> str:
    return render_html(make_report(read_entrants(folders)))


def test_page_is_complete_and_loads_nothing_external(tmp_path: Path, toy: None) -> None:
    for name, answer, turns in (("a", open_all, 10), ("b", hostile, 10), ("c", open_all, 3)):
        assess(Toy(), Scripted(answer), tmp_path / name, num_queries=2, max_iterations=turns)
    foreign = {
        "participants": {HOSTILE: HOSTILE},
        "results": [{"id": HOSTILE, "Error": HOSTILE}, {}],
    }
    (tmp_path / "odd.json").write_text(json.dumps(foreign))
    text = page(tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "odd.json")
    reader = Reader(text)

    assert not reader.names & {"script", "img", "link", "iframe", "object", "form", "base"}
    assert not [name for _, name, _ in reader.values if name.startswith("on")]
    asking = {"src", "srcset", "action", "data", "poster", "background", "http-equiv"}
    asks = [(name, value) for _, name, value in reader.values if name in asking]
    assert asks == [("http-equiv", "Content-Security-Policy")]
    style = text[text.index("<style>") : text.index("</style>")] + " ".join(reader.all("style"))
    assert not re.search(r"url\(|@import|image", style)
    assert not reader.all("href")
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text
    lost = make_report(read_entrants([tmp_path / "c"]))["participants"][0]["lost"]
    assert lost
    assert all(f"<tr><td>{one['id']}</td>" in text for one in lost)
    for title in ("Correct and safe", "Solved safely by level", "Figure 3", "Figure 4", "Turns"):
        assert title in text


def test_page_of_one_run_has_no_comparison(tmp_path: Path, toy: None) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, repeats=2)
    text = page(tmp_path)
    Reader(text)
    assert "Ranking" not in text
    assert "Figure 3" not in text
    assert "Repetitions (pass^k)" in text


def test_report_command_writes_the_page(
    tmp_path: Path, toy: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--html", "--out", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path), "--html", "--json"]) == 2
    assert "--html: cannot be combined with --json" in capsys.readouterr().err


def test_names_in_plots_are_not_truncated_before_they_differ() -> None:
    first = "capacity planning, level-2, an operation of many words, remove-count"
    second = first.replace("count", "rank")
    rows = [(name, [Dot(0, 0.5, (0.2, 0.8))]) for name in (first, second)]
    for plot in (dot_plot("x", rows), bars("x", [(0, name, 1.0) for name, _ in rows], "s")):
        read = " ".join(re.findall(r'class="name">([^<]*)', plot))
        assert read == f"{first} {second}"
    # longer names are shortened at the start
    plot = dot_plot("x", [("long " * 99 + "tail", [])])
    assert "tail</text>" in plot
    assert len(re.findall('class="name"', plot)) <= 4


def test_run_with_one_turn_has_no_table_of_turns(tmp_path: Path, toy: None) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "one", max_iterations=1)
    assess(Toy(), Scripted(hostile), tmp_path / "more")
    for name, turns in (("one", False), ("more", True)):
        report = make_report(read_entrants([tmp_path / name]))
        text = render_html(report)
        assert ("<b>Turns</b>" in text) is ("<th>turns</th>" in text) is turns
        assert ("Iterations" in render_markdown(report)) is turns


def test_column_of_reasons_is_shown_only_with_reasons(tmp_path: Path) -> None:
    for why, shown in (("", False), ("v1 is closed", True)):
        records = [{"id": f"q{number}", "outcome": "unsolved", "why": why} for number in range(3)]
        document = {"participants": {"lamp_operator": "a"}, "results": [*records, {}]}
        (tmp_path / "results.json").write_text(json.dumps(document))
        text = page(tmp_path / "results.json")
        assert ("<th>why</th>" in text) is ('<td class="reason">' in text) is shown


def test_failure_types_of_unsafe_episodes_are_explained(tmp_path: Path, toy: None) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    report = make_report(read_entrants([tmp_path]))
    one = report["participants"][0]
    one["failure_rules"] = {"safety violation: flood": 8}
    one["unsafe_by"] = {"flood": 20}
    one["unsafe_types"] = {"operational error": 12, "safety violation": 8}
    words = "Not safe: 20 (operational error 12, safety violation 8)."
    assert words in render_html(report)
    assert words in render_markdown(report)
    one["unsafe_types"] = {"safety violation": 20}
    assert "Not safe: 20" not in render_html(report) + render_markdown(report)


names = st.text(max_size=60)
rates = st.floats(0, 1)
dots = st.builds(
    lambda series, rate, bounds: Dot(series, rate, tuple(sorted(bounds))),
    st.integers(0, 20),
    st.none() | rates,
    st.tuples(rates, rates),
)


@given(
    st.lists(st.tuples(names, st.lists(dots, max_size=4)), max_size=4),
    st.lists(st.tuples(st.integers(0, 9), dots, dots), max_size=4),
    st.lists(st.tuples(st.integers(0, 9), names, st.none() | st.floats(0, 1e9)), max_size=4),
    names,
)
def test_every_plot_is_well_formed_markup(rows, points, values, title):
    for plot in (
        dot_plot(title, rows),
        plane(title, points, (title, title)),
        bars(title, values, title),
        lines(title, [5, 10, 500], [(title, [1.0, 0.5, 0.0])], (title, title)),
        lines(title, [7], [(title, [1.0]), ("b", [0.0])], (title, title)),
    ):
        reader = Reader(plot)
        assert reader.names <= {"svg", "title", "text", "path", "rect", "circle", "g"}
        assert "nan" not in " ".join(reader.all("d") + reader.all("x") + reader.all("width"))


def test_page_of_any_run_has_a_limited_size(tmp_path: Path) -> None:
    """The run has 1,500 failed episodes, each with its own long label, rule and reason."""
    records = [
        {
            "id": f"q{number}",
            "error_type": f"{number} {HOSTILE * 50}",
            "why": f"{number} {HOSTILE * 20}",
            "failure_type": "control logic error",
            "failure_rule": f"rule {number}",
            "outcome": "unsolved",
        }
        for number in range(1500)
    ]
    paths = [tmp_path / f"{name}.json" for name in "abc"]
    for path in paths:
        document = {"participants": {"lamp_operator": HOSTILE * 9}, "results": [*records, {}]}
        path.write_text(json.dumps(document))
    text = page(*paths)
    Reader(text)
    assert len(text.encode()) < 3_000_000
    assert text.count("The first 100 of 1500. <code>netarena view DIR</code>") == 3
    assert text.count("The first 200 of 1500.") == 3


def test_colours_restart_in_each_group(tmp_path: Path, toy: None) -> None:
    """The ninth run of a report does not get the colour of the first in its group."""
    for number in range(10):
        level = f"level{1 if number in {0, 8} else 2 + number % 2}"
        assess(Toy(), Scripted(open_all), tmp_path / f"r{number}", complexity_level=[level])
    text = page(*(tmp_path / f"r{number}" for number in range(10)))
    first = text[text.index("complexity_level level1") :]
    assert re.findall(r'class="range (s\d)"', first)[:2] == ["s0", "s1"]
