"""The leaderboard's workflow with real containers: compose file, images, a model, results."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.fake.runner import NOTES, run_job
from tests.integration.test_image import KUBECONFIG, SHOP

ROOT = Path(__file__).parents[2]
ASSESS = ROOT / "scenarios" / "leaderboard" / ".github" / "workflows" / "assess.yml"
#: the first build installs packages
BUILD_S = 600
ASSESS_S = 400


@dataclass(frozen=True)
class Board:
    """A shortened leaderboard scenario, with mounts, and a model that solves nothing."""

    application: str
    #: the model's reply to every prompt
    reply: str
    #: number of records
    queries: int
    #: config keys, with values in TOML
    config: dict[str, str]
    #: additions to the green agent's environment and mounts
    env: str = ""
    volumes: tuple[str, ...] = ()
    #: contents of the folder ``mount``
    files: dict[str, str] = field(default_factory=dict)

    def scenario(self) -> str:
        """Write ``scenarios/APP/leaderboard.toml`` with these settings."""
        path = ROOT / "scenarios" / self.application / "leaderboard.toml"
        head, config = path.read_text().split("[config]")
        head = re.sub(r'image = "([\w-]+)"', r'image = "\1:test"', head)
        head = head.replace("env = { NETARENA_SEED", f"env = {{ {self.env}NETARENA_SEED")
        head = head.replace(
            "\n\n[[participants]]", f"\nvolumes = {json.dumps(self.volumes)}\n\n[[participants]]"
        )
        head = head.replace(
            "env = { MODEL_NAME", 'env = { MODEL_API_BASE = "http://model:8000/v1", MODEL_NAME'
        )
        kept = [line for line in config.splitlines() if line.split(" ")[0] not in self.config]
        lines = [f"{key} = {value}" for key, value in self.config.items()]
        return head + "[config]" + "\n".join([*kept, *lines, ""])


BOARDS = (
    Board(
        "malt",
        "```python\ndef process_graph(graph_data):\n"
        "    return {'type': 'text', 'data': 1, 'updated_graph': graph_data}\n```",
        queries=12,
        config={"num_queries": "1", "phrasing": '"held_out"'},
        env='NETARENA_PHRASING_PACK = "/data/pack.json", ',
        volumes=("./mount/pack.json:/data/pack.json:ro",),
        files={"pack.json": (ROOT / "docs" / "phrasing-pack.example.json").read_text()},
    ),
    Board(
        "route",
        '{"machine": "r0", "command": "ip route"}',
        queries=15,
        config={"num_queries": "1", "max_iterations": "2"},
        volumes=("./mount:/netarena-runs",),
    ),
    Board(
        "k8s",
        "```kubectl get networkpolicies```",
        queries=2,
        config={
            "num_queries": "2",
            "max_iterations": "2",
            "error_types": '["change_port"]',
            "cluster": '"embedded"',
            "microservice_dir": '"/data/shop"',
        },
        env='KUBECONFIG = "/kube/config", ',
        volumes=("${FOLDER}/mount/kube:/kube:ro", "./mount/shop:/data/shop:ro"),
        files={"kube/config": KUBECONFIG, "kube/ca.crt": "none", "shop/shop.yaml": SHOP},
    ),
)
#: program that gives every request the same reply, in a container of the purple agent's image
SERVER = """\
import sys
sys.path.insert(0, "/stub")
from http.server import ThreadingHTTPServer
import provider
stub = provider.Stub({{}}, lambda _: {reply!r})
handler = type("Bound", (provider.Handler,), {{"stub": stub}})
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


def build(image: str, file: str) -> None:
    base = os.environ.get("NETARENA_BASE_IMAGE")
    options = ["--build-arg", f"BASE_IMAGE={base}"] if base else []
    command = ["build", "--quiet", "--file", file, "--tag", f"{image}:test", *options, "."]
    docker(*command, folder=ROOT, timeout_s=BUILD_S)


def drawn(board: Board, summary: dict[str, Any], folder: Path) -> set[str]:
    """Return the ids of the queries that this machine draws for the same seed, keys and mounts."""
    pairs = [f"--set={key}={value}" for key, value in board.config.items()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "netarena.cli", "queries", board.application, "--public"),
            *("--seed", str(summary["seed"]), *pairs),
        ],
        env={**os.environ, "NETARENA_PHRASING_PACK": str(folder / "mount" / "pack.json")},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return {json.loads(line)["id"] for line in done.stdout.splitlines()}


@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_S + ASSESS_S)
@pytest.mark.requires("docker")
@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.application)
def test_leaderboard_workflow_with_real_images_stores_results(board, tmp_path):
    build(f"netarena-{board.application}", f"Dockerfile.{board.application}")
    build("netarena-purple", "a2a_purple/Dockerfile")
    folder = tmp_path / "board"
    (folder / "stub").mkdir(parents=True)
    (folder / "stub" / "serve.py").write_text(SERVER.format(reply=board.reply))
    shutil.copy(ROOT / "tests" / "fake" / "provider.py", folder / "stub")
    (folder / "model.yaml").write_text(MODEL)
    (folder / "mount").mkdir()
    for name, text in board.files.items():
        (folder / "mount" / name).parent.mkdir(exist_ok=True)
        (folder / "mount" / name).write_text(text)
    (folder / "scenario.toml").write_text(board.scenario())
    environ = {
        "COMPOSE_FILE": "compose.yaml:model.yaml",
        "COMPOSE_PROJECT_NAME": f"netarena-{uuid.uuid4().hex[:8]}",
        "FOLDER": str(folder),
        "GITHUB_REF_NAME": "mine",
        "GITHUB_RUN_ID": "1",
        "GITHUB_ACTOR": "me",
    }
    values = {
        "secrets.NETARENA_SEED": "secret",
        "vars.MODEL_NAME": "openai/m",
        "secrets.OPENAI_API_KEY": "k",
        "github.token": "t",
    }
    # tests/unit/test_workflow.py tests the rest of the workflow
    commands = dict.fromkeys(("pip", "git", "gh"), NOTES)
    try:
        run_job(
            *(ASSESS, "assess", folder),
            values=values,
            commands=commands,
            environ=environ,
            timeout_s=ASSESS_S,
        )
    finally:
        told = {"NETARENA_SEED": "", "MODEL_NAME": "", "OPENAI_API_KEY": "", **environ}
        told = {name: value or "x" for name, value in told.items()}
        docker("compose", "down", "--volumes", folder=folder, timeout_s=120, **told)
    document = json.loads((folder / "results" / "mine-1.json").read_text())
    role = f"{board.application}_operator"
    assert document["participants"] == {role: f"http://{board.application}-operator:9009/"}
    *records, summary = document["results"]
    assert len(records) == board.queries
    assert {record["outcome"] for record in records} == {"unsolved"}
    assert summary["agent_input_tokens"] >= 11 * board.queries
    if board.application == "malt":  # the ids depend on the mounted folder
        assert {record["id"] for record in records} == drawn(board, summary, folder)
    elif board.application == "k8s":  # the only service in the mounted folder
        assert all("api" in json.dumps(record["error_detail"]) for record in records)
    else:
        assert len(list((folder / "mount").glob("*/journal.jsonl"))) == 1
