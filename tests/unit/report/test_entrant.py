"""Runs and result files, compared in one report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.errors import AssessmentFailed, ConfigError
from netarena.model import Query
from netarena.report.document import make_report
from netarena.report.entrant import read_entrants
from netarena.report.markdown import render_markdown
from netarena.report.page import render_html

#: results of the reference, in the format of leaderboards
FOREIGN = {
    "route_operator": {
        "error_type": "disable_routing",
        "success": True,
        "safe": True,
        "iterations": 3,
    },
    "malt_operator": {"Label": "count", "Result-Correctness": "Pass", "Result-Safety": "Pass"},
}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())


def foreign(path: Path, role: str, *records: object, summary: object = None) -> Path:
    if summary is None:
        summary = {"avg_correctness": 0.5, "avg_safety": 0.5}
    path.write_text(json.dumps({"participants": {role: "id"}, "results": [*records, summary]}))
    return path


def test_report_from_a_result_file_equals_the_report_from_its_run_directory(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "run", num_queries=2, max_iterations=4)
    copy = tmp_path / "copy.json"
    copy.write_bytes((tmp_path / "run" / "results.json").read_bytes())
    report = make_report(read_entrants([tmp_path / "run", copy]))
    folder, file = report["participants"]
    assert (folder["name"], file["name"]) == ("scripted (run)", "scripted (copy.json)")
    for key in ("by_level", "failure_types", "queries", "agents"):
        assert folder[key] == file[key], key
    same = ("avg_correctness", "intervals", "graded", "outcomes", "version", "seed")
    assert [folder["summary"][key] for key in same] == [file["summary"][key] for key in same]
    assert [one["id"] for one in folder["lost"]] == [one["id"] for one in file["lost"]]
    assert folder["lost"]
    (group,) = report["groups"]
    assert group["title"].startswith("toy 1: complexity_level")
    (pair,) = report["comparisons"]
    assert (pair["pairs"], pair["p_value"]) == (6, 1.0)
    text = render_markdown(report)
    assert text.startswith("# Ranking\n")
    assert "## Failed episodes" in text


def test_different_seeds_and_counts_prevent_only_paired_comparison(tmp_path: Path) -> None:
    other = Scripted(open_all)
    other.name = "other"
    for name, agent, values in (
        ("a", Scripted(open_all), {"num_queries": 2}),
        ("b", other, {"num_queries": 3, "seed": 8}),
        ("c", Scripted(open_all), {"complexity_level": ["level1"]}),
    ):
        assess(Toy(), agent, tmp_path / name, **values)
    report = make_report(read_entrants([tmp_path / name for name in "abc"]))
    assert [one["group"] for one in report["participants"]] == [0, 0, 1]
    (pair,) = report["comparisons"]
    assert (pair["pairs"], pair["p_value"], pair["p_holm"]) == (0, None, None)
    assert pair["difference"] == 0.0
    assert pair["interval"][0] < 0 < pair["interval"][1]
    assert "| – | – | – |" in render_markdown(report)


@pytest.mark.parametrize("role", FOREIGN)
def test_results_of_the_reference_implementation_are_accepted(role: str, tmp_path: Path) -> None:
    pytest.importorskip("netarena_malt.app")
    good = FOREIGN[role]
    bad = {key: {True: False, "Pass": "Fail"}.get(value, value) for key, value in good.items()}
    (one,) = read_entrants([foreign(tmp_path / "r.json", role, good, bad)])
    assert [(outline.correct, outline.safe) for outline in one.outlines] == [
        (True, True),
        (False, False),
    ]
    assert one.summary["avg_solved_safely"] == 0.5
    assert one.summary["graded"] == 2
    assert len(one.lost) == 1
    report = make_report([one])
    assert report["groups"][0]["title"].endswith("of an unknown version")
    assert render_markdown(report)


def test_result_files_below_a_directory_are_found(tmp_path: Path) -> None:
    for role in ("one", "two"):
        (tmp_path / role).mkdir()
        foreign(tmp_path / role / "results.json", role, {"success": True, "safe": True})
        (tmp_path / role / "earlier-1").mkdir()
        foreign(tmp_path / role / "earlier-1" / "results.json", role)
    assert [one.role for one in read_entrants([tmp_path])] == ["one", "two"]
    assert [one.role for one in read_entrants([tmp_path / "two"])] == ["two"]


@pytest.mark.parametrize(
    ("record", "summary"),
    [
        ("is not an object", None),
        ({"success": 1, "safe": "yes", "iterations": 1e9, "repeat": -1, "outcome": []}, None),
        ({"agent_input_tokens": -1, "agent_cost_usd": "x", "agent_time_s": "NaN"}, None),
        ({"id": ["x"], "level": {}, "failure_type": {}, "agent_info": 7}, None),
        ({}, {"config": {"seed": []}, "version": 7, "outcomes": "x", "intervals": 3}),
        ({}, []),
    ],
)
def test_malformed_result_file_is_accepted_or_refused_with_a_message(
    record: object, summary: object, tmp_path: Path
) -> None:
    path = foreign(tmp_path / "odd.json", "toy_operator", record, summary=summary)
    if isinstance(record, str) or isinstance(summary, list):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            read_entrants([path])
    else:
        assert render_markdown(make_report(read_entrants([path])))


def test_path_without_a_run_or_result_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a folder of a run nor a result file"):
        read_entrants([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match=r"has no journal\.jsonl"):
        read_entrants([tmp_path])


def test_ticket_and_full_runs_are_not_ranked_together(tmp_path: Path) -> None:
    for briefing in ("full", "ticket"):
        values = {"quiet": True, "max_iterations": 12, "briefing": briefing}
        assess(Toy(), Scripted(open_all), tmp_path / briefing, **values)
        (tmp_path / f"{briefing}.json").write_bytes(
            (tmp_path / briefing / "results.json").read_bytes()
        )
    names = ("full", "ticket", "full.json", "ticket.json")
    report = make_report(read_entrants([tmp_path / name for name in names]))
    assert [one["group"] for one in report["participants"]] == [0, 1, 0, 1]
    assert "briefing ticket" in report["groups"][1]["title"]
    assert "briefing" not in report["groups"][0]["title"]


def test_runs_of_one_agent_with_several_seeds_form_one_row(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        assess(Toy(), Scripted(open_all), tmp_path / str(seed), seed=seed, max_iterations=4)
    again = tmp_path / "again"
    assess(Toy(), Scripted(open_all), again, seed=3, max_iterations=4)
    folders = [tmp_path / name for name in "123"]
    entrants = read_entrants(folders)
    report = make_report(entrants)
    (row,) = report["participants"]
    alone = [make_report(read_entrants([folder]))["participants"][0] for folder in folders]
    assert row["name"] == "scripted"
    assert row["summary"]["seeds"] == [1, 2, 3]
    for key in ("queries", "lost_number"):
        assert row[key] == sum(one[key] for one in alone)
    assert row["summary"]["graded"] == sum(one["summary"]["graded"] for one in alone)
    rates = [one["summary"]["avg_solved_safely"] for one in alone]
    assert row["summary"]["avg_solved_safely"] == pytest.approx(sum(rates) / 3)
    assert "- Seeds: 1, 2, 3" in render_markdown(report)
    assert "seeds 1, 2, 3" in render_html(report)
    # two runs with the same seed may come from two versions of the agent
    assert len(make_report(read_entrants([*folders, again]))["participants"]) == 4


def test_runs_with_different_limits_are_not_ranked_together(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "usual")
    for name, values in (
        ("turns", {"max_iterations": 4}),
        ("reply", {"agent_timeout_s": 30.0}),
        # a time budget that did not end the run does not count as a limit
        ("budget", {"time_budget_s": 900.0}),
    ):
        assess(Toy(), Scripted(open_all), tmp_path / name, **values)
        (tmp_path / f"{name}.json").write_bytes((tmp_path / name / "results.json").read_bytes())
    names = ("usual", "turns", "reply", "budget", "turns.json", "reply.json", "budget.json")
    report = make_report(read_entrants([tmp_path / name for name in names]))
    assert [one["group"] for one in report["participants"]] == [0, 1, 2, 0, 1, 2, 0]
    assert "max_iterations 4" in report["groups"][1]["title"]
    assert {pair["group"] for pair in report["comparisons"]} == {0, 1, 2}
    assert len(report["comparisons"]) == 5


def test_computed_turn_limits_count_as_one_setting(tmp_path: Path) -> None:
    class Sized(Toy):
        def fair_turns(self, query: Query) -> int:
            return 12 + query.index

    computed = {"max_iterations": None, "briefing": "ticket", "quiet": False}
    for seed in (1, 2):
        assess(Sized(), Scripted(open_all), tmp_path / str(seed), seed=seed, **computed)
    assess(Toy(), Scripted(open_all), tmp_path / "set", **computed | {"max_iterations": 12})
    assess(Toy(), Scripted(open_all), tmp_path / "full", max_iterations=None)
    report = make_report(read_entrants([tmp_path / name for name in ("1", "2", "set", "full")]))
    assert [one["group"] for one in report["participants"]] == [0, 1, 2]
    titles = [group["title"] for group in report["groups"]]
    assert ["max_iterations" in title for title in titles] == [False, True, True]
    assert "max_iterations 12" in titles[1]
    assert "max_iterations computed" in titles[2]


def test_invalid_configs_are_compared_by_the_keys_that_affect_queries(tmp_path: Path) -> None:
    paths = [
        foreign(
            tmp_path / f"{n}.json",
            "route_operator",
            FOREIGN["route_operator"],
            summary={"version": "2", "config": {"repeats": 500, "seed": n, "world": "varied"}},
        )
        for n in (1, 2)
    ]
    report = make_report(read_entrants(paths))
    assert [one["group"] for one in report["participants"]] == [0, 0]


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
def test_non_finite_number_is_refused(number: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(f'{{"participants": {{"a": "b"}}, "results": [{{"avg_safety": {number}}}]}}')
    with pytest.raises(ConfigError, match="not JSON"):
        read_entrants([path])


def test_result_file_with_repeats_contains_pass_all_rates(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path / "run", repeats=2)
    (one,) = read_entrants([tmp_path / "run" / "results.json"])
    assert one.summary["pass_all"]["2"]["rate"] == 1.0
    assert one.summary["queries"] == 3


def test_run_of_an_agent_that_never_answered_cannot_be_reported(tmp_path: Path) -> None:
    def broken(prompt: str, turn: int) -> str:
        raise RuntimeError("no key")

    with pytest.raises(AssessmentFailed):
        assess(Toy(), Scripted(broken), tmp_path / "broken")
    with pytest.raises(ConfigError, match=r"the assessment in .*broken failed: .*no key"):
        make_report(read_entrants([tmp_path / "broken"]))
    assess(Toy(), Scripted(open_all), tmp_path / "good")
    report = make_report(read_entrants([tmp_path / "broken", tmp_path / "good"]))
    assert [one["name"] for one in report["participants"]] == ["scripted (good)"]
    assert report["failed"][0]["name"] == "scripted (broken)"
    for text in (render_markdown(report), render_html(report)):
        assert "Not in the tables, because it failed: scripted" in text
