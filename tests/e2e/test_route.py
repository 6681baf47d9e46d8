"""Route from end to end: a served agent that sees only prompts, and the files of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.requires("episodes")

#: a fault on a host, one on the router, a pair, and a kind that the checklist does not cover
KINDS = ["host_gateway", "disable_interface", "disable_routing+remove_ip", "router_neighbour"]


def netarena(*arguments: object, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "netarena", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def examine(agent: str, out: Path, *more: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records by label, and the summary."""
    printed = netarena(
        "run", "route", "--agent", agent, "--seed", 3, "--out", out, "--json",
        "--set", "emulator=netns", "--set", "world=varied", "--set", "concurrency=2",
        "--set", f"error_types={json.dumps(KINDS)}", *more,
    )  # fmt: skip
    *records, summary = json.loads(printed)["results"]
    return sorted(records, key=lambda record: KINDS.index(record["error_type"])), summary


def test_regraded_run_of_a_served_operator_has_the_same_verdicts(tmp_path: Path) -> None:
    # the last of two seeds counts; with this seed, the agent is always safe
    more = ("--over-a2a", "--set", "max_iterations=8", "--seed", 7)
    records, summary = examine("heuristic", tmp_path, *more)
    assert [record["error_type"] for record in records] == KINDS
    assert summary["complete"]
    assert summary["invalid"] == []
    assert summary["avg_safety"] == 1
    # the checklist covers both faults: one on a host, one on the router
    assert [record["success"] for record in records[:2]] == [True, True]
    for record in records:
        assert record["log_content"].startswith("Pingall result:\n")
        assert "Command: ip -o link; " in record["log_content"]
        assert record["iterations"] <= 8
    assert "0 verdicts and 0 explanations differ" in netarena("regrade", tmp_path)
    assert "heuristic" in netarena("report", tmp_path)


@pytest.mark.timeout(500)  # two runs with generous time limits for a busy machine
def test_blanket_agent_solves_queries_only_if_the_intended_state_is_fixed(
    tmp_path: Path,
) -> None:
    few = ("--set", "max_iterations=4")
    varied, _ = examine("blanket", tmp_path / "varied", *few)
    standard, _ = examine("blanket", tmp_path / "standard", "--set", "world=standard", *few)
    assert not any(record["success"] and record["safe"] for record in varied)
    assert sum(record["success"] and record["safe"] for record in standard) >= 3
