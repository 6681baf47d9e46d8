"""Real networks are correct when new, are measured correctly despite forgeries, and leave no
trace."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from apart import END_S, Apart

from netarena.errors import EnvironmentFailed
from netarena.sandbox.child import surroundings
from netarena.sandbox.namespace import leave_network
from netarena.sandbox.shell import entered
from netarena.sandbox.syntax import REFUSED, STATUS
from netarena_network.action import Command
from netarena_network.bounds import most_processes
from netarena_network.real import client, prober, tcpdump
from netarena_network.real.client import command
from netarena_network.real.pace import observation_s
from netarena_network.real.prober import Prober
from netarena_network.real.tool import CONSOLES
from netarena_route.real import worker
from netarena_route.real.client import Warm
from netarena_route.state import judge
from netarena_route.world import model as world
from netarena_route.world.model import standard, varied

pytestmark = [pytest.mark.anyio, pytest.mark.requires("netns")]


def make(switches=2, hosts=1, seed=1):
    return standard(switches, hosts, random.Random(seed))


def test_new_network_is_in_its_intended_state(apart):
    net = apart(make(2, 2))

    state = net.observe()

    assert state == {
        "matrix": list(net.world.intended),
        "stolen": [],
        "switches": [],
        "collateral": [],
    }


def test_broken_pair_is_visible_and_works_immediately_after_the_repair(apart):
    net = apart(make(2, 2))

    net.do("r0", "ip link set dev {p}_r0-eth1 down")
    broken = net.observe()["matrix"]
    net.do("r0", "ip link set dev {p}_r0-eth1 up")

    # hosts 1 and 2 still reach each other, and so do hosts 3 and 4, and the router still reaches 3
    # and 4. The router is pinged at its first address, which no other machine has and which remains
    # when the link is down.
    assert broken == ["10011", "01100", "01100", "10011", "10011"]
    assert net.observe()["matrix"] == list(net.world.intended)


def test_link_is_ready_after_each_of_many_changes(apart):
    """Bridges and links report a change up to a second later unless they are forced to."""
    net = apart(make(2, 2))

    for _ in range(15):
        net.do("h1", "ip link set dev {p}_h1-eth0 down")
        net.do(
            "h1",
            "ip link set dev {p}_h1-eth0 up; ip route replace default via 192.168.1.1",
        )
        assert net.observe()["matrix"] == list(net.world.intended)


@pytest.mark.xdist_group("kernel")
def test_replies_waiting_for_arp_do_not_block_other_pairs(apart):
    """There are 400 replies; the kernel's only socket for replies has room for about 340."""
    net = apart(make(4, 8))

    for host in range(1, 17):
        gateway = 192, 168, (host - 1) // 8 + 1, 250
        net.do(f"h{host}", f"ip route replace default via {'.'.join(map(str, gateway))}")
    matrix = net.observe()["matrix"]

    def works(source, target):
        """Return whether a pair works; machine 0 is the router, each subnet has eight hosts.

        Hosts of the first two subnets have no route to other subnets.
        """
        # other machines ping the router at its address in the first subnet; the router uses its
        # address in each subnet
        if not source or not target:
            return source + target <= 8 or source + target > 16 or not source
        subnets = {(source - 1) // 8, (target - 1) // 8}
        return len(subnets) == 1 or not subnets & {0, 1}

    for source, row in enumerate(matrix):
        assert row == "".join("01"[works(source, target)] for target in range(33)), source


@pytest.mark.xdist_group("kernel")
async def test_queue_of_the_agent_that_delays_all_replies_is_removed(requirement):
    requirement("episodes")
    async with Warm() as warm:
        network = make()
        net = await warm.begin_world(network, "netns")
        try:
            await net.build()
            _, host = network.endpoints[:2]
            slow = f"tc qdisc add dev {host}-eth0 root tbf rate 8bit burst 1600 limit 100000000"
            await net.run(host, slow, 10.0)
            out = await net.run(
                network.endpoints[0],
                f"ping -q -c 600 -i 0.002 -W 1 -s 1400 {network.addresses[1]}",
                10.0,
            )
            shown = await net.run(host, f"tc qdisc show dev {host}-eth0", 10.0)
        finally:
            await net.close()
    assert "kept the kernel from answering pings" in out.output
    assert "pfifo" in shown.output


@pytest.mark.xdist_group("kernel")
def test_arp_table_filled_by_other_networks_does_not_change_the_matrix(apart, monkeypatch):
    """The entries fill the table in the first round: no address is learned, and pings fail."""
    net = apart(make(2, 2))
    net.do("r0", "sysctl -w net.ipv4.ip_forward=0")
    alone = net.observe()["matrix"]
    number = int(Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3").read_text()) + 100
    places = [f"10.0.{place >> 8}.{place & 255} dev t0" for place in range(1, number)]
    rounds, measure = [], Prober.measure
    forgetting, make_ready = [], worker.RouteWorker._make_ready

    def ready(network):
        forgetting[:] = [lambda: make_ready(network)]
        make_ready(network)

    def fill(others, filled, measured):
        """Replace the entries repeatedly with another MAC address each time.

        If the table is full, the kernel drops entries that have not changed for five seconds.
        """
        for turn in itertools.cycle("12"):
            others(
                f"neigh replace {place} lladdr 02:00:00:00:00:0{turn} nud stale" for place in places
            )
            filled.set()
            if measured.is_set():
                return

    with space_of_others() as others:

        def crowded(prober, *patience):
            if rounds:
                found = measure(prober, *patience)
            else:
                for _ in range(
                    20
                ):  # other networks on this machine may free entries in the meantime
                    filled, measured = threading.Event(), threading.Event()
                    filling = threading.Thread(target=fill, args=(others, filled, measured))
                    filling.start()
                    filled.wait()
                    found = measure(prober, *patience)
                    measured.set()
                    filling.join()
                    if found.rows != tuple(alone):
                        break
                    # otherwise the ARP entries of the pinged machines would exist in the next round
                    forgetting[0]()
                others(f"neigh del {place}" for place in places)
            rounds.append(found.rows)
            return found

        monkeypatch.setattr(worker.RouteWorker, "_make_ready", ready)
        monkeypatch.setattr(Prober, "measure", crowded)
        among_others = net.observe()["matrix"]

    assert rounds[0] != tuple(alone)
    assert among_others == alone
    assert len(rounds) >= 2  # the first round did not count, but the last round did


@pytest.mark.xdist_group("kernel")
def test_arp_tables_are_unchanged_after_an_observation(apart):
    net = apart(make(4, 2))
    net.do("r0", f"ping -c1 -W2 {net.world.addresses[1]}")
    failed, shown = "ip neigh replace 192.168.1.77 nud failed dev {p}_r0-eth1", "ip -4 neigh | sort"
    # every 15 s the kernel deletes failed entries if all namespaces together have over 128
    # entries (gc_thresh1), so the comparison is repeated
    for _ in range(5):
        net.do("r0", failed)
        before = net.ask("run", machine=net.name("r0"), command=shown, timeout_s=10.0)["ok"][
            "output"
        ]
        assert net.observe()["matrix"] == list(net.world.intended)
        after = net.ask("run", machine=net.name("r0"), command=shown, timeout_s=10.0)["ok"][
            "output"
        ]
        if after == before and len(before.splitlines()) == 2:
            break
    assert len(before.splitlines()) == 2
    assert after == before
    # if a machine no longer replies to ARP requests, no entry from an earlier observation remains
    net.do("h1", "sysctl -w net.ipv4.conf.all.arp_ignore=8")
    net.do("r0", "sysctl -w net.ipv4.conf.all.arp_ignore=8")
    assert not net.works("h1", "r0")
    assert not net.works("r0", "h1")


@contextmanager
def space_of_others():
    """Context manager: create a network namespace with a link ``t0``.

    Yields a function that runs commands of ip in this namespace.
    """
    found = []

    def make_space():
        leave_network()
        subprocess.run(
            "ip link add t0 type veth peer name t1 && ip link set t0 up && ip link set t1 up",
            shell=True,
            check=True,
        )
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make_space)
    thread.start()
    thread.join()

    def others(commands):
        text = "".join(f"{command}\n" for command in commands).encode()
        with entered(found[0]):  # commands fail if the table is full or there is no entry to delete
            subprocess.run(
                ["ip", "-force", "-batch", "-"], input=text, capture_output=True, check=False
            )

    try:
        yield others
    finally:
        os.close(found[0])


def test_learned_arp_entries_are_removed_and_configured_entries_remain(apart):
    net = apart(make(2, 2))
    wrong = "ip neigh replace 192.168.1.100 lladdr 02:00:00:00:00:01 dev {p}_r0-eth1 nud"

    net.do("r0", f"{wrong} reachable")
    assert net.observe()["matrix"] == list(net.world.intended)
    net.do("r0", f"{wrong} permanent")
    assert not net.works("r0", "h1")


def test_varied_network_blocks_forbidden_traffic(apart):
    for seed in range(4):
        net = apart(varied(3, 2, random.Random(seed)))

        assert net.observe() == {
            "matrix": list(net.world.intended),
            "stolen": [],
            "switches": [],
            "collateral": [],
        }


def test_collateral_lists_settings_missing_from_the_intended_state(apart):
    network = make(2, 2)
    router = network.router.model_copy(
        update={
            "filters": ("-A FORWARD -p tcp --dport 99 -j DROP", "-P FORWARD ACCEPT"),
            "rules": ("pref 1000 from 192.168.2.0/24 lookup 100",),
            "routes": (
                f"192.168.2.0/24 dev {network.prefix}_r0-eth2 table 100",
                f"192.168.1.0/24 dev {network.prefix}_r0-eth1 table 100",
            ),
        }
    )
    net = apart(network.model_copy(update={"machines": (router, *network.hosts)}))

    # routes with the same path count as equal, regardless of their origin
    net.do(
        "h1",
        "ip route del default; ip route add default via 192.168.1.1 proto static;"
        "ip addr add 192.168.1.77/24 dev {p}_h1-eth0",
    )
    net.do(
        "r0",
        "sysctl -qw net.ipv4.ip_forward=0; iptables -F; ip rule del pref 1000;"
        "ip route flush table 100; ip rule del pref 32767",
    )
    net.do("h2", "ip route del default; ip addr flush dev {p}_h2-eth0")
    state = net.observe()
    # iptables cannot list its table, because another program wrote it
    net.do("r0", "nft delete table ip filter; nft add table ip filter")
    net.do("r0", "nft 'add chain ip filter FORWARD { type filter hook forward priority 7; }'")
    net.do("r0", "nft add rule ip filter FORWARD meta length 99999 counter reject")
    again = net.observe()

    r0, h2 = net.name("r0"), net.name("h2")
    port = f"{net.world.prefix}_h2-eth0"
    assert sorted(state["collateral"]) == sorted(
        [
            [r0, "rule", "1000: from 192.168.2.0/24 lookup 100"],
            [r0, "rule", "32767: lookup default"],
            [r0, "route", f"unicast 192.168.2.0/24 dev {net.world.prefix}_r0-eth2 table 100"],
            [r0, "route", f"unicast 192.168.1.0/24 dev {net.world.prefix}_r0-eth1 table 100"],
            [r0, "sysctl", "net.ipv4.ip_forward=1"],
            [r0, "filter", "-t filter -A FORWARD -p tcp -m tcp --dport 99 -j DROP"],
            [h2, "address", f"192.168.1.101/24 dev {port}"],
            [h2, "route", f"unicast 192.168.1.0/24 dev {port} table main"],
            [h2, "route", f"unicast 0.0.0.0/0 via 192.168.1.1 dev {port} table main"],
            [h2, "route", f"local 192.168.1.101/32 dev {port} table local"],
        ]
    )
    assert state["stolen"] == []
    filters = [entry for _, kind, entry in again["collateral"] if kind == "filter"]
    assert "-t filter -A FORWARD -p tcp -m tcp --dport 99 -j DROP" in filters


def test_namespace_of_the_switches_is_checked(apart):
    net = apart(make(2, 2))
    port = f"{net.world.prefix}_s1-eth2"
    within = ["nsenter", f"--net=/proc/{os.getpid()}/task/{net.thread}/ns/net"]

    subprocess.run([*within, "bridge", "link", "set", "dev", port, "state", "0"], check=True)
    # an observation sets all bridge ports to forwarding
    assert net.observe()["matrix"] == list(net.world.intended)
    for text in (
        f"link set dev {port} mtu 1400",
        f"link set dev {port} type bridge_slave isolated on",
        "addr add 192.168.1.9/32 dev lo",
    ):
        subprocess.run([*within, "ip", *text.split()], check=True)
    lines = net.observe()["switches"]

    assert any(line.startswith(f"- link {port} up") and "mtu 1500" in line for line in lines)
    assert any(line.startswith(f"+ link {port} up") and "mtu 1400" in line for line in lines)
    assert "+ address c0a80109 dev lo" in lines


#: command that breaks the path from h1 to h3, commands that forge replies of h3, and the machine
#: that then has another machine's address
FORGERIES = {
    "alias on one's own loopback": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("h1", "ip addr add {h3}/32 dev lo"),
        "h1",
    ),
    "local route": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("h1", "ip route add local {h3} dev lo"),
        "h1",
    ),
    "local route to the whole subnet": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("h1", "ip route add local 192.168.2.0/24 dev lo"),
        "h1",
    ),
    "translated to oneself": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("h1", "iptables -w -t nat -A OUTPUT -d {h3} -j DNAT --to-destination 127.0.0.1"),
        None,
    ),
    "translated at the router": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("r0", "iptables -w -t nat -A PREROUTING -d {h3} -j DNAT --to-destination {r0}"),
        None,
    ),
    "redirected at the router by nft": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("r0", "nft add table ip f;"),
        ("r0", "nft 'add chain ip f c {{ type nat hook prerouting priority -100; }}'"),
        ("r0", "nft add rule ip f c ip daddr {h3} dnat to {h4}"),
        None,
    ),
    "answered by the router": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("r0", "ip addr add {h3}/32 dev lo"),
        "r0",
    ),
    "answered by another host": (
        ("h3", "ip link set dev {p}_h3-eth0 down"),
        ("h4", "ip addr add {h3}/24 dev {p}_h4-eth0"),
        ("r0", "ip neigh flush all"),
        "h4",
    ),
    "a copy answered by another host": (
        ("h3", "ip route del default"),
        ("r0", "iptables -w -t mangle -A PREROUTING -d {h3} -j TEE --gateway {h4}"),
        ("h4", "iptables -w -t nat -A PREROUTING -d {h3} -j DNAT --to-destination {h4}"),
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_reachability_cannot_be_forged(apart, name):
    net = apart(make(2, 2))
    machines = dict(zip(("r0", "h1", "h2", "h3", "h4"), net.world.addresses, strict=True))
    breaks_it, *forges, thief = FORGERIES[name]

    for machine, text in (breaks_it, *forges):
        net.do(machine, text.format(p=net.world.prefix, **machines))
    fooled = net.ping("h1", machines["h3"])
    state = net.observe()

    assert not net.works("h1", "h3", state["matrix"])
    assert fooled
    thieves = {machine for machine, _ in state["stolen"]}
    assert thieves == ({net.name(thief)} if thief else set())


def test_intermittently_working_pair_counts_as_broken(apart, monkeypatch):
    net = apart(make(2, 2))

    net.do(
        "h1",
        "iptables -w -A INPUT -p icmp --icmp-type echo-reply -s 192.168.2.100"
        " -m statistic --mode nth --every 2 --packet 0 -j DROP",
    )
    matrix = net.observe()["matrix"]

    assert not net.works("h1", "h3", matrix)
    assert net.works("h1", "h4", matrix)


#: commands that record pings in every way that the kernel supports
RECORDERS = """
nft add table ip t
nft add counter ip t named
nft add quota ip t much '{ over 1 mbytes ; }'
nft add set ip t seen '{ type ipv4_addr ; size 100 ; flags dynamic,timeout ; timeout 1h ; }'
nft add map ip t pairs '{ type ipv4_addr : ipv4_addr ; size 100 ; flags dynamic ; }'
nft add chain ip t c '{ type filter hook prerouting priority 0 ; }'
nft add rule ip t c counter name named
nft add rule ip t c counter
nft add rule ip t c quota name much
nft add rule ip t c quota over 100 kbytes counter
nft add rule ip t c limit rate 1/hour counter
nft add rule ip t c icmp type echo-request update @seen '{ ip saddr counter }'
nft add rule ip t c update @pairs '{ ip saddr : ip daddr }'
nft add rule ip t c meter m '{ ip daddr limit rate over 1/hour }' counter
nft add rule ip t c ip ttl 64 counter
nft add rule ip t c ip saddr '{ 10.0.0.0/8, 192.168.0.0/16 }' counter
nft add table arp t
nft add chain arp t c '{ type filter hook input priority 0 ; }'
nft add rule arp t c counter
nft add table netdev security
nft add chain netdev security c "{ type filter hook ingress device $port priority 0 ; }"
nft add rule netdev security c counter
iptables -w -A FORWARD -m recent --set --name r
iptables -w -A FORWARD -m hashlimit --hashlimit-above 1/hour --hashlimit-name h
iptables -w -A FORWARD -m quota --quota 100000
iptables -w -A FORWARD -m limit --limit 1/hour
iptables -w -A FORWARD -m statistic --mode nth --every 3 --packet 1
iptables -w -A FORWARD -m conntrack --ctstate ESTABLISHED
iptables -w -t nat -A POSTROUTING -s 10.99.0.0/16 -j MASQUERADE
iptables -w -t raw -A PREROUTING -p icmp
iptables -w -t mangle -A FORWARD -p icmp -j MARK --set-mark 7
"""
#: commands that print all records, except expiry times and other times
READ = (
    "nft -a list ruleset 2>/dev/null | sed 's/ expires [0-9a-z]*//';"
    " iptables-save -c | grep -v '^#';"
    " cat /proc/net/xt_recent/*; cut -d' ' -f2 /proc/net/ipt_hashlimit/*;"
    " conntrack -L 2>/dev/null | sed 's/icmp *1 [0-9]* //' | sort; ip -4 neigh | sort"
)


def test_observation_changes_no_filter_counters_or_connections_or_arp_entries(apart):
    net = apart(make(2, 2))

    def run(text):
        answer = net.ask("run", machine=net.name("r0"), command=text, timeout_s=15.0)["ok"]
        assert answer["exit"] == 0, answer
        return answer["output"]

    run(f"set -e; port={net.name('r0')}-eth1; {RECORDERS}")
    # records of the agent's own traffic remain
    run(f"ping -q -c 3 -i 0.01 {net.world.addresses[1]}")
    before = run(READ)
    assert net.observe()["matrix"] == list(net.world.intended)
    assert run(READ) == before
    for recorded in ("elements = ", "[3:252]", "src=", "lladdr"):
        assert recorded in before
    # recording continues
    run(f"ping -q -c 1 {net.world.addresses[1]}")
    assert run(READ) != before


def test_switches_send_no_multicast_reports(apart):
    """Filters of a machine would count the reports, which bridges send at random times."""
    net = apart(make(2, 2))
    space = os.open(f"/proc/self/task/{net.thread}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    with entered(space):
        reports = Path("/proc/sys/net/ipv4/igmp_link_local_mcast_reports").read_text()
    os.close(space)
    assert reports == "0\n"


def test_observation_sends_the_same_traffic_regardless_of_the_state(apart):
    """The network is first as intended, then broken, then repaired."""
    net = apart(make(2, 2))
    least_s = observation_s(20)
    sent, times = [], []

    def echoes():
        text = "awk '/^IcmpMsg/ && $1 { getline values; print $0; print values }' /proc/net/snmp"
        names, values = (
            net.ask("run", machine=net.name("h1"), command=text, timeout_s=10.0)["ok"]["output"]
            .strip()
            .splitlines()
        )
        return int(dict(zip(names.split(), values.split(), strict=True))["OutType8"])

    for forwards in (1, 0, 1):
        net.do("r0", f"sysctl -w net.ipv4.ip_forward={forwards}")
        before, began = (echoes() if sent else 0), time.monotonic()
        if not sent:  # the first observation creates this line
            net.observe()
            before, began = echoes(), time.monotonic()
        net.observe()
        times.append(time.monotonic() - began)
        sent.append(echoes() - before)

    assert len(set(sent)) == 1, sent
    assert sent[0] == 4 * len(prober.PINGS)
    assert min(times) >= least_s


def test_each_pair_of_a_large_network_has_a_repeated_probe_in_some_observation(apart, monkeypatch):
    """As in a large network, each machine repeats one probe in each observation."""
    monkeypatch.setattr(prober, "_AGAIN", 1)
    net = apart(make(2, 2))
    source, target = (net.world.addresses[place] for place in (1, 4))
    chain = "'{ type filter hook prerouting priority 0; }'"
    match = f"ip saddr {source} ip daddr {target} icmp type echo-request icmp sequence != 1"

    net.do("r0", f"nft add table ip t && nft add chain ip t c {chain}")
    net.do("r0", f"nft add rule ip t c '{match} drop'")

    assert sorted(net.works("h1", "h4") for _ in range(4)) == [False, True, True, True]


def test_late_replies_still_count(apart):
    """Replies are slower than a round's timeout, but each arrival restarts the timeout."""
    net = apart(make(2, 2))
    monster = "tc qdisc add dev {p}_h1-eth0 root tbf rate 8kbit burst 200 limit 10000"

    net.do("h1", monster)

    assert net.observe()["matrix"] == list(net.world.intended)


def test_learned_arp_entries_do_not_count_as_a_change(apart):
    """ARP entries change with each round; in a false alarm, any change counts against the agent."""
    net = apart(make(2, 2), traced=True)
    net.do("r0", "ip neigh flush all")

    def left(command):
        answer = net.ask("run", machine=net.name("r0"), command=command, timeout_s=10.0)
        assert answer["ok"]["exit"] == 0, answer
        return [row[1] for row in net.observe()["leftover"]]

    assert left(f"ping -c1 -W2 {net.world.addresses[1]}; ip neigh; ip neigh flush all") == []
    assert left(
        "ip neigh add 192.168.1.77 lladdr 02:00:00:00:00:01 dev $(ip -o link | "
        "grep -o '[a-z0-9_]*-eth1') nud permanent"
    ) == ["neighbour"]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            "ip addr change $A dev $P valid_lft 12 preferred_lft 12",
            "ip addr change $A dev $P valid_lft forever preferred_lft forever",
        ),
        (
            "nft add table ip raw; nft 'add set ip raw s { type ipv4_addr; timeout 12s; }'",
            "nft delete table ip raw",
        ),
        (
            (
                "nft add table inet t; nft add chain inet t c; "
                "nft add rule inet t c limit rate 1/second accept"
            ),
            "nft delete table inet t",
        ),
        ("tc qdisc add dev $P root tbf rate 1mbit burst 9k limit 9k", "tc qdisc del dev $P root"),
    ],
)
def test_change_that_ends_later_by_itself_leaves_the_state_unsettled(apart, begin, end):
    net = apart(make(2, 1))
    names = "P=$(ip -br link | grep -o '[a-z0-9_]*-eth1'); "
    names += "A=$(ip -br -4 addr show dev $P | grep -o '[0-9.]*/24'); "

    def after(command):
        answer = net.ask("run", machine=net.name("r0"), command=names + command, timeout_s=10.0)
        assert answer["ok"]["exit"] == 0, answer
        return net.observe()

    passing = after(begin)
    lasting = after(end)

    assert [machine for machine, _ in passing["unsettled"]] == [net.name("r0")]
    assert not judge(net.world, passing, passing).correct
    assert "unsettled" not in lasting
    assert judge(net.world, passing, lasting).correct


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        (
            "nft add table ip raw; nft 'add set ip raw s { type ipv4_addr; }'",
            "nft delete table ip raw",
        ),
        (
            (
                "nft add table arp filter; nft add chain arp filter c; "
                "nft add rule arp filter c counter"
            ),
            "nft delete table arp filter",
        ),
        (
            "nft add table bridge nat; nft add map bridge nat m '{ type mark : mark; }'",
            "nft delete table bridge nat",
        ),
        ("iptables -A FORWARD -j LOG", "iptables -D FORWARD -j LOG"),
        ("sysctl -w net.ipv4.tcp_syncookies=0", "sysctl -w net.ipv4.tcp_syncookies=1"),
    ],
)
def test_each_change_in_a_false_alarm_is_reported_until_it_is_undone(apart, change, undo):
    net = apart(make(2, 1), traced=True)

    def left(command):
        answer = net.ask("run", machine=net.name("r0"), command=command, timeout_s=10.0)
        assert answer["ok"]["exit"] == 0, answer
        return net.observe()["leftover"]

    assert left("iptables -L; iptables -t raw -L; nft list ruleset; iptables-save") == []
    assert left(change) != []
    assert left(undo) == []


