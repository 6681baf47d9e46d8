"""docs/extend.md: its application is installed next to the project, and its commands are run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "extend.md"
#: commands of the page that are not run, and why
ELSEWHERE = {
    "pip install -e . && pytest test_vlan.py": "is taken apart by the test",
    "netarena serve vlan --port 9009": "would not end; serving is the same for all applications",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the page's files, and the package data that pip would make of its pyproject.toml."""
    place = tmp_path_factory.mktemp("vlan")
    found = re.findall(r"<!-- file (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in found] == ["netarena_vlan.py", "pyproject.toml", "test_vlan.py"]
    for name, text in found:
        (place / name).write_text(text)
    project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
    info = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return place


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_example_application_passes_the_published_contract(folder):
    done = run(folder, "pytest", "-q", "-p", "no:cacheprovider", "test_vlan.py")
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{2} passed", done.stdout)


def test_each_command_of_the_page_works_with_the_example_application(folder):
    (block,) = re.findall(r"<!-- run -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = block.splitlines()
    assert set(ELSEWHERE) <= set(commands)
    told = {}
    for command in commands:
        if command in ELSEWHERE:
            continue
        name, *words = command.split()
        assert name == "netarena"
        done = run(folder, "netarena.cli", *words)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        told[words[0]] = done.stdout
    assert len(told["queries"].splitlines()) == 3
    assert "initial" not in json.loads(told["queries"].splitlines()[0])
    solved = {}
    for agent in ("oracle", "random"):
        results = json.loads((folder / agent / "results.json").read_text())["results"]
        solved[agent] = results[-1]["avg_solved_safely"]
    assert solved == {"oracle": 1.0, "random": 0.0}
