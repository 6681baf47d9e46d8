"""Episodes on Ray have the same verdicts as in one process, and Ray's ports require a token."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-ray" / "bin" / "python"
#: applications, and what their episodes need
NEEDS = {
    "malt": ("landlock", "seccomp"),
    "k8s": ("cell",),
    "route": ("episodes",),
    "backbone": ("episodes", "backbone"),
}
#: 127.0.0.1 in /proc/net/tcp and /proc/net/tcp6
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
pytestmark = [pytest.mark.slow, pytest.mark.requires("ray"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, lacking: Callable[[str], str]) -> dict[str, Any]:
    """Return the results of ``ray_run.py`` with the applications that this machine can run."""
    names = [name for name, needs in NEEDS.items() if not any(map(lacking, needs))]
    out = tmp_path_factory.mktemp("ray")
    path = os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]])
    done = subprocess.run(
        [PYTHON, ROOT / "tests" / "fake" / "ray_run.py", out, *names],
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", NEEDS)
def test_verdicts_and_findings_and_moves_on_ray_workers_equal_those_of_one_process(
    name: str, told: dict[str, Any], requirement: Callable[[str], None]
) -> None:
    for need in NEEDS[name]:
        requirement(need)
    played = told["apps"][name]
    assert played["there"] == played["here"]
    assert len(played["here"]) >= 2


@pytest.mark.parametrize(
    ("how", "reason"), [("killed", "signal 9"), ("stopped", "it did not answer for 10 s")]
)
def test_lost_worker_affects_only_its_own_episodes_and_each_has_an_outcome(
    how: str, reason: str, told: dict[str, Any]
) -> None:
    episodes = told[how]["episodes"]
    assert len(episodes) == 12
    assert not told[how]["left"]
    lost = [one for one in episodes if reason in one["verdict"][4] or one["attempt"]]
    assert len(lost) in {1, 2}
    assert {one["outcome"] for one in episodes} <= {"solved", "unsolved"}
    # the agent opens only the first valve
    others = [one for one in episodes if one not in lost]
    assert all(one["moves"][0] == "open v1" for one in others), others


def test_program_of_an_agent_gets_no_environment_variables_of_ray(told: dict[str, Any]) -> None:
    assert "NETARENA_CONTEXT=" in told["killed"]["environ"]
    assert "RAY_" not in told["killed"]["environ"]


def test_token_is_readable_by_its_owner_only_and_removed_at_the_end(told: dict[str, Any]) -> None:
    assert told["modes"] == ["0o600", "0o700"]
    assert not told["left"]


def known(port: dict[str, Any]) -> set[str]:
    """Return the services of a port: those that ask for a token or answer a call."""
    return {
        method.partition("/")[0]
        for method, answers in port["calls"].items()
        if {"no token", "ok", "other"} & {*answers}
    }


def test_no_port_of_ray_serves_a_call_without_the_token(told: dict[str, Any]) -> None:
    assert len(told["ports"]) >= 5
    assert {port["address"] for port in told["ports"]} <= LOOPBACK
    served = set()
    for port in told["ports"]:
        for method, (without, wrong, *right) in port["calls"].items():
            if method.partition("/")[0] in known(port):
                assert without == wrong == "no token", (port, method)
                served.add(method.partition("/")[0])
            assert {without, wrong} <= {"no token", "no such call"}, (port, method)
            if right == ["ok"]:  # the call works with the token
                assert without == wrong == "no token", (port, method)
                served.add(method)
        assert set(port["http"][:2]) <= {"401", "403", "no answer"}, port
    # Ray's runtime environment agent uses HTTP
    assert ["401", "403", "200"] in [port["http"] for port in told["ports"]]
    assert served >= {
        "CoreWorkerService",
        "CoreWorkerService/GetCoreWorkerStats",
        "NodeManagerService",
        "NodeManagerService/GetNodeStats",
        "NodeInfoGcsService",
        "NodeInfoGcsService/GetAllNodeInfo",
    }