async def test_sysctl_files_are_not_older_than_the_command_that_reads_them(warm):
    """The kernel gives the file of a sysctl the time of its first lookup."""
    network = make(2, 1)
    router = network.router.name
    stop = Command(machine=router, command="sysctl -w net.ipv4.ip_forward=0")
    wanted = ("111", "110", "101")
    net = await warm.begin_world(network, "netns")
    try:
        await net.build([stop], wanted)
        look = "find /proc/sys/net/ipv4 -type f -printf '%T@\\n' | sort -n | head -n1; date +%s.%N"
        for _ in range(2):
            began = time.time()
            oldest = float((await net.run(router, look, 20.0)).output.split()[0])
            assert oldest > began - 0.1
            await net.observe()
    finally:
        await net.close()


def test_permanent_arp_entries_exist_from_the_start(apart, monkeypatch):
    monkeypatch.setattr(world, "MAX_NEIGHBOURS", 5)
    net = apart(make(2, 2))

    for machine, neighbours in (("h1", 2), ("r0", 4)):
        net.do(machine, f'test "$(ip neigh | grep -c PERMANENT)" = {neighbours}')
        net.do(machine, f'test "$(ip neigh | wc -l)" = {neighbours}')
    # a wrong permanent entry breaks the pair, so no ARP request is sent
    net.do("h1", "ip neigh replace 192.168.1.1 lladdr 02:00:00:00:00:01 dev {p}_h1-eth0")
    assert not net.works("h1", "r0")


