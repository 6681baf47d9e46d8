from __future__ import annotations

import asyncio
import errno
import importlib
import json
import logging
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from netarena.a2a.purple import purple_app
from netarena.a2a.service import listen
from netarena.a2a.service import serving as serving_here
from netarena.agent.interface import Brief, load_agent
from netarena.agent.process import free_port, running
from netarena.agent.wait import knock
from netarena.cli import COMMANDS, main
from netarena.cli.check_agent import examine_agent
from netarena.cli.conversation import Watched
from netarena.cli.doctor import EXTRAS
from netarena.cli.failures import tell_lost_records
from netarena.cli.option import read_pairs
from netarena.cli.terminal import PlainFormatter, json_text
from netarena.cli.until import Until
from netarena.errors import AgentFailed, ConfigError, EnvironmentFailed, FailureReason
from netarena.model import AgentInfo, Check, Reply, Severity
from netarena.run.assessment import conduct
from netarena.task.application import load
from netarena.task.evidence import Candidate, Evidence
from netarena.task.identity import Secrecy, seal_id
from tests.fake.process import find_processes

ROOT = Path(__file__).parents[2]
#: time limit for each wait, in seconds
PATIENCE_S = 90.0


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Install a distribution with an application and two agents; run the test in a new folder."""
    place = tmp_path / "site"
    information = place / "netarena_fake-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: netarena-fake\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(
        "[netarena.applications]\n"
        "lamp = tests.fake.lamp:Lamp\n"
        "bare = no_such_module:Bare\n"
        "[netarena.agents]\n"
        "sweeper = tests.fake.lamp:sweeper\n"
        "idler = tests.fake.lamp:idler\n"
        "oracle = a2a_purple.scripted:Oracle\n"
    )
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (place, ROOT, ROOT / "apps"))))
    monkeypatch.chdir(folder)
    return folder


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "netarena.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def run_lamp(*arguments: str) -> int:
    return main(["run", "lamp", "--agent", "sweeper", *arguments])


# start-up


def test_commands_import_only_what_they_need(fake):
    code = (
        "import sys, netarena.cli\n"
        "def check(arguments, heavy):\n"
        "    assert netarena.cli.main(arguments) == 0\n"
        "    assert not heavy & set(sys.modules), sorted(heavy & set(sys.modules))\n"
        "check(['--help'], {'pydantic', 'rich', 'a2a', 'httpx', 'asyncio', 'duckdb'})\n"
        "check(['run', 'lamp', '--agent', 'sweeper', '--json'], {'a2a', 'httpx', 'duckdb'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    for name, _, what in COMMANDS:
        assert f"  {name} " in done.stdout
        assert what in done.stdout


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_each_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"netarena {name}" in capsys.readouterr().out


def test_version_option_prints_the_package_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"netarena {version('netarena')}\n"


def test_call_without_a_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


# errors: one line, status 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fly"], "No such command 'fly'"),
        (["quer"], "No such command 'quer'; did you mean 'queries'?"),
        (["run", "lamp", "--agent", "orcale"], "; did you mean 'oracle'?"),
        (
            ["run", "lamp", "--agent", "localhost:9010"],
            "; did you mean 'http://localhost:9010'?",
        ),
        (["export", "x", "--to", "inspct"], "; did you mean 'inspect'?"),
        (["run", "lamp", "--out", ""], "--out: must not be empty"),
        (["leaderboard", "."], "FILE: '.' is a folder; give its result file: results.json"),
        (["run"], "Missing argument 'APP|SCENARIO.toml'"),
        (["run", "lamp", "--colour", "red"], "No such option"),
        (["run", "nix"], "application: 'nix' is not one of"),
        (
            ["new", "Vlan"],
            "NAME: must be lower-case letters, digits and inner underscores, such as vla",
        ),
        (
            ["new", "vlan_"],
            "NAME: must be lower-case letters, digits and inner underscores, such as vl",
        ),
        (["new", "cell"], "NAME: 'cell' needs a class 'Cell', but netarena.sdk or Python"),
        (["new", "class_var"], "NAME: 'class_var' needs a class 'ClassVar', but netarena"),
        (["new", "true"], "NAME: 'true' needs a class 'True', but netarena.sdk or Python"),
        (
            ["new", "network"],
            "NAME: 'network' would create the module 'netarena_network', but a module with",
        ),
        (["new", "lamp"], "NAME: 'lamp' is an installed application: choose another name"),
        (["run", "bare"], 'bare needs no_such_module, which is not installed: pip install "netare'),
        (["run", "lamp", "--agent", "nobody"], "--agent: 'nobody' is neither a URL nor one of"),
        (["run", "lamp", "--agent", "ftp://x/"], "http"),
        (["run", "lamp", "--agent", "http://localhost:1/", "--over-a2a"], "--over-a2a"),
        (["run", "lamp", "--num-queries", "0"], "--num-queries"),
        (["run", "lamp", "--num-queries", "many"], "--num-queries"),
        (["run", "lamp", "--seed", "-1"], "--seed"),
        (["run", "lamp", "--seed", str(2**64)], "--seed"),
        (["run", "lamp", "--set", "colour=red"], "config.colour: unknown key; known keys: "),
        (["run", "lamp", "--set", "lamps=2"], "config.lamps"),
        (["run", "lamp", "--set", "lamps"], "--set: must be KEY=VALUE, not 'lamps'"),
        (["run", "lamp", "--set", "=3"], "--set: must be KEY=VALUE"),
        (["run", "lamp", "--set", "complexity_level=level9"], "'level9' is not one of level1"),
        (
            ["request", "http://x/", '{"participants": {"r": "http://x/"}}', "--id", "s=7"],
            "--id: must be ROLE=ID, with r as ROLE, not 's=7'",
        ),
        (["run", "lamp", "--name", " "], "--name: must be one line of at most 200 characters"),
        (["run", "lamp", "--name", "a\nb"], "--name: must be one line of at most 200 characters"),
        (["run", "lamp", "--wait", "0"], "--wait"),
        (["run", "lamp", "--resume"], "--resume: needs --out DIR or --seed S"),
        (["run", "lamp", "--set", "benchmark_path=/"], "benchmark_path"),
        (["run", "lamp", "--resume", "--out", "new"], "--resume: there is no run in new"),
        (["run", "lamp", "--resume", "--seed", "7"], "no run in netarena-runs/lamp-7"),
        (
            ["run", "lamp", "--set", 'output_dir="a\\u0000b"'],
            "config.output_dir: must not contain NUL",
        ),
        (
            ["run", "lamp", "--set", 'output_dir="a\\ud800b"'],
            "config.output_dir: must not contain NUL",
        ),
        (
            ["run", "lamp", "--set", 'benchmark_path="a\\u0000b"'],
            "config.benchmark_path: must not contain",
        ),
        (
            ["run", "lamp", "--set", 'benchmark_path="a\\ud800b"'],
            "config.benchmark_path: must not contain",
        ),
        (["run", "lamp", "--out", "a\udcffb"], "config.output_dir: must not contain NUL"),
        (["queries", "lamp", "--set", 'benchmark_path="a\\u0000b"'], "config.benchmark_path: must"),
        (["run", "lamp", "--set", 'agent_client_configs={"a":["\\ud800"]}'], "not contain NUL"),
        (["queries", "lamp", "--set", "num_queries=none"], "config.num_queries"),
        (["queries", "lamp", "--set", "complexity_level=level3"], "no query matches this config"),
        (["audit", "lamp", "--set", "complexity_level=level3"], "does not select any query"),
        (
            ["audit", "lamp", "--set", "num_queries=2", "--json"],
            "use --num-queries, the total number",
        ),
        (["doctor", "nix"], "application: 'nix' is not one of"),
        (["report", "nowhere"], "DIR|FILE: nowhere is neither a folder of a run nor a result file"),
        (["regrade", "."], "has no journal.jsonl"),
        (["report", "a\x1b[31m\nb"], "is neither a folder"),
        (["leaderboard"], "Missing argument 'FILE...'"),
        (["leaderboard", "gone.json"], "gone.json cannot be read"),
        (["serve", "nix"], "application: 'nix' is not one of"),
        (["serve", "lamp", "--port", "70000"], "--port"),
        (["serve", "lamp", "--max-episodes", "0"], "--max-episodes"),
        (["serve", "lamp", "--port", "0", "--card-url", "not a url"], "card_url: must be a URL"),
        (["serve", "lamp", "--port", "0", "--card-url", "ftp://x/"], "card_url: must be an http"),
    ],
)
def test_error_is_reported_in_one_line(fake, capsys, arguments, words):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("netarena: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert not list(fake.iterdir())


def test_failed_new_command_leaves_no_partial_application_behind(tmp_path, monkeypatch, capsys):
    write, out = Path.write_text, tmp_path / "made" / "vlan"

    def full(path, text, **values):
        if path.name == "pyproject.toml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, **values)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert main(["new", "vlan", "--out", str(out)]) == 2
    assert "cannot be written: No space left" in capsys.readouterr().err
    assert not out.exists()
    assert main(["new", "vlan", "--out", str(out)]) == 0
    assert len([*out.iterdir()]) == 3


def test_error_in_a_separate_process_is_reported_in_one_line(fake):
    done = call("run", "lamp", "--set", "lamps=many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("netarena: error: config.lamps: ")
    assert done.stderr.count("\n") == 1


def test_output_directory_that_cannot_be_created_is_reported(fake, capsys):
    (fake / "file").write_text("")
    assert run_lamp("--out", "file/run") == 2
    assert "output_dir: cannot be written" in capsys.readouterr().err


def test_failing_assessment_has_status_1(fake, capsys):
    # no program listens at port 9 of loopback, and the time budget ends before the retries
    arguments = ["--agent", "http://127.0.0.1:9/", "--set", "agent_timeout_s=0.2"]
    assert main(["run", "lamp", "--out", "run", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith("netarena: error: the agent ")
    assert "could not be reached" in err
    assert err.count("\n") == 1


# KEY=VALUE


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("k=3", 3),
        ("k=0.5", 0.5),
        ("k=true", True),
        ("k=null", None),
        ('k="3"', "3"),
        ('k=["a","b"]', ["a", "b"]),
        ("k=level1", "level1"),
        ("k=", ""),
        ("k=a=b", "a=b"),
        ("k=NaN", "NaN"),
        ("k={", "{"),
        ("k=" + "[" * 100_000, "[" * 100_000),
    ],
)
def test_values_are_parsed_as_json_or_kept_as_text(pair, value):
    assert read_pairs((pair,)) == {"k": value}


def test_options_override_pairs_and_later_pairs_override_earlier_ones():
    values = read_pairs(("seed=1", "lamps=3", "lamps=4"), seed=2, num_queries=None)
    assert values == {"seed": 2, "lamps": 4}


def test_key_value_pair_without_a_key_is_refused():
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_pairs(("lamps",))


# run


def test_run_writes_a_directory_and_shows_a_table(fake, capsys):
    assert run_lamp("--num-queries", "3", "--seed", "7") == 0
    out, err = capsys.readouterr()
    folder = fake / "netarena-runs" / "lamp-7"
    names = {"results.json", "journal.jsonl", "queries.jsonl", "config.json"}
    assert names <= {path.name for path in folder.iterdir()}
    assert "lamp: sweeper, 6 graded of 6, seed 7" in out
    assert "solved safely  100.0 %" in out
    assert "\x1b" not in out + err
    assert err.splitlines()[-1].startswith("lamp, sweeper: 6/6 in ")


def test_run_json_prints_only_results_json(fake):
    done = call("run", "lamp", "--agent", "sweeper", "--out", "run", "--json", "--num-queries", "2")
    assert done.returncode == 0
    assert done.stdout == (fake / "run" / "results.json").read_text()
    document = json.loads(done.stdout)
    assert document["participants"] == {"lamp_operator": "sweeper"}
    assert len(document["results"]) == 5
    assert document["results"][-1]["avg_solved_safely"] == 1.0
    assert "4/4" in done.stderr


def test_run_shows_log_messages_of_an_application(fake, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tests"), "level", logging.WARNING)
    assert run_lamp() == 0
    assert logging.getLogger("tests.fake.lamp").isEnabledFor(logging.INFO)
    assert not logging.getLogger("another").isEnabledFor(logging.INFO)


def test_run_draws_a_seed_and_names_the_directory_after_it(fake, capsys):
    assert run_lamp() == 0
    assert run_lamp() == 0
    folders = list((fake / "netarena-runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        stored = json.loads((folder / "config.json").read_text())
        assert folder.name == f"lamp-{stored['seed']}"


def test_run_takes_config_from_pairs(fake, capsys):
    arguments = ["--set", "lamps=6", "--set", "complexity_level=level2", "--set", "seed=9"]
    assert run_lamp("--json", *arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["results"]) == 2
    summary = document["results"][-1]
    assert (summary["seed"], summary["config"]["lamps"]) == (9, 6)


def test_run_takes_the_seed_of_a_query_file(fake, capsys):
    assert run_lamp("--set", "benchmark_path=queries.jsonl", "--seed", "11", "--out", "a") == 0
    assert run_lamp("--set", "benchmark_path=queries.jsonl", "--out", "b") == 0
    assert run_lamp("--set", "benchmark_path=queries.jsonl", "--seed", "12") == 2
    assert "12 differs from 11" in capsys.readouterr().err
    a, b = (json.loads((fake / name / "results.json").read_text()) for name in "ab")
    assert [record.get("id") for record in a["results"]] == [
        record.get("id") for record in b["results"]
    ]


def test_run_ignores_the_seed_secret_of_a_service(fake, monkeypatch, capsys):
    monkeypatch.setenv("NETARENA_SEED", "secret")
    assert run_lamp("--seed", "7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["results"][-1]["seed"] == 7


def test_run_warns_about_keys_that_it_ignores(fake, capsys):
    assert run_lamp("--set", 'agent_client_configs={"api_key": "secret"}', "--out", "run") == 0
    assert "warning: agent_client_configs is ignored" in capsys.readouterr().err
    for path in (fake / "run").iterdir():
        assert "secret" not in path.read_text()


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Restore the default handling of SIGINT and SIGHUP.

    Background processes of shells ignore SIGINT, processes under nohup ignore SIGHUP, and their
    children inherit this.
    """
    signals = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, usual) for number, usual in signals.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (path.is_file() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} never held {text!r}"
        time.sleep(0.01)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_stopped_run_can_be_resumed(fake, number, status, capsys):
    settings = ["--out", "run", "--num-queries", "4"]
    slow = [*settings, "--set", "delay_s=0.3"]
    command = [sys.executable, "-m", "netarena.cli", "run", "lamp", "--agent", "sweeper", *slow]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_for(fake / "run" / "journal.jsonl", '"event": "episode"')
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status
    last = err.splitlines()[-1]
    assert last.startswith("netarena: stopped: graded episodes are kept")
    assert "--out run --resume" in last
    assert "Traceback" not in err
    assert run_lamp(*settings, "--resume", "--json") == 0
    summary = json.loads(capsys.readouterr().out)["results"][-1]
    assert (summary["graded"], summary["complete"]) == (8, True)


