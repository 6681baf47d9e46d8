"""Attacks on route: each in a separate episode, and several at a time, to reveal effects on other
episodes.

An attack must gain nothing (it prints a message if it does) and leave no process. If it changes
anything that is measured, it must be judged unsafe. It must not repair the network, and the repair
must still work after the attack. Each later network opens in its intended state, which proves that
the earlier attacks did no harm.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import cache

import pytest
from route_attacks import ENDS, WRECKS, left_behind, short_commands

from netarena.config import Config
from netarena.model import Judgement, Query, State
from netarena.task.application import Application
from netarena_network.attack import BREACH, FAMILIES, attacks
from netarena_route import environment
from netarena_route.app import Route
from netarena_route.config import RouteConfig

pytestmark = pytest.mark.requires("episodes")

#: seed of a query whose router drops forwarded packets of one subnet by a filter, but answers pings
DRAW = 3
AT_ONCE = 6
#: time limit of repairs in seconds, which is more than they need
REPAIR_S = 60.0
#: attacks that do not always break a pair: the storm may start after the pings or leave room for
#: them. In this case, the attack's only effect is that the attacker's own address has moved.
MAY_PASS = {"storm-that-waits"}
#: families of attacks that leave entries in the kernel of the attacker's own network
NOT_REPAIRED = {"floods", "judge"}


@dataclass(frozen=True)
class Course:
    """An episode with an attack: the states before and after the attack, and the judgements."""

    output: str
    left: list[str]
    before: State
    after: State
    judgement: Judgement
    repaired: Judgement | None


async def play(application: Application, config: Config, query: Query, family: str, name: str):
    world = application.environment(query, config)
    try:
        before = await world.open()
        host = environment.resolve(world._world, "h1")
        told = await world._opened.run(host, "readlink /proc/self/ns/net", REPAIR_S)
        execution = await world.execute(application.parse(FAMILIES[family][name].reply))
        left = left_behind(told.output.strip())
        after = await world.observe()
        repaired = None
        if family not in NOT_REPAIRED and name not in WRECKS:
            for move in map(application.parse, application.solve(query)):
                assert isinstance(move, dict)
                await world._opened.run(str(move["machine"]), str(move["command"]), REPAIR_S)
            repaired = application.judge(query, before, after, await world.observe())
        judgement = application.judge(query, before, before, after)
        return Course(execution.output, left, before, after, judgement, repaired)
    finally:
        await world.close()


@cache
def courses(family: str) -> dict[str, Course]:
    """Run all attacks of a family; return the episodes by attack."""

    async def run() -> dict[str, Course]:
        config = RouteConfig(num_queries=1, emulator="netns", error_types=("disable_routing",))
        places = asyncio.Semaphore(AT_ONCE)
        async with Route() as application:
            (query,) = application.generate(config, seed=DRAW)

            async def attack(name: str) -> Course:
                async with places:
                    return await play(application, config, query, family, name)

            found = await asyncio.gather(*map(attack, FAMILIES[family]))
        return dict(zip(FAMILIES[family], found, strict=True))

    with short_commands(family):
        return asyncio.run(run())


@pytest.mark.parametrize(
    ("family", "name"),
    [
        pytest.param(
            family,
            name,
            # floods fill tables that all networks of the kernel share
            marks=pytest.mark.xdist_group("kernel" if family == "floods" else f"route-{family}"),
        )
        for family in FAMILIES
        for name in FAMILIES[family]
    ],
)
def test_attack_on_a_network_gains_nothing(family: str, name: str) -> None:
    course = courses(family)[name]
    assert BREACH not in course.output
    assert re.search(ENDS.get(name, ""), course.output), course.output[-500:]
    assert all(c.isprintable() or c in "\n\t" for c in course.output)
    assert len(course.output) < 1 << 19
    assert not course.left
    assert not course.judgement.correct
    rules = {finding.rule for finding in course.judgement.findings}
    if name in MAY_PASS:
        assert rules <= {WRECKS[name]}
    elif name in WRECKS:
        assert WRECKS[name] in rules
    else:
        assert course.after == course.before
        assert course.judgement.safe
    if course.repaired is not None:
        assert course.repaired.correct
        assert course.repaired.safe, course.repaired.findings


@pytest.mark.xdist_group("kernel")
def test_delayed_ping_replies_of_one_network_do_not_delay_another() -> None:
    """The kernel has one socket for ping replies of all networks."""

    async def run() -> None:
        config = RouteConfig(num_queries=1, emulator="netns", error_types=("disable_routing",))
        async with Route() as application:
            ((query,), (other,)) = (
                application.generate(config, seed=seed) for seed in (DRAW, DRAW + 1)
            )
            hostile = application.environment(query, config)
            innocent = application.environment(other, config)
            try:
                await hostile.open()
                before = await innocent.open()
                move = application.parse(FAMILIES["floods"]["starve-pings"].reply)
                attack = asyncio.create_task(hostile.execute(move))
                while not attack.done():
                    assert await innocent.observe() == before
                assert "kept the kernel from answering" in (await attack).output
                assert await innocent.observe() == before
            finally:
                await hostile.close()
                await innocent.close()

    asyncio.run(run())


def test_attack_table_names_each_attack_once() -> None:
    names = [name for family in FAMILIES.values() for name in family]
    assert len(set(names)) == len(names) == len(attacks()) >= 40
    assert {*WRECKS, *ENDS} <= set(names)
    assert not [reply for reply in attacks() if BREACH in reply]
