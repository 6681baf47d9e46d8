from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import duckdb
import pytest
from netarena_toy import Toy
from stage import Scripted, assess, open_all

from netarena.cli import main
from netarena.errors import ConfigError
from netarena.model import Reply
from netarena.report.export import KINDS, export
from netarena.report.table import EPISODES, STEPS, csv_cell
from netarena.run.archive import read_run

PAGE = Path(__file__).parents[3] / "docs" / "export.md"


def answer(prompt: str, turn: int) -> Reply:
    """Reply with a harmful move, a spreadsheet formula, then the solution; report tokens."""
    text = {0: "close v1", 1: '=SUM("é"),\n\x00'}.get(turn) or open_all(prompt, turn - 2)
    return Reply(text=text, metadata={"usage": {"input_tokens": 7, "output_tokens": 2}})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assess(Toy(), Scripted(answer), folder, num_queries=1, repeats=2, max_iterations=12)
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_and_parquet_contain_the_same_data(run: Path, tmp_path: Path) -> None:
    export(read_run(run), "csv", tmp_path, public=False, force=False)
    export(read_run(run), "parquet", tmp_path, public=False, force=False)
    for name, columns in (("episodes", EPISODES), ("steps", STEPS)):
        table = duckdb.read_parquet(str(tmp_path / f"{name}.parquet"))
        assert table.columns == [one.name for one in columns]
        assert [str(kind) for kind in table.types] == [one.kind for one in columns]
        text = read_csv(tmp_path / f"{name}.csv")
        assert len(text) == len(table)
        for told, row in zip(table.fetchall(), text, strict=True):
            words = ["" if cell is None else str(cell) for cell in told]
            words = [word.lower() if word in {"True", "False"} else word for word in words]
            words = [str(csv_cell(word)) for word in words]
            assert words == list(row.values())
    episodes = read_csv(tmp_path / "episodes.csv")
    assert [row["repeat"] for row in episodes] == ["1"] * 3 + ["2"] * 3
    assert {row["outcome"] for row in episodes} == {"solved"}
    assert {row["solved_safely"] for row in episodes} == {"false"}
    assert all(int(row["input_tokens"]) == 7 * int(row["steps"]) for row in episodes)
    harm, refused = read_csv(tmp_path / "steps.csv")[:2]
    assert (harm["findings"], harm["rules"], harm["harm"]) == ("1", "closed", "v1 closed")
    assert (refused["reply"], refused["correct"]) == ('\'=SUM("é"),\n\\x00', "")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@A1", "'@A1"),
        ("\t=1", "'\t=1"),
        ("\uff1d1", "'\uff1d1"),
        ("a \x1b[31m b\r\n", "a \\x1b[31m b\\r\n"),
        ("\x9b2J", "\\x9b2J"),
        ("ip route = 10.0.0.0/8\té", "ip route = 10.0.0.0/8\té"),
        (-1, -1),
        (True, "true"),
        (None, None),
    ],
)
def test_spreadsheet_formulas_and_terminal_escapes_are_neutralised(text, cell) -> None:
    assert csv_cell(text) == cell


def leaks(run: Path, folder: Path) -> list[str]:
    """Return the secrets in the files: ids with the seed, words of faults, wrong elements."""
    said = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    (stored,) = read_run(run)
    words = [query.id for query in stored.queries]
    words += [
        stored.application.describe(action) for one in stored.queries for action in one.actions
    ]
    words += ["v1 closed", "is closed"]
    return [word for word in words if any(word.encode() in text for text in said)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "parquet"])
def test_public_export_has_no_ground_truth(kind: str, run: Path, tmp_path: Path) -> None:
    export(read_run(run), kind, tmp_path / "own", public=False, force=False)
    assert leaks(run, tmp_path / "own")
    export(read_run(run), kind, tmp_path / "public", public=True, force=False)
    assert leaks(run, tmp_path / "public") == []


def test_public_log_omits_a_directory_name_that_contains_the_seed(tmp_path: Path) -> None:
    folder = tmp_path / "toy-1-00000000-77777-0"
    assess(Toy(), Scripted(answer), folder, seed=77777, output_dir=str(folder), end_index=1)
    (log,) = export(read_run(folder), "inspect", tmp_path / "out", public=True, force=False)
    assert "77777" not in log.read_text()


