"""No rule that an agent can install matches probes of an observation but no ordinary traffic.

Each match is tried with a counting rule. Observations normally hide their packets from a machine's
filters; here they do not, so that the rules count these packets. The same rules count the packets
of an ordinary ``ping``, ``curl`` or ``dig`` of the same machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from netarena.sandbox.namespace import leave_network, raise_loopback
from netarena.sandbox.shell import entered
from netarena_backbone.real import serve
from netarena_backbone.world.lab_spec import Ask
from netarena_network.real.netlink import Netlink, cable
from netarena_network.real.prober import Echo
from netarena_network.real.shadow import Shadow
from netarena_route.world.model import standard

pytestmark = [pytest.mark.requires("netns")]


#: matches of a router's rule that fit some of the pings through it, and matches that fit none
FIELDS = (
    "icmp sequence 1",
    "icmp sequence != 1",
    "icmp sequence 2-5",
    "icmp sequence > 5",
    "icmp checksum 0-0x7fff",
    "@th,64,8 != 0 @th,96,32 0",  # seconds since 1970, lowest byte first
    "@th,160,32 0",  # microseconds of this time
    "@th,192,64 0x1011121314151617",  # padding
    "ip length 84",
    "ip ttl 64",
    "ip frag-off & 0x4000 != 0",
    "ip frag-off & 0x4000 0",  # replies
    "ip id != 0",
    "ct state new",
    "ct state established icmp type echo-request",  # all packets of a conversation except the first
)
NO_FIELDS = (
    "icmp sequence 0",
    "icmp code != 0",
    "@th,96,32 != 0",
    "@th,160,32 != 0",
    "@th,192,64 != 0x1011121314151617",
    "@th,448,64 != 0x3031323334353637",
    "ip length != 84",
    "ip ttl != 64",
    "ip dscp != 0",
    "ip hdrlength != 5",
    "meta mark != 0",
)


def test_filter_on_packet_fields_affects_pings_and_probes_equally(apart):
    net = apart(standard(2, 3, random.Random(1)))
    target = net.world.addresses[-1]
    pinged = f"ping -q -c 10 -i 0.001 -W 0.01 {target} | grep -q ' 0% packet loss'"

    def loses(*matches):
        """Return whether probes lose packets, and whether pings do."""
        chain = "'{ type filter hook prerouting priority 0; }'"
        net.do("r0", f"nft add table ip t && nft add chain ip t c {chain}")
        for match in matches:
            rule = f"'icmp type {{ echo-request, echo-reply }} {match} drop'"
            net.do("r0", f"nft add rule ip t c {rule}")
        found = net.observe()["matrix"] != list(net.world.intended)
        ping = "failed" in net.ask("inject", commands=[[net.name("h1"), pinged]])
        net.do("r0", "nft delete table ip t")
        return found, ping

    for match in FIELDS:
        assert loses(match) == (True, True), match
    assert loses(*NO_FIELDS) == (False, False)
    # a ping has one identifier, and probes have a different one for each pair
    for match in ("icmp id < 64", "icmp id >= 64"):
        assert loses(match)[0], match
    # packets with the current time pass; packets with a time some minutes or seconds later are
    # dropped
    now_s = int(time.time())
    assert loses(f"@th,72,8 != {{ {now_s >> 8 & 255}, {(now_s >> 8) + 1 & 255} }}") == (True, False)
    soon = ", ".join(str(now_s + more & 255) for more in range(60))
    assert loses(f"@th,64,8 != {{ {soon} }}")[0]


#: matches on the origin of packets: matches that fit a command's ping, and matches that do not
ORIGINS = (
    "meta skuid 0",
    "meta skgid 0",
    "meta cgroup 0",
    "meta priority 0",
    "meta mark 0",
    "meta cpu < 4096",
    "meta length 84",
    "rt classid 0",
)
NO_ORIGINS = (
    "meta skuid != 0",
    "meta skgid != 0",
    "meta cgroup != 0",
    "meta priority != 0",
    "meta mark != 0",
    "meta cpu > 4095",
    "ip frag-off & 0x3fff != 0",
    "ip protocol != icmp",
)


def test_filter_on_packet_origin_affects_pings_and_probes_equally(apart):
    """The rules match the origin of a machine's own packets: user, group, processor, marks."""
    net = apart(standard(2, 2, random.Random(1)))
    target = net.world.addresses[-1]

    def run(text):
        return net.ask("run", machine=net.name("h1"), command=text, timeout_s=10.0)["ok"]

    def loses(*matches):
        chain = "'{ type filter hook output priority 0; }'"
        rules = [f"nft add rule ip t c '{match} drop'" for match in matches]
        made = run(f"nft add table ip t && nft add chain ip t c {chain}; {'; '.join(rules)}")
        assert made["exit"] == 0, made
        ping = run(f"ping -q -c 2 -i 0.01 -W 0.1 {target}")["exit"] != 0
        found = net.observe()["matrix"][1] != net.world.intended[1]
        run("nft delete table ip t")
        return found, ping

    for match in ORIGINS:
        assert loses(match) == (True, True), match
    assert loses(*NO_ORIGINS) == (False, False)


