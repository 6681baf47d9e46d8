"""Workflows run: each script of each job, with fakes for the parts that need the network."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from netarena.cli import main
from netarena.cli.run import command as run_command
from tests.fake.runner import NOTES, run_job

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
TEST = ROOT / ".github" / "workflows" / "test.yml"
BOARD = ROOT / "scenarios" / "leaderboard"
ASSESS = BOARD / ".github" / "workflows" / "assess.yml"
IMAGES = yaml.safe_load(RELEASE.read_text())["jobs"]["image"]["strategy"]["matrix"]["include"]
SECRETS = {
    "secrets.NETARENA_SEED": "secret",
    "secrets.OPENAI_API_KEY": "key",
    "vars.MODEL_NAME": "openai/m",
    "vars.PURPLE_IMAGE": "me/purple:1",
    "github.token": "t",
}


def git(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=me", "-c", "user.email=me@example.org", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_pushed_scenario_is_assessed_and_its_results_are_proposed(tmp_path):
    """The containers are replaced here; tests/integration/test_compose.py includes them."""
    assert main(["run", "toy", "--agent", "noop", "--seed", "1", "--out", f"{tmp_path}/ran"]) == 0
    origin, folder = tmp_path / "origin.git", tmp_path / "board"
    git("init", "--quiet", "--bare", str(origin), folder=tmp_path)
    git("clone", "--quiet", str(origin), str(folder), folder=tmp_path)
    (folder / "scenario.toml").write_text((BOARD / "scenario.toml").read_text())
    git("checkout", "--quiet", "-b", "mine", folder=folder)
    git("add", ".", folder=folder)
    git("commit", "--quiet", "-m", "An agent.", folder=folder)
    # replacement of docker: requires a compose file, and all variables that the file uses
    compose = (
        f"{NOTES}test -s compose.yaml\n"
        "for name in $(grep -o '{[A-Z_]*:?' compose.yaml | tr -d '{:?'); do\n"
        '  test -n "${!name}"\n'
        "done\n"
        f"cp {shlex.quote(str(tmp_path / 'ran' / 'results.json'))} output/\n"
    )
    calls = run_job(
        *(ASSESS, "assess", folder),
        values=SECRETS,
        commands={"pip": NOTES, "gh": NOTES, "docker": f"set -e\n{compose}"},
        environ={"GITHUB_REF_NAME": "mine", "GITHUB_RUN_ID": "7", "GITHUB_ACTOR": "me"},
    )
    assert [call.split()[0] for call in calls] == ["pip", "docker", "gh"]
    install, up, propose = calls
    assert install.endswith(
        "netarena[leaderboard] @ git+https://github.com/OWNER/netarena.git@v0.2.0"
    )
    assert up == "docker compose up --abort-on-container-exit --exit-code-from assessment"
    assert propose == "gh pr create --base main --head submission-mine-7 --fill"
    pushed = git("show", "submission-mine-7:results/mine-7.json", folder=origin)
    assert json.loads(pushed) == json.loads((tmp_path / "ran" / "results.json").read_text())
    told = git("show", "submission-mine-7:submissions/mine-7.toml", folder=origin)
    assert told == (BOARD / "scenario.toml").read_text()


def test_failed_assessment_proposes_no_results(tmp_path):
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "scenario.toml").write_text((BOARD / "scenario.toml").read_text())
    commands = {"pip": NOTES, "gh": NOTES, "git": NOTES, "docker": f"{NOTES}exit 1"}
    environ = {"GITHUB_REF_NAME": "mine", "GITHUB_RUN_ID": "7", "GITHUB_ACTOR": "me"}
    with pytest.raises(AssertionError, match="Assess in containers"):
        run_job(ASSESS, "assess", folder, values=SECRETS, commands=commands, environ=environ)
    calls = (tmp_path / "board.calls").read_text()
    assert "docker compose up" in calls
    assert "gh" not in re.findall(r"^\w+", calls, re.MULTILINE)


def test_cluster_workflow_loads_the_image_and_starts_the_agent_before_the_assessment(tmp_path):
    folder = tmp_path / "board"
    folder.mkdir()
    names = ("pip", "docker", "kind", "netarena")
    calls = run_job(
        *(ASSESS, "kind", folder),
        values=SECRETS,
        commands=dict.fromkeys(names, NOTES),
    )
    assert [call.split()[:2] for call in calls] == [
        ["pip", "install"],
        ["docker", "build"],
        ["kind", "load"],
        ["docker", "run"],
        ["netarena", "run"],
    ]
    # the folder of the image exists, and so does each option of the command
    context = calls[1].split("#v0.2.0:")[1]
    assert (ROOT / context / "Dockerfile").is_file()
    arguments = calls[4].split()[2:]
    options = run_command.make_context("run", arguments).params
    assert options["application"] == "k8s"
    assert options["pairs"] == ("cluster=kind-netarena",)
    assert str(options["out"]) == "output"
    made = next(step for step in yaml.safe_load(ASSESS.read_text())["jobs"]["kind"]["steps"]
                if "kind" in step.get("uses", ""))  # fmt: skip
    assert made["with"] == {"cluster_name": "netarena"}


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image["name"])
def test_release_builds_then_tests_then_pushes_the_image_with_tags_version_and_latest(
    image, tmp_path
):
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('version = "1.2.3"\n')
    (folder / "scripts" / "test").write_text(f"#!/bin/bash\n{NOTES}")
    (folder / "scripts" / "test").chmod(0o755)
    calls = run_job(
        *(RELEASE, "image", folder),
        values={f"matrix.{key}": value for key, value in image.items()}
        | {"secrets.GITHUB_TOKEN": "token"},
        commands={"docker": f'{NOTES}[ "$1" != login ] || grep -qx token'},
        environ={
            "GITHUB_REF_NAME": "v1.2.3",
            "GITHUB_ACTOR": "me",
            "GITHUB_REPOSITORY_OWNER": "OWNER",
        },
    )
    there = f"ghcr.io/owner/netarena-{image['name']}"
    built, tested, *pushed = calls
    assert built == f"docker build --file {image['file']} --tag netarena-{image['name']}:test ."
    assert (ROOT / image["file"]).is_file()
    words = tested.split()
    assert words[0] == "test"
    assert (ROOT / words[1]).is_file()
    assert pushed == [
        "docker login ghcr.io --username me --password-stdin",
        f"docker tag netarena-{image['name']}:test {there}:1.2.3",
        f"docker push {there}:1.2.3",
        f"docker tag netarena-{image['name']}:test {there}:latest",
        f"docker push {there}:latest",
    ]


def test_no_image_is_released_if_the_tag_differs_from_the_version(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('version = "1.2.3"\n')
    values = {f"matrix.{key}": value for key, value in IMAGES[0].items()}
    with pytest.raises(AssertionError, match=r"another version than the tag v1\.2\.4"):
        run_job(
            *(RELEASE, "image", folder),
            values=values,
            commands={"docker": NOTES},
            environ={"GITHUB_REF_NAME": "v1.2.4"},
        )
    assert (tmp_path / "project.calls").read_text() == ""


def test_workflow_runs_the_same_command_as_ci(tmp_path):
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    # on GitHub the job creates the environment; here it already exists
    (folder / "scripts" / "venv").write_text("#!/bin/sh\n")
    (folder / "scripts" / "venv").chmod(0o755)
    calls = run_job(TEST, "test", folder, values={}, commands={"sudo": NOTES})
    assert calls == ["sudo --preserve-env=PATH .ci/run"]
