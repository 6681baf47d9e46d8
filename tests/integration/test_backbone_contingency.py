"""Real backbones whose links fail and whose daemons restart, and repairs that must withstand
both."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache

import pytest
from backbone_setup import setup

from netarena.config import Config
from netarena.model import Judgement, Query
from netarena.task.application import load
from netarena_backbone import solution
from netarena_backbone.fault import table
from netarena_backbone.query import case_of
from netarena_backbone.real.client import Net, Warm
from netarena_backbone.world.contingency import RESTART
from netarena_backbone.world.lab_spec import Observation
from netarena_network.action import faults_of

pytestmark = [pytest.mark.requires("backbone"), pytest.mark.xdist_group("backbone")]

COMMAND_S = 15.0
#: Time limit for the recovery of all sessions after a restart.
RECOVERY_S = 40.0
INNER, OUTER = ("r0", "r1"), ("x0", "r1")
#: Address of x0 in its session with r1.
EDGE = "192.0.2.2"
SETUP = setup().model_copy(update={"cuttable": (INNER, OUTER)})
_LINK = "ip link show eth0"
_SHOWN = "vtysh -c 'show running-config' | grep 'ospf cost'; true"
_COST = "vtysh -c 'configure terminal' -c 'interface eth0' -c 'ip ospf cost 77'"


async def look(net: Net, whole: Observation | None = None) -> Observation:
    """Return the settled state; with ``whole``, wait for all of its neighbours, as a judge does."""
    return _comparable(await net.observe(None if whole is None else whole.neighbours))


def _comparable(found: object) -> Observation:
    return Observation.model_validate(found).model_copy(update={"touched": ()})


async def told(net: Net, machine: str, command: str) -> str:
    return (await net.run(machine, command, COMMAND_S)).output


async def _cut_each(net: Net) -> None:
    whole = await look(net)
    assert len(whole.neighbours) == 6
    await net.cut(INNER)
    apart = await look(net)
    assert apart.settled
    assert apart.small == ("1010", "0101", "1010", "0101")
    # only the sessions with the other AS remain
    assert {one for one, _, _ in apart.neighbours} == {"r1", "x0"}
    for machine in INNER:
        link, route = await told(net, machine, _LINK), await told(net, machine, "ip route")
        assert "NO-CARRIER" in link
        assert ",UP" in link
        assert re.search(r"^10\.1\.0\.0/30 dev eth0 .*linkdown", route, re.MULTILINE)
    neighbours = await told(net, "r0", "ip neigh show dev eth0")
    assert "10.1.0.2" not in neighbours
    assert "224.0.0.5" in neighbours
    await net.restore(INNER)
    assert await look(net, whole) == whole
    await net.cut(OUTER)
    assert (await look(net)).heard == ((),)
    await net.restore(OUTER)
    assert await look(net, whole) == whole
    # a link through a bridge shows the carrier of the other end, like a direct link
    assert "NO-CARRIER" not in await told(net, "r1", _LINK)
    await told(net, "r0", "ip link set eth0 down")
    assert "NO-CARRIER" in await told(net, "r1", _LINK)
    await told(net, "r0", "ip link set eth0 up")
    assert "NO-CARRIER" not in await told(net, "r1", _LINK)
    assert await look(net, whole) == whole
    # frames of any size that both ends allow cross the bridge
    for machine in INNER:
        await told(net, machine, "ip link set eth0 mtu 9000")
    assert ", 0% packet loss" in await told(net, "r0", "ping -c 1 -M do -s 8972 10.1.0.2")


async def recovered(net: Net, whole: Observation) -> Observation:
    """Return the state after a restart, observed again until it is ``whole``, as the judge does.

    On a busy machine, a session may be established only after the first observation.
    """
    deadline = time.monotonic() + RECOVERY_S
    found = await net.observe(whole.neighbours, confirmed=True)
    while (state := _comparable(found)) != whole and time.monotonic() < deadline:
        found = await net.observe(whole.neighbours)
    return state


async def _restart_each(net: Net) -> None:
    whole = await look(net)
    await told(net, "r0", _COST)
    await net.restart()
    assert await recovered(net, whole) == whole
    assert "cost 77" in await told(net, "r0", _SHOWN)
    await net.restart(from_saved=True)
    assert await recovered(net, whole) == whole
    assert "cost 77" not in await told(net, "r0", _SHOWN)
    said = await told(net, "r0", f"{_COST}; vtysh -c 'write memory'")
    assert "saved to /etc/frr/frr.conf" in said
    await net.restart(from_saved=True)
    assert await recovered(net, whole) == whole
    assert "cost 77" in await told(net, "r0", _SHOWN)
    assert "cost 77" not in await told(net, "r1", _SHOWN)


#: Commands that replace one end of a cable with another interface, which keeps its carrier when the
#: cable is cut. The original interface is renamed or deleted.
_SUBSTITUTES = (
    (
        "ip link set eth0 down; ip link set eth0 name old; ip link set old up; "
        "ip link add one type veth peer name two; ip link set one up; ip link set two up; "
        "ip link add eth0 type bridge; ip link set eth0 up; "
        "ip link set old master eth0; ip link set one master eth0; ip -br link"
    ),
    (
        "index=$(cat /sys/class/net/eth0/ifindex); ip link del eth0; "
        "ip link add eth0 index $index type veth peer name two; ip link set eth0 up; "
        "ip link set two up; ip -br link"
    ),
)


@pytest.mark.parametrize("substitute", _SUBSTITUTES)
def test_link_with_a_replaced_end_can_still_be_cut_and_restored(substitute: str) -> None:
    async def run() -> None:
        async with Warm() as warm:
            net = await warm.begin_backbone(SETUP, "netns")
            try:
                await net.build()
                await look(net)
                assert re.search("^eth0[ @]", await told(net, "r0", substitute), re.MULTILINE)
                await net.cut(INNER)
                link = await told(net, "r0", _LINK)
                assert "LOWER_UP" in link
                assert "NO-CARRIER" in await told(net, "r1", _LINK)
                await net.restore(INNER)
            finally:
                await net.close()

    asyncio.run(run())


#: A queue and a filter that a restart of daemons must not change.
_QUEUES = (
    "tc qdisc add dev eth0 root handle 7: pfifo limit 500; nft add table ip own; "
    "nft add chain ip own out '{ type filter hook output priority 0; policy accept; }'"
)
_SHOW_QUEUES = "tc qdisc show; nft list ruleset"


async def _keep_queues(net: Net) -> None:
    whole = await look(net)
    await told(net, "r0", _QUEUES)
    before = await told(net, "r0", _SHOW_QUEUES)
    assert "qdisc pfifo 7: dev eth0 root" in before
    await net.restart()
    assert await told(net, "r0", _SHOW_QUEUES) == before
    assert await look(net, whole) == whole


async def _announce_late(net: Net) -> None:
    """Delay an announcement to x0 until after another link is restored.

    An advertisement interval causes the delay.
    """
    await look(net)
    await told(
        net,
        "r1",
        "vtysh -c 'configure terminal' -c 'router bgp 65000' "
        "-c 'neighbor 192.0.2.2 advertisement-interval 10' "
        "-c 'address-family ipv4 unicast' -c 'network 10.2.0.0/24'",
    )
    whole = await look(net)
    assert {route.prefix for route in whole.heard[0]} == {"10.0.0.0/8", "10.2.0.0/24"}
    for _ in range(5):
        await net.cut(INNER)
        apart = await net.observe(
            one for one in whole.neighbours if one[0] == "x0" or one[2] == EDGE
        )
        await net.restore(INNER)
        early = await look(net, whole)
        assert early.settled
        # on a busy machine, the interval may end before the daemons are read: cut again
        if early.heard != whole.heard:
            break
    assert early.heard == Observation.model_validate(apart).heard != whole.heard
    final = Observation.model_validate(await net.observe(whole.neighbours, confirmed=True))
    assert final.settled
    assert final.heard == whole.heard


#: Program that cuts and restores a link with one end in the mode "dormant". It prints the
#: operational states of both ends immediately afterwards.
_STATES = """
import encodings.ascii, encodings.idna, json, os, subprocess, sys
from netarena.sandbox.namespace import isolate
from netarena.sandbox.shell import command_environment, entered
from netarena_backbone.real.build import build_netns, configure
from netarena_backbone.real.wire import Wires
from netarena_backbone.world.lab_spec import Setup
from netarena_network.real.netlink import Netlink, links
command_environment()
if (inner := isolate()) > 0:
    os.waitpid(inner, 0)
    sys.exit()