def test_new_network_that_differs_from_its_intended_state_is_refused(monkeypatch, requirement):
    requirement("root")
    monkeypatch.setattr(worker, "HEALTHY_S", 0.1)
    network = make(2, 1)
    lame = network.hosts[0].model_copy(update={"routes": ()})
    sick = network.model_copy(update={"machines": (network.router, lame, network.hosts[1])})
    wrong = lame.model_copy(update={"routes": ("default via 10.0.0.1 onlink",)})
    mad = network.model_copy(update={"machines": (network.router, wrong, network.hosts[1])})

    with Apart(sick) as net:
        answer = net.ask("build", world=sick.model_dump(mode="json"), emulator="netns")
        nothing = net.ask("inject", commands=[["nobody", "true"]])
    with Apart(mad) as net:
        refused = net.ask("build", world=mad.model_dump(mode="json"), emulator="netns")

    names = f"{net.name('h1')} does not reach {net.name('h2')}"
    assert answer == {
        "failed": "RuntimeError: the network does not match the computed state after 0.1 s: "
        f"{names}"
    }
    assert nothing["failed"].startswith("KeyError")
    assert "ip route add default via 10.0.0.1 onlink" in refused["failed"]


def test_agent_command_runs_in_the_sandbox(apart):
    net = apart(make(2, 1))
    name = net.name("h1")

    said = net.ask("run", machine=name, command="hostname; ip -br addr; id -u", timeout_s=10)["ok"]
    late = net.ask("run", machine=name, command="sleep 100", timeout_s=0.2)["ok"]

    assert said["output"].startswith(f"{name}\n")
    assert f"{name}-eth0" in said["output"]
    assert said["exit"] == 0
    assert late["timed_out"]
    assert "[stopped: it ran for 0.2 s]" in late["output"]


