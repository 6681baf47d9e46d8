"""Words for the causes of route's faults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from netarena_network import reply
from netarena_network.action import Fault
from netarena_network.declaration import Glossary

#: Word for a cause -> meaning of the word, as stated in prompts
WORDS = {
    "link": "the state of an interface is wrong (example: it is down, or its MTU is 68)",
    "queue": "a queueing discipline drops or delays packets (example: tc pfifo limit 0)",
    "address": "an address or prefix length is wrong, missing or duplicate (example: /32 "
    "instead of /24)",
    "neighbour": "an ARP table entry is wrong (example: a permanent entry with a wrong MAC "
    "address)",
    "route": "a route in any table is wrong, missing or must not exist (example: a blackhole "
    "route)",
    "rule": "a policy rule is wrong, missing or must not exist (example: ip rule ... prohibit)",
    "filter": "iptables or nftables drops traffic that must pass (example: DROP in FORWARD)",
    "translation": "packets get another address (example: DNAT in iptables)",
    "forwarding": "the router's forwarding is disabled (example: net.ipv4.ip_forward is 0)",
    "setting": "another kernel setting is wrong (example: icmp_echo_ignore_all is 1)",
    "guard": "a setting that must separate or isolate machines is missing or bypassed (example: "
    "the DROP rule between two separated subnets has been deleted)",
}
#: Kind of fault -> word for the cause, unless the fault's method has a different word
_KINDS = {
    "disable_routing": "forwarding",
    "disable_interface": "link",
    "remove_ip": "address",
    "drop_traffic_to_from_subnet": "filter",
    "wrong_routing_table": "route",
    "stray_route": "route",
    "policy_rule": "rule",
    "router_neighbour": "neighbour",
    "router_setting": "setting",
    "router_firewall": "filter",
    "address_translation": "translation",
    "host_gateway": "route",
    "host_address": "address",
    "host_interface": "link",
    "host_neighbour": "neighbour",
    "host_setting": "setting",
    "host_firewall": "filter",
    "host_path": "route",
    "host_traffic": "filter",
    "router_traffic": "filter",
    "guard": "guard",
    "bypass": "guard",
}
_METHODS = {
    "rule_prohibit": "rule",
    "forward_policy": "filter",
    "forward_source": "filter",
    "rate": "queue",
    "no_queue": "queue",
    "netem_delay": "queue",
    "netem_loss": "queue",
    "arp_off": "link",
    "holds_host": "address",
    "holds_peer": "address",
    "port_forwarding": "forwarding",
    "rule": "rule",
    "peer_rule": "rule",
    "peer_table": "rule",
    "pair_rule": "rule",
}


#: First words of a command -> word for the setting that the command changes
_TOUCHED = {
    "iptables": "filter",
    "nft": "filter",
    "ip rule": "rule",
    "ip route": "route",
    "ip addr": "address",
    "ip link": "link",
    "ip neigh": "neighbour",
    "sysctl": "setting",
    "tc": "queue",
}


class _Words(Glossary):
    def further(self, fault: Fault) -> Iterator[str]:
        """Yield further words for a fault. For a missing separation, these include words for the
        changed settings."""
        yield from super().further(fault)
        if self.word_of(fault) == "guard":
            commands = " && ".join(one.command for one in fault.inject).split(" && ")
            for beginning, word in _TOUCHED.items():
                if any(command.startswith(beginning) for command in commands):
                    yield word


GLOSSARY = _Words(
    words=WORDS,
    kinds=_KINDS,
    methods=_METHODS,
    also={
        "ip_forward": ("setting",),
        "forward_policy": ("forwarding",),
        "port_forwarding": ("setting",),
        "reverse_path": ("setting",),
        "local_host": ("address",),
        "source_table": ("route",),
        "target_table": ("route",),
        "peer_table": ("route",),
        "arp_off": ("neighbour",),
    },
)
read_reply = partial(reply.read_reply, words=WORDS)