def bytecode(ancillary: int, test: str) -> str:
    """Return a program that compares one of the kernel's packet properties.

    See linux/filter.h, SKF_AD_OFF.
    """
    return f"4,32 0 0 {2**32 - 0x1000 + ancillary},{test},6 0 0 65535,6 0 0 0"


_EQUAL, _LARGER = 21, 37


def _is(value: int) -> str:
    return f"{_EQUAL} 0 1 {value}"


def _is_not(value: int) -> str:
    return f"{_EQUAL} 1 0 {value}"


#: programs on the kernel's packet properties: type, mark, queue, hash, VLAN tag, and processor
_KNOWN = {
    *(bytecode(offset, test) for offset in (4, 20, 24, 32, 44) for test in (_is(0), _is_not(0))),
    bytecode(36, f"{_LARGER} 0 1 4096"),
}
#: matches for any chain, if the kernel supports them
IPTABLES = (
    *(f"-m bpf --bytecode '{one}'" for one in sorted(_KNOWN)),
    *("-m ttl --ttl-eq 64", "-m ttl --ttl-gt 64", "-m ttl --ttl-lt 63"),
    *("-m length --length 84", "-m length ! --length 84"),
    *("-m dscp --dscp 0", "-m dscp ! --dscp 0", "-m ecn --ecn-ip-ect 0", "-m ecn ! --ecn-ip-ect 0"),
    "-m string --hex-string '|1011121314151617|' --algo bm",
    "-m string ! --hex-string '|1011121314151617|' --algo bm",
    *("-m u32 --u32 '0>>22&0x3C@0>>24=8'", "-m u32 --u32 '4&0xFFFF0000=0'"),
    *("-m addrtype --src-type UNICAST", "-m addrtype ! --src-type UNICAST"),
    *("-m realm --realm 0", "-m realm ! --realm 0"),
    *("-m cgroup --cgroup 0", "-m cgroup ! --cgroup 0", "-m cgroup --path /"),
    *("-m mark --mark 0", "-m mark ! --mark 0"),
    *("-m connmark --mark 0", "-m connmark ! --mark 0"),
    *("-m connbytes --connbytes 1: --connbytes-dir both --connbytes-mode packets",),
    *("-m connlimit --connlimit-above 0", "-m connlabel --label 1"),
    *("-m conntrack --ctstate NEW", "-m conntrack --ctstate INVALID"),
    *("-m conntrack --ctstatus CONFIRMED", "-m conntrack --ctstatus EXPECTED"),
    *("-m helper --helper ftp", "-m socket", "-m socket --nowildcard"),
    *("-m icmp --icmp-type 8", "-m icmp --icmp-type 0", "-m icmp --icmp-type 13"),
    *("-m pkttype --pkt-type unicast", "-m pkttype ! --pkt-type unicast"),
    *("-f", "-p tcp", "-p udp", "-m cpu --cpu 1000"),
)
#: matches on packets that the machine itself sends
SENT = (
    *("-m owner --uid-owner 0", "-m owner ! --uid-owner 0"),
    *("-m owner --gid-owner 0", "-m owner ! --gid-owner 0"),
    *("-m policy --dir out --pol none", "-m policy --dir out --pol ipsec"),
)
#: filters of tc, if the kernel supports their classifier
TRAFFIC = (
    *(f"protocol ip bpf bytecode '{one}'" for one in sorted(_KNOWN)),
    "protocol ip u32 match ip protocol 1 0xff",
    "protocol ip u32 match ip protocol 1 0xff match ip ttl 64 0xff",
    "protocol ip u32 match ip protocol 1 0xff match ip ttl 65 0xff",
    "protocol ip u32 match ip protocol 1 0xff match ip dsfield 0 0xff",
    "protocol ip u32 match ip protocol 1 0xff match u16 0x0054 0xffff at 2",
    # replies have a nonzero identification
    "protocol ip u32 match ip protocol 1 0xff match u16 0 0xffff at 4",
    "protocol ip u32 match ip protocol 1 0xff match u16 0x4000 0x4000 at 6",
    "protocol ip u32 match ip protocol 1 0xff match u16 0 0x4000 at 6",
    "protocol ip u32 match u8 8 0xff at 20",
    "protocol ip u32 match u8 0 0xff at 20 match ip protocol 1 0xff",
    "protocol ip u32 match u16 0x0001 0xffff at 26",
    "protocol ip u32 match u16 0 0xffff at 26 match ip protocol 1 0xff",
    "protocol ip u32 match u32 0x10111213 0xffffffff at 44",
    "protocol ip u32 match u16 0 0xffc0 at 24 match ip protocol 1 0xff",  # a small identifier
    "protocol ip u32 match mark 0 0xffffffff",
    "protocol ip flower ip_proto icmp type 8 code 0",
    "protocol ip flower ip_proto icmp ip_ttl 64 ip_tos 0",
    "protocol ip flower ip_proto icmp ip_ttl 65",
    "protocol ip basic match 'meta(priority eq 0)'",
    "protocol ip basic match 'not meta(priority eq 0)'",
    "protocol ip basic match 'meta(pkttype eq 0)'",
    "protocol ip basic match 'meta(pkt_len gt 98)'",
    "protocol ip basic match 'cmp(u8 at 8 layer network mask 0xff gt 64)'",
    "protocol ip basic match 'nbyte(10111213 at 24 layer transport)'",
    "protocol ip matchall",
    "protocol all cgroup",
    "protocol ip handle 1 fw",
)
#: start of the matches on seconds, which may fit in one second and not in the next
_SECOND = "@th,64,8"
_SIDES = ("ingress", "egress")
_COUNTED = "action mirred egress mirror dev t0 continue"


