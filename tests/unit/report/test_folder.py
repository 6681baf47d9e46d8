"""Figures and tables of a report as files."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.cli import main
from netarena.report.comparison import Table
from netarena.report.folder import _folders, latex

NAME = 'a_b & 50 % <script>"x"'


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())
    for name, answer in (("a", open_all), ("b", lambda prompt, turn: "open v1")):
        agent = Scripted(answer)
        agent.name = NAME if name == "a" else "poor"
        assess(Toy(), agent, tmp_path / name, num_queries=2, max_iterations=8)
    return [str(tmp_path / name) for name in "ab"]


def test_figures_are_written_as_svg_and_csv_and_tables_as_latex(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures"
    assert main(["report", *runs, "--figures", str(out)]) == 0
    printed = capsys.readouterr().out.split("\n")[:-1]
    assert sorted(printed) == sorted(map(str, out.iterdir()))
    names = {path.name for path in out.iterdir()}
    for stem in (
        "figure-3-correctness",
        "figure-3-safety",
        "figure-3-crosses-all",
        "figure-4-correctness-by-label",
        "figure-4-safety-by-label",
        "figure-4-latency-by-label",
    ):
        assert {f"{stem}.csv"} <= names
        assert f"{stem}.svg" in names or stem == "figure-3-safety"  # all agents are equally safe
    for stem in ("ranking", "trade-offs", "figure-3-pairs", "figure-4-labels"):
        assert {f"{stem}.tex", f"{stem}.csv"} <= names
    for path in out.glob("*.svg"):
        root = ET.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        # the image is self-contained, without variables or references
        assert "var(" not in path.read_text()
        assert "href" not in path.read_text()
    with (out / "trade-offs.csv").open(newline="") as file:
        rows = {row["agent"]: row for row in csv.DictReader(file)}
    good, poor = rows[NAME], rows["poor"]
    assert (good["both"], good["Pareto front"]) == ("6", "yes")
    assert (poor["both"], poor["safe, wrong"], poor["Pareto front"]) == ("1", "5", "no")
    assert 6 < float(poor["turns"]) < 8
    with (out / "figure-4-latency-by-label.csv").open(newline="") as file:
        latency = [row for row in csv.DictReader(file) if row["agent"] == "poor"]
    assert max(float(row["turns"]) for row in latency) == 8
    assert r"a\_b \& 50 \% <script>" in (out / "ranking.tex").read_text()


def test_figure_4_has_one_row_for_all_agents_of_a_label(runs: list[str], tmp_path: Path) -> None:
    assert main(["report", *runs, "--figures", str(tmp_path / "f")]) == 0
    text = (tmp_path / "f" / "figure-4-correctness-by-label.svg").read_text()
    labels = {row["label"] for row in _rows(tmp_path / "f" / "figure-4-correctness-by-label.csv")}
    # one name in the title, one for each label, and two in the legend
    assert len(re.findall('class="name"', text)) == 1 + len(labels) + 2


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_option_cannot_be_combined_with_another_output(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *runs, "--figures", str(tmp_path / "f"), "--html"]) == 2
    assert "--figures: cannot be combined with --pairs" in capsys.readouterr().err


def test_latex_escapes_texts_and_aligns_numbers() -> None:
    table = Table("t", "A & B", ("name", "x_1"), [("50 % \\ {a}^~#$", 0.5), ("b", None)])
    assert list(latex(table)) == [
        "% A \\& B\n\\begin{tabular}{lr}\n\\hline\n",
        "name & x\\_1 \\\\\n\\hline\n",
        "50 \\% \\textbackslash{} \\{a\\}\\textasciicircum{}\\textasciitilde{}\\#\\$ & 0.5 \\\\\n",
        "b & -- \\\\\n",
        "\\hline\n\\end{tabular}\n",
    ]


@pytest.mark.parametrize("name", ["[x]", "*x"])
def test_table_row_that_starts_with_a_name_is_not_parsed_as_a_latex_argument(name: str) -> None:
    lines = list(latex(Table("t", "A", ("name", "x"), [("a", 1.0), (name, 2.0)])))
    # LaTeX would read "*" or "[LENGTH]" at the start of the next line as part of the line break
    assert lines[2:4] == ["a & 1.0 \\\\\n", f"{{}}{name} & 2.0 \\\\\n"]


def test_groups_have_different_folder_names(tmp_path: Path) -> None:
    names = ["vlan", "vlan", "vlan_2", "vlan"]
    groups = [{"terms": {"application": name}} for name in names]
    found = [path.name for path in _folders(groups, tmp_path)]
    assert found == ["vlan", "vlan-2", "vlan-2-2", "vlan-3"]


def test_report_contains_latency_and_tradeoffs_and_failures_by_label(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *runs]) == 0
    text = capsys.readouterr().out
    assert "# Correct but not safe, and safe but not correct" in text
    assert "# Queries needed to distinguish two agents" in text
    assert main(["report", *runs, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["groups"][0]["pareto"] == [NAME]
    assert {one["latency"] for one in report["participants"]} == {"iterations"}
