"""Worker processes of an audit."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from netarena.audit.check import Depth, _check_all, audit
from netarena.audit.draw import draw
from netarena.audit.result import Audit
from netarena.audit.workers import _answer
from netarena.errors import EnvironmentFailed
from netarena.model import Query
from tests.fake.lamp import Dim, Lamp, LampConfig

CONFIG = LampConfig()


def test_worker_processes_find_the_same_flaws_as_one_process(tmp_path, monkeypatch):
    # worker processes must not import a user's file of this name from the current folder
    (tmp_path / "types.py").write_text("raise SystemExit('of the current folder')")
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    async def share() -> Audit:
        return await audit(
            Dim(), CONFIG, 7, 40, processes=2, checked=lambda query, flaw: seen.append(query.id)
        )

    result = asyncio.run(share())
    assert result == asyncio.run(audit(Dim(), CONFIG, 7, 40))
    assert result.reasons() == {"unsolved": 20}
    assert sorted(seen) == sorted({item.query.id for item in draw(Dim(), CONFIG, 7, 40)})


def test_worker_answers_until_its_owner_closes_the_connection():
    ours, theirs = multiprocessing.Pipe()
    check = partial(_check_all, concurrency=2, depth=Depth())
    worker = threading.Thread(target=lambda: asyncio.run(_answer(Dim(), check, theirs)))
    worker.start()
    items = draw(Dim(), CONFIG, 7, 4)
    for batch in (items[:3], items[3:]):
        ours.send(batch)
        answers = ours.recv()
        assert {answer.item.query.id for answer in answers} == {i.query.id for i in batch}
        assert [answer.flaw is not None for answer in answers] == [
            answer.item.query.label == "two" for answer in answers
        ]
    ours.close()
    worker.join(60)
    assert not worker.is_alive()


class Fatal(Lamp):
    """Lamps that end the process in which a solution is requested."""

    def solve(self, query: Query) -> Sequence[str]:
        os._exit(3)


def test_worker_that_dies_is_an_environment_failure():
    with pytest.raises(EnvironmentFailed, match="audit worker process exited"):
        asyncio.run(audit(Fatal(), CONFIG, 7, 4, processes=2))