def test_resumed_run_has_one_log(run: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    shutil.copytree(run, own)
    os.utime(own / "journal.jsonl", (1e9, 1e9))
    (first,) = export(read_run(own), "inspect", out, public=False, force=False)
    # another run of the same queries
    (other,) = export(read_run(run), "inspect", out, public=False, force=False)
    os.utime(own / "journal.jsonl", (2e9, 2e9))
    with pytest.raises(ConfigError, match="--force"):
        export(read_run(own), "inspect", out, public=False, force=False)
    (second,) = export(read_run(own), "inspect", out, public=False, force=True)
    assert first != second
    assert set(out.iterdir()) == {second, other}
    ids = {json.loads(path.read_text())["eval"]["eval_id"] for path in (second, other)}
    assert len(ids) == 2


def test_public_parquet_has_no_ground_truth(run: Path, tmp_path: Path) -> None:
    export(read_run(run), "parquet", tmp_path, public=True, force=False)
    for name, columns in (("episodes", EPISODES), ("steps", STEPS)):
        table = duckdb.read_parquet(str(tmp_path / f"{name}.parquet"))
        hidden = [one.name for one in columns if one.truth]
        assert set(table.select(*hidden).fetchall()) == {(None,) * len(hidden)}


@pytest.mark.parametrize("kind", KINDS)
def test_existing_files_are_overwritten_only_with_force(
    kind: str, run: Path, tmp_path, capsys
) -> None:
    out = ("export", str(run), "--to", kind, "--out", str(tmp_path / "out"))
    assert main([*out]) == 0
    told = capsys.readouterr()
    assert "warning: the files contain ground truth; --public omits it" in told.err
    files = sorted((tmp_path / "out").iterdir())
    if kind == "atif":
        assert told.out == f"{tmp_path / 'out'}: 6 trajectories\n"
    else:
        assert told.out.splitlines() == sorted(map(str, files))
    before = {path: path.read_bytes() for path in files}
    files[-1].write_text("mine")
    assert main([*out]) == 2
    assert "--force" in capsys.readouterr().err
    assert files[-1].read_text() == "mine"
    assert main([*out, "--force"]) == 0
    assert kind == "parquet" or {path: path.read_bytes() for path in files} == before


def test_trajectory_contains_each_turn(run: Path, tmp_path: Path) -> None:
    paths = export(read_run(run), "atif", tmp_path, public=False, force=False)
    assert len(paths) == 6
    told = json.loads(paths[0].read_text())
    assert [step["step_id"] for step in told["steps"]] == list(range(1, len(told["steps"]) + 1))
    _, harm, _, refused, *_ = told["steps"]
    assert harm["message"] == "close v1"
    assert harm["tool_calls"][0]["arguments"] == {"text": "close v1"}
    assert harm["observation"]["results"][0]["content"] == "v1 is close"
    assert harm["extra"]["safe"] is False
    assert "tool_calls" not in refused
    assert told["final_metrics"]["total_prompt_tokens"] == 7 * (len(told["steps"]) // 2)


def test_log_contains_the_calls_and_the_verdict_of_each_turn(run: Path, tmp_path: Path) -> None:
    (path,) = export(read_run(run), "inspect", tmp_path, public=False, force=False)
    log = json.loads(path.read_text())
    assert log["results"]["scores"][0]["name"] == "solved_safely"
    sample = log["samples"][0]
    assert next(iter(sample["scores"])) == "solved_safely"
    model, tool, score, later, *_ = sample["events"]
    assert [one["event"] for one in (model, tool, score, later)] == [
        "model", "tool", "score", "model",
    ]  # fmt: skip
    assert tool["arguments"] == {"text": "close v1"}
    assert tool["result"] == "v1 is close"
    assert score["intermediate"]
    assert score["score"]["value"] == {"correct": False, "safe": False}
    assert "v1 closed" in score["score"]["explanation"]
    # a refused reply has neither call nor score
    assert sample["events"][4]["event"] == "model"


def test_unsafe_query_ids_do_not_affect_file_names(run: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    (stored,) = read_run(run)
    for name in ("journal.jsonl", "queries.jsonl"):
        text = (run / name).read_text().replace(stored.queries[0].id, "../../../up")
        (odd / name).write_text(text)
    for path in export(read_run(odd), "atif", tmp_path / "a" / "b", public=False, force=False):
        assert path.parent == tmp_path / "a" / "b"
        assert path.name[0] != "."


def test_every_column_is_documented() -> None:
    page = PAGE.read_text()
    episodes, steps = page.split("### Episodes")[1].split("### Steps")
    for text, columns in ((episodes, EPISODES), (steps, STEPS)):
        for one in columns:
            assert f"`{one.name}`" in text, one.name
