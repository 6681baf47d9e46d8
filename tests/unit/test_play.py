from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from orders import Orders

from netarena.cli import main
from netarena.cli.play import Person, one_query
from netarena.task.application import load


@pytest.fixture
def keyboard(tmp_path, monkeypatch):
    """Provide text on standard input; run the test in a separate directory."""
    monkeypatch.chdir(tmp_path)

    opened = ExitStack()

    def type_in(text: str) -> None:
        reading, writing = os.pipe()
        os.write(writing, text.encode())
        os.close(writing)
        monkeypatch.setattr("sys.stdin", opened.enter_context(os.fdopen(reading)))

    with opened:
        yield type_in


def episode(folder: Path) -> dict:
    events = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    (graded,) = [event["episode"] for event in events if event["event"] == "episode"]
    return graded


def test_play_shows_one_query_to_a_person_and_then_the_verdict(keyboard, capsys):
    keyboard("jump\n\n" + "".join(f"open v{number}\n" for number in range(1, 9)))
    keys = ("--num-queries", "5", "--set", "complexity_level=level2", "--name", "Ada")
    assert main(["play", "toy", "--seed", "3", *keys]) == 0
    out, err = capsys.readouterr()
    graded = episode(Path("netarena-runs/toy-3"))
    assert graded["outcome"] == "solved"
    assert graded["agent"]["name"] == "Ada"
    assert out.splitlines() == [
        f"solved, safe, {len(graded['steps'])} turns",
        f"netarena show netarena-runs/toy-3 {graded['query_id']}",
    ]
    # the task appears once, followed by results; an empty line uses up no turn
    assert err.count("You run a waterworks.") == 1
    assert "Send `open NAME` or `close NAME`." in err
    assert "open v1: v1 is open" in err
    assert f"turn {len(graded['steps'])}> " in err
    assert len(load_results(Path("netarena-runs/toy-3"))) == 2


def load_results(folder: Path) -> list[dict]:
    return json.loads((folder / "results.json").read_text())["results"]


def test_harmful_play_is_reported_and_terminal_sequences_are_escaped(keyboard, capsys):
    keyboard("close v1\nclose v2\n\x1b[2J")
    assert main(["play", "toy", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("agent failed, not safe")
    assert "gave up" in out
    assert "\x1b" not in out + err


def test_refused_changes_are_typed_after_the_causes(keyboard, capsys, monkeypatch):
    monkeypatch.setattr("netarena.cli.play.load", lambda name, **_: Orders())
    monkeypatch.setattr("netarena.run.archive.load", lambda name: Orders())
    valves = "".join(f"open v{number}\n" for number in range(1, 9))
    keyboard(f"{valves}/done v1: closed\nv2: closed\n.\nchange 1: no_valve\n.\n")
    keys = ("briefing=ticket", "quiet=false", "complexity_level=level2", "start_index=0")
    options = [word for key in keys for word in ("--set", key)]
    assert main(["play", "toy", "--seed", "7", *options]) == 0
    err = capsys.readouterr().err
    assert (
        "/done CAUSES REFUSED (each of them: one or more lines, then a line with only '.')" in err
    )
    assert "causes... causes... refused... refused... " in err
    graded = episode(Path("netarena-runs/toy-7"))
    assert graded["steps"][-1]["claim"] == {
        "causes": [["v1", "closed"], ["v2", "closed"]],
        "refused": [{"change": 1, "because": "no_valve"}],
    }
    assert (graded["outcome"], graded["claim_right"]) == ("solved", True)


@pytest.mark.parametrize("command", ["play", "mcp"])
@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
def test_name_with_several_lines_is_refused(command, name, keyboard, capsys):
    keyboard("")
    assert main([command, "toy", "--name", name]) == 2
    assert capsys.readouterr().err.startswith("netarena: error: --name: must be one line")
    assert not list(Path().iterdir())


def test_play_ends_if_there_is_no_standard_input(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    assert main(["play", "toy", "--seed", "3"]) == 1
    sys.stdin.close()
    assert "you gave up before the first turn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "typed", "reply"),
    [
        ("route", "h1 ip route show", '{"machine": "h1", "command": "ip route show"}'),
        ("route", "/run_command h1 ls", '{"machine": "h1", "command": "ls"}'),
        ("route", '{"machine": "h1", "command": "ls"}', '{"machine": "h1", "command": "ls"}'),
        ("k8s", "kubectl get pods", "```\nkubectl get pods\n```"),
        ("k8s", "```\nkubectl get pods\n```", "```\nkubectl get pods\n```"),
        ("malt", "def f():\n    pass\n\nx\n.", "```python\ndef f():\n    pass\n\nx\n```"),
    ],
)
def test_typed_line_is_converted_to_a_valid_reply_in_each_application(name, typed, reply, keyboard):
    keyboard(typed + "\n")
    application = load(name)
    person = Person(application, application.config_type(), "p")
    assert asyncio.run(person.ask("?", context_id="c", timeout_s=1.0)).text == reply


def test_query_is_chosen_by_the_seed():
    toy = load("toy")
    picked = [
        one_query(toy, toy.config_type(seed=seed, num_queries=4)).start_index for seed in range(20)
    ]
    assert len(set(picked)) > 5
    assert one_query(toy, toy.config_type(seed=1, start_index=2)).end_index == 3
