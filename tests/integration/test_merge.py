"""A real run in shards: the merged folder, and the commands that read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netarena.cli import main

OPTIONS = {
    "malt": ["complexity_level=level1"],
    "k8s": ['error_types=["add_ingress", "remove_ingress"]'],
}
#: fields whose values differ between any two runs
VARYING = re.compile(
    r'"(\w*_s|Result-Latency|output_dir|p95|mean|median|max|total)": ?("[^"]*"|[-\d.e]+|null)'
)


def run(name: str, out: Path, *options: str) -> int:
    keys = [word for pair in OPTIONS[name] for word in ("--set", pair)]
    return main(["run", name, "--seed", "7", *keys, "--out", str(out), *options])


def contents(folder: Path) -> dict[str, str]:
    """Return the text of the files of a run without times and folders."""
    return {path.name: VARYING.sub(r'"\1": 0', path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize("name", OPTIONS)
def test_merged_shards_equal_one_run_and_all_commands_can_read_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(name, tmp_path / "whole") == 0
    shards = [tmp_path / "shard-0", tmp_path / "shard-1"]
    assert run(name, shards[0], "--shard", "0/2") == 0
    merge = ["merge", str(tmp_path / "merged")]
    assert main([*merge, str(shards[0])]) == 1
    # the printed command runs the missing shard
    told = capsys.readouterr().err
    assert "--shard 1/2" in told
    assert run(name, shards[1], "--shard", "1/2") == 0
    assert main([*merge, *map(str, shards)]) == 0
    merged = contents(tmp_path / "merged")
    assert merged == contents(tmp_path / "whole")
    for words in (["report"], ["view", "--static", str(tmp_path / "pages")], ["regrade"]):
        assert main([words[0], str(tmp_path / "merged"), *words[1:]]) == 0
    assert main(["export", str(tmp_path / "merged"), "--to", "csv"]) == 0
