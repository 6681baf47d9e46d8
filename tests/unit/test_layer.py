"""The core and every application declare layers; ``scripts/test`` runs import-linter on them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_has_a_layer():
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = read["tool"]["importlinter"]["contracts"]
    exhaustive = {one["containers"][0] for one in contracts if one.get("exhaustive")}
    assert exhaustive >= {"netarena", *(path.name for path in (ROOT / "apps").glob("netarena_*"))}


def test_core_modules_contain_no_name_of_an_application():
    """Docstrings and examples of ``--help`` are exempt."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = read["project"]["entry-points"]["netarena.applications"]
    core = [path for path in (ROOT / "netarena").rglob("*.py") if path.parent.name != "cli"]
    found = [
        f"{path}:{node.lineno}"
        for path in core
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not found
