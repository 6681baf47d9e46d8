"""The Kubernetes manifest of shards: its numbers agree, and its pods start the right shard."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFEST = Path(__file__).parents[2] / "scripts" / "cluster" / "indexed-job.yaml"


@pytest.fixture
def job() -> dict[str, Any]:
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    (found,) = (each for each in documents if each["kind"] == "Job")
    return dict(found)


def test_numbers_of_the_indexed_job_agree(job: dict[str, Any]) -> None:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    shards = job["spec"]["completions"]
    assert container["env"] == [{"name": "SHARDS", "value": str(shards)}]
    assert job["spec"]["maxFailedIndexes"] == shards


@pytest.mark.parametrize("begun", [False, True])
def test_pod_runs_its_shard_or_continues_it(
    job: dict[str, Any], begun: bool, tmp_path: Path
) -> None:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = tmp_path / "netarena"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    folder = tmp_path / "malt" / "shard-3"
    if begun:
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    words = [word.replace("/netarena-runs", str(tmp_path)) for word in container["command"]]
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SHARDS": "8", "JOB_COMPLETION_INDEX": "3"}
    done = subprocess.run(
        [*words, *container["args"]], env=environ, capture_output=True, text=True, check=True
    )
    resume = ["--resume"] if begun else []
    expected = ["run", *container["args"], *resume, "--shard", "3/8", "--out", str(folder)]
    assert done.stdout.splitlines() == expected
