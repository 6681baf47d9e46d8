from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import time
from pathlib import Path

import pytest

from netarena.agent.program_agent import MOST_ERROR_BYTES, MOST_REPLY_BYTES, TurnAgent
from netarena.cli import main
from netarena.errors import AgentFailed, FailureReason
from netarena.model import Reply, Usage
from tests.fake.process import find_processes

#: opens the valves that are shut according to the prompt, one per turn, and logs it on standard
#: error
OPENER = """\
prompt=$(cat)
shut=$(printf %s "$prompt" | grep -o "'v[0-9]': False" | head -1 | grep -o 'v[0-9]')
echo "$NETARENA_CONTEXT" >>contexts
echo "opening $shut" >&2
echo "open $shut"
"""


def ask(script: str, prompt: str = "?", timeout_s: float = 20.0) -> Reply:
    agent = TurnAgent(["sh", "-c", script])
    return asyncio.run(agent.ask(prompt, context_id="c-1", timeout_s=timeout_s))


def episodes(folder: Path) -> list[dict]:
    events = map(json.loads, (folder / "journal.jsonl").read_text().splitlines())
    return [event["episode"] for event in events if event["event"] == "episode"]


def test_any_program_can_be_an_agent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = f"sh -c {shlex.quote(OPENER)}"
    keys = ("--set", "complexity_level=level2", "--num-queries", "2", "--seed", "7")
    assert main(["run", "toy", "--agent-exec", command, *keys, "--out", "out"]) == 0
    assert "solved safely  100.0 %" in capsys.readouterr().out
    graded = episodes(tmp_path / "out")
    assert [episode["outcome"] for episode in graded] == ["solved"] * 2
    assert graded[0]["agent"]["name"] == command
    told = graded[0]["steps"][0]["reply"]["metadata"]
    assert told["exit_status"] == 0
    assert told["stderr"].startswith("opening v")
    # the stored --agent-exec is used again
    assert main(["run", "toy", "--resume", "--out", "out"]) == 0
    # two turns of each conversation, each in a separate process
    contexts = (tmp_path / "contexts").read_text().split()
    assert (len(contexts), len(set(contexts))) == (4, 2)


@pytest.mark.parametrize(
    ("errors", "usage"),
    [
        ('{"usage": {"input_tokens": 9, "output_tokens": 2, "cost_usd": 0.1}}', (9, 2, 0.1)),
        ('{"usage": {"prompt_tokens": 1}}\n{"usage": {"prompt_tokens": 5}}\nbye', (5, 0, None)),
        ('{"usage": {"input_tokens": NaN}}', (0, 0, None)),
        ('{"usage": 5}\n{"usage"\n[1]\nusage: 5', (0, 0, None)),
    ],
)
def test_json_line_on_standard_error_reports_usage(errors, usage):
    reply = ask(f"echo hello; printf '%s\\n' {shlex.quote(errors)} >&2")
    assert reply.text == "hello\n"
    assert reply.metadata["stderr"] == errors + "\n"
    told = Usage.read(reply)
    assert (told.input_tokens, told.output_tokens, told.cost_usd) == usage


def test_long_prompt_and_long_reply_are_passed_completely():
    prompt = "é\n" * 200_000
    assert ask("cat", prompt).text == prompt
    # a program that ignores its input can reply too
    assert ask("echo $NETARENA_CONTEXT", prompt).text == "c-1\n"


@pytest.mark.parametrize(
    ("script", "reason", "words"),
    [
        ("echo half; echo no key >&2; exit 3", FailureReason.TASK_FAILED, "status 3: no key"),
        ("kill -9 $$", FailureReason.TASK_FAILED, "status -9"),
        ("yes", FailureReason.TOO_LARGE, f"{MOST_REPLY_BYTES:,}"),
    ],
)
def test_failure_of_a_program_is_reported_with_its_reason(script, reason, words):
    with pytest.raises(AgentFailed, match=words) as raised:
        ask(script)
    assert raised.value.reason is reason


def test_program_that_takes_too_long_is_killed_with_its_children():
    seconds = f"300.{secrets.randbelow(10**9):09}"
    script = f"echo thinking >&2; sleep {seconds} & wait"
    with pytest.raises(AgentFailed, match=r"within 1 s: thinking") as raised:
        ask(script, timeout_s=1.0)
    assert raised.value.reason is FailureReason.TIMEOUT
    end = time.monotonic() + 20
    while find_processes(seconds):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    "script",
    [
        "echo open v1; sleep 300 &",
        "echo open v1; setsid sleep 20 &",
        "echo open v1; setsid timeout 20 yes >&2 &",
        "echo open v1; setsid timeout 20 sh -c 'echo late; exec sleep 20' >&2 &",
    ],
)
def test_process_left_behind_does_not_delay_the_reply(script):
    reply = ask(script, timeout_s=15.0)
    assert reply.text == "open v1\n"
    assert len(reply.metadata["stderr"]) <= MOST_ERROR_BYTES


def test_reply_with_invalid_utf_8_is_decoded_with_replacement():
    reply = ask(r"printf 'open v1\377\n'; printf '\376oh' >&2")
    assert (reply.text, reply.metadata["stderr"]) == ("open v1\ufffd\n", "\ufffdoh")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent-exec", "no-such-program-here"], "was not found or is not executable"),
        (["--agent-exec", ""], "must not be empty"),
        (
            ["--agent-exec", "cat", "--agent", "oracle"],
            "cannot be combined with --agent, --agent-cmd or --over-a2a",
        ),
    ],
)
def test_program_that_cannot_be_an_agent_is_refused_before_the_run(
    arguments, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "toy", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