setup = Setup.model_validate_json(sys.argv[1])
spaces = build_netns(setup)
configure(setup, spaces)
netlinks = {"": Netlink()}
for name, space in spaces.items():
    with entered(space):
        netlinks[name] = Netlink()
with entered(spaces["r1"]):
    subprocess.run(["ip", "link", "set", "dev", "eth0", "mode", "dormant"], check=True)
def states():
    return [
        one.attributes[16][0]
        for name in ("r0", "r1")
        for one in links(netlinks[name])
        if one.attributes[3] == b"eth0\\0"
    ]
wires = Wires(setup, netlinks)
wires.restore("r0", "r1")
found = []
for _ in range(50):
    wires.cut("r0", "r1")
    found.append(states())
    wires.restore("r0", "r1")
    found.append(states())
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


def test_judge_continues_only_after_the_kernel_has_processed_a_carrier_change() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STATES, SETUP.model_dump_json()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    down, dormant, up = 2, 5, 6  # values of RFC 2863 (IF_OPER_DOWN, IF_OPER_DORMANT, IF_OPER_UP)
    assert json.loads(done.stdout) == [[down, down], [up, dormant]] * 50


@pytest.mark.parametrize("emulator", ["netns", pytest.param("mininet", marks=pytest.mark.slow)])
@pytest.mark.parametrize("course", [_cut_each, _restart_each, _keep_queues, _announce_late])
def test_network_recovers_from_cut_links_and_restarted_daemons(course, emulator) -> None:
    async def run() -> None:
        async with Warm() as warm:
            net = await warm.begin_backbone(SETUP, emulator)
            try:
                await net.build()
                await course(net)
            finally:
                await net.close()

    asyncio.run(run())