def test_command_with_an_unclosed_construct_changes_nothing(apart):
    net = apart(make(2, 1))
    name = net.name("h1")

    half = net.ask(
        "run", machine=name, command=f"ip link set {name}-eth0 down\nfor i in 1; do", timeout_s=10
    )["ok"]
    shown = net.ask("run", machine=name, command=f"ip link show {name}-eth0", timeout_s=10)["ok"]

    assert half["output"].startswith(REFUSED)
    assert half["exit"] == STATUS
    assert "state UP" in shown["output"]


# ---------------------------------------------------------------------------- networks in processes


@pytest.fixture
async def warm():
    async with Warm() as one:
        yield one


@pytest.mark.parametrize(
    "emulator", ["netns", pytest.param("mininet", marks=pytest.mark.requires("mininet"))]
)
async def test_command_can_start_as_many_processes_as_the_prompt_says(warm, emulator):
    network = make()
    most = most_processes(len(network.endpoints))
    net = await warm.begin_world(network, emulator)
    try:
        await net.build()
        idle = f"for i in $(seq {most}); do sleep 0.5 & done; wait; echo all"
        said = await net.run(network.router.name, idle, 10)
    finally:
        await net.close()

    assert said.output == "all\n"


def test_tcpdump_captures_without_a_ring_buffer(apart, tmp_path):
    """A program that prints its input replaces the real tcpdump."""
    net = apart(make())
    reader = tmp_path / "tcpdump"
    reader.write_text(
        f"#!{sys.executable}\n"
        "import struct, sys\n"
        "file = sys.stdin.buffer\n"
        "print(sys.argv[1:], struct.unpack('=IHHiIII', file.read(24)), flush=True)\n"
        "while head := file.read(16):\n"
        "    *_, size, whole = struct.unpack('=IIII', head)\n"
        "    print(size, whole, file.read(size)[23], flush=True)\n"
    )
    reader.chmod(0o755)
    text = Path(tcpdump.__file__).read_text()
    real = next(line for line in text.splitlines() if line.startswith("REAL = "))
    program = tmp_path / "program.py"
    program.write_text(text.replace(real, f"REAL = {str(reader)!r}"))
    port = f"{net.name('r0')}-eth1"
    words = f"{sys.executable} -IS {program}"
    script = (
        f"{words} -lni {port} -s 60 --direction=in icmp > {tmp_path}/told & C=$!; "
        f"until [ -s {tmp_path}/told ]; do sleep 0.01; done; "
        f"ping -c 2 -i 0.1 192.168.1.100 > {tmp_path}/pings; "
        f"until [ $(grep -c ' 1$' {tmp_path}/told) -ge 2 ]; do sleep 0.01; done; kill $C; wait $C; "
        f"{words} -D > {tmp_path}/links; {words} -ni nowhere 2> {tmp_path}/wrong || true"
    )

    net.do("r0", script)

    first, *packets = (tmp_path / "told").read_text().splitlines()
    header = (0xA1B2C3D4, 2, 4, 0, 0, 60, 1)
    assert first == f"{['-Z', 'root', '-r', '-', '-l', '-n', 'icmp']} {header}"
    # only the replies of pings, shortened; the real tcpdump filters out all other packets
    assert [packet for packet in packets if packet.endswith(" 1")] == ["60 98 1"] * 2
    assert f".{port}\n" in (tmp_path / "links").read_text()
    assert (tmp_path / "wrong").read_text() == "tcpdump: nowhere: No such device exists\n"


