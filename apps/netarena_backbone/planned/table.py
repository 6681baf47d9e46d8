"""All kinds of requested changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from netarena_backbone.fault.change import Method
from netarena_backbone.planned.announcement import ANNOUNCEMENT
from netarena_backbone.planned.bgp import BGP
from netarena_backbone.planned.filter import FILTER
from netarena_backbone.planned.host import HOST
from netarena_backbone.planned.link import LINK
from netarena_backbone.planned.ospf import OSPF

#: Kind of requested change -> its methods
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType(
    {**OSPF, **BGP, **ANNOUNCEMENT, **FILTER, **HOST, **LINK}
)
#: (kind, method) of a change -> (kind, method) of an earlier change, without which the change is
#: not possible. Today's documented world already contains the earlier change.
SETUPS: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("link_back", "undrain"): ("link_out", "drain"),
        ("link_back", "add"): ("link_out", "remove"),
        ("router_back", "undrain"): ("router_out", "drain"),
        ("summary", "remove"): ("summary", "add"),
        ("session_move", "router"): ("neighbour_remove", "remove"),
        ("announcement", "start"): ("announcement", "stop"),
        ("announcement", "withdraw"): ("announcement", "prefix"),
        ("announcement", "aggregate"): ("announcement", "prefix"),
        ("path_mtu", "raise"): ("path_mtu", "lower"),
        ("static_routes", "to_ospf"): ("static_routes", "to_static"),
        ("neighbour_add", "set_up"): ("neighbour_remove", "remove"),
        ("neighbour_add", "start"): ("neighbour_remove", "shut_down"),
        ("zone_filter", "open"): ("zone_filter", "close"),
        ("service_filter", "open"): ("service_filter", "close"),
    }
)