SEED = 5
APPLICATION = load("backbone")
CONFIG: Config = APPLICATION.config_type.parse(
    {"briefing": "ticket", "routers": 4, "seed": SEED, "emulator": "netns"}
)


@cache
def drawn(index: int) -> Query:
    """Return a query of a ticket with four routers."""
    return next(iter(APPLICATION.generate_at(CONFIG, SEED, [index])))


def after(query: Query, replies: Sequence[str]) -> Judgement:
    """Send an agent's replies to a live world, try its contingencies, and return their
    judgement."""

    async def run() -> Judgement:
        async with APPLICATION:
            environment = APPLICATION.environment(query, CONFIG)
            try:
                before = first = await environment.open()
                for reply in replies:
                    execution = await environment.execute(APPLICATION.parse(reply))
                    assert "[exit status" not in execution.output
                    before = await environment.observe()
                now = APPLICATION.judge(query, first, before, before)
                assert now.correct, now.reason
                return APPLICATION.endure(query, await environment.finish())
            finally:
                await environment.close()

    return asyncio.run(run())


def tried(query: Query) -> tuple[table.Room, list[int]]:
    """Return a query's computed worlds, and the indices of faults visible only in contingencies."""
    case, faults = case_of(query), faults_of(query)
    room = table.room_of(case.world, faults, case.wanted)
    return room, [place for place in range(len(faults)) if not room.shows(place)]


#: Index of a query in which only saved configurations survive a restart, and index of a query in
#: which running configurations survive. Both have a fault that only a contingency shows; a new
#: generator version may need other indices.
SAVED, KEPT = 21, 8


@pytest.mark.parametrize("index", [SAVED, KEPT])
def test_reference_solution_survives_all_contingencies(index: int) -> None:
    query = drawn(index)
    assert case_of(query).world.only_saved_survives == (index == SAVED)
    assert after(query, APPLICATION.solve(query)) == Judgement(correct=True)


@pytest.mark.parametrize("index", [SAVED, KEPT])
def test_repair_of_only_the_visible_faults_fails_the_computed_contingency(index: int) -> None:
    query = drawn(index)
    room, hidden = tried(query)
    assert hidden
    waits = set(hidden)
    replies = [
        one.reply
        for place, repairs in enumerate(solution.repairs(query))
        if place not in waits
        for one in repairs
    ]
    verdict = after(query, replies)
    assert not verdict.correct
    assert isinstance(verdict.detail, dict)
    assert verdict.detail["contingency"] == next(iter(room.shown_during(hidden))).name
    assert verdict.detail["differences"]


def test_repair_that_is_not_saved_does_not_survive_the_restart() -> None:
    query = drawn(SAVED)
    replies = [reply.replace(f"; {solution.SAVE}", "") for reply in APPLICATION.solve(query)]
    assert replies != APPLICATION.solve(query)
    verdict = after(query, replies)
    assert not verdict.correct
    assert isinstance(verdict.detail, dict)
    assert verdict.detail["contingency"] == RESTART.name


def test_saving_the_configuration_is_not_a_needless_repair() -> None:
    """In a world without faults, saving the configuration does not count as a change, and the
    result is correct."""
    query = drawn(SAVED).model_copy(update={"actions": ()})
    router = case_of(query).world.routers[0].name
    save = json.dumps({"machine": router, "command": solution.SAVE})
    assert after(query, [save]) == Judgement(correct=True)
