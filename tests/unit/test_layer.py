"""The core and every application declare layers; ``scripts/test`` runs import-linter on them."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_module_has_a_layer():
    read = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = read["tool"]["importlinter"]["contracts"]
    exhaustive = {one["containers"][0] for one in contracts if one.get("exhaustive")}
    assert exhaustive >= {"netarena", *(path.name for path in (ROOT / "apps").glob("netarena_*"))}
