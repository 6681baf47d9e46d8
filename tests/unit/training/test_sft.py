from __future__ import annotations

import asyncio
import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from netarena_toy import Toy

from netarena.cli import main
from netarena.task.application import load
from netarena.training import sft
from netarena.training.sft import draw_level


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read a set with Hugging Face's ``datasets`` if it is installed, otherwise as JSON lines."""
    try:
        import datasets
    except ImportError:
        return [json.loads(line) for line in path.read_text().splitlines()]
    loaded = datasets.load_dataset("json", data_files=str(path), split="train")
    return [dict(row) for row in loaded]


def test_sft_writes_one_set_per_level_and_a_mixed_set(tmp_path, capsys):
    keys = ("--seed", "5", "--sizes", "5,4,3", "--set", "concurrency=2")
    assert main(["sft", "toy", *keys, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr()
    sets = {path.stem: lines_of(path) for path in tmp_path.iterdir()}
    assert {name: len(lines) for name, lines in sets.items()} == {
        "level1": 10, "level2": 16, "level3": 18, "mixed": 44,
    }  # fmt: skip
    assert f"{tmp_path}/mixed.jsonl: 12 queries, 44 lines" in told.out
    first = sets["level2"][:2]
    # each line is a turn: the prompt as an agent sees it, including the results of earlier turns
    assert [line["turn"] for line in first] == [1, 2]
    (prompt, reply), (later, _) = ((one["content"] for one in line["messages"]) for line in first)
    assert re.fullmatch(r"open v\d", reply)
    assert f"{reply}: {reply.split()[1]} is open" not in prompt
    assert f"{reply}: {reply.split()[1]} is open" in later
    # conversations stay complete, but their order is shuffled
    mixed = [line["query_id"] for line in sets["mixed"] if line["turn"] == 1]
    assert len(set(mixed)) == 12
    assert mixed != [line["query_id"] for name in sorted(sets)[:3] for line in sets[name]]
    ids = [line["query_id"] for line in sets["mixed"]]
    assert all(ids[at] == ids[at - 1] for at, line in enumerate(sets["mixed"]) if line["turn"] > 1)
    # there are only 8, 28 and 56 different worlds, so some repeat
    assert re.search(r"[1-9]\d* of \d+ different pairs of world and fault are also in", told.err)
    again = tmp_path / "again"
    main(["sft", "toy", *keys, "--out", str(again)])
    assert (again / "mixed.jsonl").read_bytes() == (tmp_path / "mixed.jsonl").read_bytes()


def test_first_line_is_printed_before_any_check_or_draw(tmp_path, monkeypatch, capsys):
    said = []
    monkeypatch.setattr(Toy, "check", lambda self, config: said.append(capsys.readouterr().err))
    keys = ("--seed", "5", "--sizes", "2,1,1")
    assert main(["sft", "toy", *keys, "--out", str(tmp_path)]) == 0
    assert said[0] == "netarena: drawing and solving 4 queries of toy\n"


def test_failing_demonstration_cancels_the_others(tmp_path, monkeypatch):
    begun, ended = [], []

    async def demonstrate(application, config, query):
        begun.append(query.id)
        if len(begun) == 3:
            raise RuntimeError("no reference solution")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(query.id)

    monkeypatch.setattr(sft, "demonstrate", demonstrate)
    toy = load("toy", training=True)
    config = toy.config_type(concurrency=3)

    async def write():
        with pytest.raises(RuntimeError, match="no reference solution"):
            await sft.write_sets(toy, config, 5, {"level1": 4}, tmp_path)
        assert sorted(ended) == sorted(begun[:2] + begun[3:])

    asyncio.run(write())


def test_ticket_ends_with_a_declaration_of_all_faults(tmp_path):
    """The causes are only in the last reply, and prompts contain nothing hidden."""
    keys = ("--seed", "5", "--sizes", "2,2,2", "--set", "briefing=ticket")
    assert main(["sft", "toy", *keys, "--out", str(tmp_path)]) == 0
    toy = load("toy", training=True)
    config = toy.config_type.parse({"briefing": "ticket"})
    drawn = [draw_level(toy, config, 5, level, 2) for level in config.LEVELS]
    queries = {query.id: query for query in chain(*drawn)}
    told = {}
    for line in lines_of(tmp_path / "mixed.jsonl"):
        prompt, reply = (one["content"] for one in line["messages"])
        query = queries[line["query_id"]]
        claim = toy.tickets.declaration(toy.parse(reply))
        assert (claim is not None) is (line["turn"] == line["turns"])
        if claim is not None:
            told[query.id] = set(claim.causes or ()) == set(toy.tickets.causes(query))
        assert query.id not in prompt
        if query.actions:
            assert toy.tickets.declare(toy.tickets.causes(query)) not in prompt
    assert len(told) == 6
    assert all(told.values())


@pytest.mark.parametrize("name", ["toy", "malt", "route", "k8s"])
def test_training_queries_differ_from_evaluation_queries(name):
    """Training ids, which seed the draws, begin with ``train``, so the draws differ."""
    asked, learnt = load(name), load(name, training=True)
    config = asked.config_type.parse({"num_queries": 1, "complexity_level": "level1"})
    one, other = next(asked.generate(config, 7)), next(learnt.generate(config, 7))
    assert other.id == f"train-{one.id}"
    assert (one.initial, one.actions) != (other.initial, other.actions)


def test_episodes_solved_safely_become_training_dialogues(tmp_path, capsys):
    keys = ("--seed", "5", "--num-queries", "2")
    main(["run", "toy", *keys, "--agent", "oracle", "--out", str(tmp_path / "run")])
    main(["run", "toy", *keys, "--agent", "random", "--out", str(tmp_path / "lost")])
    capsys.readouterr()
    for run, number in (("run", 12), ("lost", 0)):
        out = ("--out", str(tmp_path / f"{run}-set"))
        against = ("--against", str(tmp_path / "run"))
        assert main(["sft", "toy", "--from", str(tmp_path / run), *out, *against]) == 0
        told = capsys.readouterr()
        lines = lines_of(tmp_path / f"{run}-set" / "trajectories.jsonl") if number else []
        assert len(lines) == number
        if number:
            assert "12 lines are from queries of an assessment" in told.err
            assert "6 of 6 different pairs of world and fault" in told.err
        else:
            assert "6 queries were left out: not solved safely" in told.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--sizes", "1,2"], "--sizes: must be 3 numbers N,N,N, not '1,2'"),
        (["--set", "num_queries=3"], "config.num_queries: cannot be set here: use --sizes"),
        (["--from", "nowhere"], "directory: nowhere is not a directory"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(arguments, told, capsys, tmp_path):
    assert main(["sft", "toy", "--out", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err == f"netarena: error: {told}\n"
