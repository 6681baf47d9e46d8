"""Shards of a run, and the folder that merging them writes."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy
from stage import Scripted, open_all

from netarena.cli.merge import _command
from netarena.errors import AgentFailed, AssessmentFailed, ConfigError, FailureReason
from netarena.model import Outcome
from netarena.run.assessment import choose_queries, conduct
from netarena.run.merge import merge, read_shards
from netarena.run.shard import Shard
from netarena.task.application import load

#: fields whose values differ between any two runs
VARYING = re.compile(
    r'"(\w*_s|Result-Latency|output_dir|name|p95|mean|median|max|total)": ?("[^"]*"|[-\d.e]+|null)'
)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netarena.run.merge.load", lambda _: Toy())


def run(
    out: Path, shard: str = "", answer: Any = open_all, roles: int = 1, **values: Any
) -> dict[str, Any]:
    config = Toy.config_type.parse({"num_queries": 3, "seed": 7, **values})
    agents = {f"role_{number}": Scripted(answer) for number in range(roles)}
    part = Shard.parse(shard) if shard else None
    own = {"role_1": {"prompt_type": "react"}} if roles > 1 else {}
    return asyncio.run(conduct(Toy(), config, agents, out=out, shard=part, own=own))


def contents(folder: Path) -> dict[str, str]:
    """Return the text of all files of a run, with times, folders and other such fields set to 0."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): VARYING.sub(r'"\1": 0', path.read_text()) for path in files
    }


@pytest.mark.parametrize(
    "values",
    [
        {"max_iterations": 6, "output_file": "records.jsonl", "repeats": 2},
        {"roles": 2, "num_queries": 2, "start_index": 1, "end_index": 5},
    ],
)
def test_merged_shards_equal_one_run_except_for_times(
    values: dict[str, Any], tmp_path: Path
) -> None:
    run(tmp_path / "whole", **values)
    folders = [tmp_path / f"shard-{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        # concurrency changes only the order in a shard's journal
        run(folder, f"{number}/4", **values, concurrency=1 if number == 0 else 3)
    merge(read_shards(folders[::-1]), tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_incomplete_shards_are_listed_and_can_be_resumed(tmp_path: Path) -> None:
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    run(whole)
    folders = [tmp_path / f"shard-{number}" for number in range(3)]
    run(folders[0], "0/3")
    run(folders[1], "1/3")
    journal = folders[1] / "journal.jsonl"
    # as if killed while writing the second episode
    *kept, torn = journal.read_text().splitlines(keepends=True)[:5]
    journal.write_text("".join(kept) + torn[:100])
    folders[2].mkdir()
    shards = read_shards(folders)
    assert [(str(gap.shard), len(gap.queries), gap.folder) for gap in shards.gaps] == [
        ("1/3", 2, folders[1]), ("2/3", 3, None),
    ]  # fmt: skip
    assert shards.empty == [folders[2]]
    graded = {each[0] for each in verdicts(folders[0])}
    graded.add(json.loads(kept[2])["episode"]["query_id"])
    asked = {each[0] for each in verdicts(whole)}
    assert {name for gap in shards.gaps for name in gap.queries} == asked - graded
    assert _command(shards, shards.gaps[1]) == "the command of the other shards with --shard 2/3"
    run(folders[1], resume=True)
    run(folders[2], "2/3")
    shards = read_shards(folders)
    assert not shards.gaps
    merge(shards, merged)
    # the journal contains the interrupted attempt
    for name in ("config.json", "queries.jsonl"):
        assert contents(merged)[name] == contents(whole)[name]
    assert verdicts(merged) == verdicts(whole)


def verdicts(folder: Path) -> list[tuple[str, str, int]]:
    *records, _ = json.loads((folder / "results.json").read_text())["results"]
    return [(each["id"], each["outcome"], each["iterations"]) for each in records]


@pytest.mark.parametrize(
    ("shard", "values", "message"),
    [
        ("1/2", {"seed": 8}, r"has seed 7, but \S+ has 8"),
        ("1/2", {"max_iterations": 9}, r"has config.max_iterations 10, but \S+ has 9"),
        ("1/2", {"complexity_level": "level1"}, r"has config.complexity_level \["),
        ("1/2", {"roles": 2}, "has the participants .* give the same --name"),
        ("1/3", {}, "is shard 1/3, but .* is shard 0/2"),
        ("0/2", {}, "shard 0/2 is given twice"),
        ("", {}, "contains a whole run"),
    ],
)
def test_shards_of_different_runs_are_refused(
    shard: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run(tmp_path / "a", "0/2")
    run(tmp_path / "b", shard, **values)
    with pytest.raises(ConfigError, match=message):
        read_shards([tmp_path / "a", tmp_path / "b"])


def test_query_that_does_not_belong_to_its_shard_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "a", "0/2")
    run(tmp_path / "b", "1/2")
    queries = tmp_path / "a" / "queries.jsonl"
    queries.write_text(queries.read_text() + (tmp_path / "b" / "queries.jsonl").read_text())
    with pytest.raises(ConfigError, match=r"contains query \d+, which does not belong"):
        read_shards([tmp_path / "a", tmp_path / "b"])


def test_agent_that_fails_a_whole_shard_counts_as_in_a_run_without_shards(tmp_path: Path) -> None:
    def silent(prompt: str, turn: int) -> Any:
        return AgentFailed(FailureReason.TASK_FAILED, "no words")

    run(tmp_path / "a", "0/2", num_queries=1)
    with pytest.raises(AssessmentFailed, match="did not reply in any episode"):
        run(tmp_path / "b", "1/2", silent, num_queries=1)
    folders = [tmp_path / "a", tmp_path / "b"]
    told: list[Outcome] = []
    (summary,) = merge(
        read_shards(folders), tmp_path / "m", lambda each: told.append(each.outcome)
    ).values()
    assert told == [Outcome.SOLVED, Outcome.AGENT_FAILED, Outcome.SOLVED]
    assert summary["graded"] == 3


@pytest.mark.parametrize("roles", [1, 2])
def test_failed_merge_does_not_change_an_earlier_run(tmp_path: Path, roles: int) -> None:
    folders, out = [tmp_path / "a", tmp_path / "b"], tmp_path / "m"
    run(out, roles=roles, num_queries=1)
    before = contents(out)
    for number, folder in enumerate(folders):
        run(folder, f"{number}/2", roles=roles, num_queries=1)
    shards = read_shards(folders)
    # only the last role has an invalid journal
    journal = next(iter([*folders[1].glob("role_1/journal.jsonl"), folders[1] / "journal.jsonl"]))
    whole = journal.read_text()
    journal.write_text(whole.replace('"query_id"', '"query_no"'))
    with pytest.raises(ConfigError, match="by another version"):
        merge(shards, out)
    assert contents(out) == before
    journal.write_text(whole)
    merge(shards, out)
    assert {path.name for path in out.iterdir()} >= {"config.json", "earlier-1"}
    assert not (out / ".merge").exists()


def test_command_of_a_shard_is_printed_even_if_its_config_is_malformed(tmp_path: Path) -> None:
    run(tmp_path / "a", "0/2")
    path = tmp_path / "a" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "agent": {"agent": 7}}))
    shards = read_shards([tmp_path / "a"])
    assert "--agent 7 --name" in _command(shards, shards.gaps[0])