class Counters:
    """Counting rules on a machine. ``run`` runs a command line there and returns its output."""

    def __init__(self, run, port: str, *, sends: bool) -> None:
        self._run = run
        self._port = port
        hook = "output" if sends else "prerouting"
        run("nft add table ip m; ip link add t0 type veth peer name t1")
        run(f"nft add chain ip m c '{{ type filter hook {hook} priority -160 ; }}'")
        fields = [one for one in (*FIELDS, *NO_FIELDS) if _SECOND not in one]
        self._nft = self._added(
            "nft add rule ip m c {} counter",
            [f"icmp type {{ echo-request, echo-reply }} {one}" for one in fields]
            + ([*ORIGINS, *NO_ORIGINS] if sends else []),
            quoted=True,
        )
        chain = "OUTPUT" if sends else "FORWARD"
        self._iptables = self._added(
            f"iptables -w -A {chain} {{}}", [*IPTABLES, *(SENT if sends else ())]
        )
        run(f"tc qdisc add dev {port} clsact")
        for side in _SIDES:
            self._added(f"tc filter add dev {port} {side} prio $n {{}} {_COUNTED}", TRAFFIC)

    def _added(self, command: str, matches, *, quoted: bool = False) -> list[str]:
        """Add a rule for each match, and return the matches that the kernel supports."""
        lines = [command.format(f"'{one}'" if quoted else one) for one in matches]
        tried = "".join(
            f"n={number + 1}; {line} 2>/dev/null && echo {number}\n"
            for number, line in enumerate(lines)
        )
        told = self._run(f"{tried}true")
        return [matches[int(number)] for number in told.split()]

    def read(self) -> dict[str, int]:
        """Return the number of packets that each rule counted."""
        told = self._run("nft -j list table ip m")
        rules = [one["rule"] for one in json.loads(told)["nftables"] if "rule" in one]
        counts = [
            part["counter"]["packets"]
            for rule in rules
            for part in rule["expr"]
            if "counter" in part
        ]
        found = dict(zip(self._nft, counts, strict=True))
        told = self._run("iptables-save -c -t filter")
        lines = [line for line in told.splitlines() if " -A " in line]
        counts = [int(line[1:].partition(":")[0]) for line in lines]
        found |= zip(self._iptables, counts, strict=True)
        for side in _SIDES:
            told = self._run(f"tc -s -j filter show dev {self._port} {side}")
            for one in json.loads(told):
                for action in one.get("options", {}).get("actions", ()):
                    match = f"{side} {TRAFFIC[one['pref'] - 1]}"
                    found[match] = action["stats"]["packets"]
        return found


