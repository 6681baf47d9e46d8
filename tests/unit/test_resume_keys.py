"""Resumed runs, and queries given by id, use the stored keys of any application."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from netarena.cli.run import _asked
from netarena.cli.run_directory import choose_query, shaping_keys, with_stored_shape
from netarena.task.application import configured, load

if TYPE_CHECKING:
    from pathlib import Path

    from netarena.config import Config

SEED = 7


def store(folder: Path, config: Config) -> dict[str, Any]:
    """Write the part of a run's ``config.json`` that determines its queries."""
    told = {
        "application": "route",
        "config": config.model_dump(mode="json"),
        "seed": SEED,
        "shape": config.shape(),
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(told))
    return told


@pytest.mark.parametrize("briefing", ["full", "ticket"])
@pytest.mark.parametrize("name", ["route", "backbone"])
def test_resumed_backbone_run_has_the_config_shape_and_briefing_of_the_stored_run(
    tmp_path: Path, name: str, briefing: str
) -> None:
    app, config = configured(load("backbone"), {"briefing": briefing, "routers": 6})
    stored = store(tmp_path / "run", config)
    values = {"resume": True, "output_dir": str(tmp_path / "run"), "seed": SEED}
    again, resumed = configured(load(name), with_stored_shape(load(name), values, None))
    assert again.name == app.name
    asked = _asked(again, resumed, tmp_path / "run")
    assert asked.shape() == stored["shape"]
    assert asked.briefing == briefing


@pytest.mark.parametrize("briefing", ["full", "ticket"])
@pytest.mark.parametrize("name", ["malt", "route", "k8s", "backbone"])
def test_stored_config_keys_reproduce_the_stored_config_shape(
    tmp_path: Path, name: str, briefing: str
) -> None:
    _, config = configured(load(name), {} if name == "malt" else {"briefing": briefing})
    stored = store(tmp_path / "run", config)
    assert configured(load(name), shaping_keys(stored))[1].shape() == stored["shape"]


def test_id_of_a_backbone_ticket_is_found_in_the_runs_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, config = configured(load("backbone"), {"briefing": "ticket", "routers": 4})
    store(tmp_path / "netarena-runs", config)
    query = next(iter(app.generate(config, SEED)))
    _, plain = configured(load("backbone"), {})
    _, found, _ = choose_query(load("backbone"), plain, query.id)
    assert found.shape() == config.shape()