def test_name_lookup_does_not_wait_for_a_missing_server(apart):
    """If a filter drops DNS queries, lookups used to wait for 10 s, even in ``iptables -L``."""
    net = apart(make())
    look = (
        "iptables -P INPUT DROP; iptables -A FORWARD -s 10.1.2.0/24 -j DROP; "
        "iptables -L FORWARD; arp; ping -c1 -W1 localhost >/dev/null; ping -c1 nobody"
    )

    said = net.ask("run", machine=net.name("r0"), command=look, timeout_s=5)["ok"]

    assert not said["timed_out"]
    assert "10.1.2.0/24" in said["output"]
    assert "nobody: Name or service not known" in said["output"]


async def test_machine_shows_only_its_own_links_and_no_consoles_of_missing_daemons(warm):
    network = make()
    net = await warm.begin_world(network, "netns")
    try:
        await net.build()
        port = network.router.interfaces[0].name
        shown = await net.run(
            network.router.name,
            f"ls /sys/class/net; ip link set {port} mtu 1400; cat /sys/class/net/{port}/mtu; "
            f"echo 9 > /sys/class/net/{port}/mtu; ls /sys /sys/devices/virtual; "
            f"command -v {' '.join(CONSOLES)}; setpriv --clear-groups echo dropped",
            10,
        )
    finally:
        await net.close()

    names = ["lo", *(interface.name for interface in network.router.interfaces)]
    lines = shown.output.splitlines()
    assert lines[: len(names) + 1] == [*names, "1400"]
    assert "Read-only file system" in lines[len(names) + 1]
    rest = ["/sys:", "class", "devices", "", "/sys/devices/virtual:", "net", "dropped"]
    assert lines[len(names) + 2 :] == rest


