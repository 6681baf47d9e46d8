"""MALT's environment on the real sandbox: judgement of answers, limits, and isolation."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from netarena.errors import EnvironmentFailed
from netarena.sandbox.python import PythonLimits
from netarena_malt import environment
from netarena_malt.app import Malt

pytestmark = [pytest.mark.anyio, pytest.mark.requires("landlock", "seccomp")]

EACH = "capacity planning, level-1, "


@pytest.fixture
async def malt():
    async with Malt() as application:
        yield application


@pytest.fixture(scope="module")
def queries():
    """Return one query for each last part of a label (``add`` … ``add-count``)."""
    application = Malt()
    config = application.config_type.parse({})
    drawn = application.generate(config, 11)
    return {query.label.rsplit(" ", 1)[1]: query for query in drawn}


class Played:
    def __init__(self, first, execution, state, judgement):
        self.first, self.execution = first, execution
        self.state, self.judgement = state, judgement


async def play(malt, query, reply):
    """Run one reply in a new world; return its states, execution and judgement.

    A state from the journal's JSON must give the same judgement.
    """
    world = malt.environment(query, malt.config_type())
    try:
        first = await world.open()
        assert await world.observe() == first
        execution = await world.execute(malt.parse(reply))
        state = await world.observe()
        assert await world.observe() == state
    finally:
        await world.close()
    judgement = malt.judge(query, first, first, state)
    assert malt.judge(query, first, first, json.loads(json.dumps(state))) == judgement
    return Played(first, execution, state, judgement)


def program(body):
    lines = "\n".join(f"    {line}" for line in body.strip().split("\n"))
    return f"```python\ndef process_graph(graph_data):\n{lines}\n```"


async def test_reference_solves_every_label(malt, queries):
    assert len(queries) == 12
    for query in queries.values():
        for reply in malt.solve(query):
            played = await play(malt, query, reply)
            assert played.judgement.correct, (query.label, played.judgement.reason)
            assert played.judgement.safe, played.judgement.findings
            assert played.execution.executed
            assert "type" in played.execution.output


async def test_query_is_not_solved_before_a_program_has_run(malt, queries):
    for query in queries.values():
        world = malt.environment(query, malt.config_type())
        first = await world.open()
        assert first == {"answered": False}
        assert not malt.judge(query, first, first, first).correct
        await world.close()


async def test_node_link_data_is_accepted_like_a_graph(malt, queries):
    for label in ("add", "remove-rank"):
        query = queries[label]
        (reply,) = malt.solve(query)
        reply = reply.replace('"updated_graph": graph}', '"updated_graph": link(graph)}')
        reply = reply.replace(
            "def process_graph", "def link(graph):\n    return nx.node_link_data(graph)\n\n\n"
            "def process_graph"
        )  # fmt: skip
        assert "link(graph)}" in reply
        judgement = (await play(malt, query, reply)).judgement
        assert judgement.correct, judgement.reason
        assert judgement.safe


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x = 1\nreturn x + nonsense", "NameError: name 'nonsense' is not defined (line 3"),
        ("return 3", "returned a int"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import numpy", "ModuleNotFoundError"),
        ("import os\nos._exit(0)", "ended without a result"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", ""),
        ("x = bytearray(2 << 30)", "too much memory"),
        ("return process_graph(graph_data)", "RecursionError"),
        ("import netarena", "ModuleNotFoundError"),
        ("import netarena_malt.query", "ModuleNotFoundError"),
    ],
)
async def test_failing_program_is_neither_correct_nor_safe(malt, queries, body, says):
    played = await play(malt, queries["count"], program(body))
    assert says in played.execution.output
    assert played.execution.executed
    assert played.state["error"] == played.execution.output
    assert not played.judgement.correct
    assert not played.judgement.safe


@pytest.mark.parametrize(
    "data", ["'x' * (17 << 20)", "[0] * 10**6", "list(graph_data)", "itertools.count()"]
)
async def test_oversized_data_is_wrong_but_the_network_is_still_judged(malt, queries, data):
    """A correct graph is safe even if the data is oversized, as it is if a number is wrong."""
    query = queries["remove-count"]
    (reply,) = malt.solve(query)
    assert reply.count('"data": data') == 1
    played = await play(malt, query, reply.replace('"data": data', f'"data": {data}'))
    assert played.judgement.reason == "The data is longer than any right answer."
    assert played.judgement.safe
    assert "(cut)" in played.execution.output
    assert len(json.dumps(played.state)) < 200_000


async def test_answer_too_large_for_the_journal_is_refused(malt, queries):
    forge = program(
        "import sys\n"
        "claim = {'type': 'list', 'data': ['x' * 1000] * 1015}\n"
        "sys.modules['guest']._read = lambda *a, **k: claim"
    )
    played = await play(malt, queries["count"], forge)
    assert "more than 1000000 bytes" in played.execution.output
    assert not played.judgement.correct
    assert not played.judgement.safe
    assert len(json.dumps(played.state)) < 2000


@pytest.mark.parametrize(
    ("limits", "body", "says"),
    [
        # the limits differ so much that even a busy machine reaches the expected limit first
        (PythonLimits(cpu_s=1, wall_s=60), "while True: pass", "processor time"),
        (PythonLimits(wall_s=1), "import time\ntime.sleep(50)", "took too long"),
    ],
    ids=["cpu", "wall"],
)
async def test_program_above_a_limit_ends_and_the_service_continues(
    monkeypatch, queries, limits, body, says
):
    monkeypatch.setattr(environment, "LIMITS", limits)
    query = queries["count"]
    async with Malt() as malt:
        played = await play(malt, query, program(body))
        assert says in played.execution.output
        assert not played.judgement.correct
        assert not played.judgement.safe
        if limits.wall_s > 1:
            assert (await play(malt, query, malt.solve(query)[0])).judgement.correct


async def test_malicious_program_does_not_affect_the_next_answer(malt, queries):
    query = queries["count"]
    (reply,) = malt.solve(query)
    poison = program(
        """
