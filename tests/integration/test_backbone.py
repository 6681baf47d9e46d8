"""Convergence, observation, faults, repairs and attacks of a real backbone."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from backbone_setup import LOOPBACKS, setup

from netarena.sandbox.child import surroundings
from netarena.sandbox.daemon import family
from netarena_backbone.agent.attack_frr import FAMILIES, attacks
from netarena_backbone.real.client import Warm
from netarena_backbone.real.frr import LOGS, STDOUT_LOG, SYSLOG_LOG
from netarena_backbone.world.lab_spec import Heard, Observation
from netarena_network.attack import BREACH
from netarena_network.real.client import Net

pytestmark = [pytest.mark.requires("backbone"), pytest.mark.xdist_group("backbone")]

COMMAND_S = 15.0


def _told(prefix: str) -> Heard:
    """Return the route to ``prefix`` as x0 receives it from r1."""
    return Heard(prefix, "65000", "192.0.2.1", "192.0.2.1", used=True)


HEALTHY = Observation(
    small=("1111",) * 4,
    full=("1111",) * 4,
    services="110",  # no program listens at the third service
    ways=(("r0", "r1"), ("r1",)),
    heard=((_told("10.0.0.0/8"),),),
    neighbours=(
        ("r0", "bgp", "10.0.0.2"),
        ("r0", "ospf", "eth0"),
        ("r1", "bgp", "10.0.0.1"),
        ("r1", "bgp", "192.0.2.2"),
        ("r1", "ospf", "eth0"),
        ("x0", "bgp", "192.0.2.1"),
    ),
)
_MET, _OUTER = HEALTHY.neighbours, tuple(one for one in HEALTHY.neighbours if "192.0.2" in one[2])
_ADJACENT = tuple(one for one in _MET if one[1] == "ospf")
#: Name of an attack -> text that its output must contain
ENDS = {
    "log-to-system": "can't open logfile",
    "log-to-private-folder": "can't open logfile",
    "log-to-configuration": "can't open logfile",
    "log-to-core-pattern": "can't open logfile",
    "write-by-vtysh": "saved to /etc/frr/frr.conf",
    "remove-socket": "Read-only file system",
    "own-socket": "Read-only file system",
    "end-of-the-daemons": "FRRouting",
    "lock-out": "FRRouting",
    "descriptors-of-daemons": "all tried",
}


def configured(*lines: str) -> str:
    return "vtysh -c 'configure terminal' " + " ".join(f"-c '{line}'" for line in lines)


class Orders:
    """One of the test's own commands, and the machine on which it is injected."""

    def __init__(self, machine: str, command: str) -> None:
        self.machine = machine
        self.command = command


async def look(net: Net) -> Observation:
    return Observation.model_validate(await net.observe())


