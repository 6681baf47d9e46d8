"""Words with which an agent declares the causes of faults and the reasons for refused changes."""

from __future__ import annotations

from functools import partial

from netarena_network import reply
from netarena_network.declaration import Glossary

#: Word for a cause -> its meaning in prompts
WORDS = {
    "adjacency": "an OSPF adjacency is missing or unusable (example: the two ends have different "
    "hello intervals)",
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
    "service": "a service listens on a wrong address or port (example: port 5518 instead of 5514)",
    "name": "a name cannot be resolved correctly (example: it has a wrong address, or a host "
    "uses a wrong name server)",
}
#: Word for the reason why a requested change is refused -> its meaning in prompts
REFUSALS = {
    "no_redundancy": "the change would end documented traffic, because there is no other path",
    "address_in_use": "an address of the change belongs to another interface or machine",
    "own_prefix": "a prefix that the neighbour is to announce lies inside our own block",
    "documented_service": "the change would block a service that is documented to work afterwards",
}
#: Kind of fault -> word for its cause, unless the fault's method has its own word
_KINDS = {
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
GLOSSARY = Glossary(
    words=WORDS,
    kinds=_KINDS,
    also={"transit_missing": ("adjacency",), "long_dropped": ("filter",)},
    also_of_kind={
        "ospf_area": ("network",),
        "ospf_mtu": ("size",),
        "bgp_maximum": ("policy",),
        "bgp_community": ("policy",),
    },
    refusals=REFUSALS,
)
read_reply = partial(reply.read_reply, words=WORDS, refusals=REFUSALS)