#: commands that print all that an agent can see, except for the kernel's numbers of links
LOOK = r"""
ip -d link show | sed -E 's/^[0-9]+: //; s/@if[0-9]+//; s/ (link-netnsid|peer_ifindex) [0-9]+//g'
ip -4 addr | sed -E 's/^[0-9]+: //; s/@if[0-9]+//; s/ link-netnsid [0-9]+//'
ip route show table all; ip rule; iptables -S; cat /proc/sys/net/ipv4/ip_forward
"""


@pytest.mark.requires("mininet")
async def test_both_emulators_build_the_same_network(warm):
    for network in (make(2, 2), varied(3, 1, random.Random(5))):
        seen = []
        for emulator in ("netns", "mininet"):
            net = await warm.begin_world(network, emulator)
            try:
                await net.build()
                seen.append([await net.run(name, LOOK, 20.0) for name in network.endpoints])
                assert (await net.observe())["matrix"] == list(network.intended)
            finally:
                await net.close()
        assert seen[0] == seen[1]
        assert all(output.exit == 0 for output in seen[0])


async def test_concurrent_equal_networks_are_isolated(warm):
    network = make(2, 1)
    nets = [await warm.begin_world(network, "netns") for _ in range(3)]
    try:
        await asyncio.gather(*(net.build() for net in nets))
        router = network.router.name
        stop = [Command(machine=router, command="sysctl -w net.ipv4.ip_forward=0")]
        await nets[1].inject(stop)

        states = await asyncio.gather(*(net.observe() for net in nets))

        assert [tuple(state["matrix"]) == network.intended for state in states] == [
            True,
            False,
            True,
        ]
        with pytest.raises(EnvironmentFailed, match=r"inject: false: "):
            await nets[0].inject([Command(machine=router, command="false")])
    finally:
        for net in nets:
            await net.close()