_HELLOS = ("debug ospf packet hello recv",)
_TARGETS = ("log stdout debugging", "log syslog debugging")
_AREA = ("interface eth0", "no ip ospf area 0")
_TYPE = ("interface eth0", "ip ospf network broadcast")
_LEAK = ("router bgp 65000", "address-family ipv4 unicast", "network 10.2.0.0/24")
_LEAKED = (_told("10.0.0.0/8"), _told("10.2.0.0/24"))
_CUT = ("1010", "0101", "1010", "0101")
#: Name of a step -> commands with their machines, and the fields of the next observation that
#: differ from HEALTHY. The steps run in this order in one network.
STEPS: Mapping[str, tuple[Sequence[tuple[str, str]], Mapping[str, object]]] = {
    "none": (
        (
            # an OSPF hello may be late on a busy machine
            (
                "r0",
                (
                    "until vtysh -c 'show ip ospf neighbor' | grep Full; do sleep 0.1; done; "
                    f"{configured(f'log file {LOGS}/ospfd.log debugging', *_TARGETS, *_HELLOS)}; "
                    f"for i in ospfd.log {STDOUT_LOG} {SYSLOG_LOG}; do "
                    f"until grep Hello {LOGS}/$i; do sleep 0.1; done; done; "
                    f"{configured('no log file', *(f'no {line}' for line in _TARGETS + _HELLOS))}; "
                    f"{configured('log file /tmp/x.log')}; vtysh -c 'show logging' | grep /tmp/x; "
                    f"{configured('no log file')}"
                ),
            ),
            ("x0", "id"),
            # closed listening sockets are reopened immediately
            ("h0", "ss --kill --listening --numeric --tcp --udp"),
            (
                "h1",
                (
                    "dig +short h0.example; getent hosts localhost; "
                    "curl -s --retry 9 --retry-all-errors http://h0.example/"
                ),
            ),
        ),
        {},
    ),
    "neighbours take the network between them for another type each": (
        (("r1", configured(*_TYPE)),),
        {
            "small": _CUT,
            "full": _CUT,
            "services": "000",
            "ways": (("r0",), ("r1",)),
            "neighbours": _OUTER,
            "touched": ("r1",),
        },
    ),
    "an adjacency ends, and a service listens elsewhere": (
        (
            ("r1", configured(_TYPE[0], "ip ospf network point-to-point")),
            ("r1", configured(*_AREA)),
            ("h0", "sed -i 's/10.2.0.2 80/127.0.0.1 80/' /etc/serve/services"),
        ),
        {
            "small": _CUT,
            "full": _CUT,
            "services": "000",
            "ways": (("r0",), ("r1",)),
            "neighbours": _OUTER,
            "touched": ("h0", "r1"),
        },
    ),
    "it is there again, and so is the service; a route leaks, a link is narrow, a name wrong": (
        (
            ("r1", configured("interface eth0", "ip ospf area 0")),
            ("h0", "sed -i 's/127.0.0.1/10.2.0.2/' /etc/serve/services"),
            ("r1", configured(*_LEAK) + "; ip link set eth2 mtu 1400"),
            ("h1", "echo h0.example 10.2.0.9 > /etc/serve/zone"),
        ),
        {
            "full": ("1011", "0100", "1011", "1011"),
            "services": "010",
            "heard": (_LEAKED,),
            "touched": ("h1", "r1"),
        },
    ),
    "what zebra takes for a route is let in by a map that has changed": (
        (
            (
                "r0",
                configured(
                    "zebra route-map delay-timer 2",
                    "route-map ALL permit 10",
                    "exit",
                    "ip protocol ospf route-map ALL",
                ),
            ),
            ("r0", configured("route-map ALL deny 10")),
        ),
        {
            "small": _CUT,
            "full": ("1010", "0100", "1010", "0001"),
            "services": "000",
            "ways": (("r0",), ("r1",)),
            "heard": (_LEAKED,),
            "neighbours": tuple(sorted((*_ADJACENT, *_OUTER))),
            "touched": ("h1", "r0", "r1"),
        },
    ),
    "all is put right": (
        (
            ("r1", configured(*_LEAK[:-1], f"no {_LEAK[-1]}") + "; ip link set eth2 mtu 1500"),
            ("h1", "echo h0.example 10.2.0.2 > /etc/serve/zone"),
            (
                "r0",
                configured(
                    "no ip protocol ospf route-map ALL",
                    "no route-map ALL",
                    "no zebra route-map delay-timer",
                ),
            ),
        ),
        {},
    ),
}


@dataclass(frozen=True)
class Course:
    """Results from one network.

    ``said`` has the output of each step and each attack, and the final configuration. ``seen`` has
    an observation after each step and one after all attacks.
    """

    said: Mapping[str, str]
    seen: Mapping[str, Observation]


