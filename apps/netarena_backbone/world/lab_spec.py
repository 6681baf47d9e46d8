"""Data that the lab receives and returns.

A world (``model``) is rendered to a ``Setup``: machines with their cables and programs. The lab
(``lab``) builds the setup and returns an ``Observation``. ``intent`` computes an ``Observation``
from the world without a lab.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import SerializerFunctionWrapHandler, model_serializer

from netarena.sdk import Record

Protocol: TypeAlias = Literal["tcp", "udp"]
#: A router, ``ospf`` or ``bgp``, and the neighbour, which is identified by the router's interface
#: towards the neighbour (OSPF) or by the neighbour's address (BGP).
Neighbour: TypeAlias = tuple[str, str, str]
#: Files on a machine that the lab writes and that agents may edit.
SERVICES, ZONE, RESOLVER = "/etc/serve/services", "/etc/serve/zone", "/etc/serve/resolver"


class End(Record):
    """One end of a link; ``mac`` is six bytes such as ``02:4e:...``."""

    machine: str
    interface: str
    mac: str


class Cable(Record):
    """A cable (two ends), or a switch that agents never see (more ends)."""

    ends: tuple[End, ...]


class Recipe(Record):
    """Configuration of one machine, in the order in which the fields are applied.

    ``commands`` are shell lines, run in the machine's namespace once its cables are up: addresses,
    routes, filters, sysctls. Each must succeed. ``frr`` is the text of frr.conf, or None if no
    daemon runs. ``services`` are the lines of the file ``SERVICES``: a name, ``tcp`` or ``udp``, a
    local address or 0.0.0.0, and a port. Each line is a server that answers every client. The
    server named ``dns`` (udp, port 53) answers DNS queries for addresses from ``zone``, whose lines
    have a name and an address. ``resolver`` is the address of the DNS server that the machine uses.
    ``login`` is true if agents may run commands on the machine. ``told`` are prefixes of
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
    succeeds only if ``server`` answers. If the service moves to another host, ``also`` is that
    host, which may answer too.
    """

    source: str
    server: str
    target: str
    protocol: Protocol
    port: int
    also: str = ""


class Edit(Record):
    """One machine before and after one fault; the lab reports whether the fault still exists.

    For a requested change, ``before`` has the change, and ``after`` lacks it. For a change that
    must be refused, ``after`` has it. Such edits are ``strict``: an edit counts as left unless the
    machine has all settings that only ``before`` has, and none of the settings that only ``after``
    has.
    """

    before: Recipe
    after: Recipe
    strict: bool = False


class Setup(Record):
    """Everything that the lab needs.

    ``endpoints`` are (machine, address) pairs that ping each other with both packet sizes, each
    from its own address. ``asks`` are tests of services. ``ways`` are pairs of endpoint indices
    whose paths are observed. ``ears`` are routers of other autonomous systems whose BGP tables are
    observed. ``cuttable`` are links that the lab can interrupt, as pairs of machines with only one
    link between them. ``edits`` are the parts of faults, one per machine of each fault, which the
    recipes contain. They are also the parts of requested changes and of changes that must be
    refused, which the recipes do not contain. ``probed`` are pairs of endpoint indices, source
    first, whose seconds of loss are measured from each command until convergence.
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
    #: Size of an IP packet that each path must carry, in bytes.
    full_bytes: int = 1500


class Heard(NamedTuple):
    """A route received by a router of another AS.

    ``path`` has the AS numbers, ``peer`` is the address of the sender, and ``used`` is true if the
    router selected this route for its prefix.
    """

    prefix: str
    path: str
    next_hop: str
    peer: str
    used: bool


class Observation(Record):
    """Observation of a settled network, in the order of the setup's fields.

    ``small`` and ``full`` have a row of ``1`` and ``0`` for each endpoint: results of pings of 84
    bytes, and of unfragmented pings of ``full_bytes``. ``services`` is one such row for ``asks``.
    ``ways`` are the machines that a ping of each pair crossed, without source and target, even if
    the ping did not arrive. ``heard`` are the routes that each router of ``ears`` received from its
    peers, selected or not, sorted. ``neighbours`` are the ends of full OSPF adjacencies that carry
    routes and of BGP sessions established at both ends, sorted. ``down`` are daemons that have
    ended, as ``machine/daemon``. ``settled`` is false if the network had not converged after 15 s.
    ``touched`` are machines whose settings differ from those before an agent's first command there.
    ``leftover`` are indices of the setup's ``edits`` of which some setting still exists. ``lost_s``
    are the seconds of loss of each pair of ``probed`` during the last command and until convergence
    (see ``real/probe.py``). It is empty without pairs, and JSON then omits it.
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
