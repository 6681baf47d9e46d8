"""Pools of values from which both correct settings and faults are drawn.

Wrong values have the same form as correct values, so that the form does not reveal a fault.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from netarena_backbone.world.lab_spec import Protocol

#: Possible MTUs of links, and possible sizes of the IP packets that every documented path carries.
MTUS: Sequence[int] = (*range(1200, 1500, 20), 1492, 1500, 1500, 1600, 2000, 4000, 9000)
PACKETS_BYTES: Sequence[int] = range(1280, 1501, 20)
#: Possible OSPF areas other than area 0, and possible IDs of OSPF keys.
AREAS = ("1", "2", "3", "5", "7", "10", "20", "30")
KEY_IDS = range(1, 20)
COSTS: Sequence[int] = (*range(1, 200), 300, 400, 500, 700, 900, 1000, 1200, 1500, 1800, 2000)
#: High OSPF costs, and the share of links with a high cost in addition to those drawn from
#: ``COSTS``. Faults often set high costs.
_HIGH_COSTS, _HIGH_SHARE = [cost for cost in COSTS if cost >= 200], 0.1
#: Possible hello and dead intervals of OSPF adjacencies, in seconds.
HELLOS, DEADS = (1, 2), (3, 4, 5)
#: Possible numbers of autonomous systems.
SYSTEMS = range(64512, 65500)
#: Services: name, protocol and usual ports.
SERVICES: Sequence[tuple[str, Protocol, tuple[int, ...]]] = (
    ("web", "tcp", (80, 8080, 443)),
    ("shell", "tcp", (22, 2222)),
    ("mail", "tcp", (25, 587)),
    ("store", "tcp", (5432, 3306)),
    ("log", "udp", (514, 5514)),
    ("time", "udp", (123,)),
    ("call", "udp", (5060,)),
    ("files", "tcp", (445, 2049)),
)
#: Number of MTUs directly below a world's packet size from which too small MTUs are drawn.
_NEAR = 3
#: Words that occur in names of zones, keys and passwords.
WORDS = ("office", "lab", "servers", "guests", "storage", "cameras", "build", "voice", "desks")


def draw_costs(rng: random.Random, number: int) -> Sequence[int]:
    """Return ``number`` different OSPF costs for links."""
    costs = rng.sample(COSTS, number)
    for place in range(number):
        if rng.random() < _HIGH_SHARE:
            free = [cost for cost in _HIGH_COSTS if cost not in costs]
            costs[place] = rng.choice(free or [costs[place]])
    return costs


def key_of(number: int) -> str:
    """Return the OSPF key for a number; equal numbers give equal keys.

    >>> key_of(35)
    'desks102'
    """
    return f"{WORDS[number % len(WORDS)]}{100 + number // 16 % 900}"


def password_of(number: int) -> str:
    """Return the BGP password for a number; equal numbers give equal passwords.

    >>> password_of(35)
    'desks-1002'
    """
    return f"{WORDS[number % len(WORDS)]}-{1000 + number // 16 % 9000}"


def wide(packet_bytes: int) -> Sequence[int]:
    """Return the MTUs of links that can carry packets of a given size."""
    return [mtu for mtu in MTUS if mtu >= packet_bytes]


def narrow(packet_bytes: int) -> Sequence[int]:
    """Return MTUs of links that are too small for packets of a given size.

    >>> narrow(1300)
    [1240, 1260, 1280]
    """
    return [mtu for mtu in MTUS if mtu < packet_bytes][-_NEAR:]
