"""A leaderboard's scenario in containers: compose file, images, a language model, results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from netarena.cli import main

ROOT = Path(__file__).parents[2]
#: a first build installs packages
BUILD_S = 600
ASSESS_S = 400
IMAGES = {
    "netarena-malt": "Dockerfile.malt",
    "netarena-purple": "a2a_purple/Dockerfile",
}
#: a model that answers every question alike, in a container of the purple agent's image
SERVER = """\
import sys
sys.path.insert(0, "/stub")
from http.server import ThreadingHTTPServer
import provider
code = "```python\\ndef process_graph(graph_data):\\n"
code += "    return {'type': 'text', 'data': 1, 'updated_graph': graph_data}\\n```"
stub = provider.Stub({}, lambda _: code)
handler = type("Bound", (provider.Handler,), {"stub": stub})
ThreadingHTTPServer(("0.0.0.0", 8000), handler).serve_forever()
"""
MODEL = """\
services:
  model:
    image: netarena-purple:test
    entrypoint: [python, /stub/serve.py]
    volumes: ["./stub:/stub:ro"]
"""


def docker(*arguments: str, folder: Path, timeout_s: float, **environ: str) -> str:
    done = subprocess.run(
        ["docker", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_S + ASSESS_S)
@pytest.mark.requires("docker")
def test_the_images_of_a_leaderboard_scenario_yield_results(tmp_path):
    base = os.environ.get("NETARENA_BASE_IMAGE")
    options = ["--build-arg", f"BASE_IMAGE={base}"] if base else []
    for image, file in IMAGES.items():
        command = ["build", "--quiet", "--file", file, "--tag", f"{image}:test", *options, "."]
        docker(*command, folder=ROOT, timeout_s=BUILD_S)

    text = (ROOT / "scenarios" / "malt" / "leaderboard.toml").read_text()
    for image in IMAGES:
        text = text.replace(f'"{image}"', f'"{image}:test"')
    text = text.replace(
        "env = { MODEL_NAME", 'env = { MODEL_API_BASE = "http://model:8000/v1", MODEL_NAME'
    )
    text = text.replace("num_queries = 4", "num_queries = 1")
    (tmp_path / "board.toml").write_text(text)
    assert main(["compose", str(tmp_path / "board.toml"), "--out", str(tmp_path / "a.yaml")]) == 0
    (tmp_path / "b.yaml").write_text(MODEL)
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub" / "serve.py").write_text(SERVER)
    shutil.copy(ROOT / "tests" / "fake" / "provider.py", tmp_path / "stub")
    (tmp_path / "output").mkdir()

    compose = ["compose", "-p", f"netarena-{uuid.uuid4().hex[:8]}", "-f", "a.yaml", "-f", "b.yaml"]
    environ = {"NETARENA_SEED": "secret", "MODEL_NAME": "openai/m", "OPENAI_API_KEY": "k"}
    up = ["up", "--pull", "never", "--abort-on-container-exit", "--exit-code-from", "assessment"]
    try:
        docker(*compose, *up, folder=tmp_path, timeout_s=ASSESS_S, **environ)
    finally:
        docker(*compose, "down", "--volumes", folder=tmp_path, timeout_s=120, **environ)
    document = json.loads((tmp_path / "output" / "results.json").read_text())
    assert document["participants"] == {"malt_operator": "http://malt-operator:9009/"}
    *records, summary = document["results"]
    assert len(records) == 12
    assert {record["outcome"] for record in records} == {"unsolved"}
    assert summary["agent_input_tokens"] == 12 * 11
