"""Data types for the input and output of the lab.

A world (``model``) is rendered to a ``Setup``: machines with their links and programs. The lab
(``lab``) builds the setup and returns an ``Observation``. ``intent`` computes an ``Observation``
from the world without a lab.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import SerializerFunctionWrapHandler, model_serializer

from netarena.sdk import Record

Protocol: TypeAlias = Literal["tcp", "udp"]
#: A router, ``ospf`` or ``bgp``, and the neighbour. An OSPF neighbour is named by the router's
#: interface towards it, and a BGP peer by its address.
Neighbour: TypeAlias = tuple[str, str, str]
#: Files on a machine that the lab writes and that agents may edit.
SERVICES, ZONE, RESOLVER = "/etc/serve/services", "/etc/serve/zone", "/etc/serve/resolver"


class End(Record):
    """One end of a link; ``mac`` has six bytes, as in ``02:4e:...``."""

    machine: str
    interface: str
    mac: str


class Cable(Record):
    """A cable with two ends, or a switch with more than two. Agents never see switches."""

    ends: tuple[End, ...]


class Recipe(Record):
    """Configuration of one machine, in the order in which the fields are applied.

    ``commands`` are shell lines for addresses, routes, filters and sysctls. They run in the
    machine's namespace once its links are up, and each must succeed. ``frr`` is the text of
    frr.conf, or None if no daemon runs.

    ``services`` are the lines of the file ``SERVICES``: a name, ``tcp`` or ``udp``, a local address
    or 0.0.0.0, and a port. Each line is a server that answers every client. The server named
    ``dns`` (udp, port 53) answers DNS queries for addresses from ``zone``, whose lines have a name
    and an address. ``resolver`` is the address of the DNS server that the machine uses.

    ``login`` is true if agents may run commands on the machine. ``told`` contains the prefixes of
    redistributed static routes that ospfd advertises with a forwarding address.
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
    """A test of a service from one machine.

    ``target`` is an address, or a name that the machine's DNS server must resolve. The test
    succeeds only if ``server`` answers. If the service moves to another host, ``also`` is this
    host, and its answer counts too.
    """

    source: str
    server: str
    target: str
    protocol: Protocol
    port: int
    also: str = ""


class Edit(Record):
    """The configuration of one machine before and after one fault; the lab reports whether the
    fault still exists.

    For a requested change, ``before`` has the change, and ``after`` lacks it. For a change that
    must be refused, ``after`` has it. Edits of both kinds are ``strict``: they count as left unless
    the machine has all settings that only ``before`` has, and no setting that only ``after`` has.
    """

    before: Recipe
    after: Recipe
    strict: bool = False


class Setup(Record):
    """The complete input of the lab.

    ``endpoints`` are (machine, address) pairs that ping each other with both packet sizes, each
    from its own address. ``asks`` are tests of services. ``ways`` are pairs of endpoint indices
    whose paths are observed. ``ears`` are routers of other autonomous systems whose BGP tables are
    observed. ``cuttable`` are links that the lab can interrupt, as pairs of machines with only one
    link between them.

    ``edits`` are the parts of faults, one per machine of each fault; the recipes contain these
    faults. They are also the parts of requested changes and of changes that must be refused; the
    recipes do not contain these changes. ``probed`` are pairs of endpoint indices, source first,
    whose seconds of loss are measured from each command until convergence.
    """

    cables: tuple[Cable, ...]
    recipes: tuple[Recipe, ...]
    endpoints: tuple[tuple[str, str], ...]
    asks: tuple[Ask, ...] = ()
    ways: tuple[tuple[int, int], ...] = ()
    ears: tuple[str, ...] = ()
    cuttable: tuple[tuple[str, str], ...] = ()
    edits: tuple[Edit, ...] = ()
    probed: tuple[tuple[int, int], ...] = ()
    #: Size of an IP packet in bytes that each path must carry.
    full_bytes: int = 1500


class Heard(NamedTuple):
    """A route that a router of another AS received.

    ``path`` contains the AS numbers, ``peer`` is the address of the sender, and ``used`` is true if
    the router selected this route for its prefix.
    """

    prefix: str
    path: str
    next_hop: str
    peer: str
    used: bool


class Observation(Record):
    """Observation of a settled network, in the order of the setup's fields.

    ``small`` and ``full`` have a row of ``1`` and ``0`` for each endpoint: results of pings of 84
    bytes, and of unfragmented pings of ``full_bytes``. ``services`` is such a row for ``asks``.
    ``ways`` has the machines that a ping of each pair crossed, without source and target, even if
    the ping did not arrive. ``heard`` has the sorted routes that each router of ``ears`` received
    from its peers, whether selected or not.

    ``neighbours`` are the sorted ends of full OSPF adjacencies that carry routes, and of BGP
    sessions that are established at both ends. ``down`` are daemons that have ended, as
    ``machine/daemon``. ``settled`` is false if the network had not converged after 15 s.
    ``touched`` are machines whose settings differ from those before an agent's first command there.
    ``leftover`` are indices of the setup's ``edits`` that are left (see ``Edit``).

    ``lost_s`` has the seconds of loss of each pair of ``probed`` during the last command and until
    convergence (see ``real/probe.py``). It is empty without pairs, and JSON then omits it.
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
    lost_s: tuple[float, ...] = ()

    @model_serializer(mode="wrap")
    def _dump(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = dump(self)
        if not found.get("lost_s"):
            found.pop("lost_s", None)
        return found
