"""Options of ``netarena run`` that choose the executor."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy

from netarena.agent.backoff import Backoff
from netarena.agent.process import free_port
from netarena.cli import COMMANDS, check_agent, executor, main
from netarena.cli.executor import UrlSource
from netarena.config import Config
from netarena.errors import AgentFailed

CHECK = "check-agent http://10.0.0.1:1 --application toy --from-workers"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "--workers: needs --executor ray"),
        (["--ray-address", "auto"], "--ray-address: needs --executor ray"),
        (["--executor", "ray", "--verbose"], "--verbose: cannot be combined with --executor ray"),
        (
            ["--executor", "ray", "--max-cost", "1"],
            "--max-cost: cannot be combined with --executor ray",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--agent-cmd", "x {port}"],
            "--agent-cmd: serves the agent on 127.0.0.1, which workers on other nodes cannot reach",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--over-a2a"],
            "--over-a2a: serves the agent on 127.0.0.1",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--agent", "http://127.0.0.1:9010"],
            "--agent: http://127.0.0.1:9010 is a different address on each node",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--agent", "http://localhost:9010"],
            "--agent: http://localhost:9010 is a different address on each node",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--agent", "http://[::1"],
            "--agent: must be an http or https URL with a valid host and port",
        ),
        (
            ["--executor", "ray", "--ray-address", "a:1", "--agent", "//[::1"],
            "--agent: '//[::1' is neither a URL nor one of",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "toy", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "--workers: needs --from-workers"),
        (["--ray-address", "a:1"], "--ray-address: needs --from-workers"),
        (["--from-workers"], "--from-workers: needs --application"),
        (
            ["--from-workers", "--application", "toy", "--ray-address", "a:1"],
            "URL: http://127.0.0.1:1 is a different address on each node",
        ),
    ],
)
def test_options_of_check_agent_that_exclude_each_other_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-agent", "http://127.0.0.1:1", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--ray-address", "a:1"]])
@pytest.mark.parametrize("url", ["http://[::1", "//[::1", "127.0.0.1:9010"])
def test_malformed_url_for_workers_is_refused(
    url: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-agent", url, "--application", "toy", "--from-workers", *options]) == 2
    assert "URL: must be an http or https URL" in capsys.readouterr().err


def test_workers_do_not_check_an_agent_whose_card_was_not_received(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("netarena.run.ray_pool.check_ray", lambda *_: None, raising=False)
    monkeypatch.setattr(check_agent, "_CARD_S", 0.2)
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--application", "toy", "--from-workers", "--json"]
    assert main(["check-agent", url, *options]) == 1
    (row,) = json.loads(capsys.readouterr().out)["checks"]
    assert (row["name"], row["ok"]) == ("card", False)


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_help_of_an_option_names_only_options_of_its_command(name: str) -> None:
    module = next(module for one, module, _ in COMMANDS if one == name)
    command = import_module(module).command
    known = {text for option in command.params for text in (*option.opts, *option.secondary_opts)}
    helped = " ".join(getattr(option, "help", None) or "" for option in command.params)
    assert {*re.findall(r"(?<![\w-])--[a-z][\w-]*", helped)} <= known


async def _open(port: int) -> None:
    card = "/.well-known/agent-card.json", b""
    agent = UrlSource(f"http://127.0.0.1:{port}", None, card).make(
        Toy(), Config(), "toy_operator", Backoff()
    )
    try:
        await agent.open(timeout_s=10)
    finally:
        await agent.aclose()


def test_worker_that_cannot_connect_to_the_agent_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "_PROBE_S", 0.2)
    with pytest.raises(AgentFailed, match=r"not reachable for 0\.2 s"):
        asyncio.run(_open(free_port()))


def test_worker_accepts_an_agent_that_is_too_busy_to_send_its_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "_PROBE_S", 0.2)
    # the kernel accepts the connection, and no program answers
    with socket.create_server(("127.0.0.1", 0)) as server:
        asyncio.run(_open(server.getsockname()[1]))


def test_service_runs_its_assessments_on_workers_with_option_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("netarena.a2a.server.serve", lambda app, **how: told.append(how))
    monkeypatch.setattr("netarena.run.ray_pool.check_ray", lambda *_: None)
    assert main(["serve", "toy", "--executor", "ray"]) == 0
    assert main(["serve", "toy"]) == 0
    assert ["conduct" in how for how in told] == [True, False]


@pytest.mark.parametrize(
    "command",
    [
        "run toy --executor ray --seed 1 --out {out}",
        "run toy --executor ray --seed 1 --out {out} --agent oracle",
        "serve toy --executor ray --port 0 --out {out}",
        "check-agent http://127.0.0.1:1 --application toy --from-workers",
    ],
)
def test_missing_ray_is_reported_in_one_line_with_the_install_command(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("netarena.a2a.server.run_app", lambda *_: None)
    assert main(command.format(out=tmp_path / "run").split()) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    option = "--from-workers" if command.startswith("check") else "--executor"
    need = 'workers need the package ray, which is not installed: pip install "netarena[ray]"'
    assert f"{option}: {need}" in told.err
    assert not told.out


@pytest.mark.parametrize("command", ["serve toy --executor ray --port 0", CHECK])
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:{port}", "cannot connect to 127.0.0.1:{port} (Connection refused)"),
        ("nonsense", "must be HOST:PORT or auto, not 'nonsense'"),
    ],
)
def test_cluster_that_cannot_be_reached_is_reported_before_anything_starts(
    address: str,
    message: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", module_from_spec(ModuleSpec("ray", None)))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr("netarena.a2a.server.run_app", lambda *_: None)
    port = free_port()
    assert main([*command.split(), "--ray-address", address.format(port=port)]) == 2
    told = capsys.readouterr()
    assert f"--ray-address: {message.format(port=port)}" in told.err
    assert not told.out


def test_ray_cluster_is_refused_if_its_token_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    options = ["--executor", "ray", "--ray-address", "127.0.0.1:6379", "--seed", "1"]
    assert main(["run", "toy", *options, "--out", str(tmp_path / "run")]) == 2
    assert "--ray-address: the cluster's token is missing" in capsys.readouterr().err
