"""All kinds of requested changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from netarena_backbone.fault.change import Method
from netarena_backbone.planned.bgp import BGP
from netarena_backbone.planned.filter import FILTER
from netarena_backbone.planned.ospf import OSPF

#: Kind of requested change -> its methods
KINDS: Mapping[str, tuple[Method, ...]] = MappingProxyType({**OSPF, **BGP, **FILTER})
#: (kind, method) -> the method whose change is undone first, so that the world needs this one.
#: The world that is documented today has the earlier change.
SETUPS: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("link_back", "undrain"): ("link_out", "drain"),
        ("link_back", "add"): ("link_out", "remove"),
        ("router_back", "undrain"): ("router_out", "drain"),
        ("summary", "remove"): ("summary", "add"),
        ("session_move", "router"): ("neighbour_remove", "remove"),
        ("announcement", "start"): ("announcement", "stop"),
        ("neighbour_add", "set_up"): ("neighbour_remove", "remove"),
        ("neighbour_add", "start"): ("neighbour_remove", "shut_down"),
        ("zone_filter", "open"): ("zone_filter", "close"),
        ("service_filter", "open"): ("service_filter", "close"),
    }
)
