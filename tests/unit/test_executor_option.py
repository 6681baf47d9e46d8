"""Options of ``netarena run`` that choose the executor."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy

from netarena.agent.process import free_port
from netarena.cli import executor, main
from netarena.cli.executor import UrlSource
from netarena.config import Config
from netarena.errors import AgentFailed


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


async def _open(port: int) -> None:
    card = "/.well-known/agent-card.json", b""
    agent = UrlSource(f"http://127.0.0.1:{port}", None, card).make(Toy(), Config(), "toy_operator")
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


def test_service_conducts_its_assessments_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr("netarena.a2a.server.serve", lambda app, **how: told.append(how))
    assert main(["serve", "toy", "--executor", "ray"]) == 0
    assert main(["serve", "toy"]) == 0
    assert ["conduct" in how for how in told] == [True, False]


def test_missing_ray_is_one_line_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ["--executor", "ray", "--seed", "1", "--out", str(tmp_path / "run")]
    assert main(["run", "toy", *options]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert '--executor: ray needs ray, which is not installed: pip install "netarena[ray]"' in told


def test_cluster_without_a_token_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    options = ["--executor", "ray", "--ray-address", "127.0.0.1:6379", "--seed", "1"]
    assert main(["run", "toy", *options, "--out", str(tmp_path / "run")]) == 2
    assert "--ray-address: the cluster's token is missing" in capsys.readouterr().err