def grown(before: dict[str, int], after: dict[str, int]) -> set[str]:
    return {match for match, count in after.items() if count != before[match]}


# a warning of Mininet: "The 'warn' method is deprecated"
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("emulator", ["netns", "mininet"])
@pytest.mark.parametrize("place", ["r0", "h1"])
def test_no_filter_rule_affects_only_pings_or_only_probes(
    emulator, place, apart, monkeypatch, requirement
):
    if emulator == "mininet":
        requirement("mininet")
    monkeypatch.setattr(Shadow, "cast", lambda _: None)
    world = standard(2, 2, random.Random(1))
    net = apart(world, emulator=emulator)

    def run(machine: str, text: str) -> str:
        asked = {"machine": net.name(machine), "command": text, "timeout_s": 30.0}
        return net.ask("run", **asked)["ok"]["output"]

    port = f"{net.name(place)}-eth{1 if place == 'r0' else 0}"
    rules = Counters(lambda text: run(place, text), port, sends=place == "h1")
    counts = [rules.read()]
    ping = f"ping -q -c 8 -i 0.002 -W 1 {world.addresses[-1]}"
    run("h1", ping)
    net.do("h1", ping)  # this process has a large id, so the ping has a large identifier
    run("h4", f"ping -q -c 8 -i 0.002 -W 1 {world.addresses[1]}")
    counts.append(rules.read())
    assert net.observe()["matrix"] == list(world.intended)
    counts.append(rules.read())

    pinged, measured = grown(*counts[:2]), grown(*counts[1:])
    assert measured == pinged
    kinds = {"icmp", "-m", "ingress", "egress"}
    assert {match.split()[0] for match in pinged} >= kinds
    assert set(counts[0]) - pinged  # some rules match no packet


#: matches on TCP connections, on name queries and on replies, by the destination port
STREAM = (
    *(f"tcp flags & {one} == {one}" for one in ("syn", "fin", "psh", "rst", "urg", "ecn")),
    *("tcp sport 32768-60999", "tcp sport < 32768", "tcp sport > 60999"),
    *("tcp option maxseg size 1460", "tcp option maxseg size != 1460"),
    *("tcp option sack-perm exists", "tcp option timestamp exists", "tcp option fastopen exists"),
    *("tcp option window count 7", "tcp option window count != 7", "tcp option mptcp exists"),
    *("tcp doff 10", "tcp doff 8", "tcp doff 5", "tcp urgptr != 0"),
    *("ip ttl 64", "ip ttl != 64", "ip dscp 0", "ip dscp != 0", "ip ecn 0", "ip ecn != 0"),
    *("ip frag-off & 0x4000 != 0", "ip frag-off & 0x4000 0", "ip id 0"),
    *("ip length 52", "ip length 60", "ip length 40", "ip length 61-200", "ip length > 200"),
    *("@th,256,32 0x47455420", "tcp dport 1-1024"),
    *("meta skuid 0", "meta skuid != 0", "meta priority 0", "meta priority != 0"),
    *("meta mark 0", "meta mark != 0", "meta cgroup 0", "meta cgroup != 0"),
    *("ct state new", "ct state established", "ct state invalid"),
)
QUERY = (
    *("udp sport 32768-60999", "udp sport < 32768"),
    *("udp length 37", "udp length 60", "udp length != { 37, 60 }"),
    *("@th,80,16 0x0100", "@th,80,16 0x0120", "@th,80,16 != { 0x0100, 0x0120 }"),
    *("@th,96,16 1", "@th,96,16 != 1", "@th,144,16 0", "@th,144,16 1", "@th,144,16 > 1"),
    *("ip ttl 64", "ip ttl != 64", "ip dscp 0", "ip dscp != 0"),
    *("ip frag-off & 0x4000 != 0", "ip frag-off & 0x4000 0"),
    *("@th,64,16 < 0x8000", "@th,64,16 >= 0x8000"),
    *("udp checksum 0", "meta skuid 0", "meta skuid != 0", "meta priority 0", "meta mark 0"),
)


