"""The command ``netarena search``."""

import json
import sys
from itertools import chain

import pytest

from netarena.a2a.scenario import read_scenario, read_series
from netarena.cli import main
from netarena.task.application import configured, load


def run(*arguments, out):
    return main(["search", "toy", "--seed", "4", "--out", str(out), *arguments])


def test_search_writes_a_report_and_a_scenario(tmp_path, capsys):
    assert run("--agent", "noop", "--budget", "32", "--fresh", "8", out=tmp_path) == 0
    told = capsys.readouterr()
    assert f"{tmp_path}/scenario.toml" in told.out
    assert "32 queries to search and 16 to confirm the result" in told.err
    assert "search toy: " in told.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert {one["failure_rate"] for one in report["strata"]} == {1.0}
    assert report["fresh_found"]["failed"] == report["fresh_found"]["graded"] == 8
    page = (tmp_path / "report.md").read_text()
    assert "the agent failed 32 of 32 queries" in page
    assert f"| {report['strata'][0]['words']} | 100.0 %" in page
    series = read_series(tmp_path / "scenario.toml")
    assert len(series) > 1
    for scenario in series.values():
        app, config = configured(load(scenario.examined), dict(scenario.config))
        assert config.seed is not None
        (party,) = scenario.participants
        assert f"--strategy noop --application {app.name}" in party.cmd
        assert f"--seed {config.seed} " in party.cmd


def test_single_found_setting_is_written_as_one_scenario_file(tmp_path):
    keys = ("--set", "briefing=full", "--set", 'complexity_level=["level1"]')
    assert run("--agent", "noop", "--budget", "16", "--fresh", "4", *keys, out=tmp_path) == 0
    scenario = read_scenario(tmp_path / "scenario.toml")
    assert scenario.config["complexity_level"] == ["level1"]


def test_search_without_a_finding_writes_no_scenario(tmp_path, capsys):
    assert run("--agent", "oracle", "--budget", "16", "--fresh", "4", out=tmp_path) == 0
    assert "No kind of query was found" in capsys.readouterr().out
    assert not (tmp_path / "scenario.toml").exists()


def test_resuming_a_finished_search_plays_no_query_again(tmp_path, capsys):
    small = ("--agent", "noop", "--budget", "16", "--fresh", "4", "--json")
    assert run(*small, out=tmp_path) == 0
    first = capsys.readouterr().out
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("journal.jsonl"))
    assert main(["search", "toy", "--out", str(tmp_path), "--resume", "--json"]) == 0
    assert capsys.readouterr().out == first
    assert before == sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("journal.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "--agent: is missing: give --agent, --agent-cmd or --agent-exec"),
        (("--agent", "nop"), "--agent: 'nop' is neither a URL nor one of"),
        (("--agent", "noop", "--set", "num_queries=3"), "config.num_queries: has no effect in a"),
        (("--agent", "noop", "--set", "seed=3"), "config.seed: cannot be set here: use --seed"),
        (("--agent-cmd", "true"), "--agent-cmd: must contain {port} in place of the agent's port"),
        (("--agent", "noop", "--set", "complexity=1"), "config.complexity: unknown key"),
    ],
)
def test_invalid_option_is_reported_in_one_line(tmp_path, capsys, arguments, error):
    assert run("--budget", "8", *arguments, out=tmp_path) == 2
    assert error in capsys.readouterr().err.splitlines()[-1]


def test_invalid_resume_is_reported_with_the_reason(tmp_path, capsys):
    resume = ["search", "toy", "--resume"]
    assert main(resume) == 2
    assert "--resume: needs --out DIR" in capsys.readouterr().err
    assert main([*resume, "--out", str(tmp_path)]) == 2
    assert f"--resume: there is no search in {tmp_path}" in capsys.readouterr().err
    assert run("--agent", "noop", "--budget", "8", "--fresh", "0", out=tmp_path) == 0
    assert run("--agent", "noop", out=tmp_path) == 2
    assert (
        "already contains a search: add --resume, or choose another folder"
        in capsys.readouterr().err
    )
    assert main([*resume, "--out", str(tmp_path), "--budget", "9"]) == 2
    assert "omit --set, --seed, --budget and --fresh" in capsys.readouterr().err
    assert main([*resume, "--out", str(tmp_path), "--agent", "oracle"]) == 2
    assert "the results so far belong to another agent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "error"),
    [
        (("--agent", "http://127.0.0.1:9", "--wait", "0.2"), "could not be reached for 0.2 s"),
        (("--agent-exec", "/no/such/program"), "'/no/such/program' was not found"),
        (
            ("--agent-exec", f"{sys.executable} -c 'raise SystemExit(3)'"),
            "in any episode (1 played)",
        ),
        (("--agent-cmd", f"{sys.executable} -c 'raise SystemExit(3)' {{port}}"), "with status 3"),
    ],
    ids=["no server", "no program", "no answer", "ended server"],
)
def test_unusable_agent_leaves_no_file_behind(tmp_path, capsys, agent, error):
    mine = tmp_path / "out" / "mine"
    mine.parent.mkdir()
    mine.touch()
    assert run(*agent, "--budget", "48", "--fresh", "0", out=tmp_path / "out") != 0
    assert error in capsys.readouterr().err.splitlines()[-1]
    assert [*tmp_path.rglob("*")] == [mine.parent, mine]
    assert run(*agent, "--budget", "48", "--fresh", "0", out=tmp_path / "new" / "out") != 0
    assert not (tmp_path / "new").exists()


def test_resumed_search_with_a_missing_agent_keeps_its_files(tmp_path, capsys):
    agent, out = tmp_path / "agent", tmp_path / "out"
    agent.write_text("#!/bin/sh\necho open v1\n")
    agent.chmod(0o755)
    assert run("--agent-exec", str(agent), "--budget", "8", "--fresh", "0", out=out) == 0
    (out / "search.jsonl").unlink()
    agent.unlink()
    before = {path for path in out.rglob("*") if path.is_file()}
    assert main(["search", "toy", "--out", str(out), "--resume"]) == 2
    assert "was not found" in capsys.readouterr().err
    assert before <= {path for path in out.rglob("*") if path.is_file()}


def test_search_help_has_examples(capsys):
    assert main(["search", "--help"]) == 0
    told = capsys.readouterr().out
    assert list(chain(line for line in told.splitlines() if "netarena search k8s" in line))
