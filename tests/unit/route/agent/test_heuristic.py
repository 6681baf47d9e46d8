"""The checklist operator resets changed settings and leaves other machines unchanged."""

from __future__ import annotations

import json
import random
import re
from ipaddress import IPv4Interface
from itertools import combinations

import pytest

from netarena.config import PromptStyle
from netarena.model import Query, Step
from netarena.task.prompt import CommandLimits, render
from netarena_route.agent.heuristic import Operator, Plan
from netarena_route.app import Route
from netarena_route.config import RouteConfig
from netarena_route.prompt import prompt_parts
from netarena_route.query import world_of
from netarena_route.state import judge
from netarena_route.world.model import Machine, World, standard, varied


def look(machine: Machine) -> dict[str, list[str]]:
    """Return the output of a machine in its intended state, one section per tool.

    The format is that of iproute2.
    """
    own = [(port.name, IPv4Interface(port.address)) for port in machine.interfaces]
    rules = ["0:\tfrom all lookup local"]
    for rule in machine.rules:
        words = rule.split()
        preference, port = words[1], words[3]
        to = f"to {words[5]} " if "to" in words else ""
        action = f"lookup {words[-1]}" if "lookup" in words else words[-1]
        rules.append(f"{preference}:\tfrom all {to}iif {port} {action}")
    rules += ["32766:\tfrom all lookup main", "32767:\tfrom all lookup default"]
    routes = [f"{a.network} dev {name} proto kernel scope link src {a.ip} " for name, a in own]
    routes += [
        f"{route} dev {own[0][0]} " if " via " in route else f"{route} "
        for route in machine.routes
        if " table " not in route
    ]
    filters = [f"-P {chain} ACCEPT" for chain in ("INPUT", "FORWARD", "OUTPUT")]
    for entry in machine.filters:
        if entry.startswith("-P"):
            filters[1] = entry
        else:
            filters.append(re.sub(r" -p (\w+) ", r" -p \1 -m \1 ", entry))
    return {
        "links": [
            "1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue",
            *(
                f"{n}: {name}@if9: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue"
                for n, (name, _) in enumerate(own, start=2)
            ),
        ],
        "addresses": [
            "1: lo    inet 127.0.0.1/8 scope host lo",
            *(
                f"{n}: {name}    inet {address} brd + scope global {name}"
                for n, (name, address) in enumerate(own, start=2)
            ),
        ],
        "rules": rules,
        "routes": routes,
        "filters": filters,
        "sysctls": [
            f"net.ipv4.ip_forward = {dict(machine.sysctls).get('net.ipv4.ip_forward', '0')}",
            "net.ipv4.icmp_echo_ignore_all = 0",
        ],
    }


def prompt(world: World, *steps: Step, lost: int = 0) -> str:
    """Return the prompt after ``steps``; endpoint number ``lost``, if not 0, reaches no other."""
    matrix = list(world.intended)
    if lost:
        matrix[lost] = "".join("01"[column == lost] for column in range(len(matrix)))
    state = {"matrix": matrix, "stolen": [], "switches": [], "collateral": []}
    query = Query(
        id="q", application="route", version="1", seed=1, index=0, label="l", level="level1",
        text="Repair it.", actions=(),
    )  # fmt: skip
    return render(
        PromptStyle.ZEROSHOT_BASE,
        prompt_parts(query, world, state, steps, CommandLimits(10, 8_000, 24_000)),
    )


def answer(world: World, command: dict[str, str], sections: dict[str, list[str]]) -> Step:
    state = {"matrix": list(world.intended), "stolen": [], "switches": [], "collateral": []}
    return Step(
        prompt="",
        move=command,
        output="==\n".join("\n".join(lines) + "\n" for lines in sections.values()),
        executed=True,
        state=state,
        judgement=judge(world, state, state),
    )


def resets(world: World, machine: Machine, sections: dict[str, list[str]]) -> str:
    """Return the operator's command after inspecting ``machine``; empty if it inspects the next."""
    operator = Operator()
    said = json.loads(operator.reply(prompt(world)))
    while said["machine"] != machine.name:
        step = answer(world, said, look(world.machine(said["machine"])))
        said = json.loads(operator.reply(prompt(world, step)))
    said = json.loads(operator.reply(prompt(world, answer(world, said, sections))))
    return "" if said["command"].startswith("ip -o link;") else str(said["command"])


@pytest.mark.parametrize("world", [
    standard(2, 1, random.Random(1)),
    *(varied(3, 2, random.Random(seed)) for seed in range(16)),
], ids=range(17))  # fmt: skip
def test_machine_in_its_intended_state_is_not_reset(world: World) -> None:
    hosts = [host for host in world.hosts if host.name not in world.reserve]
    for machine in (world.router, hosts[0], hosts[-1]):
        assert resets(world, machine, look(machine)) == ""


W = standard(2, 1, random.Random(1))
R, H = W.router, W.hosts[1]
PORT = R.interfaces[0].name


