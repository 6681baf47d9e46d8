from __future__ import annotations

import asyncio
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netarena.agent.interface import Brief
from netarena.analysis import stats
from netarena.cli.comparison import show_comparison
from netarena.cli.screen import show_result
from netarena.config import Config
from netarena.errors import EnvironmentFailed
from netarena.model import Failure, FailureKind, Query, State
from netarena.report.document import make_report
from netarena.report.entrant import from_run, read_entrants
from netarena.report.markdown import clean, plain, render_markdown
from netarena.report.page import render_html
from netarena.run import archive
from netarena.run.archive import read_run
from netarena.run.assessment import conduct
from netarena.run.regrade import regrade
from netarena.task.application import Environment
from netarena.task.baseline import Baselines
from tests.fake.lamp import Idler, Lamp, LampConfig, Room, Scripted, Sweeper

CONFIG = LampConfig(num_queries=3, seed=5)
HOSTILE = "```\n# hi | <script>alert(1)</script>\x1b[31m"


class Dark(Room):
    """An environment that cannot be built for queries with the label ``two``."""

    async def open(self) -> State:
        if self.query.label == "two":
            raise EnvironmentFailed("no power", evidence=HOSTILE)
        return await super().open()


class Cellar(Lamp):
    def environment(self, query: Query, config: Config) -> Environment:
        assert isinstance(config, LampConfig)
        return Dark(query, config)


class Breaker(Scripted):
    async def ask(self, prompt, *, context_id, timeout_s):
        return (
            await Sweeper.ask(self, prompt, context_id=context_id, timeout_s=timeout_s)
        ).model_copy(update={"text": "off 0"})


def examine(out, monkeypatch, *agents, application=None):
    application = application or Lamp()
    monkeypatch.setattr(archive, "load", lambda name: application)
    roles = ("a_operator", "b_operator", "c_operator")
    team = {
        role: kind(kind.__name__, Brief(application, CONFIG, 5, role))
        for role, kind in zip(roles, agents, strict=False)
    }
    asyncio.run(conduct(application, CONFIG, team, out=out))
    return make_report(from_run(read_run(out)))


def test_report_agrees_with_the_results(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Sweeper)
    (one,) = report["participants"]
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    # the warning about an unknown role is only in the run's results
    told = {key: value for key, value in results[-1].items() if key != "warnings"}
    assert one["summary"] == told
    assert one["queries"] == 6
    assert one["agents"] == [{"name": "Sweeper", "base_url": "in-process"}]
    assert list(one["by_level"]) == ["level1", "level2"]
    assert one["by_label"]["one"]["correctness"]["successes"] == 3
    assert (one["failures"], one["findings"], one["invalid"]) == ({}, {}, [])
    assert report["comparisons"] == []
    json.dumps(report, allow_nan=False)


def test_report_lists_failure_reasons_and_broken_rules(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Idler, Breaker)
    idler, breaker = report["participants"]
    assert idler["failures"] == {"no_usable_reply": 6}
    assert breaker["findings"]["stays_lit"] >= 3
    text = render_markdown(report)
    assert "| no\\_usable\\_reply | 6 |" in text
    assert "## Safety rules broken" in text


class KnownBaselines(Baselines):
    """The scripted agents of the application."""

    def solved_unseen_by(self, config):
        del config
        return "blanket"


class Known(Lamp):
    baselines = KnownBaselines()


def test_report_flags_queries_that_can_be_solved_without_observation(tmp_path, monkeypatch, capsys):
    report = examine(tmp_path, monkeypatch, Sweeper, application=Known())
    words = "the scripted agent blanket solves such queries without a model"
    assert f"- Solvable without observation: {words}\n" in render_markdown(report)
    show_result(report["participants"][0])
    assert f"Solvable without observation: {words}.\n" in capsys.readouterr().out
    assert words in render_html(report)
    (from_file,) = read_entrants([tmp_path / "results.json"])
    assert words in render_markdown(make_report([from_file]))


class Telling(Lamp):
    def failure(self, query, episode):
        kind = FailureKind.OPERATIONAL if not episode.steps[-1].executed else None
        return kind and Failure(kind=kind, rule="no_order")


def test_report_lists_failure_types(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Idler, application=Telling())
    (one,) = report["participants"]
    assert one["failure_types"]["operational error"] == 6
    assert one["failure_types"]["safety violation"] == 0
    assert one["unsafe_by"] == {"not seen: the agent failed": 6}
    assert one["failure_rules"] == {"operational error: no_order": 6}
    text = render_markdown(report)
    assert "## Failure types" in text
    assert "| operational error | 6 |" in text
    assert "| operational error: no\\_order | 6 |" in text


def test_participants_are_compared_on_the_same_queries(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Sweeper, Idler)
    (pair,) = report["comparisons"]
    assert (pair["first"], pair["second"]) == ("a_operator", "b_operator")
    assert (pair["only_first"], pair["difference"]) == (6, 1.0)
    row = ("a\\_operator", "b\\_operator", 6, 0, 6, 0, 0, "+100.0 points")
    text = render_markdown(report)
    assert f"| {' | '.join(map(str, row))} |" in text
    # two of the six queries are equal and count as one
    assert pair["p_value"] == 0.0625
    assert f"| 0.0625 | 0.0625 | {pair['needed']['paired']} |" in text


