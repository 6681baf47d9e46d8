"""The queries on which two runs differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.cli import main
from netarena.model import Reply, Step
from netarena.report.story import parting_step


def stuck_at_two(prompt: str, turn: int) -> str:
    return "open v1" if turn else open_all(prompt, turn)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())
    assess(Toy(), Scripted(open_all), tmp_path / "good")
    assess(Toy(), Scripted(stuck_at_two), tmp_path / "bad")
    return tmp_path


def test_discordant_pairs_are_listed_with_the_step_at_which_they_differ(runs: Path, capsys) -> None:
    good, bad = str(runs / "good"), str(runs / "bad")
    assert main(["report", "--pairs", good, bad, "--json"]) == 0
    pairs = json.loads(capsys.readouterr().out)
    assert main(["report", good, bad, "--json"]) == 0
    (compared,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert len(pairs["only_first"]) == compared["only_first"] > 0
    assert pairs["only_second"] == []
    assert {row["parts_at"] for row in pairs["only_first"]} == {2}
    assert all(row["why"] for row in pairs["only_first"])
    assert main(["report", "--pairs", good, bad]) == 0
    text = capsys.readouterr().out
    assert pairs["only_first"][0]["id"] in text
    assert "not comparable" not in text
    # texts are aligned left, numbers right
    assert "| --- | --- | ---: | --- |" in text
    # a result file contains no steps
    assert main(["report", "--pairs", f"{good}/results.json", bad, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["only_first"][0]["parts_at"] is None


def test_runs_that_cannot_be_paired_are_refused(runs: Path, capsys) -> None:
    assess(Toy(), Scripted(open_all), runs / "other", seed=99)
    good = str(runs / "good")
    assert main(["report", "--pairs", good, str(runs / "bad"), str(runs / "other")]) == 2
    assert "--pairs: requires exactly two runs (there are 3)" in capsys.readouterr().err
    assert main(["report", "--pairs", str(runs / "bad"), str(runs / "other")]) == 2
    assert "--pairs: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "number"),
    [("ab", "ab", None), ("ab", "ax", 2), ("a", "ab", 2), ("", "b", 1), ("", "", None)],
)
def test_pair_differs_at_the_first_unequal_step(first, second, number) -> None:
    def steps(words: str) -> list[Step]:
        return [Step(prompt="p", reply=Reply(text="r"), move=word) for word in words]

    assert parting_step(steps(first), steps(second)) == number
