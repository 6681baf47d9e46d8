"""docs/journal.md: the contents of the journal, and the examples as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

import netarena_k8s.harm
import netarena_network.harm
from netarena.model import Episode, Outline, Step
from netarena.run.journal import Header

PAGE = (Path(__file__).parents[2] / "docs" / "journal.md").read_text()


def example(name: str) -> str:
    match = re.search(rf"<!-- file {re.escape(name)} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert match
    return match[1]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assess(Toy(), Scripted(open_all), tmp_path / "run", num_queries=2, max_iterations=4)
    return tmp_path


@pytest.mark.parametrize("kind", [Header, Episode, Step])
def test_every_field_of_the_journal_is_documented(kind: type) -> None:
    for name in kind.model_fields:  # type: ignore[attr-defined]
        assert f"`{name}`" in PAGE, name
    # except for fields that are computed from an episode's judgements and its query
    read_off = {"unsafe_by", "content", "quality", "lost_s"}
    assert {field.name for field in fields(Outline)} <= {*Episode.model_fields, *read_off}


def test_every_event_of_the_journal_is_documented() -> None:
    root = Path(__file__).parents[2] / "netarena"
    written = {
        name
        for path in root.rglob("*.py")
        for name in re.findall(r'journal\.append\(\s*"(\w+)"', path.read_text())
    }
    assert {"assessment", "start", "retry", "anew", "end"} <= written
    for name in written:
        assert f"| `{name}` |" in PAGE, name


def test_pandas_example_runs(run: Path) -> None:
    pytest.importorskip("pandas")
    done = subprocess.run(
        [sys.executable, "-c", example("lost.py")], cwd=run, capture_output=True, text=True,
        check=True, env={**os.environ, "PYTHONWARNINGS": ""},
    )  # fmt: skip
    assert "is closed" in done.stdout
    assert "close-1" in done.stdout


def test_duckdb_example_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(run)
    rows = duckdb.sql(example("lost.sql")).fetchall()
    assert {label for label, *_ in rows} == {"close-1", "close-2", "close-3"}
    assert all(number == 2 for _, number, *_ in rows)
    assert all(0 <= correct <= 1 for _, _, correct, _ in rows)


@pytest.mark.parametrize("kinds", [netarena_k8s.harm.KINDS, netarena_network.harm.KINDS])
def test_every_kind_of_harm_is_documented_with_its_rules(kinds: Mapping[str, str]) -> None:
    section = PAGE[PAGE.index("## Kinds of harm") : PAGE.index("## Examples")]
    backbone = (Path(__file__).parents[2] / "docs" / "backbone.md").read_text()
    for rule, kind in kinds.items():
        assert kind in section, kind
        assert f"`{rule}`" in section or f"| {kind} | `{rule}` |" in backbone, rule