def test_participants_are_ranked_by_solved_safely(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Breaker, Idler, Sweeper)
    text = render_markdown(report)
    standing = text.split("# Ranking")[1].split("Ranked by")[0]
    rows = [line.split(" | ") for line in standing.splitlines() if "operator" in line]
    assert rows[0][:7] == ["| c\\_operator", "Sweeper", "5", "6", "100.0 %", "100.0 %", "100.0 %"]
    idler = next(row for row in rows if row[1] == "Idler")
    assert idler[-3] == "6", "all of its episodes count as its failures"
    # there are three comparisons, so the smallest p-value is multiplied by three
    pairs = report["comparisons"]
    assert len(pairs) == 3
    least = min(pair["p_value"] for pair in pairs)
    assert min(pair["p_holm"] for pair in pairs) == min(1, 3 * least)


def test_comparison_is_shown_only_for_several_participants(tmp_path, monkeypatch, capsys):
    report = examine(tmp_path / "two", monkeypatch, Idler, Sweeper)
    show_comparison(report)
    shown = capsys.readouterr().out
    first, second = shown.index("b_operator"), shown.index("a_operator")
    assert first < second, "the better one first"
    assert "+100.0" in shown or "-100.0" in shown
    show_comparison(examine(tmp_path / "one", monkeypatch, Sweeper))
    assert capsys.readouterr().out == ""


def test_invalid_queries_are_listed_with_their_evidence(tmp_path, monkeypatch):
    report = examine(tmp_path, monkeypatch, Sweeper, application=Cellar())
    (one,) = report["participants"]
    assert one["summary"]["outcomes"]["invalid"] == 3
    assert len(one["invalid"]) == 3
    assert one["by_label"]["two"]["graded"] == 0
    assert one["by_label"]["two"]["correctness"]["rate"] is None
    text = render_markdown(report)
    assert "no power" in text
    # neither Markdown nor a terminal interprets any part of the evidence
    assert "\x1b" not in text
    outside = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", text)
    assert "script" not in outside
    assert text.count("## Invalid queries") == 1


@pytest.mark.parametrize("piece", [HOSTILE, "````\n# hi <script>", "`" * 40 + "\n<script>"])
def test_evidence_cannot_end_its_markdown_code_block(tmp_path, monkeypatch, piece):
    report = examine(tmp_path, monkeypatch, Sweeper, application=Cellar())
    report["participants"][0]["invalid"][0]["evidence"] = [piece]
    text = render_markdown(report)
    fence = ""
    for line in text.splitlines():
        ticks = line if line and not line.strip("`") and len(line) >= 3 else ""
        if not fence:
            assert "<script>" not in line
            assert not line.startswith("# hi")
            fence = ticks
        elif ticks and len(ticks) >= len(fence):
            fence = ""
    assert not fence


def test_unasked_queries_are_reported(tmp_path, monkeypatch):
    examine(tmp_path, monkeypatch, Sweeper)
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    episodes = [place for place, line in enumerate(lines) if '"event": "episode"' in line]
    journal.write_text("".join(lines[: episodes[2]]))
    report = make_report(from_run(read_run(tmp_path)))
    (one,) = report["participants"]
    assert one["summary"]["not_run"] == 4
    text = render_markdown(report)
    assert "- Never asked: 4" in text
    assert "- Complete: no" in text


@pytest.mark.parametrize("ended", [True, False])
def test_unasked_queries_of_a_stopped_run_are_not_failures(tmp_path, monkeypatch, ended):
    """Only a run with an ``end`` event ran out of time; Ctrl-C leaves no such event."""
    monkeypatch.setattr(stats, "agent_used_time", lambda _: True)
    examine(tmp_path, monkeypatch, Sweeper)
    journal = tmp_path / "journal.jsonl"
    first, *lines = journal.read_text().splitlines()
    header = json.loads(first)
    header["header"]["config"]["time_budget_s"] = 600.0
    third = [place for place, line in enumerate(lines) if '"event": "episode"' in line][2]
    kept = [json.dumps(header), *lines[:third], *[json.dumps({"event": "end"})] * ended]
    journal.write_text("".join(f"{line}\n" for line in kept))
    (one,) = make_report(from_run(read_run(tmp_path)))["participants"]
    assert one["summary"]["not_run"] == 4
    assert one["summary"]["not_run_counted"] is ended
    assert one["summary"]["graded"] == (6 if ended else 2)
    assert regrade(read_run(tmp_path)[0]).results()[-1]["not_run_counted"] is ended


def test_report_is_well_formed_markdown(tmp_path, monkeypatch):
    text = render_markdown(examine(tmp_path, monkeypatch, Sweeper, Idler))
    assert text.startswith("# Ranking\n")
    assert "\n# Lamps: Sweeper (in-process)\n" in text
    assert text.endswith("\n")
    assert "\n\n\n" not in text
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        widths = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(widths) == 1, table


@given(st.text())
def test_plain_text_is_one_line_without_control_characters(text):
    for made in (plain(text), clean(text)):
        assert made.isprintable() or not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in made)
        assert len(made.splitlines()) <= 1


@pytest.mark.parametrize("text", ["a|b", "`x`", "<b>", "[a](b)", "*x*", "&lt;", "~~x~~"])
def test_clean_text_contains_no_markup(text):
    assert re.fullmatch(r"(?:[^\\`*\[\]<>|#~$&]|\\.)*", clean(text))
    assert re.sub(r"\\(.)", r"\1", clean(text)) == text
