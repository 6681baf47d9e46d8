"""The numeric evidence of a machine contains traces of past changes, but no symptoms of faults."""

from __future__ import annotations

import copy
import json
import sys

import pytest

from netarena.errors import EnvironmentFailed
from netarena.model import Action, Query
from netarena_network import reader
from netarena_network.evidence import Scene, decode, examine

RULE = {"counter": {"packets": 3, "bytes": 252}}
#: Packets of OSPF and BGP without an answer.
UNANSWERED = """\
unknown  89 599 src=10.0.0.2 dst=224.0.0.5 [UNREPLIED] src=224.0.0.5 dst=10.0.0.2 mark=0 use=1
tcp      6 116 SYN_SENT src=10.0.0.2 dst=10.0.0.9 sport=44059 dport=179 [UNREPLIED] src=10.0.0.9
"""
SNMP = "Icmp: InEchos InEchoReps OutEchos\nIcmp: {} {} {}\n"


def header(length, **fields):
    found = [0] * length
    for place, value in fields.items():
        found[int(place[1:])] = value
    return found


def reading(number):
    """Return the data of a host with one link, one address and a filter of two rules."""
    return {
        "link": [[header(16, _4=2), {"4": 1500, "16": 6, "35": 2, "47": 1}]],
        "addr": [[header(8, _0=2, _1=24), {"2": int.from_bytes(bytes([10, 0, 0, number]), "little"),
                                           "6": [2**32 - 1, 2**32 - 1, 1000, 1000]}]],
        "route": [[header(12, _0=2, _5=3, _7=1), {"1": 5, "5": 6}]],
        "neigh": [[header(12, _4=2, _8=2), {"3": [5, 6, 7, 1], "4": 0}]],
        "rule": [],
        "qdisc": [],
        "nft": json.dumps({"nftables": [
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "handle": 1}},
            *({"rule": {"family": "ip", "table": "filter", "chain": "INPUT", "handle": handle,
                        "expr": [RULE, {"drop": None}]}} for handle in (2, 3)),
        ]}),
        "conntrack": "",
        "proc": {
            **dict.fromkeys(("raw", "icmp", "packet", "unix", "tcp"), ""),
            "snmp": SNMP.format(2, 2, 2),
        },
        "sysctl": {"net/ipv4/ip_forward": "0"},
        "sysctl_inode": {"net/ipv4/ip_forward": 10, "net/ipv4/ip_default_ttl": 11},
        "files": {},
    }  # fmt: skip


NAMES = ("p1_h1", "p1_h2", "p1_h3")
SCENE = Scene(
    roles=dict.fromkeys(NAMES, "host"),
    faulty=frozenset({"p1_h2"}),
    shaped=frozenset({"p1_h2", "p1_h3"}),
    endpoints=NAMES,
)
QUERY = Query(
    id="route-1", application="route", version="1", seed=1, index=0, label="faults_1",
    level="level1", text="repair it", actions=(Action(kind="fault"),),
)  # fmt: skip
MATRIX = {"matrix": ["111", "111", "111"]}


def look(**changed):
    readings = {name: reading(number) for number, name in enumerate(NAMES, start=1)}
    for name, change in changed.items():
        change(readings[f"p1_{name}"])
    found = examine(QUERY, SCENE, readings, MATRIX, [0.9, 1.8])
    # the roles of traces contain a digest of the features
    return {
        (one.name, "with a setting" if one.form else "host"): one for one in found.candidates
    }, found


def test_target_machine_is_marked_and_equal_machines_have_equal_traces():
    candidates, found = look()
    assert found.wrong
    assert [one.name for one in candidates.values() if one.target and one.trace] == ["p1_h2"]
    traces = [candidates[name, "host"].trace for name in NAMES]
    assert traces[0] == traces[1] == traces[2]
    assert not any("~" in name for name in traces[0])
    assert found.trace["observe_s"] == pytest.approx(0.15)
    assert found.trace["rule.rounds"] == 1


@pytest.mark.parametrize(
    ("change", "feature"),
    [
        (lambda read: read["addr"][0][1]["6"].__setitem__(2, 1300), "addr.created most"),
        (lambda read: read["link"][0][1].__setitem__("48", 1), "link.carrier_downs most"),
        (lambda read: read["sysctl_inode"].__setitem__("net/ipv4/ip_forward", 99),
         "sysctl.inode falls"),
        (lambda read: read["proc"].__setitem__("snmp", SNMP.format(2, 2, 4)),
         "echo.sent_per_peer"),
        (lambda read: read.__setitem__("nft", read["nft"].replace('"handle": 2', '"handle": 9')),
         "rule.nft_gaps"),
        (lambda read: read.__setitem__("conntrack",
         "icmp 1 29 src=10.0.0.2 dst=10.0.0.9 type=8 [UNREPLIED] src=10.0.0.9\n"),
         "rule.unreplied"),
        (lambda read: read["proc"].__setitem__("tcp",
         "sl local rem st\n0: 0500000A:01BB 0900000A:C350 03\n"), "sockets.tcp 03"),
    ],
)  # fmt: skip
def test_changed_machine_has_a_different_trace(change, feature):
    candidates, _ = look(h2=change)
    there = candidates["p1_h2", "host"].trace
    assert there[feature] != candidates["p1_h1", "host"].trace.get(feature)