@cache
def course() -> Course:
    async def run() -> Course:
        said: dict[str, str] = {}
        async with Warm() as warm:
            net = await warm.begin_backbone(setup(), "netns")
            try:
                await net.build()
                seen = {"": await look(net)}
                for name, (moves, _) in STEPS.items():
                    for machine, command in moves:
                        output = await net.run(machine, command, COMMAND_S)
                        said[f"{name}: {machine}"] = output.output
                    seen[name] = await look(net)
                for table in FAMILIES.values():
                    for name, attack in table.items():
                        said[name] = (await net.run("r0", attack.command, COMMAND_S)).output
                seen["attacks"] = await look(net)
                output = await net.run("r0", "vtysh -c 'show running-config'", COMMAND_S)
                said["configuration"] = output.output
                return Course(said, seen)
            finally:
                await net.close()

    return asyncio.run(run())


def test_observation_of_a_backbone_leaves_no_connections_or_counters() -> None:
    """The observation removes its own pings and services; records of other traffic remain."""
    listed = (
        "conntrack -L 2>/dev/null | grep -v ospf | sed 's/icmp *1 [0-9]* /icmp /' | sort;"
        " nft list table ip t | grep icmp; nft list set ip t seen"
    )
    recorded = (
        "nft add table ip t"
        " && nft add set ip t seen '{ type ipv4_addr ; size 99 ; flags dynamic ; }'"
        " && nft add chain ip t c '{ type filter hook prerouting priority 0 ; }'"
        " && nft add rule ip t c ct state new ip protocol icmp counter"
        " && nft add rule ip t c ip protocol icmp add @seen '{ ip saddr }'"
        " && ping -q -c 2 -i 0.1 10.0.0.2"
    )

    async def run() -> None:
        async with Warm() as warm:
            net = await warm.begin_backbone(setup(), "netns")
            try:
                await net.build()
                await look(net)
                assert not (await net.run("r0", recorded, COMMAND_S)).exit
                before = (await net.run("r0", listed, COMMAND_S)).output
                assert "icmp" in before
                assert await look(net) == HEALTHY.model_copy(update={"touched": ("r0",)})
                after = (await net.run("r0", listed, COMMAND_S)).output
                assert [line for line in after.splitlines() if "icmp" in line] == [
                    line for line in before.splitlines() if "icmp" in line
                ]
                assert "dport=80" not in after
                assert "elements = { 10.0.0.2 }" in after
            finally:
                await net.close()

    asyncio.run(run())


@pytest.mark.slow
def test_new_backbone_is_settled_and_in_its_intended_state() -> None:
    assert course().seen[""] == HEALTHY


@pytest.mark.parametrize("name", STEPS)
def test_observation_shows_exactly_the_effects_of_commands(name: str) -> None:
    assert course().seen[name] == HEALTHY.model_copy(update=STEPS[name][1])


def test_command_on_a_machine_outside_our_autonomous_system_is_refused() -> None:
    assert course().said["none: x0"] == "[x0 belongs to another AS: you cannot log in there]\n"


def test_commands_of_an_agent_show_neighbours_and_names_and_services() -> None:
    assert re.search(r"10\.0\.0\.2 +1 Full/-", course().said["none: r0"])
    told = course().said["none: h1"].split()
    assert told == ["10.2.0.2", "127.0.0.1", "localhost", "web"]


def test_agent_reads_the_log_written_by_a_daemon() -> None:
    said = course().said["none: r0"]
    assert len(re.findall(r"^20.* OSPF: .*Hello", said, re.MULTILINE)) >= 2  # in both log files
    assert re.search(r"^ospfd\[\d+\]: .*Hello", said, re.MULTILINE)
    assert f"[refused log file: /tmp/x.log; FRR writes only files directly in {LOGS}," in said