# ---------------------------------------------------------------------------- end of networks


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


KINDS = ("net", "mnt", "pid", "user", "ipc", "uts")


def namespaces(pid):
    return {link for kind in KINDS if (link := _link(Path(f"/proc/{pid}/ns/{kind}")))}


def _link(path):
    try:
        return str(path.readlink())
    except OSError:
        return None


def family(pid):
    found = [pid]
    for one in found:
        found += children(one)
    return found


class Below:
    """Descendants of a warm process with their namespaces, and the processes ``others``.

    The test's own namespaces are not included. The kernel soon reuses the ids of
    processes and namespaces. So processes are identified by their start time, and namespaces are
    kept alive by a descriptor of the test.
    """

    def __init__(self, zygote, *others):
        below = family(zygote)[1:]
        self.born = {pid: birth(pid) for pid in (*below, *others)}
        self.kept = {}
        ours = namespaces("self")
        for path in (Path(f"/proc/{pid}/ns/{kind}") for pid in below for kind in KINDS):
            if (link := _link(path)) and link not in ours | {*self.kept}:
                self.kept[link] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    async def gone(self):
        deadline = time.monotonic() + END_S
        while left := self._left():
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)
        for descriptor in self.kept.values():
            os.close(descriptor)

    def _left(self):
        there = [pid for pid, began in self.born.items() if birth(pid) == began]
        return there + [one.name for one in Path("/proc").iterdir() if self._holds(one)]

    def _holds(self, process):
        """Return whether a process is in one of the namespaces, or has a descriptor of one."""
        if not process.name.isdigit() or process.name == str(os.getpid()):
            return False
        try:
            descriptors = {_link(one) for one in (process / "fd").iterdir()}
        except OSError:
            descriptors = set()
        return bool(self.kept.keys() & (namespaces(process.name) | descriptors))


