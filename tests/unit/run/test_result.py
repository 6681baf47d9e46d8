from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netarena.run.result import Spool, write_document, write_json


def test_failed_write_of_json_leaves_the_old_content(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "a.json", {"new": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_result_document_has_the_same_format_as_other_json_files(tmp_path: Path) -> None:
    records = [{"text": "a\nb\u2028", "list": [1, {"x": None}], "empty": {}}, {"n": 2}]
    participants = {"role": "http://a/"}
    write_document(tmp_path / "a.json", participants, records)
    write_json(tmp_path / "b.json", {"participants": participants, "results": records})
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()


def test_records_are_written_without_being_held_in_memory(tmp_path: Path) -> None:
    held = 0

    class Held(dict[str, Any]):
        def __init__(self) -> None:
            nonlocal held
            super().__init__(text="x")
            held += 1
            assert held <= 2

        def __del__(self) -> None:
            nonlocal held
            held -= 1

    def records() -> Iterator[dict[str, Any]]:
        for _ in range(10):
            yield Held()

    write_document(tmp_path / "a.json", {"r": "a"}, records())
    assert len(json.loads((tmp_path / "a.json").read_text())["results"]) == 10


@pytest.mark.parametrize(
    ("umask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644), (0o002, 0o664), (0, 0o664)]
)
def test_file_mode_follows_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        for value in (1, 2):
            write_json(tmp_path / "a.json", value)
            assert (tmp_path / "a.json").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)


def test_rewritten_private_file_is_still_private(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, 1)
    path.chmod(0o600)
    write_json(path, 2)
    assert path.stat().st_mode & 0o777 == 0o600


def test_failed_write_of_a_document_leaves_the_old_document(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_document(path, {"r": "a"}, [{"n": 1}])
    with pytest.raises(ValueError, match="Out of range"):
        write_document(path, {"r": "a"}, [{"n": 2}, {"n": float("nan")}])
    assert json.loads(path.read_text())["results"] == [{"n": 1}]


def test_spool_returns_its_records_repeatedly(tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        records = [{"n": number, "text": "é\u2028\r\n\x85"} for number in range(3)]
        for record in records:
            spool.append(record)
        assert list(spool) == list(spool) == records
        assert [json.loads(line) for line in spool.lines()] == records
        assert not list(tmp_path.iterdir()), "a killed run leaves nothing behind"