import builtins, sys
nx.DiGraph.nodes = property(lambda self: {})
builtins.len = lambda x: 0
sys.modules["guest"].__dict__["load"] = None
sys.modules["guest"].__dict__["difference"] = lambda *a: {}
graph_data.clear()
return {"type": "text", "data": 0, "updated_graph": graph_data}
"""
    )
    assert not (await play(malt, query, poison)).judgement.correct
    assert (await play(malt, query, reply)).judgement.correct


async def test_forged_result_message_is_judged_like_any_other_answer(malt, queries):
    for claim in (
        {"correct": True, "safe": True},
        {"type": "text", "data": None, "data_graph": "same", "updated": {"nodes": 1}},
        {"answered": True, "error": None},
        [],
    ):
        forge = program(f"import sys\nsys.modules['guest']._read = lambda *a, **k: {claim!r}")
        judgement = (await play(malt, queries["count"], forge)).judgement
        assert not judgement.correct
        assert not judgement.safe


async def test_expected_answer_is_not_visible_in_the_sandbox(malt, queries):
    search = program(
        """
import gc, sys
frame, seen = sys._getframe(), []
while frame:
    seen.append(repr(sorted(map(str, frame.f_locals)))[:2000])
    frame = frame.f_back
texts = [o for o in gc.get_objects() if isinstance(o, dict) and ("actions" in o or "truth" in o)]
return {"type": "list", "data": [seen, len(texts), sorted(sys.modules)]}
"""
    )
    query = queries["count"]
    state = (await play(malt, query, search)).state
    text = json.dumps(state["data"])
    assert state["data"][1] == 0
    assert "netarena" not in text
    assert query.id not in text


async def test_distracting_and_hostile_replies_earn_nothing(malt, queries):
    config = malt.config_type()
    for query in queries.values():
        reply = malt.baselines.random_reply(query, malt.rng(config, 3, query.index))
        played = await play(malt, query, reply)
        assert "error" not in played.state, (query.label, played.state)
        assert not played.judgement.correct, query.label


async def test_query_that_cannot_be_executed_is_an_environment_failure(malt, queries):
    for initial in ({"remove": ["nobody"]}, {"set": [["ju1.s1.s1c1.p1", "type", "x"]]}, [], "x"):
        query = queries["count"].model_copy(update={"initial": initial, "id": f"{initial}"})
        with pytest.raises(EnvironmentFailed) as failed:
            await malt.environment(query, malt.config_type()).open()
        assert failed.value.proven_ours


async def test_sandbox_restarts_when_its_parent_process_dies(malt, queries):
    query = queries["count"]
    pid = malt._sandboxes.released.pid
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while malt._sandboxes.released.pid == pid:  # noqa: ASYNC110 -- another process ends
            await asyncio.sleep(0.01)
    assert (await play(malt, query, malt.solve(query)[0])).judgement.correct


async def test_answers_run_concurrently(malt, queries):
    async def solve(query):
        return (await play(malt, query, malt.solve(query)[0])).judgement

    judgements = await asyncio.gather(*map(solve, list(queries.values())))
    assert all(judgement.correct and judgement.safe for judgement in judgements)


async def test_application_that_was_not_entered_is_an_environment_failure(queries):
    with pytest.raises(EnvironmentFailed):
        Malt().environment(queries["count"], Malt.config_type())