def _space() -> int:
    """Create a network namespace; return its descriptor."""
    found = []

    def make() -> None:
        leave_network()
        raise_loopback()
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found[0]


@contextlib.contextmanager
def _serving(servers: serve.Servers) -> Iterator[None]:
    """Context manager: run the servers in a thread."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(0.001):
            servers.serve()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.requires("root", "clients")
def test_no_filter_rule_affects_only_service_probes_or_only_curl_and_dig(tmp_path):
    spaces = {"h1": _space(), "h2": _space()}

    def run(machine: str, text: str) -> str:
        line = ["unshare", "-m", "bash", "-ec", text]
        with entered(spaces[machine]):
            done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=60)
        assert not done.returncode, (text, done.stderr)
        return done.stdout

    with entered(spaces["h1"]), Netlink() as netlink:
        assert netlink.send([cable("e0", "e0", spaces["h2"])]) == [0]
    for number, machine in enumerate(spaces, 1):
        run(machine, f"ip addr add 10.0.0.{number}/24 dev e0; ip link set e0 up")
    (tmp_path / "h2").mkdir()
    (tmp_path / "h1").mkdir()
    (tmp_path / "h2" / "services").write_text("dns udp 10.0.0.2 53\nweb tcp 10.0.0.2 80\n")
    (tmp_path / "h2" / "zone").write_text("web.example 10.0.0.2\n")
    servers = serve.Servers(spaces, {name: tmp_path / name for name in spaces})
    servers.update()
    with entered(spaces["h1"]):
        echo = Echo()

    rules = [f"tcp dport 80 {one}" for one in STREAM] + [f"tcp sport 80 {one}" for one in STREAM]
    rules += [f"udp dport 53 {one}" for one in QUERY]
    chains = ""
    for hook in ("output", "postrouting", "input"):
        chains += f"add chain ip m {hook} {{ type filter hook {hook} priority 0 ; }}\n"
        for rule in rules:
            if hook != "input" or not ("skuid" in rule or "cgroup" in rule):
                chains += f"add rule ip m {hook} {rule} counter\n"
    (tmp_path / "rules").write_text(f"add table ip m\n{chains}")
    run("h1", f"nft -f {tmp_path}/rules")

    def closed() -> set[str]:
        """Return the connections in TIME-WAIT, which the kernel deletes after a minute."""
        return {*run("h1", "ss -Htan state time-wait").splitlines()}

    def read() -> dict[str, int]:
        listed = run("h1", "nft list table ip m").splitlines()
        return {
            f"{number} {line.partition(' counter ')[0].strip()}": int(line.split()[-3])
            for number, line in enumerate(listed)
            if " counter packets " in line
        }

    (tmp_path / "resolv.conf").write_text("nameserver 10.0.0.2\noptions timeout:1 attempts:1\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    resolves = "".join(
        f"mount --bind {tmp_path}/{name} /etc/{name};" for name in ("resolv.conf", "nsswitch.conf")
    )
    counts = [read()]
    with _serving(servers):
        for _ in range(8):  # identifiers and ports then fall into both halves of their ranges
            for kind in ("A", "AAAA"):
                assert "10.0.0.2" in run("h1", f"dig @10.0.0.2 +tries=1 web.example {kind}")
            assert run("h1", f"{resolves} curl -s -m 30 http://web.example/") == "web\n"
        assert run("h1", "curl -s -m 30 http://10.0.0.2/") == "web\n"
        remembered = closed()
        assert remembered
    counts.append(read())
    asks = [
        Ask(source="h1", server="h2", target=target, protocol="tcp", port=80)
        for target in ("web.example", "10.0.0.2")
    ]
    resolvers = {"h1": "10.0.0.2"}
    for _ in range(8):
        assert serve.ask(asks, resolvers, spaces, servers, echo.wait) == "11"
    counts.append(read())
    assert closed() <= remembered
    echo.close()
    servers.close()
    for space in spaces.values():
        os.close(space)

    pinged, measured = grown(*counts[:2]), grown(*counts[1:])
    assert measured == pinged
    assert set(counts[0]) > pinged > set()
