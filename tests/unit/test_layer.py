"""The layers that pyproject.toml declares hold, and each contract goes red when it is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
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