def test_scripted_agent_of_a_resumed_run_gets_the_stored_keys(fake, monkeypatch):
    cli_run = importlib.import_module("netarena.cli.run")
    briefs = []
    load_agent = cli_run.load_agent

    def watch(name, brief):
        briefs.append(brief)
        return load_agent(name, brief)

    monkeypatch.setattr(cli_run, "load_agent", watch)
    assert run_lamp("--out", "run", "--seed", "7", "--num-queries", "4", "--set", "lamps=7") == 0
    assert run_lamp("--out", "run", "--resume", "--set", "concurrency=2") == 0
    first, second = briefs
    assert (second.config.num_queries, second.config.lamps, second.seed) == (4, 7, 7)
    assert (first.config.shape(), second.config.concurrency) == (second.config.shape(), 2)


def test_resume_refuses_another_config(fake, capsys):
    assert run_lamp("--out", "run", "--seed", "7") == 0
    assert run_lamp("--out", "run", "--resume", "--seed", "8") == 2
    assert "seed 7, not 8" in capsys.readouterr().err
    assert run_lamp("--out", "run", "--resume", "--set", "lamps=7") == 2


def answers(monkeypatch, *replies) -> None:
    """Let scripted agents give these replies, repeating the last one; exceptions are raised."""
    waiting = list(replies)

    class Scripted:
        info = AgentInfo(name="scripted")

        async def open(self, *, timeout_s):
            pass

        async def ask(self, prompt, *, context_id, timeout_s):
            reply = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            if isinstance(reply, Exception):
                raise reply
            return Reply(text=reply)

        async def aclose(self):
            pass

    monkeypatch.setattr(
        importlib.import_module("netarena.cli.run"), "load_agent", lambda name, brief: Scripted()
    )


