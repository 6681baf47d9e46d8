"""Networks of users on the real sandbox: solved, with limits by their size, and isolated."""

from __future__ import annotations

import asyncio
import json

import pytest
from malt.foreign import as_text, foreign

from netarena.errors import EnvironmentFailed
from netarena_malt.app import Malt
from netarena_malt.base_network import base_of, released_base

pytestmark = [pytest.mark.anyio, pytest.mark.requires("landlock", "seccomp")]

LARGER = {"superblocks": 8, "spine_blocks": 5, "ports": 20}
LEVELS = ["level1", "level2", "level3", "level4"]


def draw(topology, seed=3):
    config = {"topology": topology, "complexity_level": LEVELS}
    return list(Malt().generate(Malt.config_type.parse(config), seed))


@pytest.fixture
async def malt():
    async with Malt() as application:
        yield application


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.textproto"
    path.write_text(as_text(foreign(5, blocks=4, most=9)))
    return str(path)


async def play(malt, query, reply):
    world = malt.environment(query, malt.config_type())
    try:
        first = await world.open()
        execution = await world.execute(malt.parse(reply))
        state = await world.observe()
    finally:
        await world.close()
    return malt.judge(query, first, first, json.loads(json.dumps(state))), execution, state


async def test_reference_solves_every_label_of_any_network(malt, model):
    for query in (*draw(LARGER), *draw(model)):
        judgement, execution, _ = await play(malt, query, malt.solve(query)[0])
        assert judgement.correct, (query.label, judgement.reason, execution.output)
        assert judgement.safe, judgement.findings
    assert len(malt._sandboxes._uses) == 2


async def test_program_gets_the_network_of_its_query_and_its_limits(malt, model):
    look = (
        "```python\ndef process_graph(g):\n    import resource\n"
        "    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU,)]\n"
        "    return {'type': 'list', 'data': [len(g), *limits], 'updated_graph': g}\n```"
    )
    for topology, times in (("released", 1), (model, 1), (LARGER, 3)):
        query = draw(topology)[3]
        _, _, state = await play(malt, query, look)
        nodes, cpu_s = state["data"]
        # the kernel's limit is a fallback: the parent enforces 10 s with a finer clock
        assert cpu_s == 2 * 10 * times + 1
        assert abs(nodes - base_of(query.initial).size) < 400
        assert state["updated"] == {
            "nodes": {},
            "removed_nodes": [],
            "edges": [],
            "removed_edges": [],
            "more": False,
        }


async def test_network_above_the_limit_waits_until_another_network_is_released(malt):
    kinds = [{"columns": 1, "ports": number} for number in (1, 2, 3)]
    worlds = [malt.environment(draw(kind)[0], malt.config_type()) for kind in kinds]
    released = malt.environment(draw("released")[0], malt.config_type())
    await asyncio.gather(worlds[0].open(), worlds[1].open())
    third = asyncio.ensure_future(worlds[2].open())
    await released.open()
    await asyncio.wait([third], timeout=0.2)
    assert not third.done(), "only two networks may be open at a time"
    pids = {use.sandbox.pid for use in malt._sandboxes._uses.values()}
    await worlds[0].close()
    async with asyncio.timeout(60):
        await third
    assert len(malt._sandboxes._uses) == 2
    assert len(pids & {use.sandbox.pid for use in malt._sandboxes._uses.values()}) == 1
    for world in (worlds[1], worlds[2], released):
        await world.close()
        await world.close()  # a second close has no effect
    assert not any(use.users for use in malt._sandboxes._uses.values())
    with pytest.raises(EnvironmentFailed, match="not open"):
        await worlds[1].execute({"code": ""})


async def test_network_whose_model_file_is_missing_occupies_no_slot(malt, tmp_path, model):
    query = draw(model)[0]
    (tmp_path / "model.textproto").unlink()
    with pytest.raises(EnvironmentFailed, match="does not exist"):
        await malt.environment(query, malt.config_type()).open()
    assert not malt._sandboxes._uses
    assert base_of(draw("released")[0].initial) is released_base()
