"""A run that was killed at any moment has the same result after it is resumed.

Some of the moments are in the middle of a journal line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from netarena.run.journal import read_journal

#: agent that can open only five of eight valves, so it always solves the same queries
CHILD = """
import asyncio, sys
from pathlib import Path
from netarena_toy import Toy
from netarena.run.assessment import conduct
from netarena.model import AgentInfo, Reply

class Agent:
    info = AgentInfo(name="five")
    turns = {}
    async def open(self, *, timeout_s): pass
    async def aclose(self): pass
    async def ask(self, prompt, *, context_id, timeout_s):
        turn = self.turns[context_id] = self.turns.get(context_id, 0) + 1
        await asyncio.sleep(0.002)
        return Reply(text=f"open v{turn}")

async def main():
    toy = Toy()
    values = {"num_queries": 8, "concurrency": 2, "max_iterations": 5, "resume": True, "seed": 11}
    async with toy:
        await conduct(toy, Toy.config_type.parse(values), {"toy_operator": Agent()},
                      out=Path(sys.argv[1]))

asyncio.run(main())
"""


def run(out: Path) -> None:
    subprocess.run([sys.executable, "-c", CHILD, str(out)], check=True, timeout=60)


def kill_at(out: Path, size: int) -> None:
    """Start a run, and kill it as soon as its journal has ``size`` bytes."""
    journal = out / "journal.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(out)])
    deadline = time.monotonic() + 60
    try:
        while child.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.stat().st_size >= size:
                child.send_signal(signal.SIGKILL)
                break
            os.sched_yield()
    finally:
        child.kill()
        child.wait()


def verdicts(out: Path) -> dict[str, Any]:
    results = json.loads((out / "results.json").read_text())["results"]
    keys = ("outcome", "success", "safe", "iterations")
    return {record["id"]: [record[key] for key in keys] for record in results[:-1]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    run(out)
    return out


def test_reference_run_has_solved_and_unsolved_queries(whole: Path) -> None:
    assert {verdict[0] for verdict in verdicts(whole).values()} == {"solved", "unsolved"}


@pytest.mark.parametrize("share", [0.001, 0.03, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.999])
def test_resumed_run_that_was_killed_at_any_time_has_the_same_verdicts(
    share: float, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    kill_at(out, int((whole / "journal.jsonl").stat().st_size * share))
    before = read_journal(out / "journal.jsonl")
    half_done = [query for query in before.starts if query not in before.episodes]
    run(out)
    assert verdicts(out) == verdicts(whole)
    after = read_journal(out / "journal.jsonl")
    for query in half_done:
        assert after.episodes[query].interrupted == 1
        assert after.episodes[query].attempt == 1
    assert len(after.episodes) == 24
    assert json.loads((out / "results.json").read_text())["results"][-1]["complete"]


def test_resumed_run_that_was_killed_twice_with_a_truncated_line_has_the_same_verdicts(
    whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    journal = out / "journal.jsonl"
    size = (whole / "journal.jsonl").stat().st_size
    kill_at(out, size // 4)
    for share in (0.5, 0.75):
        os.truncate(journal, journal.stat().st_size - 37)
        kill_at(out, int(size * share))
    os.truncate(journal, journal.stat().st_size - 1)
    run(out)
    assert verdicts(out) == verdicts(whole)
