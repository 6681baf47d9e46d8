"""The command blocks of the README and the quick start are run unchanged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from netarena.agent.process import free_port
from netarena.cli import main
from netarena.task.application import load

ROOT = Path(__file__).parents[2]
#: commands that are not run here, and the reason
ELSEWHERE = {
    "scripts/test": "is what runs this test",
    "scripts/venv .venv all": "scripts/test has called scripts/venv before",
    'netarena run malt --agent-exec "llm -m gpt-4o" --out runs/llm': "asks a provider",
    "netarena play route": "asks a person; tests/unit/test_play.py is one",
    "netarena mcp route": "waits for a client; tests/unit/test_mcp.py is one",
    "source .venv/bin/activate": "the environment that runs this test comes first in PATH",
}
#: commands that are on both pages; the test runs them only for the README
REPEATED = {"netarena doctor malt", "netarena run scenarios/malt/smoke.toml"}
#: files that the commands need in their working directory
THERE = ("scenarios",)
#: time limit for all commands of a page on a busy machine, in seconds
PATIENCE_S = 500
START = """\
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
"""


def commands(page: str) -> list[str]:
    """Return the commands in the page's code blocks that the test runs, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    lines = [re.sub(r"\s+# .*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and line not in ELSEWHERE]


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_S + 20)
@pytest.mark.requires("landlock", "seccomp")
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_every_command_of_the_page_runs(page, tmp_path):
    for name in THERE:
        (tmp_path / name).symlink_to(ROOT / name)
    asked = commands(page)
    if page != "README.md":
        # these commands leave nothing that later commands of the page need
        asked = [line for line in asked if line not in REPEATED]
    script = "\n".join(asked).replace("scripts/", f"{ROOT}/scripts/")
    # other programs may use the fixed ports
    for port in set(re.findall(r"\b90[0-9]{2}\b", script)):
        script = script.replace(port, str(free_port()))
    done = subprocess.run(
        ["bash", "-c", START + script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr
    if "scripts/demo" in script:
        printed = [without_time(line) for line in done.stdout.splitlines()]
        table = re.findall(r"<!-- demo -->\n\n```\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert not [line for line in table[0].splitlines() if without_time(line) not in printed]


def without_time(line: str) -> list[str]:
    """Return the cells of a row of the demo's table, without those that depend on reply times.

    The removed cells are the seconds and the rank, which depends on the time if agents solve the
    same number of queries.
    """
    cells = re.split(r"\s{2,}", line.strip())
    return [cell for number, cell in enumerate(cells) if number not in {0, 5}]


def test_commands_that_are_run_only_once_are_on_both_pages():
    assert {*commands("README.md")} & {*commands("docs/quickstart.md")} >= REPEATED


def test_commands_excluded_from_the_run_exist_on_the_pages():
    text = (ROOT / "README.md").read_text() + (ROOT / "docs" / "quickstart.md").read_text()
    assert all(re.search(rf"^{re.escape(line)}\b", text, re.MULTILINE) for line in ELSEWHERE)


@pytest.mark.parametrize("name", ["malt", "route", "k8s"])
def test_page_of_config_keys_lists_each_key_and_marks_those_that_change_queries(name):
    """The first cell of a row has the key's name; * marks keys that change the drawn queries."""
    text = (ROOT / "docs" / "config.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    marks = dict(re.findall(r"`(\w+)`(?:, `regenerate_\w+`)*( \*)?", " ".join(rows)))
    kind = load(name).config_type
    named_beside = {"regenerate_benchmark", "regenerate_config"}
    assert not kind.model_fields.keys() - marks.keys() - named_beside
    extras = {key: field.json_schema_extra for key, field in kind.model_fields.items()}
    shaping = {key for key, extra in extras.items() if extra and extra.get("shapes")} | {"seed"}
    marked = {key for key in kind.model_fields if marks.get(key)}
    assert marked == shaping


def keys_of(rows: str) -> set[str]:
    """Return the names in the first cells of a table's rows."""
    cells = [line.split("|")[1] for line in rows.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`([^`]+)`", " ".join(cells)))


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(
            "malt",
            ["complexity_level=level1"],
            marks=pytest.mark.requires("landlock", "seccomp"),
        ),
        pytest.param(
            "route",
            ['error_types=["wrong_routing_table"]', "emulator=netns", "max_iterations=1"],
            marks=pytest.mark.requires("episodes"),
        ),
        pytest.param(
            "k8s",
            ['error_types=["change_port"]', "max_iterations=1"],
            marks=pytest.mark.requires("cell"),
        ),
    ],
)
def test_page_of_results_lists_each_key_of_records_and_summary(name, keys, tmp_path):
    text = (ROOT / "docs" / "results.md").read_text()
    (own,) = re.findall(rf"^\| {name} \| \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    shared, summary = re.findall(r"^\| key \| \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    pairs = [f"--set={pair}" for pair in ["repeats=2", *keys]]
    arguments = ["--agent", "random", "--seed", "1", "--out", str(tmp_path), *pairs]
    assert main(["run", name, *arguments]) == 0
    *records, last = json.loads((tmp_path / "results.json").read_text())["results"]
    told = {key for record in records for key in record}
    assert told <= keys_of(own) | keys_of(shared)
    # only some episodes have these keys
    some = {"Error", "Verifier-Error", "failure_type", "failure_rule", "Quality"}
    tokens = {"agent_input_tokens", "agent_output_tokens", "agent_cost_usd"}
    tickets = {"claimed", "claim_right", "localised", "turns_healthy", "claims", "leftover"}
    tickets |= {"contingency"}
    probed = {"loss"}  # only in backbones with probed pairs
    assert keys_of(own) | keys_of(shared) <= told | some | tokens | tickets | probed
    # ``replaced`` appears only in resumed assessments under a secret seed, ``warnings`` only for an
    # unknown role, ``avg_quality`` only for planning tasks
    measures = {"avg_latency_s", "avg_iterations", "avg_quality", "narrowed"} | tickets
    measures |= {"avg_loss_s"}
    measures |= {"replaced", "warnings"}
    assert last.keys() <= keys_of(summary)
    assert keys_of(summary) <= last.keys() | tokens | measures
