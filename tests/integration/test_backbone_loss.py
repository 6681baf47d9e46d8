"""Packet loss during commands is measured without slowing the commands or leaving traces."""

from __future__ import annotations

import asyncio
import re

import pytest
from backbone_setup import setup

from netarena_backbone.app import Backbone
from netarena_backbone.query import case_of
from netarena_backbone.real.client import Net, Warm
from netarena_backbone.world.lab_spec import Observation

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.requires("backbone"),
    pytest.mark.slow,
    pytest.mark.xdist_group("backbone"),
]

COMMAND_S = 15.0
#: Two pairs whose path crosses the link between r0 and r1, and a pair whose path does not.
CROSSING, INSIDE = ((0, 1), (3, 0)), (2, 0)
SETUP = setup().model_copy(
    update={"probed": (*CROSSING, INSIDE), "cuttable": (("r0", "r1"),)},
)
_TRACKED = "conntrack -L -p icmp 2>/dev/null; ip link show | grep -c state"


async def opened(warm: Warm, probed: tuple[tuple[int, int], ...] = SETUP.probed) -> Net:
    """Return a settled network."""
    net = await warm.begin_backbone(SETUP.model_copy(update={"probed": probed}), "netns")
    await net.build()
    while len((seen := await look(net)).neighbours) < 6:
        assert seen.lost_s == (0.0,) * len(probed)
    return net


async def look(net: Net) -> Observation:
    return Observation.model_validate(await net.observe())


async def loss(net: Net, machine: str, command: str, timeout_s: float = COMMAND_S) -> list[float]:
    await net.run(machine, command, timeout_s)
    seen = await look(net)
    assert seen.settled
    return [*seen.lost_s]


async def test_pairs_over_a_link_that_is_down_for_a_second_lose_a_second() -> None:
    async with Warm() as warm:
        net = await opened(warm)
        try:
            assert await loss(net, "r0", "vtysh -c 'show ip route'; sleep 0.5") == [0.0, 0.0, 0.0]
            # the route is withdrawn, and returns with the adjacency within two hellos
            down = "ip link set eth0 down; sleep 1; ip link set eth0 up"
            *crossing, inside = await loss(net, "r0", down)
            assert inside == 0.0
            assert all(0.8 <= one <= 4.0 for one in crossing)
            # a router on the path drops forwarded packets for a second
            drop = "iptables -I FORWARD -p icmp -j DROP; sleep 1; iptables -D FORWARD 1"
            there, back, inside = await loss(net, "r1", drop)
            assert 0.6 <= there <= 1.3
            assert (back, inside) == (0.0, 0.0)  # r1 does not forward these packets
        finally:
            await net.close()


async def test_pings_from_a_removed_source_address_are_lost_until_it_returns() -> None:
    async with Warm() as warm:
        net = await opened(warm)
        try:
            move = "ip addr del 10.2.0.2/24 dev eth0; sleep 0.5; ip addr add 10.2.0.2/24 dev eth0"
            route = "ip route add default via 10.2.0.1"
            there, back, inside = await loss(net, "h0", f"{move}; {route}")
            assert all(0.3 <= one <= 1.0 for one in (there, back, inside))
            # a command that exceeds its time limit
            gone = "ip link set eth0 down; sleep 30"
            lost = await loss(net, "h0", gone, 1.5)
            assert all(one >= 1.0 for one in lost)
        finally:
            await net.close()


async def test_cancellation_of_a_command_stops_the_probes_before_a_contingency() -> None:
    async with Warm() as warm:
        net = await opened(warm)
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await net.run("r0", "ip link set eth0 down; sleep 1; ip link set eth0 up", 9.0)
            await net.drop_pending()
            await net.cut(("r0", "r1"))
            there, back, inside = (await look(net)).lost_s
            assert inside == 0.0
            assert all(0.5 <= one <= 2.0 for one in (there, back))
            # a second observation without a command in between reports the same loss
            assert (await look(net)).lost_s == (there, back, inside)
            # no probes are sent in a contingency
            await net.restore(("r0", "r1"))
            assert (await look(net)).lost_s == (0.0, 0.0, 0.0)
            await net.run("r0", "true", COMMAND_S)
        finally:
            await net.close()  # while probes are still being sent


#: Positions in a packet of the IP identification and the two checksums, and of the ping's
#: identifier, sequence number and time.
_IGNORED = {*range(4, 6), *range(10, 12), *range(22, 44)}


