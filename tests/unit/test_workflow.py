"""Workflows and manifests, checked without the platforms that run them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from netarena.a2a.credential import read_seed_secret
from netarena.a2a.scenario import compose, read_scenario
from netarena.task.application import load

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml")) + sorted(
    ROOT.glob("scenarios/leaderboard/.github/workflows/*.yml")
)
MANIFESTS = sorted((ROOT / "scenarios" / "amber").glob("*.json5"))


def steps(path: Path) -> list[dict[str, object]]:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_scripts_are_bash_and_actions_have_versions(path):
    content = yaml.safe_load(path.read_text())
    assert {"name", "permissions", "jobs"} <= content.keys()
    for step in steps(path):
        assert ("run" in step) != ("uses" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", str(step["uses"]))
            continue
        # GitHub replaces expressions before bash runs the script
        script = re.sub(r"\$\{\{.*?\}\}", "x", str(step["run"]))
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=20)


def check_schema(name: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Check files against the published schema, a copy of which is part of check-jsonschema."""
    return subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{name}", *paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_workflows_fit_the_schema_of_github(tmp_path):
    done = check_schema("github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("runs-on", "runs-at"))
    assert "runs-at" in check_schema("github-workflows", broken).stdout


@pytest.mark.parametrize(
    ("schema", "pattern", "number"),
    [
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml", 3),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml", 1),
        ("dependabot", ".github/dependabot.yml", 1),
        ("citation-file-format", "CITATION.cff", 1),
    ],
)
def test_repository_files_fit_their_published_schemas(schema, pattern, number):
    paths = sorted(ROOT.glob(pattern))
    assert len(paths) == number
    done = check_schema(schema, *paths)
    assert done.returncode == 0, done.stdout


def test_compose_files_fit_the_schema_of_compose(tmp_path):
    made = []
    for path in [*ROOT.glob("scenarios/*/leaderboard.toml"), ROOT / "docs" / "scenario.md"]:
        text = path.read_text()
        if path.suffix == ".md":  # the scenario with mounts, which names no participant
            (text,) = [
                block
                for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
                if "volumes" in block
            ]
            text += '[[participants]]\nrole = "k8s_operator"\nimage = "netarena-purple"\n'
        scenario = tmp_path / f"{path.parent.name}.toml"
        scenario.write_text(text)
        made.append(scenario.with_suffix(".yaml"))
        made[-1].write_text(yaml.safe_dump(compose(read_scenario(scenario))))
    assert len(made) == 4
    done = check_schema("compose-spec", *made)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yaml"
    broken.write_text(made[0].read_text().replace("depends_on", "depending_on"))
    assert check_schema("compose-spec", broken).returncode == 1


def test_untrusted_input_is_never_used_in_a_script():
    for path in WORKFLOWS:
        for step in steps(path):
            told = re.findall(r"\$\{\{\s*([\w.]+)", str(step.get("run", "")))
            assert all(name.startswith("matrix.") for name in told), told


def test_release_builds_every_image():
    content = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    rows = content["jobs"]["image"]["strategy"]["matrix"]["include"]
    files = {path.name for path in ROOT.glob("Dockerfile.*")} | {"a2a_purple/Dockerfile"}
    assert {row["file"] for row in rows} == files
    names = {row["name"] for row in rows}
    # the training image contains no agent
    assert {path.stem for path in MANIFESTS} == names - {"openenv"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_starts_the_agent_and_declares_its_resources(path):
    manifest = json.loads(re.sub(r"^//.*", "", path.read_text(), flags=re.MULTILINE))
    program = manifest["program"]
    (endpoint,) = program["network"]["endpoints"]
    assert endpoint["port"] == 9009
    assert manifest["provides"]["a2a"] == {"kind": "a2a", "endpoint": endpoint["name"]}
    assert manifest["exports"] == {"a2a": "a2a"}
    asked = set(re.findall(r"\$\{config\.(\w+)\}", json.dumps(program)))
    schema = manifest["config_schema"]
    assert asked == set(schema["properties"]) == set(schema["required"])
    assert manifest["manifest_version"] == "0.1.0"
    if path.stem == "purple":
        assert "slots" not in manifest
        # the gateway replaces only loopback URLs in cards with its own
        assert program["entrypoint"][-2:] == ["--card-url", "http://127.0.0.1:9009/"]
        return
    # as in the manifests of AgentBeats' own green agents: the scenario connects the gateway's proxy
    # to this slot. An agent can be reached only through a slot that its manifest names.
    assert manifest["slots"] == {"proxy": {"kind": "a2a"}}
    assert "${slots.proxy.url}" in program["env"].values()
    told = manifest["metadata"]
    application = load(path.stem)
    assert told["participant_roles"] == [application.role]
    board = read_scenario(ROOT / "scenarios" / path.stem / "leaderboard.toml")
    assert told["assessment_config"] == board.config
    assert application.config_type.parse(told["assessment_config"])


def test_leaderboard_scenario_is_converted_to_a_compose_file():
    made = compose(read_scenario(ROOT / "scenarios" / "leaderboard" / "scenario.toml"))
    images = {service["image"] for service in made["services"].values()}
    assert images == {f"ghcr.io/OWNER/netarena-{name}:0.2.0" for name in ("malt", "purple")}


def test_amber_scenario_binds_only_resources_of_its_manifests():
    path = ROOT / "scenarios" / "leaderboard" / "scenario.json5"
    made = json.loads(re.sub(r"^//.*", "", path.read_text(), flags=re.MULTILINE))
    gateway = made["components"]["gateway"]["config"]
    assert gateway["assessment_config"] == read_scenario(path.with_suffix(".toml")).config
    assert gateway["participant_roles"]["purple1"] == load("malt").role
    for name, manifest in (("green", "malt"), ("malt_operator", "purple")):
        component = made["components"][name]
        assert component["manifest"] == f"./{manifest}.json5"
        text = (ROOT / "scenarios" / "amber" / f"{manifest}.json5").read_text()
        schema = json.loads(re.sub(r"^//.*", "", text, flags=re.MULTILINE))["config_schema"]
        assert component["config"] == {key: f"${{config.{key}}}" for key in schema["required"]}
        properties = made["config_schema"]["properties"]
        assert {key: properties[key] for key in schema["properties"]} == schema["properties"]
    assert made["exports"] == {"results": "#gateway.results"}


def test_quick_submit_passes_the_seed_secret_to_the_green_agent():
    folder = ROOT / "scenarios" / "leaderboard" / ".github" / "workflows"
    job = yaml.safe_load((folder / "quick-submit.yml").read_text())["jobs"]["assess"]
    assert job["with"] == {"num_shards": 1}
    secrets = job["secrets"]["GREEN_SECRETS_JSON"].replace(
        "${{ toJSON(secrets.NETARENA_SEED) }}", '"s3cret"'
    )
    assert read_seed_secret({"GREEN_SECRETS_JSON": secrets}) == "s3cret"
    # keys that the workflow adds to each config
    board = read_scenario(ROOT / "scenarios" / "malt" / "leaderboard.toml").config
    load("malt").config_type.parse({**board, "shard_index": 0, "num_shards": 1})
