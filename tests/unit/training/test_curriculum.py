"""Scenario files as curricula of training sets and sessions."""

from __future__ import annotations

import json

import pytest

from netarena.cli import main
from netarena.errors import ConfigError
from netarena.training.curriculum import Curriculum, read_curriculum

SCENARIO = """
[green_agent]
application = "{application}"

[[participants]]
role = "toy_operator"
endpoint = "http://127.0.0.1:9040/"

[config]
{keys}
seed = 7
num_queries = 3
"""


@pytest.fixture
def series(tmp_path):
    """Return a file that lists two scenarios of the toy: level 1, and level 2 in tickets."""
    for name, keys in (
        ("one", 'complexity_level = ["level1"]'),
        ("two", 'complexity_level = ["level2"]\nbriefing = "ticket"\nquiet = false'),
    ):
        text = SCENARIO.format(application="toy", keys=keys)
        (tmp_path / f"{name}.toml").write_text(text)
    path = tmp_path / "scenario.toml"
    path.write_text('scenarios = ["one.toml", "two.toml"]\n')
    return path


def test_curriculum_omits_keys_that_select_single_queries(series):
    assert read_curriculum(series) == [
        ("toy", {"complexity_level": ["level1"]}),
        ("toy", {"complexity_level": ["level2"], "briefing": "ticket", "quiet": False}),
    ]


def test_sessions_use_the_scenarios_in_turn(series):
    curriculum = Curriculum(series)
    try:
        told = []
        for task in range(4):
            assert curriculum.start(seed=1, task=task)
            told.append((curriculum.seat.query.level, curriculum.seat.config.briefing.value))
            assert curriculum.seat.query.id.startswith("train-toy-")
        assert told == [("level1", "full"), ("level2", "ticket")] * 2
        (valve,) = {action.parameters["valve"] for action in curriculum.seat.query.actions[:1]}
        assert not curriculum.act(f"open {valve}").done
        curriculum.start(seed=1, task=0)
        (action,) = curriculum.seat.query.actions
        assert curriculum.act(f"open {action.parameters['valve']}").info["solved"]
    finally:
        curriculum.close()


def test_sft_draws_the_query_levels_of_a_scenario_file(series, tmp_path):
    out = tmp_path / "set"
    keys = ("--sizes", "4,6,5", "--seed", "1", "--out", str(out))
    assert main(["sft", "toy", "--from", str(series), *keys]) == 0
    lines = [json.loads(line) for line in (out / "mixed.jsonl").read_text().splitlines()]
    first = [line for line in lines if line["turn"] == 1]
    assert sorted(line["level"] for line in first) == ["level1"] * 4 + ["level2"] * 6
    # the tickets of level 2 end with a declaration
    replies = [line["messages"][1]["content"] for line in lines if line["turn"] == line["turns"]]
    assert sum(reply.startswith("done") for reply in replies) == 6


def test_sft_refuses_a_scenario_of_another_application(tmp_path, capsys):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.format(application="malt", keys=""))
    assert main(["sft", "toy", "--from", str(path), "--out", str(tmp_path / "set")]) == 2
    assert f"--from: {path} has a scenario of malt, not of toy" in capsys.readouterr().err


def test_file_that_is_not_a_scenario_is_refused(tmp_path):
    (tmp_path / "x.toml").write_text("a = 1\n")
    with pytest.raises(ConfigError, match="green_agent: must be a table"):
        read_curriculum(tmp_path / "x.toml")