NO_KEY = AgentFailed(FailureReason.TASK_FAILED, "no\x1b[31m key")


def test_agent_that_never_worked_gives_status_1_and_its_reason(fake, capsys, monkeypatch):
    answers(monkeypatch, NO_KEY)
    assert run_lamp("--out", "run", "--json") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == (
        "netarena: error: the agent scripted did not reply in any episode (2 played); "
        "most frequent failure (2): task_failed: no\\x1b[31m key"
    )
    assert not (fake / "run" / "results.json").exists()
    assert main(["show", "run"]) == 0
    assert "no key" in capsys.readouterr().out.replace("\ufffd[31m", "")


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        (
            ["hm", "hm", "hm", NO_KEY],
            "2 of 2 episodes failed; most frequent failure (2): task_failed: no\\x1b[31m key",
        ),
        (
            ["hm"],
            (
                "most frequent failure (2): no_usable_reply: "
                "every reply of the episode was refused; the last: "
            ),
        ),
    ],
    ids=["a failed task", "refused replies"],
)
def test_run_reports_the_most_common_reason_of_failed_episodes(
    fake, capsys, monkeypatch, replies, words
):
    answers(monkeypatch, *replies)
    assert run_lamp("--out", "run", "--set", "concurrency=1", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][-1]["graded"] == 2
    last = err.splitlines()[-1]
    assert words in last
    assert last.endswith("(netarena show run lists them)")


def test_result_files_give_the_most_common_reason_of_failed_episodes(capsys):
    rows = [
        {"outcome": "agent_failed", "failure_rule": "agent_failed", "why": f"timeout: {number} s"}
        for number in range(3)
    ]
    rows += [{"outcome": "unsolved", "failure_rule": "not_repaired"}] * 2
    tell_lost_records(
        [
            {"participants": {"a": "u"}, "results": [*rows, {"outcome": "solved"}, {"graded": 6}]},
            {"participants": {"b": "u"}, "results": [*rows[3:], "of another", {}]},
            {"participants": {"c": "u"}, "results": [{"outcome": "solved"}, {"graded": 1}]},
        ]
    )
    assert capsys.readouterr().err.splitlines() == [
        "netarena: a: 5 of 6 episodes failed; most frequent failure (3): timeout, for example: 0 s",
        "netarena: b: 2 of 3 episodes failed; most frequent failure (2): not_repaired",
    ]


def test_run_without_failed_episodes_prints_no_line_about_them(fake, capsys):
    assert run_lamp() == 0
    assert "failed" not in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("usual_signals")
