"""The backbone operator inspects each router and repairs unusual settings."""

from __future__ import annotations

import json

from netarena_backbone.agent.heuristic import Operator

_DOCUMENT = """You operate the backbone of autonomous system 65001: 2 routers
AS 65001 has 172.16.0.0/20 for its hosts, and 10.1.0.0/16 for itself.
Routers:
- p1_r1 10.1.0.1: p1_r1-eth0 10.1.1.1/30 to p1_r2, p1_r1-eth1 172.16.0.1/28 to p1_h1
- p1_r2 10.1.0.2: p1_r2-eth0 10.1.1.2/30 to p1_r1
- the session of p1_r1 with 198.19.0.1 is shut down by design, and must stay shut down
Hosts send packets of up to 1460 bytes; links may carry longer ones.
"""
_OUTPUT = """ip route 172.16.1.0/28 blackhole
ip route 172.16.0.0/20 blackhole
interface p1_r1-eth0
 ip ospf hello-interval 2
 ip ospf passive
exit
interface p1_r1-eth1
 ip ospf passive
exit
router bgp 65001
 neighbor 198.19.0.1 shutdown
 neighbor 10.1.0.2 shutdown
 address-family ipv4 unicast
  neighbor 10.1.0.2 maximum-prefix 1
2: p1_r1-eth0@if3: <UP> mtu 1400 qdisc noqueue
3: p1_r1-eth1@if3: <UP> mtu 1500 qdisc noqueue
"""


def test_ticket_agent_inspects_then_repairs_then_declares() -> None:
    operator = Operator()
    prompt = f"{_DOCUMENT}\nA ticket has come in: x"
    first = json.loads(operator.reply(prompt))
    assert first["machine"] == "p1_r1"
    second = json.loads(operator.reply(f"{prompt}\nTurn 1\nOutput:\n{_OUTPUT}"))
    assert second["machine"] == "p1_r1"
    command = second["command"]
    for part in (
        "no ip ospf passive",
        "ip ospf hello-interval 1",
        "no neighbor 10.1.0.2 shutdown",
        "no neighbor 10.1.0.2 maximum-prefix",
        "no ip route 172.16.1.0/28 blackhole",
        "ip link set p1_r1-eth0 mtu 1460",
    ):
        assert part in command
    for part in ("198.19.0.1", "172.16.0.0/20", "p1_r1-eth1"):
        assert part not in command
    assert json.loads(operator.reply(prompt))["machine"] == "p1_r2"
    done = json.loads(operator.reply(f"{prompt}\nTurn 3\nOutput:\nnothing\n"))
    assert done["done"] is True
    assert {cause["place"] for cause in done["causes"]} == {"p1_r1"}


def test_agent_without_a_ticket_starts_again_after_the_last_machine() -> None:
    operator = Operator()
    machines = [json.loads(operator.reply(_DOCUMENT))["machine"] for _ in range(3)]
    assert machines == ["p1_r1", "p1_r2", "p1_r1"]
