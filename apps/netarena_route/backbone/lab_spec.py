"""Data that the lab gets of a world and returns; both sides import it.

A world (``model``) is rendered to a ``Setup``: machines with their cables and programs. The lab
(``lab``) builds it and returns an ``Observation``; ``intent`` computes the same structure as it
should be.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from netarena.model import Record

Protocol: TypeAlias = Literal["tcp", "udp"]
#: a router, ``ospf`` or ``bgp``, and whom it speaks to by that: who is behind an interface of its
#: own, or at an address
Neighbour: TypeAlias = tuple[str, str, str]
#: of a machine, the files that the lab gives it and an agent may write
SERVICES, ZONE, RESOLVER = "/etc/serve/services", "/etc/serve/zone", "/etc/serve/resolver"


class End(Record):
    """One end of a link: ``mac`` is six bytes as ``02:4e:...``."""

    machine: str
    interface: str
    mac: str


class Cable(Record):
    """Two ends are a cable between two machines; more are a switch that an agent never sees."""

    ends: tuple[End, ...]


class Recipe(Record):
    """What one machine runs, in the order of the fields.

    ``commands`` are lines of a shell, each of which must succeed, run in the machine's namespace
    when its cables are up: addresses, routes, filters, sysctls. ``frr`` is the text of an frr.conf;
    none where no daemon runs. ``services`` are the lines of the file ``SERVICES``: a name, ``tcp``
    or ``udp``, an address of its own or 0.0.0.0, a port. Each is a server that answers whoever
    asks. The one named ``dns`` (udp, port 53) answers questions for addresses from ``zone``, lines
    of a name and an address. ``resolver`` is the address of the server of names that the machine
    asks. ``login`` tells whether the agent may run commands there. ``told`` are prefixes of static
    routes that ospfd tells others with the address they lead to, as soon as it has heard of them.
    """

    machine: str
    commands: tuple[str, ...] = ()
    frr: str | None = None
    services: tuple[str, ...] = ()
    zone: tuple[str, ...] = ()
    resolver: str | None = None
    login: bool = True
    told: tuple[str, ...] = ()


class Ask(Record):
    """A service that is asked from a machine: by a ``target`` address, or a name that the
    machine's resolver must know. Only what ``server`` answers counts."""

    source: str
    server: str
    target: str
    protocol: Protocol
    port: int


class Edit(Record):
    """One machine without and with one fault. The lab reports whether the difference is left."""

    before: Recipe
    after: Recipe


class Setup(Record):
    """All that the lab needs.

    ``endpoints`` are (machine, address) that are pinged from each other, in both sizes; an endpoint
    pings from its own address. ``asks`` are services, ``ways`` pairs of indices of endpoints whose
    way is told, ``ears`` machines of other autonomous systems, whose tables are told. ``edits`` are
    the parts of faults that the recipes already contain, one for each machine of each fault.
    """

    cables: tuple[Cable, ...]
    recipes: tuple[Recipe, ...]
    endpoints: tuple[tuple[str, str], ...]
    asks: tuple[Ask, ...] = ()
    ways: tuple[tuple[int, int], ...] = ()
    ears: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    #: bytes of an IP packet that each way must carry
    full_bytes: int = 1500


class Heard(NamedTuple):
    """A route as a router of another system has heard it: the path of AS numbers, the next hop, the
    address of the peer that told it, and whether it is the one that is used for its prefix."""

    prefix: str
    path: str
    next_hop: str
    peer: str
    used: bool


class Observation(Record):
    """One settled look, in the order of the setup's fields.

    ``small`` and ``full`` have a row of ``1`` and ``0`` for each endpoint: pings of 84 bytes, and
    of ``full_bytes`` that nobody may fragment. ``services`` is one such row for ``asks``.
    ``ways`` are the machines that a ping of the pair passed, its source and target left out, to
    where it came; ``heard`` the routes that each ear has heard from its peers, used or not, sorted.
    ``neighbours`` are who speaks to whom for good, sorted: ends of full adjacencies of OSPF that
    carry routes, and of sessions that both ends take for there. ``down`` are daemons that have
    ended, as ``machine/daemon``.
    ``settled`` is false where the network had not come to rest after 15 s. ``touched`` are machines
    on which something is set otherwise than before an agent's first command there. ``leftover`` are
    the ``edits`` of the setup, by index, of which something is still set.
    """

    small: tuple[str, ...]
    full: tuple[str, ...]
    services: str
    ways: tuple[tuple[str, ...], ...]
    heard: tuple[tuple[Heard, ...], ...]
    neighbours: tuple[Neighbour, ...]
    down: tuple[str, ...] = ()
    settled: bool = True
    touched: tuple[str, ...] = ()
    leftover: tuple[int, ...] = ()