@pytest.mark.parametrize(
    ("machine", "section", "old", "new", "sent"),
    [
        (R, "links", "UP,LOWER_UP> mtu 1500", "DOWN> mtu 1500", f"ip link set {PORT} up"),
        (R, "links", "mtu 1500", "mtu 68", f"ip link set {PORT} mtu 1500"),
        (R, "links", "BROADCAST,", "BROADCAST,NOARP,", f"ip link set {PORT} arp on"),
        (R, "addresses", "192.168.1.1/24", "192.168.1.9/24",
         f"ip address flush dev {PORT}; ip address add 192.168.1.1/24 brd + dev {PORT}"),
        (R, "addresses", "127.0.0.1/8 ", "127.0.0.1/8\n1: lo inet 10.9.9.9/32 ",
         "ip address del 10.9.9.9/32 dev lo"),
        (R, "rules", "32766:\tfrom all lookup main\n", "",
         "ip rule add pref 32766 lookup main"),
        (R, "rules", "0:\t", "0:\tfrom all prohibit\n0:\t",
         "ip rule del pref 0 from all prohibit"),
        (R, "routes", f"192.168.1.0/24 dev {PORT} proto kernel scope link src 192.168.1.1 ",
         "192.168.1.0/24 dev lo scope link ",
         (f"ip route del 192.168.1.0/24 dev lo scope link; ip route replace 192.168.1.0/24 "
          f"dev {PORT} proto kernel scope link src 192.168.1.1")),
        (R, "routes", "192.168.2.0/24", "blackhole 192.168.2.128/25\n192.168.2.0/24",
         "ip route del blackhole 192.168.2.128/25"),
        (R, "filters", "-P FORWARD ACCEPT", "-P FORWARD DROP", "iptables -P FORWARD ACCEPT"),
        (R, "filters", "-P OUTPUT ACCEPT", "-P OUTPUT ACCEPT\n-A INPUT -p icmp -j DROP",
         "iptables -D INPUT -p icmp -j DROP"),
        (R, "sysctls", "forward = 1", "forward = 0", "sysctl -w net.ipv4.ip_forward=1"),
        (H, "routes", "default via 192.168.2.1", "default via 192.168.2.9",
         (f"ip route del default via 192.168.2.9 dev {H.interfaces[0].name}; "
          "ip route replace 192.168.1.0/24 via 192.168.2.1")),
        (H, "sysctls", "ignore_all = 0", "ignore_all = 1",
         "sysctl -w net.ipv4.icmp_echo_ignore_all=0"),
    ],
)  # fmt: skip
def test_changed_setting_is_reset(
    machine: Machine, section: str, old: str, new: str, sent: str
) -> None:
    sections = look(machine)
    text = "\n".join(sections[section])
    assert old in text
    sections[section] = text.replace(old, new, 1).splitlines()
    assert resets(W, machine, sections) == sent


def test_missing_accept_rule_is_restored_and_stray_rule_is_deleted() -> None:
    worlds = [varied(3, 1, random.Random(seed)) for seed in range(30)]
    accepting = next(w for w in worlds if "-P FORWARD DROP" in w.router.filters)
    sections = look(accepting.router)
    kept = [accepting.machine(name).interfaces[0].subnet for name in accepting.reserve]
    serving = {
        host.interfaces[0].subnet for host in accepting.hosts if host.name not in accepting.reserve
    }
    named = [str(accepting.networks[i]) for i in kept if i not in serving]
    named += [accepting.ports[i].name for i in kept if i not in serving]
    gone = next(
        line
        for line in sections["filters"]
        if line.endswith("-j ACCEPT") and not set(line.split()) & set(named)
    )
    sections["filters"].remove(gone)
    assert resets(accepting, accepting.router, sections) == f"iptables {gone}"
    ruling = next(w for w in worlds if any(" to " in rule for rule in w.router.rules))
    serving = sorted(
        {host.interfaces[0].subnet for host in ruling.hosts if host.name not in ruling.reserve}
    )
    (a, b) = next(p for p in combinations(serving, 2) if p not in ruling.apart)
    stray = f"from all to {ruling.networks[a]} iif {ruling.ports[b].name} prohibit"
    sections = look(ruling.router)
    sections["rules"].insert(1, f"900:\t{stray}")
    assert resets(ruling, ruling.router, sections) == f"ip rule del pref 900 {stray}"


def test_hosts_with_the_most_failed_pings_are_inspected_first() -> None:
    world = standard(2, 2, random.Random(1))
    operator = Operator()
    text = prompt(world, lost=3)
    asked = [json.loads(operator.reply(text))["machine"] for _ in range(6)]
    names = world.endpoints
    assert asked == [names[0], names[3], names[1], names[2], names[4], names[0]]


def test_broken_pairs_of_a_large_network_are_parsed_from_the_prompt() -> None:
    world = standard(16, 16, random.Random(1))
    text = prompt(world, lost=200)
    assert Plan.read(text).suspects(text)[:2] == [world.endpoints[0], world.endpoints[200]]


def test_prompt_without_an_address_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="no address plan"):
        Operator().reply("open the valve")


def test_ticket_agent_inspects_the_named_machines_and_then_sends_its_declaration() -> None:
    config = RouteConfig.parse({"briefing": "ticket", "error_types": "faults_1"})
    app = Route()
    (query,) = app.generate(config, 4)
    operator, said, steps = Operator(), [], list[Step]()
    while len(said) < 20:
        prompt = render(PromptStyle.ZEROSHOT_BASE, app.brief(config, query, None, steps))
        said.append(json.loads(operator.reply(prompt)))
        if "done" in said[-1]:
            break
        steps.append(Step(prompt=prompt, move=said[-1], output="nothing", executed=True))
    assert said[-1] == {"done": True, "causes": []}
    looked = [move["machine"] for move in said[:-1]]
    assert looked[0] == world_of(query).router.name
    assert 2 <= len(looked) == len(set(looked))
    told = render(PromptStyle.ZEROSHOT_BASE, app.brief(config, query, None, ()))
    task = told.rpartition("A ticket has come in:")[2]
    addresses = dict(zip(world_of(query).endpoints, world_of(query).addresses, strict=True))
    assert all(name in task or addresses[name] in task for name in looked[1:])