async def test_probe_equals_an_ordinary_ping_in_all_fields_but_identifiers_and_times() -> None:
    async with Warm() as warm:
        net = await opened(warm)
        try:
            capture = "timeout 3 tcpdump -n -x -c 60 -i eth0 icmp and dst 10.3.0.2 2>/dev/null"
            ping = "ping -i 0.05 -c 20 10.3.0.2 >/dev/null"
            told = (await net.run("h0", f"{capture} & sleep 0.5; {ping}; wait", COMMAND_S)).output
            packets = [
                bytes.fromhex("".join(re.findall(r"^\t0x\w+:  (.*)$", block, re.MULTILINE)))
                for block in re.split(r"^(?=\d\d:)", told, flags=re.MULTILINE)
                if "echo request" in block
            ]
            kinds = {
                packet[24:26]: bytes(0 if at in _IGNORED else one for at, one in enumerate(packet))
                for packet in packets
            }
            assert len(kinds) == 2  # the probe's identifier, and that of the agent's ping
            assert len({*kinds.values()}) == 1
            for identifier in kinds:
                of_one = [packet for packet in packets if packet[24:26] == identifier]
                sequences = [int.from_bytes(packet[26:28]) for packet in of_one]
                first, *_ = sequences
                assert sequences == [*range(first, first + len(sequences))]
        finally:
            await net.close()


async def test_probes_leave_no_connections() -> None:
    async with Warm() as warm:
        net = await opened(warm)
        try:
            track = "iptables -I FORWARD -m conntrack --ctstate INVALID -j DROP; ping -c1 10.3.0.2"
            await loss(net, "r0", f"{track}; true")
            shown = []
            for _ in range(2):
                told = (await net.run("r0", f"sleep 0.3; {_TRACKED}", COMMAND_S)).output
                shown.append({*re.findall(r"^icmp .*?src=(\S+) .*? id=(\d+) ", told, re.MULTILINE)})
                await look(net)
            # the connections of the current probes, and of the agent's own ping
            assert {source for source, _ in shown[0]} >= {"10.2.0.2", "10.1.0.1"}
            (kept,) = shown[0] & shown[1]
            assert kept[0] == "10.1.0.1"
        finally:
            await net.close()


async def test_probes_in_a_routing_loop_do_not_count_as_the_agents_packets() -> None:
    async with Warm() as warm:
        net = await opened(warm, (CROSSING[0],) * 8)
        try:
            # r0 and r1 forward each request about sixty times: 5,000 packets per second on each
            # router
            loop = "ip route add 10.3.0.2/32 via 10.1.0.1; cat /proc/net/dev; sleep 4"
            done = await net.run("r1", f"{loop}; cat /proc/net/dev", COMMAND_S)
            assert (done.exit, done.stopped) == (0, "")
            first, last = (
                int(line.split()[10])
                for line in done.output.splitlines()
                if line.strip().startswith("eth0:")
            )
            assert last - first > 12_000
            assert min((await look(net)).lost_s) > 3.0
            # the agent's own packets count
            flood = "ping -f -q -w 12 127.0.0.1; ping -i 0.0001 -q -w 12 127.0.0.1"
            assert "more than 1000 packets" in (await net.run("r1", flood, COMMAND_S)).stopped
        finally:
            await net.close()


async def test_commands_in_a_drawn_world_lose_traffic_over_the_interrupted_link() -> None:
    keys = {"error_types": ["faults_0"], "briefing": "ticket", "emulator": "netns", "routers": 4}
    async with Backbone() as app:
        config = app.config_type.parse(keys)
        query = next(app.generate(config, 7))
        world = case_of(query).world
        # the first path crosses the interrupted link, which is its source's only link; the second
        # path does not
        one = next(way for way in world.ways if way[0] in {host.name for host in world.hosts})
        other = next(way for way in world.ways if one[0] not in way)
        world = world.model_copy(update={"probed": (one, one[::-1], other)})
        initial = {"world": world.model_dump(mode="json", exclude_defaults=True)}
        query = query.model_copy(update={"initial": initial})
        router, port = world.far[one[0], world.host(one[0]).port.name]
        environment = app.environment(query, config)
        try:
            state = await environment.open()
            assert isinstance(state, dict)
            assert state["lost_s"] == [0.0, 0.0, 0.0]
            for command, least_s, most_s in (
                ("vtysh -c 'show ip route'", 0.0, 0.0),
                (f"ip link set {port} down; sleep 1; ip link set {port} up", 0.8, 2.5),
            ):
                await environment.execute({"machine": router, "command": command})
                after = await environment.observe()
                assert isinstance(after, dict)
                there, back, apart = Observation.model_validate(after).lost_s
                assert apart == 0.0
                assert all(least_s <= lost_s <= most_s for lost_s in (there, back))
                judgement = app.judge(query, state, state, after)
                assert judgement.safe
                assert isinstance(judgement.detail, dict)
                assert judgement.detail["lost_s"] == pytest.approx((there + back) / 3)
                state = after
        finally:
            await environment.close()


async def test_setup_without_probed_pairs_sends_no_probes_and_has_no_loss() -> None:
    async with Warm() as warm:
        net = await opened(warm, ())
        try:
            count = "grep Icmp: /proc/net/snmp | tail -1"
            told = (await net.run("h0", f"{count}; sleep 1; {count}", COMMAND_S)).output
            first, last = told.strip().splitlines()
            assert first == last
            state = await net.observe()
            assert "lost_s" not in state
        finally:
            await net.close()
