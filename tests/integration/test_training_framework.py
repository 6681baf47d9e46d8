"""Each training framework is run in its own environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "benchmarks" / "recipes").glob("*.toml"))
pytestmark = pytest.mark.slow


def play(framework: str, *arguments: str) -> str:
    """Return the output of ``tests/training/play_FRAMEWORK.py``, which must exit with 0."""
    folder = ROOT / f".venv-{framework}" / "bin"
    # verifiers starts its chat program with uv, among others
    path = os.pathsep.join([str(folder), str(ROOT / ".venv" / "bin"), os.environ["PATH"]])
    done = subprocess.run(
        [folder / "python", ROOT / "tests" / "training" / f"play_{framework}.py", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.requires("gymnasium", "landlock", "seccomp", "cell")
def test_gymnasium_accepts_the_environments_and_runs_several_concurrently():
    assert play("gymnasium", "Malt-v0", "K8s-v0") == "ok"


@pytest.mark.requires("openenv")
def test_openenv_clients_have_their_own_sessions():
    assert play("openenv") == "ok"


@pytest.mark.requires("verifiers")
def test_verifiers_runs_an_episode_with_a_model():
    assert play("verifiers") == "ok"


@pytest.mark.requires("trl", "landlock", "seccomp", "netns")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_dry_run_of_a_recipe_finds_no_errors(recipe):
    program = ROOT / "benchmarks" / "train_model.py"
    done = subprocess.run(
        [ROOT / ".venv-trl" / "bin" / "python", program, recipe, "--dry-run"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert told >= {"world", "tokens"}
    text = recipe.read_text(encoding="utf-8")
    assert {name for name in ("sft", "grpo") if f"[{name}]" in text} == {
        name.lower() for name in told & {"SFT", "GRPO"}
    }


@pytest.mark.requires("trl")
def test_trl_trains_a_model_with_netarena_rewards(tmp_path):
    assert play("trl", str(tmp_path)) == "ok"
