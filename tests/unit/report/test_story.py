"""The description of one episode for a reader, also for an application without pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.cli import main
from netarena.model import Episode, Outcome, Query
from netarena.report.story import Story, move_text, tell, why
from netarena.run.archive import Stored, read_run
from netarena.task.application import Application
from netarena.task.picture import Mark, Matrix, Pictures
from tests.fake import gallery

ODD = "open v1 \x1b[31m"


class DrawnPictures(Pictures):
    """The pictures of the ``Drawn`` application's states."""

    def draw(self, query: Query, episode: Episode, number: int) -> list[Matrix]:
        state = episode.steps[number - 1].state if number else episode.initial_state
        if number == 2:
            raise ValueError("no ink")
        if not isinstance(state, dict):
            return []
        marks = tuple(Mark.WORKS if state[valve] else Mark.BROKEN for valve in state)
        return [Matrix(title="valves", rows=("is open",), columns=tuple(state), cells=(marks,))]


class Drawn(Toy):
    """The toy application with pictures; the second picture raises an error."""

    pictures = DrawnPictures()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Toy())


def breaker(prompt: str, turn: int) -> str:
    """Close an open valve first, then send an odd reply, then open the valves."""
    if turn == 0:
        return "close " + re.findall(r"'(v.)': True", prompt)[0]
    return ODD if turn == 1 else f"open v{turn - 1}"


def story(out: Path, answer: object = breaker, application: Application | None = None) -> Story:
    assess(Toy(), Scripted(answer), out, num_queries=1, complexity_level=["level3"])  # type: ignore[arg-type]
    stored = read(out)
    (episode,) = stored.episodes()
    return tell(application or stored.application, stored.queries[0], episode)


def read(out: Path) -> Stored:
    (stored,) = read_run(out)
    return stored


def test_story_describes_each_turn_of_an_unsafe_episode(tmp_path: Path, toy: None) -> None:
    told = story(tmp_path)
    assert told.episode.outcome is Outcome.SOLVED
    assert told.why == f"step 1: {told.turns[0].asked.split()[1]} closed"
    assert told.actions[0].endswith("is closed")
    assert [turn.number for turn in told.turns] == list(range(1, len(told.turns) + 1))
    assert told.turns[1].asked == ""
    assert told.turns[1].step.refused
    assert not any(turn.pictures for turn in told.turns)


def test_page_is_made_even_if_drawing_a_picture_fails(
    tmp_path: Path, toy: None, caplog: pytest.LogCaptureFixture
) -> None:
    told = story(tmp_path, application=Drawn())
    assert [len(turn.pictures) for turn in told.turns[:3]] == [1, 0, 1]
    assert [one.word for one in told.turns[0].turned] == ["broke"]
    assert [one.word for one in told.turns[2].turned] == ["repaired"]
    assert "drawing the picture of step 2" in caplog.text


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, ""),
        (
            {"outcome": "invalid", "detail": "no power"},
            "environment failure, not in the rates: no power",
        ),
        (
            {"outcome": "agent_failed", "reason": "no_reply", "detail": "all refused"},
            "no_reply: all refused",
        ),
        ({"outcome": "unsolved", "detail": "v1 is closed"}, "v1 is closed"),
        (
            {"outcome": "unsolved", "reason": "time_budget"},
            "The time ended before the task was solved.",
        ),
    ],
)
def test_reason_of_a_failure_is_one_line(
    values: dict[str, str], line: str, tmp_path: Path, toy: None
) -> None:
    _, (episode,) = assess(Toy(), Scripted(open_all), tmp_path, complexity_level=["level1"])
    solved = values.get("outcome", "solved") == "solved"
    update = {**values, "outcome": Outcome(values.get("outcome", "solved")), "correct": solved}
    assert why(episode.model_copy(update=update)) == line


def test_move_is_converted_to_text() -> None:
    assert move_text("open v1") == "open v1"
    assert move_text({"code": "x = 1"}) == "x = 1"
    assert move_text({"machine": "h1", "command": "ip a"}) == "machine: h1\ncommand: ip a"
    assert move_text([1]) == "[\n  1\n]"
    assert move_text(None) == ""


# Command ``netarena show``.


def test_show_lists_failed_episodes_and_prints_a_selected_episode(
    tmp_path: Path, toy: None, capsys: pytest.CaptureFixture[str]
) -> None:
    told = story(tmp_path)
    query = told.query.id
    assert main(["show", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert query in listed
    assert told.why in listed
    assert "1 of 1 episodes failed" in listed

    for name in (query, "0"):
        assert main(["show", str(tmp_path), name]) == 0
        shown = capsys.readouterr().out
        assert f"> {told.turns[0].asked}" in shown
        assert f"not safe: {told.turns[0].asked.split()[1]} closed" in shown
        assert "everything is correct" in shown
        assert "\x1b" not in shown
        assert "open v1 \ufffd[31m" in shown
        assert told.turns[0].step.prompt.splitlines()[0] not in shown

    assert main(["show", str(tmp_path), query, "--prompt"]) == 0
    assert told.turns[0].step.prompt.splitlines()[0] in capsys.readouterr().out
    assert main(["show", str(tmp_path), query, "--json"]) == 0
    assert f'"why": "{told.why}"' in capsys.readouterr().out


def test_show_prints_each_repetition(
    tmp_path: Path, toy: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, complexity_level=["level1"], repeats=2)
    assert main(["show", str(tmp_path)]) == 0
    assert "0 of 2 episodes failed" in capsys.readouterr().out
    assert main(["show", str(tmp_path), "--all", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [f'"repeat": {n}' in line for n, line in enumerate(lines, 1)] == [True, True]
    assert main(["show", str(tmp_path), "0"]) == 0
    assert capsys.readouterr().out.count("everything is correct") == 2
    assert main(["show", str(tmp_path), "0", "--repeat", "2"]) == 0
    assert ", repeat 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nothing"], "'nothing' is not a graded query of this run"),
        (["--role", "nobody"], "has no participant 'nobody'"),
    ],
)
def test_show_reports_missing_episodes(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    toy: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, complexity_level=["level1"])
    assert main(["show", str(tmp_path), *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_reason_mentions_an_unsafe_and_wrong_state_once() -> None:
    episode = gallery.lost(gallery.query(0))
    assert why(episode) == "step 1: v2 was open and is closed now. v1 and v2 are closed."
    same = episode.model_copy(update={"detail": "v2 was open and is closed now."})
    assert why(same) == "step 1: v2 was open and is closed now."