def birth(pid):
    """Return the start time of a running process in the kernel's ticks; None if it has ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if told[0] in "ZX" else told[19]


def named(prefix):
    """Return this machine's links and files in temporary folders that have the networks' prefix."""
    found = [name for _, name in socket.if_nameindex() if name.startswith(f"{prefix}_")]
    for folder in (Path("/run/netns"), Path("/run"), Path("/tmp"), Path("/dev/shm")):
        if folder.is_dir():
            found += [one.name for one in folder.iterdir() if one.name.startswith(f"{prefix}_")]
    return found


@pytest.mark.parametrize(
    "emulator", ["netns", pytest.param("mininet", marks=pytest.mark.requires("mininet"))]
)
async def test_closed_network_leaves_nothing_behind(warm, emulator):
    network = make(2, 1)
    net = await warm.begin_world(network, emulator)
    await net.build()
    below = Below(warm.pid)
    assert len(below.kept) >= 6
    running = asyncio.create_task(net.run(network.router.name, "sleep 1000 & sleep 1000", 100.0))
    await asyncio.sleep(0)

    await net.close()

    assert children(warm.pid) == []
    await below.gone()
    with pytest.raises(EnvironmentFailed, match="network's worker process"):
        await running
    with pytest.raises(EnvironmentFailed, match="has not yet answered the request 'run'"):
        await net.observe()
    assert named(network.prefix) == []


@pytest.mark.parametrize(
    "emulator", ["netns", pytest.param("mininet", marks=pytest.mark.requires("mininet"))]
)
@pytest.mark.parametrize("victim", ["outer", "worker", "zygote"])
async def test_network_whose_processes_are_killed_leaves_nothing_behind(emulator, victim):
    network = make(2, 1)
    async with Warm() as warm:
        net = await warm.begin_world(network, emulator)
        await net.build()
        below = Below(warm.pid)
        (outer,) = children(warm.pid)
        (inner,) = children(outer)

        os.kill({"outer": outer, "worker": inner, "zygote": warm.pid}[victim], signal.SIGKILL)

        await below.gone()
        with pytest.raises(EnvironmentFailed):
            await net.observe()
        await net.close()
        # the next network is not affected
        other = await warm.begin_world(network, emulator)
        try:
            await other.build()
        finally:
            await other.close()
    assert named(network.prefix) == []


SERVICE = """
import asyncio, random
from netarena_route.real.client import Warm
from netarena_route.world.model import standard
async def main():
    async with Warm() as warm:
        network = standard(2, 1, random.Random(1))
        net = await warm.begin_world(network, "netns")
        await net.build()
        print(warm.pid, flush=True)
        await net.run(network.router.name, "sleep 1000", 1000.0)
asyncio.run(main())
"""


async def test_killed_service_leaves_nothing_behind():
    with subprocess.Popen(  # noqa: ASYNC220 -- no other task waits
        [sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True, env=surroundings()
    ) as service:
        zygote = int(service.stdout.readline())
        deadline = time.monotonic() + END_S
        while not any(_runs(pid, "sleep") for pid in family(zygote)):  # until the command runs
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        below = Below(zygote, zygote)
        service.kill()
    await below.gone()


def _runs(pid, name):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    except OSError:
        return False


# ---------------------------------------------------------------------------- refusals


REFUSES = """
import sys, socket, time
socket.socket(fileno=int(sys.argv[-1])).send(b'{"failed": "no right"}')
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (REFUSES, "no networks: no right"),
        ("raise SystemExit(3)", "no networks: its process ended with 3"),
    ],
)
async def test_machine_without_the_privileges_is_refused_in_one_line(monkeypatch, program, message):
    monkeypatch.setattr(client, "_STOP_S", 0.1)
    monkeypatch.setattr(client, "command", lambda *rest: [sys.executable, "-c", program, *rest])

    with pytest.raises(EnvironmentFailed, match=message):
        await Warm().start()


def test_missing_namespaces_are_reported_in_one_line(requirement):
    requirement("root")
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command()],
        capture_output=True,
        text=True,
        env=surroundings(),
        check=True,
    )

    assert done.stdout.startswith("new namespaces cannot be created: ")
    assert "\n" not in done.stdout