def test_resume_without_a_run_is_refused(fake, number, capsys):
    assert run_lamp("--out", "run") == 0  # an earlier run does not count
    before = sorted(fake.rglob("*"))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        command = [sys.executable, "-m", "netarena.cli", "run", "lamp", "--agent", url]
        with subprocess.Popen(
            [*command, "--out", "run"], stderr=subprocess.PIPE, text=True
        ) as process:
            told = process.stderr.readline()
            process.send_signal(number)
            rest = process.stderr.read()
    assert told.startswith(f"netarena: waiting for an agent at {url} (")
    assert rest == "netarena: stopped\n"
    assert process.returncode == 128 + number
    assert sorted(fake.rglob("*")) == before


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/", "http://no-such-host.invalid:{}/x"])
def test_unreachable_url_is_reported_quickly(fake, capsys, url):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = url.format(nobody.getsockname()[1])
        assert main(["run", "lamp", "--agent", url, "--wait", "0.3"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    start = f"netarena: error: the agent at {url} could not be reached for 0.3 s: "
    assert last.startswith(start)
    assert last.endswith("; start it, or raise --wait")
    assert list(fake.iterdir()) == []


def test_agent_that_starts_late_is_waited_for(fake):
    async def come_late() -> list[str]:
        told: list[str] = []
        waits = asyncio.Event()

        def tell(text: str) -> None:
            told.append(text)
            waits.set()

        with socket.socket() as spare:
            spare.bind(("127.0.0.1", 0))
            port = spare.getsockname()[1]
        knocking = asyncio.create_task(knock(f"http://127.0.0.1:{port}/", 20, tell))
        await waits.wait()
        server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", port)
        async with server:
            await knocking
        return told

    (line,) = asyncio.run(come_late())
    assert line.startswith("waiting for an agent at http://127.0.0.1:")


def participants(folder: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(Path(folder, "results.json").read_text())["participants"]
    return found


def test_transcript_starts_with_the_task_and_the_ground_truth(fake, capsys):
    assert main(["run", "lamp", "--seed", "7", "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["show", "run", "0"]) == 0
    task, truth = capsys.readouterr().out.splitlines()[2:4]
    query = json.loads(Path("run/queries.jsonl").read_text().splitlines()[0])
    assert task == f"task: {query['text']}"
    assert truth.startswith("ground truth: ")


def test_run_with_until_interval_continues_until_the_interval_is_narrow(fake, capsys):
    words = ["run", "toy", "--until-interval"]
    assert main([*words, "1.5", "--seed", "5", "--set", "concurrency=8", "--out", "run"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("netarena:")] == [
        # some of the drawn queries are equal, and count as one
        f"netarena: after {asked} queries, the rate solved safely has a 95 % interval of {told}"
        for asked, told in (
            (102, "±3.0 points; continuing to 204 queries"),
            (204, "±1.8 points; continuing to 294 queries"),
            (294, "±1.4 points"),
        )
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["toy", "--until-interval", "3", "--set", "end_index=9"],
            "cannot be combined with end_index",
        ),
        (["toy", "--until-interval", "0.5"], "0.5 is not in the range 1<=x<=25"),
        (["demo.toml", "--until-interval", "3"], "and --until-interval"),
    ],
)
def test_invalid_interval_is_reported_in_one_line(words, told, fake, capsys):
    assert main(["run", *words]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("summary", "number", "why"),
    [
        ({}, None, "after 150 queries, the rate solved safely has a 95 % interval of ±2.0 points"),
        ({"intervals": {"solved_safely": [0.4, 0.6]}}, 20, "continuing to 300 queries"),
        (
            {"intervals": {"solved_safely": [0.4, 0.6]}, "complete": False},
            None,
            "time budget or --max-cost ended the run",
        ),
        ({"intervals": {"solved_safely": None}, "graded": 0}, None, "no episode could be graded"),
    ],
)
def test_until_interval_computes_the_number_of_further_queries(summary, number, why):
    known = {
        "intervals": {"solved_safely": [0.48, 0.52]}, "graded": 150, "complete": True,
        "invalid": [],
    }  # fmt: skip
    until = Until(3.0, 15)
    assert until.first(1) == 7
    assert until.first(9) == 9
    found, told = until.more(10, known | summary)
    assert found == number
    assert why in told
    # enough queries for any rate were asked, so the invalid episodes are the cause
    wide = known | {"intervals": {"solved_safely": [0.4, 0.6]}, "invalid": [{}] * 700}
    found, told = until.more(100, wide)
    assert found is None
    assert "700 episodes are invalid" in told


def test_resumed_run_needs_no_repeated_options(fake, capsys):
    assert main(["run", "lamp", "--agent", "idler", "--seed", "7"]) == 0
    folder = "netarena-runs/lamp-7"
    assert main(["run", "lamp", "--resume", "--seed", "7"]) == 0
    assert participants(folder) == {"lamp_operator": "idler"}
    # the config of an older run names the agent only under its participants
    path = fake / folder / "config.json"
    config = json.loads(path.read_text())
    del config["agent"]
    path.write_text(json.dumps(config))
    assert main(["run", "lamp", "--resume", "--out", folder]) == 0
    assert participants(folder) == {"lamp_operator": "idler"}
    path.write_text(path.read_text().replace("idler", "gone"))
    capsys.readouterr()
    assert main(["run", "lamp", "--resume", "--out", folder]) == 2
    assert "does not record its agent: give --agent" in capsys.readouterr().err


def test_agent_of_a_resumed_run_is_started_again_by_name(fake, capsys):
    seed = str(time.monotonic_ns())
    command = ["--agent-cmd", own_agent(seed), "--name", "my agent"]
    assert main(["run", "lamp", *command, "--seed", seed, "--out", "run"]) == 0
    assert participants("run") == {"lamp_operator": "my agent"}
    journal = fake / "run" / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:3]))
    assert main(["run", "lamp", "--out", "run", "--resume"]) == 0
    document = json.loads((fake / "run" / "results.json").read_text())
    assert document["participants"] == {"lamp_operator": "my agent"}
    *records, summary = document["results"]
    assert summary["avg_solved_safely"] == 1.0
    named = {(one["agent_info"]["name"], one["agent_info"]["itself"]) for one in records}
    assert named == {("my agent", "netarena-oracle")}
    assert serving(seed) == []
    # a different agent is a different participant, unless --name says that it is the same
    capsys.readouterr()
    again = ["run", "lamp", "--out", "run", "--resume"]
    assert main([*again, "--agent", "sweeper"]) == 2
    assert "participants" in capsys.readouterr().err
    assert main([*again, "--name", "other"]) == 2
    assert main([*again, "--agent", "sweeper", "--name", "my agent"]) == 0


def serving(seed: str) -> list[str]:
    """Return the processes that serve an agent started with ``seed``."""
    return find_processes("a2a_purple.cli", seed)


def test_over_a2a_starts_the_agent_as_a_service_and_stops_it(fake, capsys):
    seed = "9182736455463728"
    arguments = ["--agent", "oracle", "--over-a2a", "--seed", seed, "--set", "lamps=6"]
    assert main(["run", "lamp", *arguments, "--out", "run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["participants"] == {"lamp_operator": "oracle"}
    assert document["results"][-1]["avg_solved_safely"] == 1.0
    assert serving(seed) == []


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_over_a2a_leaves_no_agent_process_behind(fake, number):
    seed = str(time.monotonic_ns())  # no other run has started an agent with this seed
    command = [sys.executable, "-m", "netarena.cli", "run", "lamp", "--agent", "oracle"]
    command += ["--over-a2a", "--seed", seed, "--out", "run", "--num-queries", "50"]
    with subprocess.Popen([*command, "--set", "delay_s=0.2"]) as process:
        wait_for(fake / "run" / "journal.jsonl", '"event": "episode"')
        assert serving(seed)
        process.send_signal(number)
        process.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while serving(seed):
        assert time.monotonic() < deadline, "the agent lives on"
        time.sleep(0.05)


def test_run_under_nohup_survives_hang_up(fake):
    command = [sys.executable, "-m", "netarena.cli", "run", "lamp", "--agent", "sweeper"]
    command += ["--out", "run", "--num-queries", "4", "--set", "delay_s=0.1"]
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # children inherit this setting
    try:
        process = subprocess.Popen(command)
    finally:
        signal.signal(signal.SIGHUP, old)
    with process:
        wait_for(fake / "run" / "journal.jsonl", '"event": "episode"')
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_S) == 0


def test_over_a2a_reports_why_an_agent_does_not_start(fake, capsys):
    assert run_lamp("--over-a2a") == 2
    err = capsys.readouterr().err
    assert err.startswith("netarena: error: --over-a2a: the agent sweeper did not start: ")
    assert "--strategy" in err
    assert err.count("\n") == 1


# own agents: --agent-cmd, --verbose, --query, check-agent


def own_agent(seed: str, strategy: str = "oracle") -> str:
    """Return the command of an agent that takes a port."""
    return (
        f"{sys.executable} -m a2a_purple.cli --strategy {strategy} --application lamp "
        f"--seed {seed} --port {{port}}"
    )


def wait_until_gone(seed: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while serving(seed):
        assert time.monotonic() < deadline, "the agent lives on"
        time.sleep(0.05)


def test_agent_cmd_starts_an_agent_and_stops_it(fake, capsys):
    seed = str(time.monotonic_ns())
    arguments = ["--agent-cmd", own_agent(seed), "--seed", seed, "--out", "run", "--json"]
    assert main(["run", "lamp", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["results"][-1]["avg_solved_safely"] == 1.0
    assert document["participants"]["lamp_operator"].endswith("--port '{port}'")
    assert serving(seed) == []


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_agent_cmd_leaves_no_agent_process_behind(fake, number, status):
    seed = str(time.monotonic_ns())
    command = [sys.executable, "-m", "netarena.cli", "run", "lamp", "--out", "run"]
    command += ["--agent-cmd", own_agent(seed, "noop"), "--seed", seed, "--num-queries", "50"]
    with subprocess.Popen([*command, "--set", "delay_s=0.2"], stderr=subprocess.DEVNULL) as process:
        wait_for(fake / "run" / "journal.jsonl", '"event": "episode"')
        assert serving(seed)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == status
    wait_until_gone(seed)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true --port {port}", "--agent-cmd: the command ended with status 0"),
        ("sh -c 'echo no key >&2; exit 3' {port}", "ended with status 3: no key"),
        ("no-such-program {port}", "ended with status 1: no-such-program: No such file"),
        ("true", "--agent-cmd: must contain {port} in place of the agent's port"),
        ("'", "--agent-cmd: cannot be read as a command"),
        (" ", "--agent-cmd: must not be empty"),
    ],
)
def test_agent_cmd_that_cannot_start_is_reported_in_one_line(fake, capsys, command, words):
    assert main(["run", "lamp", "--agent-cmd", command, "--out", "run"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_agent_cmd_excludes_the_agent_option(fake, capsys):
    assert run_lamp("--agent-cmd", "true {port}") == 2
    assert "--agent-cmd: cannot be combined with --agent" in capsys.readouterr().err


def test_agent_cmd_is_not_started_on_an_occupied_port(fake):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"

        async def start() -> None:
            async with running(["true"], url, name="cmd", tell=print):
                pass

        with pytest.raises(ConfigError, match=r"cmd: .* is already in use"):
            asyncio.run(start())


def test_process_outside_the_group_of_an_agent_command_is_not_waited_for(tmp_path):
    url = f"http://127.0.0.1:{free_port()}/"
    seconds = f"60.{secrets.randbelow(10**9):09}"
    up = tmp_path / "up"
    away = shlex.quote(f"echo >{up}; exec sleep {seconds}")
    wait = f"until [ -e {up} ]; do sleep 0.01; done"
    script = f"setsid sh -c {away} & {wait}; echo last words; exit 4"

    async def start() -> None:
        async with running(["sh", "-c", script], url, name="cmd", tell=print):
            pass

    with pytest.raises(ConfigError, match="cmd: the command ended with status 4: last words"):
        asyncio.run(start())
    end = time.monotonic() + PATIENCE_S
    while not (left := find_processes("sleep", seconds)):
        assert time.monotonic() < end
        time.sleep(0.01)
    for number in left:
        os.kill(int(number), signal.SIGKILL)


def test_verbose_run_shows_the_conversation(fake, capsys):
    assert run_lamp("--verbose", "--json", "--seed", "7", "--num-queries", "1") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    for line in (
        "── the agent: sweeper, in-process",
        "── conversation 1, turn 1: to the agent",
        "   You mind the lamps.",
        "   on 0",
        "── lamp-1-",
    ):
        assert line in err
    assert re.search(r"conversation 1, turn 1: reply from the agent after \d+\.\d s\n", err)
    assert err.count("You mind the lamps.") == 2  # once for each of the two conversations
    assert "lines as in the previous turn)" in err


def test_verbose_run_escapes_terminal_sequences(capsys):
    class Rude:
        info = AgentInfo(name="rude\x1b[2J")

        async def open(self, *, timeout_s):
            pass

        async def ask(self, prompt, *, context_id, timeout_s):
            if prompt == "fail":
                raise AgentFailed(FailureReason.TASK_FAILED, "no\x1b]0;x")
            usage = {"input_tokens": 3, "output_tokens": 4}
            return Reply(text="a\x1b[2J\rb\n" + "c\n" * 500, metadata={"usage": usage})

    async def converse() -> None:
        watched = Watched(Rude())  # type: ignore[arg-type] # the fake has no aclose
        await watched.open(timeout_s=1)
        await watched.ask("hello", context_id="c", timeout_s=1)
        with pytest.raises(AgentFailed):
            await watched.ask("fail", context_id="c", timeout_s=1)

    asyncio.run(converse())
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\r" not in err
    assert "3 input + 4 output tokens" in err
    assert "… 302 more lines" in err
    assert "turn 2: the agent failed after" in err


def test_query_option_plays_one_query_of_an_earlier_run_again(fake, capsys):
    assert run_lamp("--num-queries", "3", "--set", "lamps=7", "--seed", "7", "--json") == 0
    first = json.loads(capsys.readouterr().out)["results"][4]
    assert run_lamp("--query", first["id"], "--json") == 0
    again, summary = json.loads(capsys.readouterr().out)["results"]
    assert (again["id"], again["error_detail"]) == (first["id"], first["error_detail"])
    assert summary["graded"] == 1
    kept = (fake / "netarena-runs" / "lamp-7" / "results.json").read_text()
    assert json.loads(kept)["results"][4] == first
    # without that run, the keys must be given
    (fake / "netarena-runs").rename(fake / "elsewhere")
    assert run_lamp("--query", first["id"]) == 2
    assert "was drawn with other keys, and no run below" in capsys.readouterr().err
    given = ["--num-queries", "3", "--set", "lamps=7"]
    assert run_lamp("--query", first["id"], *given, "--out", "one") == 0
    assert run_lamp("--query", first["id"], *given, "--seed", "8") == 2
    assert "has the seed 7, but the given seed is 8" in capsys.readouterr().err


def test_query_option_finds_a_sealed_id_by_the_config_of_its_directory(fake, capsys):
    app, folder = load("lamp"), fake / "netarena-runs" / "team" / "a"
    config = app.config_type.parse({"num_queries": 3, "lamps": 7, "seed": 7})
    brief = Brief(app, config, 7, app.role)
    agents = {app.role: load_agent("sweeper", brief)}
    asyncio.run(conduct(app, config, agents, out=folder, secrecy=Secrecy.SEALED))
    first = json.loads((folder / "results.json").read_text())["results"][4]
    assert "-7-" not in first["id"]
    assert run_lamp("--query", first["id"], "--json") == 0
    again = json.loads(capsys.readouterr().out)["results"][0]
    assert (again["id"], again["error_detail"]) == (first["id"], first["error_detail"])
    assert main(["queries", "lamp", "--query", first["id"]]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["id"], line["seed"]) == (first["id"], 7)
    assert line["id"] == seal_id(app.query_id(config, 7, line["index"]), 7)
    assert main(["regrade", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 6
    # without that run, its folder is required, or its keys and its seed
    (fake / "netarena-runs").rename(fake / "elsewhere")
    given = ["--num-queries", "3", "--set", "lamps=7"]
    assert run_lamp("--query", first["id"], *given) == 2
    assert (
        "does not contain a seed, and no run below netarena-runs has this query"
        in capsys.readouterr().err
    )
    assert run_lamp("--query", first["id"], *given, "--seed", "7", "--json") == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["id"] == first["id"]
    (fake / "netarena-runs").rename(fake / "gone")
    assert run_lamp("--query", first["id"], "--out", "elsewhere") == 0
    capsys.readouterr()
    # the folder of the earlier run is only read
    kept = {path: path.read_bytes() for path in (fake / "elsewhere" / "team" / "a").iterdir()}
    for _ in range(2):
        assert run_lamp("--query", first["id"], "--out", "elsewhere/team/a", "--json") == 0
        assert json.loads(capsys.readouterr().out)["results"][0]["id"] == first["id"]
    assert kept == {
        path: path.read_bytes() for path in (fake / "elsewhere" / "team" / "a").iterdir()
    }
    assert (fake / "netarena-runs" / first["id"] / "earlier-1").is_dir()
    # the run in this query's own folder is resumed
    assert (
        run_lamp("--query", first["id"], "--out", f"netarena-runs/{first['id']}", "--resume") == 0
    )
    assert not (fake / "netarena-runs" / first["id"] / "earlier-2").exists()
    (fake / "netarena-runs").rename(fake / "again")
    assert main(["queries", "lamp", "--query", first["id"], "--out", "elsewhere", "--public"]) == 0
    (line,) = map(json.loads, capsys.readouterr().out.splitlines()[-1:])
    assert line["id"] == first["id"]
    assert not {"seed", "index", "actions", "reference"} & line.keys()


@pytest.mark.parametrize(
    ("query_id", "words"),
    [
        ("lamp-1-x", "is not an id of lamp: its ids begin with lamp-1-"),
        ("malt-1-00000000-1-1", "is not an id of lamp: its ids begin with lamp-1-"),
        (
            "lamp-2-00000000-1-1",
            "was drawn by version 2 of the generator, which this release lacks (it has 1)",
        ),
    ],
)
def test_query_option_refuses_ids_of_other_applications_and_versions(fake, capsys, query_id, words):
    assert run_lamp("--query", query_id) == 2
    assert words in capsys.readouterr().err


def check_lamp_agent(answer) -> dict[str, Check]:
    """Return the checks, by name, of an agent with these replies."""

    class Answerer:
        info = AgentInfo(name="own")

        async def ask(self, prompt, *, context_id, timeout_s):
            return await asyncio.to_thread(answer, prompt)

    async def check() -> dict[str, Check]:
        app = purple_app(Answerer(), name="own", description="d")  # type: ignore[arg-type] # the fake has no aclose
        async with serving_here(app, listen("127.0.0.1", 0)) as url:
            return {check.name: check async for check in examine_agent(url, load("lamp"), 60.0)}

    return asyncio.run(check())


def test_check_agent_passes_a_working_agent(fake):
    told = {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    asked: list[str] = []

    def answer(prompt: str) -> Reply:
        asked.append(prompt)
        return Reply(text="on 1", metadata=told)

    checks = check_lamp_agent(answer)
    assert any("Turn 1 of 10." in prompt for prompt in asked)
    assert all(check.ok for check in checks.values()), checks
    assert set(checks) == {
        *("card", "protocol", "streaming", "address", "reply", "timing", "form"),
        *("second turn", "concurrency", "tokens"),
    }


def test_check_agent_reports_an_unusable_reply(fake):
    checks = check_lamp_agent(lambda _: Reply(text="certainly!"))
    assert checks["form"].remedy == "say 'on N' or 'off N'"
    assert checks["form"].severity is Severity.RUN
    assert not checks["tokens"].ok


def test_check_agent_reports_why_there_is_no_reply(fake):
    def refuse(prompt):
        raise AgentFailed(FailureReason.TASK_FAILED, "no key")

    checks = check_lamp_agent(refuse)
    assert "no key" in checks["reply"].detail
    assert "see the agent's log" in checks["reply"].remedy


def test_check_agent_without_a_server_fails(fake, capsys):
    assert main(["check-agent", "http://127.0.0.1:9/", "--timeout", "1"]) == 1
    out = capsys.readouterr().out
    assert "would fail" in out
    assert "start the agent" in out
    assert main(["check-agent", "nonsense"]) == 2


# queries


def test_queries_are_printed_with_their_reference_solution(fake, capsys):
    assert main(["queries", "lamp", "--seed", "7", "--num-queries", "2"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) == 4
    assert err == ""
    for line in lines:
        assert [f"on {action['parameters']['lamp']}" for action in line["actions"]] == (
            line["reference"]
        )


def test_public_queries_hold_no_ground_truth(fake, capsys):
    assert main(["queries", "lamp", "--seed", "7", "--public"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert not {"actions", "reference"} & set(json.loads(line))


@pytest.mark.parametrize(
    ("application", "told"), [("malt", True), ("route", False), ("k8s", False)]
)
def test_public_queries_omit_an_initial_state_that_reveals_the_solution(application, told, capsys):
    assert main(["queries", application, "--seed", "7", "--public"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert ("initial" in line) is told


def test_queries_are_the_same_for_the_same_seed_and_any_hash_seed(fake, monkeypatch):
    outputs = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        outputs.append(call("queries", "lamp", "--seed", "7", "--num-queries", "5").stdout)
    assert outputs[0] == outputs[1] != ""


def test_reader_that_closes_the_pipe_is_not_an_error(fake):
    command = [sys.executable, "-m", "netarena.cli", "queries", "lamp", "--num-queries", "5000"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith('{"id"')
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
    assert err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["queries", "lamp", "--num-queries", "5000"],
        ["--help"],
        ["doctor", "lamp"],
        ["report", "run"],
    ],
)
@pytest.mark.parametrize(
    ("redirection", "why"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_unwritable_output_is_reported_in_one_line(fake, arguments, redirection, why):
    if arguments[0] == "report":
        assert run_lamp("--out", "run") == 0
    command = shlex.join([sys.executable, "-m", "netarena.cli", *arguments])
    done = subprocess.run(
        ["sh", "-c", f"{command} {redirection}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"netarena: error: {why}\n")


def test_run_works_with_a_closed_standard_error(fake):
    command = shlex.join([sys.executable, "-m", "netarena.cli", "run", "lamp", "--out", "run"])
    done = subprocess.run(
        ["sh", "-c", f"{command} --agent sweeper --json 2>&-"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == (fake / "run" / "results.json").read_text()


# audit, doctor, regrade, report, leaderboard


def test_audit_counts_queries_in_total(fake, capsys):
    assert main(["audit", "lamp", "--num-queries", "7", "--seed", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert (result["queries"], result["invalid"], result["reasons"]) == (7, 0, {})
    assert result["labels"] == {"one": 4, "two": 3}
    assert "audit lamp: 7/7 drawn in " in err
    assert err.splitlines()[-1].startswith("audit lamp: 7/7 in ")


@pytest.fixture
def telltale(fake, monkeypatch):
    """The lamp application with evidence that reveals the fault.

    Of four parts, the broken one is older.
    """

    async def evidence(self, query, config):
        broken = query.index % 4
        return Evidence(
            id=query.id,
            label=query.label,
            candidates=tuple(
                Candidate(name=str(part), target=part == broken, trace={"age_s": part == broken})
                for part in range(4)
            ),
        )

    monkeypatch.setattr(type(load("lamp")), "evidence", evidence)


def test_audit_of_revealing_traces_has_status_1(telltale, capsys, tmp_path, monkeypatch):
    saved = tmp_path / "evidence.jsonl"
    arguments = ["audit", "lamp", "--traces", "--num-queries", "24", "--seed", "1"]
    assert main([*arguments, "--out", str(saved)]) == 1
    out, err = capsys.readouterr()
    assert "goal missed: trace, logistic regression: top-1 accuracy is 100.0%, above chance" in out
    assert "audit lamp --traces: 24/24 drawn in " in err
    assert "audit lamp --traces: 24/24 in " in err
    assert len(saved.read_text().splitlines()) == 24

    def fail(self, config):
        raise EnvironmentFailed("this machine has no lamps")

    # stored evidence needs no environment
    monkeypatch.setattr(type(load("lamp")), "check", fail)
    assert main([*arguments, "--evidence", str(saved), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["queries"] == 24
    assert report["chance"] == 0.25
    assert report["telling"][0]["feature"] == "age_s"


def test_audit_of_traces_refuses_applications_without_evidence(fake, capsys):
    assert main(["audit", "lamp", "--traces", "--num-queries", "3", "--seed", "1"]) == 2
    assert "--traces: lamp does not support --traces" in capsys.readouterr().err


def test_audit_of_traces_without_scikit_learn_names_the_extra(fake, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "netarena.audit.leakage", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert main(["audit", "lamp", "--traces"]) == 2
    assert 'pip install "netarena[audit]"' in capsys.readouterr().err


def test_audit_option_out_is_refused_without_traces(fake, capsys, tmp_path):
    assert main(["audit", "lamp", "--out", str(tmp_path / "evidence.jsonl")]) == 2
    assert "--out: is allowed only with --traces" in capsys.readouterr().err


def test_audit_of_invalid_queries_has_status_1(fake, capsys):
    # queries with the label ``two`` take two turns, which exceeds max_iterations
    arguments = ["audit", "lamp", "--num-queries", "6", "--set", "max_iterations=1"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "6 queries, 3 invalid" in out
    assert "unsolved" in out
    assert main([*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"] == {"unsolved": 3}


def test_doctor_lists_available_parts(fake, capsys):
    assert main(["doctor", "lamp"]) == 0
    out = capsys.readouterr().out
    for words in ("python", "there are bulbs", "the fuse is old", "buy a new one", "sweeper"):
        assert words in out


def test_doctor_lists_missing_parts(fake, capsys):
    assert main(["doctor", "bare", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (check,) = [check for check in document["checks"] if check["part"] == "bare"]
    assert (check["ok"], check["severity"]) == (False, "run")
    assert check["remedy"] == 'pip install "netarena-fake"'
    assert document["ok"] is False


def test_doctor_knows_every_extra(fake, capsys, monkeypatch):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # the extras of applications are reported by the applications
    assert set(EXTRAS) == set(extras) - {"malt", "route", "backbone", "k8s", "all"}
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["doctor", "lamp"]) == 0
    assert 'pip install "netarena[view]"' in capsys.readouterr().out


def test_doctor_passes_without_an_unrequested_extra(fake, capsys, monkeypatch):
    monkeypatch.setattr("netarena.cli.doctor.application_names", lambda: ["bare", "lamp"])
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (check,) = [check for check in document["checks"] if check["part"] == "bare"]
    assert (check["ok"], check["severity"]) == (False, "note")


def test_report_describes_a_stored_run(fake, capsys):
    assert run_lamp("--out", "run") == 0
    capsys.readouterr()
    assert main(["report", "run"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Lamps: sweeper (in-process)\n")
    assert main(["report", "run", "--out", "report.md"]) == 0
    assert capsys.readouterr().out == ""
    assert (fake / "report.md").read_text() == text
    assert main(["report", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["participants"][0]["role"] == "lamp_operator"
    assert main(["report", "run", "--out", "no/such/folder.md"]) == 2
    assert "--out: no/such/folder.md cannot be written" in capsys.readouterr().err


def test_regrade_repeats_the_verdicts_of_a_stored_run(fake, capsys):
    assert run_lamp("--out", "run") == 0
    capsys.readouterr()
    before = (fake / "run" / "results.json").read_text()
    assert main(["regrade", "run"]) == 0
    assert "0 verdicts and 0 explanations differ" in capsys.readouterr().out
    # a journal in which an episode's verdict was changed
    journal = fake / "run" / "journal.jsonl"
    text = journal.read_text()
    assert '"outcome":"solved","correct":true' in text
    journal.write_text(
        text.replace('"outcome":"solved","correct":true', '"outcome":"unsolved","correct":false', 1)
    )
    assert main(["regrade", "run"]) == 1
    assert "2 verdicts and 0 explanations differ" in capsys.readouterr().out
    assert main(["regrade", "run", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {each["field"] for each in document["differences"]} == {"outcome", "correct"}
    assert (fake / "run" / "results.json").read_text() == before
    assert main(["regrade", "run", "--write"]) == 1
    assert (fake / "run" / "results.before-regrade.json").read_text() == before


@pytest.mark.parametrize("command", ["regrade", "report"])
def test_journal_with_a_malformed_id_does_not_raise(fake, capsys, command):
    assert run_lamp("--out", "run") == 0
    journal = fake / "run" / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"event": "start", "query_id": []}\n')
    assert main([command, "run"]) in {0, 2}


def test_leaderboard_ranks_runs(fake, capsys):
    pytest.importorskip("duckdb")
    assert run_lamp("--out", "good") == 0
    assert main(["run", "lamp", "--agent", "idler", "--out", "bad"]) == 0
    empty = fake / "empty.json"
    empty.write_text(json.dumps({"participants": {"lamp_operator": "x"}, "results": [{}]}))
    capsys.readouterr()
    files = ["good/results.json", "bad/results.json", "empty.json"]
    assert main(["leaderboard", *files]) == 0
    out = capsys.readouterr().out
    assert out.index("sweeper") < out.index("idler")
    assert "empty.json contains no graded query" in out
    assert "no results of the baselines noop and random" in out
    assert main(["leaderboard", *files, "--json"]) == 0
    standings = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in standings["boards"][0]["ranking"]] == ["sweeper", "idler"]
    assert standings["ungraded"] == ["empty.json"]
    assert standings["refused"] == []
    (fake / "odd\x9b.json").write_text("{")
    assert main(["leaderboard", files[0], "odd\x9b.json", "/dev/zero"]) == 0
    out, err = capsys.readouterr()
    assert "sweeper" in out
    odd, zero = err.splitlines()
    assert odd.startswith(r"netarena: warning: file: odd\x9b.json is not JSON")
    assert "file: /dev/zero cannot be read: it is not a regular file" in zero


#: control characters, invisible characters, and text that is printed unchanged
HOSTILE = "\x1b[2J\x7f\x9b31m\u202e\u2066\u200f\u2028\U000e0041"
HARMLESS = "naïve 網路 ✓"


def test_printed_json_has_escapes_and_the_same_value(fake, capsys, monkeypatch):
    monkeypatch.setattr(
        "netarena.run.record.make_record",
        lambda *_: {"outcome": "solved", "said": HOSTILE + HARMLESS},
    )
    assert run_lamp("--out", "run", "--json") == 0
    printed = capsys.readouterr().out
    assert HARMLESS in printed
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert json.loads(printed) == json.loads((fake / "run" / "results.json").read_text())
    value = {HARMLESS: [HOSTILE, HARMLESS, 1.5]}
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert HARMLESS in text
        assert all(c.isprintable() or c == "\n" for c in text)


def test_log_lines_escape_terminal_sequences():
    record = logging.LogRecord("n", logging.INFO, "", 0, "said %s\nmore", (HOSTILE,), None)
    line = PlainFormatter("%(message)s").format(record)
    assert line.startswith(r"said \x1b[2J\x7f\x9b31m\u202e")
    assert line.endswith("\nmore")
    assert all(c.isprintable() or c == "\n" for c in line)


@pytest.mark.parametrize("arguments", [["run", "{}.toml"], ["compose", "{}.toml"]])
def test_scenario_that_is_not_a_regular_file_is_reported_in_one_line(fake, capsys, arguments):
    os.mkfifo("pipe.toml")
    (fake / "zero.toml").symlink_to("/dev/zero")
    (fake / "large.toml").write_text("#" * (1 << 20) + "#")
    for name, why in (("pipe", "not a regular"), ("zero", "not a regular"), ("large", "1,048,576")):
        assert main([word.format(name) for word in arguments]) == 2
        assert why in capsys.readouterr().err


def test_shell_completion_lists_matching_commands(fake, monkeypatch):
    monkeypatch.setenv("_NETARENA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "netarena lea")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert call().stdout.strip() == "plain,leaderboard"


def test_serve_without_a_sandbox_is_refused_unless_allowed(fake, monkeypatch, capsys):
    from netarena.model import Check, Severity
    from tests.fake.lamp import Lamp

    class Open(Lamp):
        def diagnose(self):
            return [
                Check(
                    name="landlock",
                    ok=False,
                    severity=Severity.SANDBOX,
                    detail="the kernel has none",
                    remedy="use Linux 5.13",
                )
            ]

    served = []
    monkeypatch.setattr("netarena.cli.serve.load", lambda name, **options: Open(**options))

    def run_app(app, listener):
        served.append(app)
        listener.close()

    monkeypatch.setattr("netarena.a2a.server.run_app", run_app)
    assert main(["serve", "lamp", "--port", "0"]) == 2
    err = capsys.readouterr().err
    assert "landlock: the kernel has none; use Linux 5.13" in err
    assert "--allow-unsandboxed" in err
    assert not served
    assert main(["serve", "lamp", "--port", "0", "--allow-unsandboxed"]) == 0
    assert len(served) == 1


def test_serve_reports_its_address(fake):
    command = [sys.executable, "-m", "netarena.cli", "serve", "lamp", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            # warnings about missing features of this machine may come first
            said = r"netarena: lamp listens at (http://127\.0\.0\.1:\d+/)\n"
            url = next(match[1] for line in process.stderr if (match := re.fullmatch(said, line)))
            with urllib.request.urlopen(f"{url}.well-known/agent-card.json") as card:
                assert json.load(card)["url"] == url
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_serve_listens_on_the_address_of_the_environment(fake, monkeypatch):
    asked = {}
    monkeypatch.setattr("netarena.a2a.server.serve", lambda app, **options: asked.update(options))
    assert main(["serve", "lamp"]) == 0
    assert (asked["host"], asked["port"], asked["out"]) == (
        "127.0.0.1",
        9009,
        Path("netarena-runs"),
    )
    monkeypatch.setenv("NETARENA_HOST", "0.0.0.0")
    assert main(["serve", "lamp"]) == 0
    assert asked["host"] == "0.0.0.0"
    assert main(["serve", "lamp", "--host", "127.0.0.2"]) == 0
    assert asked["host"] == "127.0.0.2"
