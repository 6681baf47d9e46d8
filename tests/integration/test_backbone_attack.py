"""Route's attacks on a backbone: one episode for each family of attacks.

The attacks gain nothing, leave no process, and change nothing that is measured. Afterwards the
reference solution works as before. Addresses are replaced by those of this world. Three kinds of
attacks are left out: attacks on route's judge (``judge``), attacks that name no machine
(``names``), and attacks that break their own network. ``test_backbone`` tests input to FRR's
daemons.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest
from route_attacks import ENDS, WRECKS, left_behind, short_commands

from netarena.model import Judgement, State
from netarena_backbone.app import Backbone
from netarena_backbone.config import BackboneConfig
from netarena_backbone.query import case_of
from netarena_backbone.state import read
from netarena_backbone.world.model import bare
from netarena_network.attack import BREACH, FAMILIES, Attack

#: the first test of a family runs up to fifteen attacks, each of which takes 4 s or more
pytestmark = [pytest.mark.requires("episodes", "backbone"), pytest.mark.timeout(900)]

PLAYED = {
    family: [name for name in table if name not in WRECKS]
    for family, table in FAMILIES.items()
    if family not in {"judge", "names"}
}

#: Output of an attack that was stopped because of an earlier attack's packets. On a slow machine,
#: these packets may still circulate when the next attack starts.
STORM = "it sent more than [0-9]+ packets per second"


@dataclass(frozen=True)
class Course:
    """An episode with all attacks of a family.

    Contains the attacked machines, and the output and the remaining processes of each attack. It
    also has the states before and after all attacks, and the judgements of attacks and repair.
    """

    machines: set[str]
    said: Mapping[str, str]
    left: Mapping[str, list[str]]
    before: State
    after: State
    judgement: Judgement
    repaired: Judgement


@cache
def course(family: str) -> Course:
    """Run all attacks of a family, one after the other."""

    async def run() -> Course:
        config = BackboneConfig(
            world="backbone", num_queries=1, emulator="netns", routers=4, error_types=("ospf_cost",)
        )
        async with Backbone() as application:
            (query,) = application.generate(config, seed=7)
            drawn = case_of(query).world
            zones = {one.name for one in drawn.zones}
            own, other, *_ = [one for one in drawn.hosts if one.zone in zones]
            addresses = {
                "192.168.1.100": bare(own.port.address),
                "192.168.2.100": bare(other.port.address),
                "192.168.1.1": own.gateway,
            }
            world = application.environment(query, config)
            machines, said, left, spaces = set(), {}, {}, {}
            try:
                before = await world.open()
                # This command runs before all attacks. On a slow machine, the storm of an attack
                # may be stopped only during the next command, which must be another attack.
                for machine in (own.name, drawn.routers[0].name):
                    link = await world._opened.run(machine, "readlink /proc/self/ns/net", 15.0)
                    spaces[machine] = link.output.strip()
                for name in PLAYED[family]:
                    attack = FAMILIES[family][name]
                    machine = own.name if attack.machine == "h1" else drawn.routers[0].name
                    command = re.sub(
                        "|".join(sorted(map(re.escape, addresses), reverse=True)),
                        lambda found: addresses[found[0]],
                        attack.command,
                    )
                    machines.add(machine)
                    move = application.parse(Attack(machine, command).reply)
                    said[name] = (await world.execute(move)).output
                    left[name] = left_behind(spaces[machine])
                after = await world.observe()
                for reply in application.solve(query):
                    await world.execute(application.parse(reply))
                repaired = application.judge(query, before, after, await world.observe())
            finally:
                await world.close()
            judgement = application.judge(query, before, before, after)
            return Course(machines, said, left, before, after, judgement, repaired)

    with short_commands(family):
        return asyncio.run(run())


def _of(family: str, *values: str):
    # floods fill tables that all networks of the kernel share
    group = "kernel" if family == "floods" else f"backbone-{family}"
    return pytest.param(family, *values, marks=pytest.mark.xdist_group(group))


@pytest.mark.parametrize(
    ("family", "name"), [_of(family, name) for family in PLAYED for name in PLAYED[family]]
)
def test_attack_on_a_backbone_gains_nothing(family: str, name: str) -> None:
    said = course(family).said[name]
    assert BREACH not in said
    ends = f"{ENDS.get(name, '')}|{STORM}" if family == "floods" else ENDS.get(name, "")
    assert re.search(ends, said), said[-500:]
    assert all(c.isprintable() or c in "\n\t" for c in said)
    assert len(said) < 1 << 19
    assert not course(family).left[name]


@pytest.mark.parametrize("family", [_of(family) for family in PLAYED])
def test_backbone_is_unchanged_after_all_attacks_of_a_family(family: str) -> None:
    found = course(family)
    before, after = read(found.before), read(found.after)
    # floods leave entries in the kernel, but only on the attacker's own machines
    touched = found.machines if family == "floods" else set()
    assert {*after.touched} - {*before.touched} <= touched
    assert after.model_copy(update={"touched": before.touched}) == before
    assert found.judgement.safe
    assert not found.judgement.correct
    assert found.repaired.correct
    assert found.repaired.safe, found.repaired.findings
