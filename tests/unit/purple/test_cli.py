from __future__ import annotations

import subprocess
import sys

import pytest

import a2a_purple.scripted
from a2a_purple import llm
from a2a_purple.cli import LANGUAGE, SCRIPTED, main
from netarena.config import Config
from tests.fake.parrot import Parrot

KNOWN = "plain, react, oracle, noop, random, hostile, blanket, parser, heuristic"
NO_MODEL = (
    "--model: must be given (or MODEL_NAME set) for a language model; for a scripted agent, "
    f"--strategy must be one of {KNOWN.removeprefix('plain, react, ')}"
)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in ("MODEL_NAME", "MODEL_API_BASE", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NETARENA_HOST", raising=False)


def test_each_strategy_has_an_implementation():
    assert all(hasattr(a2a_purple.scripted, name.capitalize()) for name in SCRIPTED)
    assert tuple(llm.STRATEGIES) == LANGUAGE


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            [],
            NO_MODEL,
        ),
        (
            ["--strategy", "react"],
            "--model: react needs a model: give --model or set MODEL_NAME",
        ),
        (
            ["--model", "openai/m", "--seed", "1"],
            "--seed and --set apply only to scripted agents, not to --strategy plain: omit them",
        ),
        (
            ["--model", "openai/m", "--parameter", "temperature"],
            "--parameter: must be KEY=VALUE, not 'temperature'",
        ),
        (
            ["--model", "openai/m", "--parameter", "stream=false"],
            "--parameter: must not set stream",
        ),
        (
            ["--model", "openai/m"],
            "--model: openai/m by openai needs OPENAI_API_KEY to be set",
        ),
        (
            ["--strategy", "cot"],
            f"--strategy: 'cot' is not one of {KNOWN}",
        ),
        (
            ["--strategy", "oracle"],
            "--seed: oracle needs the assessment's seed, which its summary shows",
        ),
        (
            ["--strategy", "oracle", "--seed", "1", "--set", "num_queries"],
            "--set: must be KEY=VALUE, not 'num_queries'",
        ),
        (
            ["--strategy", "noop", "--set", "=1"],
            "--set: must be KEY=VALUE, not '=1'",
        ),
        (
            ["--port", "65536"],
            "Invalid value for '--port': 65536 is not in the range 0<=x<=65535.",
        ),
    ],
)
def test_invalid_argument_is_reported_in_one_line(arguments, line, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"netarena-purple: error: {line}\n")


def test_model_without_a_provider_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("MODEL_NAME", "gpt-x")
    assert main([]) == 2
    assert "--model: 'gpt-x' does not name a provider: write" in capsys.readouterr().err


def test_missing_purple_extra_is_reported_with_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "litellm", None)
    assert main(["--model", "openai/m"]) == 2
    assert 'pip install "netarena[purple]"' in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "streaming"), [([], True), (["--no-stream"], False)])
def test_no_stream_option_disables_streaming(arguments, streaming, served, monkeypatch):
    given = []
    monkeypatch.setattr("a2a_purple.provider.Provider", lambda model, **how: given.append(how))
    assert main(["--model", "openai/m", *arguments]) == 0
    assert [how["streaming"] for how in given] == [streaming]


def test_model_is_served_with_the_chosen_strategy(served, monkeypatch):
    monkeypatch.setenv("MODEL_NAME", "openai/m")
    monkeypatch.setenv("MODEL_API_BASE", "http://localhost:1/v1")
    assert main(["--strategy", "react", "--parameter", "temperature=0"]) == 0
    ((agent, how),) = served
    assert agent.info.name == how["name"] == "netarena-react"
    assert "openai/m" in how["description"]


def test_help_imports_no_sdk_and_no_application():
    code = (
        "import sys\n"
        "from a2a_purple.cli import main\n"
        "main(['--help'])\n"
        "print(sorted({'a2a', 'pydantic', 'networkx', 'httpx', 'litellm'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--strategy" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.fixture
def served(monkeypatch):
    """Collect the agents that would be served, with the options."""
    calls = []
    monkeypatch.setattr(
        "netarena.a2a.purple.serve_agent", lambda agent, **how: calls.append((agent, how))
    )
    monkeypatch.setattr("netarena.task.application.load", lambda name: Parrot())
    monkeypatch.setattr("netarena.agent.interface.load_agent", lambda name, brief: (name, brief))
    return calls


def test_scripted_agent_is_served_with_its_brief(served):
    arguments = "--strategy oracle --application parrot --seed 7 --set num_queries=3 --role r"
    address = "--host 0.0.0.0 --port 0 --card-url http://proxy/agent"
    assert main(f"{arguments} {address}".split()) == 0
    (((name, brief), how),) = served
    assert name == "oracle"
    assert (brief.application.name, brief.config, brief.seed, brief.role) == (
        "parrot",
        Config(num_queries=3),
        7,
        "r",
    )
    assert (how["host"], how["port"], how["card_url"]) == ("0.0.0.0", 0, "http://proxy/agent")


def test_role_and_address_have_defaults(served):
    assert main(["--strategy", "noop", "--application", "parrot"]) == 0
    (((_, brief), how),) = served
    assert brief.role == "parrot_operator"
    assert (how["host"], how["port"], how["card_url"]) == ("127.0.0.1", 9009, None)


def test_environment_variable_sets_the_host(served, monkeypatch):
    monkeypatch.setenv("NETARENA_HOST", "0.0.0.0")
    assert main(["--strategy", "noop", "--application", "parrot"]) == 0
    assert served[0][1]["host"] == "0.0.0.0"


def test_process_ends_when_its_standard_input_is_closed():
    code = (
        "import os, sys, threading\n"
        "import a2a_purple.cli as cli\n"
        "import netarena.a2a.purple as purple\n"
        "import netarena.task.application as application\n"
        "from tests.fake.parrot import Parrot\n"
        "application.load = lambda name: Parrot()\n"
        "cli.main(['--strategy', 'noop', '--application', 'p', '--port', '0',\n"
        "          '--until-stdin-closes'])\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(b"http://127.0.0.1:")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.stdin.close()
            process.wait(30)
        finally:
            process.kill()


def test_unknown_config_key_is_refused(served, capsys):
    assert main(["--strategy", "noop", "--application", "parrot", "--set", "nonsense=1"]) == 2
    assert "error: config.nonsense: unknown key; known keys: " in capsys.readouterr().err
    assert not served


def test_single_installed_application_is_chosen_without_an_option(served, monkeypatch):
    monkeypatch.setattr("netarena.task.application.application_names", lambda: ["parrot"])
    assert main(["--strategy", "noop"]) == 0
    assert served


def test_several_installed_applications_require_the_application_option(served, monkeypatch, capsys):
    monkeypatch.setattr("netarena.task.application.application_names", lambda: ["malt", "parrot"])
    assert main(["--strategy", "noop"]) == 2
    assert "--application: must be one of malt, parrot" in capsys.readouterr().err