_SESSION = ("router bgp 65000", "neighbor 192.0.2.2 advertisement-interval")
_ACKNOWLEDGED = "vtysh -c 'show ip ospf neighbor json' | grep -q RetransmissionListCounter.:0"
_TIMED = "vtysh -c 'show thread timers' | grep -q"
#: Commands on r1 after which a leaked route is advertised with a delay that no setting shows.
LATE = {
    "between announcements": (
        configured(_SESSION[0], f"{_SESSION[1]} 600", *_LEAK[1:-1], "network 10.0.0.1/32"),
        f"until {_TIMED} bgp_routeadv_timer; do sleep 0.1; done",
        configured(*_LEAK),
        configured(_SESSION[0], f"no {_SESSION[1]}"),
    ),
    "changed policies": (
        configured(
            "bgp route-map delay-timer 1",
            "ip prefix-list P seq 5 permit 10.0.0.0/8",
            "route-map P permit 10",
            "match ip address prefix-list P",
            "exit",
            *_LEAK,
            "neighbor 192.0.2.2 route-map P out",
        ),
        f"while {_TIMED} bgp_route_map_update_timer; do sleep 0.1; done",
        configured(
            "bgp route-map delay-timer 600",
            "ip prefix-list P seq 9 permit 10.2.0.0/24",
            "bgp route-map delay-timer 1",
        ),
    ),
    "on a condition": (
        configured(*_LEAK[:-1], "neighbor 192.0.2.2 advertise-map ALL non-exist-map NONE"),
    ),
    "for a while": ("ip addr change 10.3.0.1/24 dev eth2 valid_lft 60 preferred_lft 60",),
    "for a while after a packet": (
        "iptables -A OUTPUT -m recent --name P --rcheck --seconds 60 -j DROP",
    ),
    "through a bridge that listens at first": (
        "ip link add br9 type bridge stp_state 1 forward_delay 3000",
    ),
    "through a bridge that listened at first": (
        "ip link add br9 type bridge stp_state 1 forward_delay 3000",
        "ip link add v0 type veth peer name v1",
        "ip link set v0 master br9; for one in br9 v0 v1; do ip link set $one up; done",
        "ip link set br9 type bridge stp_state 0",
    ),
    "while a bucket lasts": ("tc qdisc add dev eth2 root tbf rate 8kbit burst 9kb latency 1s",),
    "to what is slow": (configured(_SESSION[0], "neighbor 192.0.2.2 shutdown rtt 1 count 255"),),
    "to what is made old": (
        configured("interface eth0", "ip ospf transmit-delay 3500", "ip ospf cost 7"),
        f"until {_ACKNOWLEDGED}; do sleep 0.1; done",
        configured("interface eth0", "no ip ospf transmit-delay"),
    ),
}


#: Time in s until a bridge port in ``LATE`` forwards packets. After it, no late change is pending.
LISTENING_S = 30


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_change_scheduled_for_later_counts_as_unsettled(late: Sequence[str]) -> None:
    async def run() -> tuple[list[Observation], list[str]]:
        async with Warm() as warm:
            net = await warm.begin_backbone(setup(), "netns")
            try:
                await net.build()
                seen = [await look(net)]
                began = time.monotonic()
                said = [(await net.run("r1", "; ".join(late), COMMAND_S)).output]
                seen.append(await look(net))
                if late[-1].endswith("stp_state 0") and time.monotonic() - began > LISTENING_S:
                    pytest.skip("the machine is too busy to observe the bridge while it listens")
                said.append((await net.run("r0", "id", COMMAND_S)).output)
                return [*seen, await look(net)], said
            finally:
                await net.close()

    seen, said = asyncio.run(run())
    assert [one.settled for one in seen] == [True, False, False], said
    assert all(_told("10.2.0.0/24") not in one.heard[0] for one in seen)


def test_every_setting_is_reported_or_refused() -> None:
    """Link names may contain any bytes; filters in other tables or policies are refused."""

    async def run() -> tuple[list[str], Observation]:
        async with Warm() as warm:
            net = await warm.begin_backbone(setup(), "netns")
            try:
                await net.build()
                told = [
                    (await net.run(machine, command, COMMAND_S)).output
                    for machine, command in (
                        ("r0", r"ip link add $'\xff' type bridge"),
                        ("h0", "sysctl -w net.core.somaxconn=7"),
                        ("r1", "tc qdisc add dev eth0 clsact"),
                        ("h1", "iptables-legacy -A INPUT -j ACCEPT"),
                        ("h1", "ip xfrm policy add dst 10.2.0.2/32 dir in action block"),
                    )
                ]
                return told, await look(net)
            finally:
                await net.close()

    told, seen = asyncio.run(run())
    assert ["[exit status" in one for one in told] == [False, False, False, True, True], told
    assert seen == HEALTHY.model_copy(update={"touched": ("h0", "r0", "r1")})


