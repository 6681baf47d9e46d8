"""Declarations: the end of a ticket, and what was wrong, as the agent says it.

    {"done": true, "causes": [{"place": "p42_h3", "what": "route"}]}

PLACE is a machine, WHAT one of ``WORDS``, or of
``BACKBONE_WORDS``; causes may be left out. As a move it is that object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from netarena.errors import ReplyRefused
from netarena.model import Cause, Claim, Move
from netarena.ticket import check_causes
from netarena_route.action import Fault

#: word -> what it says is wrong at a machine, as the prompt lists it
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "link": "an interface is down, has the wrong MTU, or does not speak ARP",
        "queue": "a queue of an interface keeps or drops what it should send",
        "address": "an address or its mask is missing, wrong, or another machine's",
        "neighbour": "a hardware address is known wrongly",
        "route": "a route of any table is missing, wrong, or too many",
        "rule": "a policy rule is missing or too many",
        "filter": "a filter drops or refuses what should pass (iptables, nftables)",
        "translation": "addresses of packets are rewritten",
        "forwarding": "the router does not forward, from one interface or at all",
        "setting": "another kernel setting is wrong, of echo or TTL for instance",
        "guard": "what keeps machines apart by design is gone, or something lets them through",
    }
)
#: the same for a backbone
BACKBONE_WORDS: Mapping[str, str] = MappingProxyType(
    {
        "adjacency": "OSPF lacks a neighbour, whatever hinders it: settings or the size of packets",
        "network": "OSPF tells of a network, an address or a route not, or wrongly",
        "cost": "a cost of OSPF is wrong",
        "session": "a session of BGP does not come up, or was ended",
        "policy": "towards others BGP lets in, prefers or tells what it should not, or does not",
        "reflection": "among our own routers BGP does not pass on what they need, as they use it",
        "static": "a static route, or one of the kernel, is wrong or too many",
        "filter": "a filter drops or refuses what should pass, or lets pass what should not",
        "size": "packets of full size do not pass where neighbours and sessions stand",
        "service": "a host serves at a wrong address or port",
        "name": "a name is unknown or wrong, or is asked for at a wrong server",
    }
)
#: kind of fault -> the word for it, but for methods that have their own
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


def word_of(fault: Fault) -> str:
    """The word for a fault."""
    return _METHODS.get(fault.method) or _KINDS[fault.kind]


def causes_of(faults: Iterable[Fault]) -> list[Cause]:
    """Faults as a right declaration names them."""
    return [Cause(fault.machine, word_of(fault)) for fault in faults]


def read_causes(named: Sequence[Mapping[str, object]]) -> list[Cause]:
    """The causes of a declaration. Raises ReplyRefused for half a declaration."""
    causes = [_read_cause(one.get("place"), one.get("what")) for one in named]
    return check_causes(causes, (*WORDS, *BACKBONE_WORDS))


def _read_cause(place: object, what: object) -> Cause:
    if not isinstance(place, str) or not isinstance(what, str):
        raise ReplyRefused('a cause is an object {"place": "<machine>", "what": "<word>"}')
    try:
        place.encode()
    except UnicodeEncodeError:
        raise ReplyRefused("a place is not valid Unicode text") from None
    return Cause(place.strip()[:100], what.strip())


def make_move(causes: Iterable[Cause]) -> Move:
    """The declaration of these causes."""
    return {"done": True, "causes": [{"place": one.place, "what": one.what} for one in causes]}


def claim_of(move: Move) -> Claim | None:
    """The declaration that a move is, if it is one; a command never is."""
    if not isinstance(move, dict) or move.get("done") is not True:
        return None
    named = move.get("causes")
    causes = tuple(
        Cause(str(one["place"]), str(one["what"]))
        for one in (named if isinstance(named, list) else ())
        if isinstance(one, dict)
    )
    return Claim(causes=causes or None)
