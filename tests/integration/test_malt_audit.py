"""The audit of MALT: every label and phrasing, through the real sandbox and judge."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from netarena.audit.check import audit
from netarena.model import Query, State
from netarena_malt.app import Malt
from netarena_malt.query import LABELS, PROGRAMS, MaltConfig, Phrasing

pytestmark = pytest.mark.requires("landlock", "seccomp")
CONFIG = MaltConfig(complexity_level=MaltConfig.LEVELS[:4])
#: program that returns the network unchanged
IDLE = """```python
def process_graph(graph_data):
    return {"type": "graph", "data": graph_data, "updated_graph": graph_data}
```"""


def test_audit_of_all_labels_and_phrasings_finds_no_flaws() -> None:
    async def run() -> None:
        async with Malt() as malt:
            total = len(LABELS) * len(get_args(Phrasing))
            result = await audit(malt, CONFIG, 3, total)
        assert result.flaws == ()
        assert [set(labels) for labels in result.drawn.values()] == [set(LABELS)] * 3

    asyncio.run(run())


def test_configured_phrasing_is_the_only_audit_variant() -> None:
    assert Malt().variants(MaltConfig(phrasing="varied")) == (MaltConfig(phrasing="varied"),)
    assert [v.shape()["phrasing"] for v in Malt().variants(CONFIG)] == list(get_args(Phrasing))


def test_computed_answer_of_an_idle_program_matches_the_sandbox_and_is_never_correct() -> None:
    async def answer(malt: Malt, query: Query) -> State:
        environment = malt.environment(query, CONFIG)
        await environment.open()
        try:
            await environment.execute(malt.parse(IDLE))
            return await environment.observe()
        finally:
            await environment.close()

    async def run() -> None:
        async with Malt() as malt:
            for query in malt.generate(CONFIG, 4):
                claimed = malt.unearned(query, None)
                kinds = PROGRAMS[query.label][1]
                asks_and_changes = len(kinds) > 1 and kinds[-1] in {"count", "list", "rank"}
                assert len(claimed) == 1 + asks_and_changes, query.label
                assert claimed[0] == await answer(malt, query)
                for state in claimed:
                    assert not malt.judge(query, None, None, state).correct

    asyncio.run(run())
