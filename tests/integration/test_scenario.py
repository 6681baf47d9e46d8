"""``netarena run`` with scenario files: services are started, evaluated and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netarena.agent.process import free_port
from netarena.cli import main
from netarena.run.archive import read_run
from tests.fake.process import find_processes

PATIENCE_S = 90.0


class File:
    """A scenario of the toy application; ``mark`` on command lines identifies its services."""

    def __init__(self, folder: Path, *strategies: str, green: bool = True, queries: int = 1):
        self.mark = str(time.monotonic_ns())
        self.path = folder / "toy.toml"
        self.roles = ["toy_operator"] if len(strategies) == 1 else list(strategies)
        lines = ["[green_agent]", 'application = "toy"']
        if green:
            port = free_port()
            command = f"{sys.executable} -m netarena.cli serve toy --port {port}"
            lines[1:] = [
                f'endpoint = "http://127.0.0.1:{port}"',
                f'cmd = "{command} --out served --card-url http://{self.mark}/"',
            ]
            # a word on its command line identifies the process
            lines[2] = lines[2].replace(f"http://{self.mark}/", f"http://a/{self.mark}")
        for role, strategy in zip(self.roles, strategies, strict=True):
            port = free_port()
            command = (
                f"{sys.executable} -m a2a_purple.cli --application toy --strategy {strategy} "
                f"--role {role} --seed {self.mark} --set num_queries={queries} --port {port}"
            )
            lines += [
                "[[participants]]",
                f'role = "{role}"',
                f'endpoint = "http://127.0.0.1:{port}"',
                f'cmd = "{command}"',
            ]
        lines += ["[config]", f"num_queries = {queries}", f"seed = {self.mark}"]
        self.path.write_text("\n".join(lines))

    def left(self) -> list[str]:
        return find_processes(self.mark) + find_processes(f"http://a/{self.mark}")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_services_of_a_scenario_are_started_and_assessed_and_stopped(tmp_path, capsys):
    file = File(tmp_path, "oracle")
    text = file.path.read_text()
    file.path.write_text(text.replace('role = "toy', 'agentbeats_id = "019c"\nrole = "toy'))
    assert main(["run", str(file.path), "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document == json.loads(Path("netarena-runs/toy-toy/results.json").read_text())
    *records, summary = document["results"]
    assert len(records) == 3
    assert summary["avg_solved_safely"] == 1.0
    assert document["participants"] == {"toy_operator": "019c"}
    assert "3/3" in err
    assert file.left() == []
    # a second run keeps the results of the first
    assert main(["run", str(file.path), "--json"]) == 0
    earlier = Path("netarena-runs/toy-toy/earlier-1/results.json")
    assert json.loads(earlier.read_text()) == document


def test_participant_can_be_a_program_that_is_started_for_each_turn(tmp_path, monkeypatch):
    (tmp_path / "programs.toml").write_text(
        '[green_agent]\napplication = "toy"\n'
        '[[participants]]\nrole = "says"\nexec = "sh -c \'echo $WORD\'"\n'
        'env = { WORD = "${SAID}" }\n'
        '[[participants]]\nrole = "fails"\nexec = "false"\n'
        "[config]\nend_index = 1\nmax_iterations = 2\nseed = 7\n"
    )
    assert main(["run", "programs.toml"]) == 2
    assert not Path("netarena-runs").exists()
    monkeypatch.setenv("SAID", "open v1")
    main(["run", "programs.toml"])
    fails, says = read_run(Path("netarena-runs/toy-programs"))
    assert [step.output for one in says.episodes() for step in one.steps] == ["v1 is open"] * 2
    assert [one.detail for one in fails.episodes()] == ["the command ended with status 1"]


def test_participants_get_the_same_queries_and_are_compared(tmp_path, capsys):
    file = File(tmp_path, "oracle", "noop", green=False)
    assert main(["run", str(file.path), "--out", "both", "--num-queries", "1"]) == 0
    out = capsys.readouterr().out
    assert "compared" in out
    ids = [
        [record.get("id") for record in json.loads(path.read_text())["results"]]
        for path in sorted(Path("both").glob("*/results.json"))
    ]
    assert len(ids) == 2
    assert sorted(map(str, ids[0])) == sorted(map(str, ids[1]))
    assert file.left() == []


@pytest.mark.parametrize("green", [True, False])
def test_interrupted_scenario_leaves_nothing_behind(tmp_path, green):
    file = File(tmp_path, "oracle", green=green, queries=500)
    command = [sys.executable, "-m", "netarena.cli", "run", str(file.path), "--out", "run"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + PATIENCE_S
            while not list(Path().rglob("journal.jsonl")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert file.left()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert file.left() == []


def test_other_services_are_stopped_if_a_service_does_not_start(tmp_path, capsys):
    file = File(tmp_path, "oracle")
    text = file.path.read_text()
    file.path.write_text(text.replace("netarena.cli serve toy", "netarena.cli serve nonsense"))
    assert main(["run", str(file.path)]) == 2
    err = capsys.readouterr().err
    assert "green_agent.cmd: the command ended with status 2: netarena: error: application" in err
    assert file.left() == []


def test_rejected_request_reports_the_reason(tmp_path, capsys):
    file = File(tmp_path, "oracle")
    assert main(["run", str(file.path), "--set", "nonsense=1"]) == 1
    err = capsys.readouterr().err
    assert "the assessment ended with state rejected: config.nonsense: unknown key" in err
    assert file.left() == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent", "noop"], "scenario: already defines the agents"),
        (["--verbose"], "--verbose: needs application = "),
        (["--resume"], "--resume: needs application = "),
    ],
)
def test_conflicting_options_are_refused(tmp_path, capsys, arguments, words):
    assert main(["run", str(File(tmp_path, "oracle").path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_error_names_the_agent_that_was_not_started(tmp_path, capsys):
    port = free_port()
    Path("x.toml").write_text(
        f'[green_agent]\nendpoint = "http://127.0.0.1:{port}"\n'
        f'[[participants]]\nrole = "r"\nendpoint = "http://127.0.0.1:{port}"\n'
    )
    assert main(["request", f"http://127.0.0.1:{port}", '{"participants": {"r": "http://x"}}']) == 1
    assert "the green agent cannot be reached" in capsys.readouterr().err
    assert main(["run", "x.toml", "--wait", "1"]) == 2
    err = capsys.readouterr().err
    assert f"r.endpoint: no agent card at http://127.0.0.1:{port}: start the agent" in err
