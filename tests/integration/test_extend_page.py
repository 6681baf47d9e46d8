"""docs/extend.md: ``netarena new`` writes applications that pass their tests and work."""

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
#: commands of the page that are not run, and the reason
ELSEWHERE = {
    "pip install -e . && pytest": "is taken apart by the tests",
    "netarena serve vlan --port 9009": "would not end; serving is the same for all applications",
}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write the applications with the page's commands.

    Also create the package metadata, as pip would do.
    """
    place = tmp_path_factory.mktemp("new")
    (commands,) = re.findall(r"```sh\n(netarena new .*?)```", PAGE.read_text(), re.DOTALL)
    for command in commands.splitlines():
        done = run(place, "netarena.cli", *command.partition("#")[0].split()[1:])
        assert done.returncode == 0, done.stderr
    folders = {"vlan": place / "netarena-vlan", "plan": place / "plan"}
    for folder in folders.values():
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        )
        lines = []
        for group, points in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {where}" for name, where in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
    return folders


def test_page_shows_the_files_that_netarena_new_writes(folders):
    found = re.findall(
        r"<!-- new (\w+)[^:]*: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert {name for _, name, _ in found} == {
        "netarena_plan.py", "netarena_vlan.py", "pyproject.toml", "test_vlan.py",
    }  # fmt: skip
    for application, name, text in found:
        assert (folders[application] / name).read_text() == text
        assert len(text.splitlines()) < 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vlan", "plan"])
def test_new_application_passes_its_contract_test(folders, name):
    # this test is the slowest, and the same for all applications
    words = () if name == "plan" else ("-k", "not tear_down")
    done = run(folders[name], "pytest", "-q", "-p", "no:cacheprovider", f"test_{name}.py", *words)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\d{2} passed", done.stdout)


def test_each_command_of_the_page_succeeds_with_the_reactive_application(folders):
    folder = folders["vlan"]
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
    for agent in ("oracle", "ticket", "random"):
        results = json.loads((folder / agent / "results.json").read_text())["results"]
        solved[agent] = results[-1]["avg_solved_safely"]
    assert solved == {"oracle": 1.0, "ticket": 1.0, "random": 0.0}


def test_sandbox_example_of_the_page_runs(tmp_path):
    (code,) = re.findall(r"```python\n(async with Cell.*?)```", PAGE.read_text(), re.DOTALL)
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    imports = "import asyncio\nfrom netarena.sdk import Cell, Keep\n"
    text = f"{imports}async def main():\n{lines}asyncio.run(main())\n"
    (tmp_path / "sandboxed.py").write_text(text)
    done = run(tmp_path, "sandboxed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("p1 10\n")
