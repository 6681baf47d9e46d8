"""The layers that pyproject.toml declares hold, and each contract goes red when it is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.path[:0] = ['.', 'apps']\n"
        "from importlinter.cli import lint_imports\n"
        "sys.exit(lint_imports(no_cache=True, no_logo=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_each_package_with_layers_gives_every_module_its_place():
    """The core, and every application."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = read["tool"]["importlinter"]["contracts"]
    exhaustive = {one["containers"][0] for one in contracts if one.get("exhaustive")}
    assert exhaustive >= {"netarena", *(path.name for path in (ROOT / "apps").glob("netarena_*"))}


def test_imports_run_downwards_only():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("netarena/engine.py", "import netarena_malt.app", "the core knows no application"),
        ("netarena/agent.py", "import a2a_purple.scripted", "the core knows no application"),
        ("apps/netarena_malt/app.py", "import a2a_purple", "these not each other"),
        ("netarena/model.py", "import netarena.config", "imports of the core run downwards only"),
        ("netarena/engine.py", "import netarena.assessment", "imports of the core run downwards"),
        ("netarena/lonely.py", "", "imports of the core run downwards only"),
        ("netarena/cli/choice.py", "import netarena.cli.run", "in a circle"),
        ("apps/netarena_malt/model_file.py", "import netarena_malt.base", "in a circle"),
        ("apps/netarena_malt/draft.py", "import netarena_malt.state", "imports of malt run"),
        (
            "apps/netarena_route/world/model.py",
            "import netarena_route.real.mn",
            "imports of route run",
        ),
        ("apps/netarena_k8s/world/block.py", "import netarena_k8s.picture", "imports of k8s run"),
        ("apps/netarena_k8s/lonely.py", "", "imports of k8s run downwards only"),
        (
            "apps/netarena_route/world/model.py",
            "import netarena_route.world.path",
            "world of route",
        ),
        ("apps/netarena_k8s/source/lonely.py", "", "inside k8s's sources of worlds run"),
        ("apps/netarena_malt/app.py", "import netarena.engine", "applications use the interface"),
        ("netarena/engine.py", "import a2a.types", "the A2A SDK is imported by netarena.a2a"),
    ],
)
def test_a_broken_layer_is_seen(tmp_path, file, line, broken):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("netarena", "a2a_purple", "apps"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    with (tmp_path / file).open("a") as stream:
        stream.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    kept_or_broken = [row for row in done.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(broken in row for row in kept_or_broken), done.stdout
