"""Exports are accepted by their readers: Inspect's log API and data frames, Harbor's validator."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.agent.process import free_port
from netarena.model import Reply
from netarena.report.export import export
from netarena.run.archive import read_run

PATIENCE_S = 200
READ_LOG = """
import json, sys
from inspect_ai.analysis import evals_df, messages_df, samples_df
from inspect_ai.log import list_eval_logs, read_eval_log

def read(folder):
    (found,) = list_eval_logs(folder)
    log = read_eval_log(found)
    samples = samples_df(folder, quiet=True)
    return {
        "status": log.status, "task": log.eval.task, "model": log.eval.model,
        "rates": {one.name: one.metrics["accuracy"].value for one in log.results.scores},
        "epochs": sorted(one.epoch for one in log.samples),
        "values": {one.scores["safety"].value for one in log.samples} == {"C"},
        "targets": sum(len(one.target) for one in log.samples),
        "evals": len(evals_df(folder, quiet=True)), "samples": len(samples),
        "correct": samples["score_correctness"].tolist(),
        "messages": len(messages_df(folder, quiet=True)),
        "headline": log.results.scores[0].name,
        "calls": sum(event.event == "tool" for one in log.samples for event in one.events),
        "verdicts": sum(event.event == "score" for one in log.samples for event in one.events),
    }

print(json.dumps([read(folder) for folder in sys.argv[1:]]))
"""
VALIDATE = """
import sys
from harbor.utils.trajectory_validator import TrajectoryValidator
for path in sys.argv[1:]:
    validator = TrajectoryValidator()
    if not validator.validate(path):
        sys.exit(str(validator.errors))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def answer(prompt: str, turn: int) -> Reply:
        text = "hm" if turn == 0 else open_all(prompt, turn - 1)
        return Reply(text=text, metadata={"usage": {"input_tokens": 7, "output_tokens": 2}})

    folder = tmp_path_factory.mktemp("run")
    assess(Toy(), Scripted(answer), folder, num_queries=1, repeats=2, max_iterations=12)
    return folder


def read(python: Path, program: str, *arguments: object) -> str:
    words = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect_can_read_exported_logs(readers_python: Path, run: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "own", tmp_path / "public"]
    for folder in folders:
        public = folder.name == "public"
        export(read_run(run), "inspect", folder, public=public, force=False)
    # one process for all folders, because imports take most of the time
    told: list[dict[str, Any]] = json.loads(read(readers_python, READ_LOG, *folders))
    steps = sum(len(one.steps) for stored in read_run(run) for one in stored.episodes())
    own = {
        "status": "success",
        "task": "toy-toy_operator",
        "model": "scripted",
        "rates": {"correctness": 1.0, "safety": 1.0, "solved_safely": 1.0},
        "epochs": [1, 1, 1, 2, 2, 2],
        "values": True,
        "targets": 12,
        "evals": 1,
        "samples": 6,
        "correct": ["C"] * 6,
        "messages": 2 * steps,
        "headline": "solved_safely",
        # the first reply of each episode is refused and has no call
        "calls": steps - 6,
        "verdicts": steps - 6,
    }
    assert told == [own, own | {"targets": 0}]


@pytest.mark.requires("chromium")
def test_inspect_viewer_shows_samples_and_does_not_execute_markup_in_replies(
    readers_python: Path, tmp_path: Path
) -> None:
    from playwright.sync_api import sync_playwright

    stranger = "http://127.0.0.1:9/x.png"
    words = f"hm ![drawn]({stranger}) <img src={stranger}>"

    def answer(prompt: str, turn: int) -> str:
        return words if turn == 0 else open_all(prompt, turn - 1)

    assess(Toy(), Scripted(answer), tmp_path / "run", end_index=2, max_iterations=12)
    (log,) = export(
        read_run(tmp_path / "run"), "inspect", tmp_path / "logs", public=False, force=False
    )
    samples = [sample["id"] for sample in json.loads(log.read_text())["samples"]]
    with showing(readers_python, log.parent) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        page.get_by_text("toy-toy_operator").first.click()
        page.wait_for_url("**/tasks/**")
        # Inspect shows "Loading log…" forever if a log is opened before the list has read its
        # header. A reload solves this race of Inspect.
        page.reload()
        for name in samples:
            page.get_by_text(name).first.wait_for()
        page.get_by_text(samples[0]).first.click()
        page.get_by_text("![drawn]").first.wait_for()
        browser.close()
    assert len(samples) == 2
    assert stranger not in asked


@contextmanager
def showing(python: Path, logs: Path) -> Iterator[str]:
    """Yield the address of Inspect's viewer of a folder."""
    port = free_port()
    words = [python.parent / "inspect", "view", "start", "--log-dir", logs, "--display", "plain"]
    words += ["--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL) as viewer:
        try:
            end = time.monotonic() + PATIENCE_S
            while viewer.poll() is None and time.monotonic() < end:
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/"
        finally:
            viewer.terminate()


@pytest.mark.requires("harbor")
def test_harbor_validates_exported_trajectories(
    readers_python: Path, run: Path, tmp_path: Path
) -> None:
    paths = export(read_run(run), "atif", tmp_path, public=False, force=False)
    read(readers_python, VALIDATE, *paths)
    broken = json.loads(paths[0].read_text())
    broken["steps"][0]["step_id"] = 7
    paths[0].write_text(json.dumps(broken))
    with pytest.raises(AssertionError, match="step_id"):
        read(readers_python, VALIDATE, paths[0])
