"""Query ids with and without their seed, and the seed in a summary."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.errors import AgentFailed, AssessmentFailed, ConfigError, FailureReason
from netarena.model import Query, read_jsonl
from netarena.run import archive, assessment, engine
from netarena.run.archive import read_run
from netarena.run.assessment import conduct
from netarena.run.regrade import regrade
from netarena.task import identity
from netarena.task.identity import Identity, Secrecy, find_index, read_id, seal, seal_id

SEED = 2**64 - 1


@pytest.mark.parametrize("index", [0, 41])
def test_sealed_id_reveals_the_config_but_neither_seed_nor_index(
    index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MOST_TRIED", 100)
    config = Toy.config_type.parse({})
    shown = Toy().query_id(config, SEED, index)
    sealed = seal_id(shown, SEED)
    assert read_id(shown) == Identity("toy-1", config.shape_hash(), SEED, index)
    assert read_id(sealed) == Identity("toy-1", config.shape_hash())
    assert find_index(sealed, SEED, index + 1) == index
    assert find_index(sealed, SEED, index) is None
    assert find_index(sealed, SEED - 1, index + 1) is None
    assert seal_id(Toy().query_id(config, SEED - 1, index), SEED - 1) != sealed


@pytest.mark.parametrize("text", ["", "toy", "toy-1-x", "toy-1-00000000-", "toy-1-00000000-1-x"])
def test_malformed_id_is_not_parsed(text: str) -> None:
    assert read_id(text) is None


def texts(folder: Path, *names: str) -> str:
    return "".join((folder / name).read_text() for name in names)


def test_sealing_changes_only_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "load", lambda name: Toy())
    plain, _ = assess(Toy(), Scripted(open_all), tmp_path / "a")
    agent = Scripted(open_all)
    sealed, episodes = assess(Toy(), agent, tmp_path / "b", secrecy=Secrecy.SEALED)
    ids = [seal_id(record["id"], 7) for record in plain[:-1]]
    assert [record["id"] for record in sealed[:-1]] == ids
    assert [episode.query_id for episode in episodes] == ids
    queries = (tmp_path / "a" / "queries.jsonl").read_text().splitlines()
    stored = list(read_jsonl(Query, (tmp_path / "b" / "queries.jsonl").read_text().splitlines()))
    assert stored == [seal(query) for query in read_jsonl(Query, queries)]
    assert sealed[-1]["seed"] == 7
    (again,) = [regrade(one) for one in read_run(tmp_path / "b")]
    assert again.results() == sealed
    # the file of such a run can be used like any other file of queries
    path = str(tmp_path / "b" / "queries.jsonl")
    third, _ = assess(Toy(), Scripted(open_all), tmp_path / "c", seed=None, benchmark_path=path)
    assert [record["id"] for record in third[:-1]] == [record["id"] for record in plain[:-1]]


@pytest.mark.parametrize("secrecy", [Secrecy.SERVED, Secrecy.SEALED])
def test_seed_is_reported_once_all_queries_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secrecy: Secrecy
) -> None:
    monkeypatch.setattr(archive, "load", lambda name: Toy())
    agent = Scripted(open_all)

    def clock() -> float:
        # the time limit passes when the second query is asked
        return time.monotonic() + (1e6 if len(agent.prompts) > 1 else 0.0)

    for module in (engine, assessment):
        monkeypatch.setattr(module, "clock", clock)
    left, _ = assess(
        Toy(), agent, tmp_path,
        num_queries=2, secrecy=secrecy, time_budget_s=1000, max_iterations=1,
    )  # fmt: skip
    assert left[-1]["not_run"] > 0
    assert left[-1]["seed"] is left[-1]["config"]["seed"] is None
    (stored,) = read_run(tmp_path)
    *records, summary = regrade(stored).results()
    assert [record["id"] for record in records] == [record["id"] for record in left[:-1]]
    assert summary["seed"] is summary["config"]["seed"] is None
    assert (stored.seed, stored.header.seed) == (None, 7)
    # a resumed run keeps the stricter of its old setting and the requested one
    done, _ = assess(
        Toy(), Scripted(open_all), tmp_path, seed=None, resume=True, time_budget_s=None,
        secrecy=Secrecy.OPEN,
    )  # fmt: skip
    assert (done[-1]["complete"], done[-1]["seed"]) == (True, 7)
    assert [record["id"] for record in done[: len(left) - 1]] == [
        record["id"] for record in left[:-1]
    ]


def test_seed_stays_hidden_from_all_participants_while_one_of_them_may_resume(
    tmp_path: Path,
) -> None:
    absent = AgentFailed(FailureReason.ENDPOINT, "x")
    agents = {"good": Scripted(open_all), "absent": Scripted(lambda prompt, turn: absent)}
    config = Toy.config_type.parse({"seed": 7})

    async def run(secrecy: Secrecy, out: Path) -> None:
        await conduct(Toy(), config, agents, out=out, secrecy=secrecy)

    for secrecy, seed in ((Secrecy.OPEN, 7), (Secrecy.SEALED, None)):
        out = tmp_path / secrecy.name
        with pytest.raises(AssessmentFailed, match="could not be reached"):
            asyncio.run(run(secrecy, out))
        summary = json.loads((out / "good" / "results.json").read_text())["results"][-1]
        assert (summary["complete"], summary["seed"], summary["config"]["seed"]) == (
            True, seed, seed,
        )  # fmt: skip


def test_run_with_open_ids_cannot_be_resumed_with_sealed_ids(tmp_path: Path) -> None:
    assess(Toy(), Scripted(open_all), tmp_path)
    with pytest.raises(ConfigError, match=r"resume: .* without NETARENA_SEED: start a new run"):
        assess(Toy(), Scripted(open_all), tmp_path, resume=True, secrecy=Secrecy.SEALED)


@pytest.mark.parametrize("values", [{"seed": 8}, {"seed": None, "num_queries": 2}])
def test_service_reveals_no_key_of_another_run(tmp_path: Path, values: dict[str, Any]) -> None:
    assess(Toy(), Scripted(open_all), tmp_path, secrecy=Secrecy.SERVED, seed=123456)
    with pytest.raises(ConfigError) as caught:
        assess(
            Toy(), Scripted(open_all), tmp_path, resume=True, secrecy=Secrecy.SERVED, **values
        )  # fmt: skip
    changed = "seed" if values["seed"] else "num_queries"
    assert str(caught.value) == f"resume: the existing run has another {changed}"


def test_error_about_queries_of_another_config_reveals_no_seed(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    assess(Toy(), Scripted(open_all), tmp_path / "a", benchmark_path=str(path))
    with pytest.raises(ConfigError) as caught:
        assess(
            Toy(), Scripted(open_all), tmp_path / "b", benchmark_path=str(path),
            complexity_level="level1",
        )  # fmt: skip
    assert re.search(r"does not begin with toy-1-[0-9a-f]{8}\)", str(caught.value))
