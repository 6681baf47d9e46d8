"""Declarations of a ticket's end and of its causes.

    {"done": true, "causes": [{"place": "p42_h3", "what": "route"}]}

PLACE is a machine, and WHAT is one of ``WORDS`` or ``BACKBONE_WORDS``. Causes may be left out. A
move that declares the end is that object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from netarena.sdk import Cause, Claim, Move, ReplyRefused, check_causes
from netarena_network.action import Fault

#: Word for a cause -> its meaning in prompts
WORDS: Mapping[str, str] = MappingProxyType(
    {
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
        "guard": "a block that must separate or isolate machines is missing or bypassed (example: "
        "the DROP rule between two separated subnets has been deleted)",
    }
)
#: The same for backbones.
BACKBONE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "adjacency": "an OSPF adjacency is missing (example: the two ends have different hello "
        "intervals)",
        "network": "OSPF does not advertise a prefix, or advertises it wrongly (example: the "
        "network of an interface is not in OSPF)",
        "cost": "an OSPF cost is wrong (example: 1200 instead of 10)",
        "session": "a BGP session is not established (example: a wrong password)",
        "policy": "routes from or to another AS are accepted, preferred or announced wrongly "
        "(example: a prefix list denies a prefix that must be announced)",
        "reflection": "iBGP routes do not reach a router or cannot be used there (example: "
        "next-hop-self is missing)",
        "static": "a static or kernel route is wrong or must not exist (example: a blackhole)",
        "filter": "packets are dropped that must pass, or pass although they must be dropped "
        "(example: a wrong iptables rule)",
        "size": "large packets are dropped and small ones pass (example: a link with a small MTU)",
        "service": "a host serves at a wrong address or port (example: port 5518 instead of 5514)",
        "name": "a name cannot be resolved correctly (example: it has a wrong address, or a host "
        "uses a wrong name server)",
    }
)
#: Kind of fault -> its word, unless its method has another one
_KINDS: Mapping[str, str] = MappingProxyType(
    {
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
        **dict.fromkeys(
            (
                *("ospf_area", "ospf_network_type", "ospf_timers", "ospf_authentication"),
                *("ospf_mtu", "ospf_passive", "router_id"),
            ),
            "adjacency",
        ),
        **dict.fromkeys(("ospf_network", "ospf_redistribution", "ospf_summary"), "network"),
        "ospf_cost": "cost",
        **dict.fromkeys(
            (
                *("bgp_as", "bgp_update_source", "bgp_hops", "bgp_password", "bgp_shutdown"),
                *("bgp_router_id", "bgp_maximum"),
            ),
            "session",
        ),
        **dict.fromkeys(("bgp_preference", "bgp_leak", "bgp_filter"), "policy"),
        **dict.fromkeys(("bgp_next_hop", "bgp_client", "bgp_community"), "reflection"),
        "static_route": "static",
        **dict.fromkeys(("zone_filter", "one_way"), "filter"),
        "path_mtu": "size",
        "service_address": "service",
        "name_entry": "name",
    }
)
_METHODS: Mapping[str, str] = MappingProxyType(
    {
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
)


#: Method of a fault -> further words that describe it
_ALSO: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ip_forward": ("setting",),
        "forward_policy": ("forwarding",),
        "port_forwarding": ("setting",),
        "reverse_path": ("setting",),
        "local_host": ("address",),
        "source_table": ("route",),
        "target_table": ("route",),
        "peer_table": ("route",),
        "arp_off": ("neighbour",),
        "transit_missing": ("adjacency",),
        "long_dropped": ("filter",),
    }
)
#: Kind of fault -> further words that describe it
_ALSO_OF_KIND: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ospf_area": ("network",),
        "ospf_mtu": ("size",),
        "bgp_maximum": ("policy",),
        "bgp_community": ("policy",),
    }
)
#: First words of a command -> word for the setting that it changes
_TOUCHED: Mapping[str, str] = MappingProxyType(
    {
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
)


def word_of(fault: Fault) -> str:
    """Return the word for a fault."""
    return _METHODS.get(fault.method) or _KINDS[fault.kind]


def causes_of(faults: Iterable[Fault]) -> list[Cause]:
    """Return the causes that a correct declaration of the faults names."""
    return [Cause(fault.machine, word_of(fault)) for fault in faults]


def machines_of(fault: Fault) -> set[str]:
    """Return the machines whose settings a fault changes."""
    return {fault.machine, *(one.machine for one in (*fault.inject, *fault.repair))}


def as_injected(
    faults: Iterable[Fault],
    named: Iterable[Cause],
    places: Callable[[Fault], Iterable[str]] = machines_of,
) -> list[Cause]:
    """Return the named causes in the form of the injected faults that they describe.

    A cause may name a fault with another word or at another of its ``places``. Other causes are
    unchanged.
    """
    injected = list(faults)
    own = causes_of(injected)
    known: dict[Cause, Cause] = {}
    for fault, cause in zip(injected, own, strict=True):
        for word in (cause.what, *_further(fault)):
            for place in places(fault):
                known.setdefault(Cause(place, word), cause)
    return [one if one in own else known.get(one, one) for one in named]


def _further(fault: Fault) -> Iterator[str]:
    """Yield further words that describe a fault."""
    yield from _ALSO.get(fault.method, ())
    yield from _ALSO_OF_KIND.get(fault.kind, ())
    if word_of(fault) == "guard":  # the words for the means by which a separation was removed
        commands = " && ".join(one.command for one in fault.inject).split(" && ")
        for beginning, word in _TOUCHED.items():
            if any(command.startswith(beginning) for command in commands):
                yield word


def read_causes(named: Sequence[Mapping[str, object]]) -> list[Cause]:
    """Return the causes of a declaration; raises ReplyRefused if one is incomplete."""
    causes = [_read_cause(one.get("place"), one.get("what")) for one in named]
    return check_causes(causes, (*WORDS, *BACKBONE_WORDS))


def _read_cause(place: object, what: object) -> Cause:
    if not isinstance(place, str) or not isinstance(what, str):
        raise ReplyRefused('a cause must be an object {"place": "<machine>", "what": "<word>"}')
    try:
        place.encode()
    except UnicodeEncodeError:
        raise ReplyRefused("a place is not valid Unicode text") from None
    return Cause(place.strip()[:100], what.strip())


def make_move(causes: Iterable[Cause]) -> Move:
    """Return the move that declares these causes."""
    return {"done": True, "causes": [{"place": one.place, "what": one.what} for one in causes]}


def claim_of(move: Move) -> Claim | None:
    """Return the declaration in a move, or None; a command never is one."""
    if not isinstance(move, dict) or move.get("done") is not True:
        return None
    named = move.get("causes")
    causes = tuple(
        Cause(str(one["place"]), str(one["what"]))
        for one in (named if isinstance(named, list) else ())
        if isinstance(one, dict)
    )
    return Claim(causes=causes or None)