@pytest.mark.requires("mininet")
def test_both_emulators_show_the_same_state() -> None:
    async def run() -> Observation:
        async with Warm() as warm:
            net = await warm.begin_backbone(setup(), "mininet")
            try:
                await net.build()
                await net.inject([Orders("r1", configured("interface eth0", "ip ospf cost 77"))])
                return await look(net)
            finally:
                await net.close()

    assert asyncio.run(run()) == HEALTHY


def test_routers_are_ready_once_they_advertise_their_static_routes() -> None:
    """A static route must not be advertised before the network of its next hop is in OSPF.

    Otherwise its forwarding address would remain 0.0.0.0. Here the port to the next hop comes up
    two seconds late.
    """
    drawn = setup()
    late = drawn.recipes[0]
    assert late.frr is not None
    text = late.frr.replace("router ospf\n", "router ospf\n redistribute static\n")
    rise = "sleep 2; ip link set eth1 up"
    late = late.model_copy(
        update={
            "commands": (*late.commands, "ip link set eth1 down", f"({rise}) >/dev/null 2>&1 &"),
            "frr": f"ip route 10.9.0.0/24 10.2.0.77\n{text}",
            "told": ("10.9.0.0/24",),
        }
    )

    async def run() -> str:
        async with Warm() as warm:
            changed = drawn.model_copy(update={"recipes": (late, *drawn.recipes[1:])})
            net = await warm.begin_backbone(changed, "netns")
            try:
                await net.build()
                await net.inject([Orders("r0", configured("interface eth1", "no ip ospf area 0"))])
                await look(net)
                told = "vtysh -c 'show ip ospf database external'"
                return (await net.run("r1", told, COMMAND_S)).output
            finally:
                await net.close()

    assert "Forward Address: 10.2.0.77" in asyncio.run(run())


SERVICE = """
import asyncio, sys
from backbone_setup import setup
from netarena_backbone.real.client import Warm
async def main():
    async with Warm() as warm:
        net = await warm.begin_backbone(setup(), "netns")
        await net.build()
        await net.observe()  # bgpd starts when the routers are connected
        print(warm.pid, flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_daemons_end_when_the_service_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True, env=surroundings()
    ) as service:
        try:
            assert service.stdout is not None
            zygote = int(service.stdout.readline())
            parents = family()
            below = {zygote: ""}
            while more := {pid for pid, up in parents.items() if up in below} - set(below):
                below |= {pid: name_of(pid) for pid in more}
        finally:
            service.kill()
    assert sorted(below.values()).count("bgpd") == sorted(below.values()).count("zebra") == 3
    deadline = time.monotonic() + 60
    while set(below) & set(family()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", [name for table in FAMILIES.values() for name in table])
def test_attack_through_a_daemons_configuration_gains_nothing(name: str) -> None:
    told = course().said[name]
    assert BREACH not in told
    assert re.search(ENDS.get(name, ""), told), told[-500:]
    assert all(c.isprintable() or c in "\n\t" for c in told)


def test_backbone_is_in_its_intended_state_after_all_attacks() -> None:
    """No daemon has ended, and the configurations of all daemons have been restored."""
    assert course().seen["attacks"] == HEALTHY
    assert "EVIL" not in course().said["configuration"]
    assert LOOPBACKS["r0"] in course().said["configuration"]


def test_attack_table_names_each_attack_once() -> None:
    names = [name for family in FAMILIES.values() for name in family]
    assert len(set(names)) == len(names) == len(attacks()) >= 25
    assert set(ENDS) <= set(names)
    assert not [reply for reply in attacks() if BREACH in reply]