@pytest.mark.parametrize(
    "change",
    [
        lambda read: read["link"][0][1].update({"4": 100, "16": 2}),
        lambda read: read["route"][0][1].update({"1": 77}),
        lambda read: read["route"].append(copy.deepcopy(read["route"][0])),
        lambda read: read["sysctl"].__setitem__("net/ipv4/ip_forward", "1"),
        lambda read: read.__setitem__("nft", read["nft"].replace("drop", "accept")),
        lambda read: read.__setitem__("conntrack", UNANSWERED),
    ],
    ids=["link", "route", "further route", "sysctl", "filter", "routing daemons"],
)
def test_symptom_does_not_change_the_trace(change):
    changed, _ = look(h2=change)
    same, _ = look()
    assert changed["p1_h2", "host"].trace == same["p1_h2", "host"].trace


def test_trace_of_a_setting_includes_the_protocol_of_a_route():
    changed, _ = look(h2=lambda read: read["route"][0][0].__setitem__(5, 4))
    forms = [changed[name, "with a setting"].form for name in ("p1_h2", "p1_h3")]
    assert [[one for one in form if "protocol 4" in one] != [] for form in forms] == [True, False]


def test_frr_counters_are_not_traces_but_gaps_in_route_ids_are():
    def frr(neighbours, groups):
        shown = {
            "running": "",
            "show ip ospf json": {"nbrFullAdjacentCounter": neighbours, "spfLastDurationMsecs": 2},
            "show ip route json": {"10.0.0.0/8": [{"nexthopGroupId": one} for one in groups]},
        }
        return lambda read: read.update({"frr.conf": "", "frr": shown})

    machines = {"h1": (3, [5, 6, 7]), "h2": (1, [5, 6]), "h3": (3, [5, 9])}
    candidates, _ = look(**{name: frr(*shown) for name, shown in machines.items()})
    traces = [
        {key: value for key, value in candidates[name, "host"].trace.items() if "~" not in key}
        for name in NAMES
    ]
    assert traces[0] == traces[1]
    assert not any("Counter" in name for name in traces[0])
    assert [one["show ip route.nexthopGroupId gaps"] for one in traces] == [0, 0, 3]


def test_listening_sockets_and_bgp_connections_are_not_traces():
    rows = "sl local rem st\n0: 0500000A:01BB 00000000:0000 0A\n1: 0500000A:00B3 0900000A:C350 03\n"
    candidates, _ = look(h2=lambda read: read["proc"].__setitem__("tcp", rows))
    assert candidates["p1_h2", "host"].trace["sockets.tcp 03"] == 0


def test_ages_of_arp_entries_are_traces_except_on_routers():
    shown = {"frr.conf": "", "frr": {"running": ""}}
    candidates, _ = look(h2=lambda read: read.update(shown))
    router, host = (
        {name.split()[0] for name in candidates[one, "host"].trace} for one in ("p1_h2", "p1_h3")
    )
    assert {"neigh.used", "neigh.confirmed"} <= host - router


def test_machines_with_a_setting_are_compared_by_form():
    changed, _ = look(h2=lambda read: read.__setitem__("nft", read["nft"].replace("drop", "queue")))
    assert {name for name, role in changed if role == "with a setting"} == {"p1_h2", "p1_h3"}
    assert changed["p1_h2", "with a setting"].form != changed["p1_h3", "with a setting"].form


def test_machines_with_different_entries_are_not_compared():
    """The number of rules or neighbours puts machines into separate groups; files do not."""
    whole = look()[0]
    role = whole["p1_h3", "host"].role
    assert whole["p1_h2", "host"].role == role
    without = look(h2=lambda read: read.__setitem__("nft", ""))[0]
    assert without["p1_h3", "host"].role == role
    assert without["p1_h2", "host"].role not in {role, "host"}
    files = look(h2=lambda read: read.__setitem__("files", {"/etc/x": [1, 1, 2, 0, 420, 0, 1]}))[0]
    assert files["p1_h2", "host"].role == role


def test_traces_of_hosts_with_and_without_a_setting_are_not_compared():
    roles = {name: look()[0][name, "host"].role for name in NAMES}
    assert roles["p1_h2"] == roles["p1_h3"] != roles["p1_h1"]


def test_echo_counts_are_reported_only_for_machines_whose_pairs_all_work():
    """A machine without a route to a peer sends nothing to it, which would reveal the fault."""
    readings = {name: reading(number) for number, name in enumerate(NAMES, start=1)}
    found = examine(QUERY, SCENE, readings, {"matrix": ["111", "110", "111"]})
    told = {one.name for one in found.candidates if "echo.sent_per_peer" in one.trace}
    assert told == {"p1_h1"}
    assert found.trace["rule.rounds"] == 1


def test_running_configuration_is_compared_with_the_file():
    text = "frr version 8.4.4\nhostname r1\nrouter ospf\n ospf router-id 10.0.0.1\n!\n"

    def frr(running):
        return lambda read: read.update(
            {"frr.conf": text, "frr": {"running": f"Building configuration...\n{running}"}}
        )

    candidates, _ = look(h1=frr(text), h2=frr(text.replace("10.0.0.1", "10.0.0.9")))
    assert candidates["p1_h1", "host"].trace["rule.startup_differs"] == 0
    assert candidates["p1_h2", "host"].trace["rule.startup_differs"] == 2


def test_unreadable_machine_is_an_environment_failure():
    with pytest.raises(EnvironmentFailed, match="p1_h1 cannot be read"):
        decode("p1_h1", "[stopped: too much memory]\n")


@pytest.mark.skipif(sys.platform != "linux", reason="netlink")
def test_reader_returns_the_settings_of_this_machine(capsys):
    reader.main()
    found = decode("here", capsys.readouterr().out)
    assert found["link"]
    assert any(attributes.get("6") for _, attributes in found["addr"])
    assert copy.deepcopy(found["sysctl"])["net/ipv4/ip_forward"] in {"0", "1"}