@pytest.mark.parametrize("name", ["malt", "k8s", "route"])
def test_shards_draw_exactly_the_queries_of_the_whole_run(name: str) -> None:
    app = load(name)
    config = app.config_type.parse({"num_queries": 1, "seed": 7})
    whole, _ = choose_queries(app, config)
    parts = [choose_queries(app, config, shard=Shard(number, 4))[0] for number in range(4)]
    drawn = [query for part in parts for query in part]
    assert sorted(drawn, key=lambda query: query.index) == list(whole)


def test_limit_on_the_number_of_queries_applies_to_each_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("netarena.run.assessment.MOST_QUERIES", 10)
    config = Toy.config_type.parse({"num_queries": 10, "seed": 7})
    with pytest.raises(ConfigError, match=r"has 15 of the 30 queries; .* at least 3"):
        choose_queries(Toy(), config, shard=Shard(0, 2))
    queries, _ = choose_queries(Toy(), config, shard=Shard(0, 3))
    assert len(list(queries)) == 10
    with pytest.raises(ConfigError, match=r"config.repeats: 2 repetitions of 10 queries"):
        choose_queries(Toy(), config.model_copy(update={"repeats": 2}), shard=Shard(0, 3))


@pytest.mark.parametrize("text", ["3/3", "1", "0/0", "-1/2", "0/1000000"])
def test_shard_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be I/N with I from 0 to N-1"):
        Shard.parse(text)


def test_shard_must_be_resumed_with_the_same_number_and_the_same_queries(tmp_path: Path) -> None:
    run(tmp_path / "a", "0/2")
    with pytest.raises(ConfigError, match="must be 0/2, as in the existing run, not 1/2"):
        run(tmp_path / "a", "1/2", resume=True)
    with pytest.raises(ConfigError, match="num_queries of a shard cannot be raised"):
        run(tmp_path / "a", resume=True, num_queries=4)
