"""Base networks, from which the networks of queries are made: the released model or a user's
network.

A query stores its network as edits of a base. The query identifies a base other than the released
model through ``{"parameters": {...}}`` (fields of ``Topology``) or ``{"path": text, "sha256": text,
"nodes": number}`` (a model file). Each process caches the bases that it used most recently.
"""

from __future__ import annotations

import gc
import hashlib
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field, StrictInt, ValidationError, field_validator

from netarena.sdk import ConfigError, Record
from netarena_malt import sandbox_program
from netarena_malt.model_file import MAX_NODES, read_bytes, read_model
from netarena_malt.network import Network
from netarena_malt.topology import (
    CAPACITY,
    EK_PACKET_SWITCH,
    EK_PORT,
    NODE_KINDS,
    RELEASED,
    RK_CONTAINS,
    SWITCH_LOC,
    Graph,
    Topology,
    build,
)

#: Reference from a query to its base; None stands for the released model.
Key: TypeAlias = Mapping[str, Any] | None

#: Key in a query's initial state under which the reference to its base is stored.
TOPOLOGY = "topology"
#: Capacities of changed and added ports, as multiples of the usual capacity: 1 to 40 Gbit/s for the
#: released model's 1 Gbit/s.
_SPEEDS = (1, 2, 4, 5, 8, 10, 16, 20, 25, 40)
#: Maximum capacity that a query adds, as a multiple of the largest capacity. This is enough to add
#: about 500 ports of the largest capacity and to multiply the capacity of a few of them.
_MOST_ADDED = 32_000
#: Maximum number of cached bases in addition to the released model.
_KEPT = 2


class Index:
    """Index of a graph that does not change. Results are cached, so callers must not change the
    returned lists."""

    def __init__(self, graph: Graph, names: dict[str, list[str]] | None = None) -> None:
        """Create the index. ``names`` has the names of nodes by kind, if they are known; otherwise
        all nodes are scanned."""
        self._nodes: Any = graph._node  # noqa: SLF001 -- networkx's views are much slower
        self._below: Any = graph._succ  # noqa: SLF001 -- networkx's internal dicts
        self._above: Any = graph._pred  # noqa: SLF001 -- networkx's internal dicts
        self._contents: dict[str, list[str]] = {}
        self._parents: dict[str, list[str]] = {}
        self._ancestors: dict[str, list[str]] = {}
        self._switches: dict[str, list[str]] = {}
        self._ports: dict[str, int] = {}
        self._totals: dict[str, float] = {}
        self._capacities: dict[str, Counter[float]] = {}
        #: Kind -> names of nodes, in the order of the graph.
        self.names = names if names is not None else self._by_kind()

    def _by_kind(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {kind: [] for kind in NODE_KINDS}
        for name, attributes in self._nodes.items():
            names[attributes["type"][0]].append(name)
        return names

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def kind(self, name: str) -> str:
        """Return the kind of a node: the first entry of its ``type`` list."""
        return str(self._nodes[name]["type"][0])

    def stage(self, switch: str) -> float:
        """Return the stage of a packet switch."""
        return float(self._nodes[switch][SWITCH_LOC]["stage"])

    def capacity(self, port: str) -> float:
        """Return the capacity of a port in bps."""
        return float(self._nodes[port][CAPACITY])

    def contents(self, name: str) -> list[str]:
        """Return the names of the direct contents of ``name``, in the order of the edges."""
        return self._looked_up(self._contents, self._below, name)

    def parents(self, name: str) -> list[str]:
        """Return the names of the parents of ``name``. For a switch these are block, rack and
        domain, in this order."""
        return self._looked_up(self._parents, self._above, name)

    def ancestors(self, name: str) -> list[str]:
        """Return the names of all nodes that contain ``name``, at any depth, nearest first."""
        found = self._ancestors.get(name)
        if found is None:
            found = self._ancestors[name] = []
            level = self.parents(name)
            while level:
                found += level
                level = [parent for name in level for parent in self.parents(name)]
        return found

    def switches(self, name: str) -> list[str]:
        """Return the names of all packet switches in ``name``, in the order of the edges."""
        found = self._switches.get(name)
        if found is None:
            found = []
            for child in self.contents(name):
                if self.kind(child) == EK_PACKET_SWITCH:
                    found.append(child)
                elif self.kind(child) != EK_PORT:
                    found += self.switches(child)
            self._switches[name] = found
        return found

    def number_of_ports(self, name: str) -> int:
        """Return the number of ports that ``name`` contains, at any depth."""
        found = self._ports.get(name)
        if found is None:
            switch = self.kind(name) == EK_PACKET_SWITCH
            found = sum(
                len(self.contents(inner)) for inner in ((name,) if switch else self.switches(name))
            )
            self._ports[name] = found
        return found

    def total_of_switch(self, switch: str) -> float:
        """Return the total port capacity of a switch in bps."""
        found = self._totals.get(switch)
        if found is None:
            found = self._totals[switch] = sum(map(self.capacity, self.contents(switch)))
        return found

    def capacities(self, name: str) -> Counter[float]:
        """Return how many ports in ``name``, at any depth, have each capacity in bps."""
        found = self._capacities.get(name)
        if found is None:
            found = self._capacities[name] = Counter(
                self.capacity(port)
                for switch in self.switches(name)
                for port in self.contents(switch)
            )
        return found

    @cached_property
    def usual_bps(self) -> float:
        """Return the most frequent capacity of ports in bps. If several are equally frequent,
        return the smallest."""
        counts = Counter(map(self.capacity, self.names[EK_PORT]))
        return min(counts, key=lambda bps: (-counts[bps], bps))

    @cached_property
    def speeds(self) -> list[float]:
        """Return capacities in bps for changed and added ports: multiples of the usual capacity."""
        return [self.usual_bps * times for times in _SPEEDS]

    def _looked_up(self, known: dict[str, list[str]], rows: Any, name: str) -> list[str]:
        found = known.get(name)
        if found is None:
            found = [other for other, edge in rows[name].items() if edge["type"] == RK_CONTAINS]
            if rows is self._above and len(found) > 1:
                found.sort(key=lambda parent: _place(self.kind(parent)))
            known[name] = found
        return found


def _place(kind: str) -> int:
    """Return the index at which a switch's list of parents has the parent of this kind."""
    groups = NODE_KINDS[EK_PACKET_SWITCH].parents
    return next((n for n, group in enumerate(groups) if kind in group), len(groups))


class Base:
    """A read-only network that obeys the structural rules, and cached values that are derived from
    the network."""

    def __init__(
        self,
        graph: Graph,
        key: Key = None,
        fault: str | None = None,
        topology: Topology | None = None,
    ) -> None:
        #: The graph, which must not be changed.
        self.graph = graph
        self.key = key
        #: The structural rule that the network violates, as a sentence. The value is "" if the
        #: network obeys all rules, and None before the check.
        self.fault = fault
        self._topology = topology
        #: Cached results of the check whether the network has queries of a label. The first key
        #: states whether edits are spread over the network, and the second key is the label. A
        #: missing label has not been checked.
        self.carries: dict[bool, dict[str, bool]] = {}

    @property
    def size(self) -> int:
        """Return the number of nodes."""
        return len(self.graph)

    @cached_property
    def network(self) -> Network:
        return Network(self.graph)

    @cached_property
    def index(self) -> Index:
        return Index(self.graph)

    @cached_property
    def totals(self) -> dict[str, float]:
        """Return the total port capacity in bps of each node that contains or is a switch."""
        totals: dict[str, float] = {}
        index = self.index
        for switch in index.names[EK_PACKET_SWITCH]:
            capacity = sum(map(index.capacity, index.contents(switch)))
            above: Sequence[str] = (switch,)
            while above:
                for name in above:
                    totals[name] = totals.get(name, 0.0) + capacity
                above = [parent for name in above for parent in index.parents(name)]
        return totals

    def payload(self) -> bytes:
        """Return the network as data for the sandbox (``sandbox_program.load``)."""
        return (
            sandbox_program.dump(self.graph)
            if self._topology is None
            else sandbox_program.describe(self._topology)
        )


@lru_cache(maxsize=1)
def released_base() -> Base:
    """Return the released model."""
    return Base(build(RELEASED, shared=True), topology=RELEASED)


_bases: OrderedDict[str, Base] = OrderedDict()
#: Only one network is built at a time, because two simultaneous builds could use too much memory.
_building = threading.Lock()


class Parameters(Record):
    """Parameters of a generated network: the counts and capacities in ``Topology``, within
    bounds."""

    name: str = Field(default="ju1", pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$")
    jupiter_type: str = Field(default="JDT_COLO", pattern=r"^[A-Za-z0-9_ -]{1,64}$")
    superblocks: StrictInt = Field(default=4, ge=0, le=10_000)
    spine_blocks: StrictInt = Field(default=4, ge=0, le=10_000)
    agg_blocks: StrictInt = Field(default=4, ge=0, le=1_000)
    agg_stages: tuple[Annotated[StrictInt, Field(ge=1, le=99)], ...] = Field(
        default=(2, 3), min_length=1, max_length=8
    )
    spine_stages: tuple[Annotated[StrictInt, Field(ge=1, le=99)], ...] = Field(
        default=(1, 2), min_length=1, max_length=8
    )
    columns: StrictInt = Field(default=8, ge=1, le=1_000)
    ports: StrictInt = Field(default=16, ge=1, le=1_000)
    capacity_bps: float = Field(default=1e9, ge=1, le=1e15, allow_inf_nan=False)
    exceptions_bps: dict[str, Annotated[float, Field(ge=1, le=1e15, allow_inf_nan=False)]] = Field(
        default_factory=dict
    )

    @field_validator("capacity_bps", "exceptions_bps")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        for bps in value.values() if isinstance(value, dict) else (value,):
            if not bps.is_integer():
                raise ValueError(f"{bps} must be a whole number of bps, so that sums are exact")
        return value

    @field_validator("agg_stages", "spine_stages")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) < len(value):
            raise ValueError("must name each stage only once")
        return value

    @property
    def size(self) -> int:
        """Return the number of nodes of the network."""
        blocks = self.superblocks * self.agg_blocks
        switches = self.columns * (
            blocks * len(self.agg_stages) + self.spine_blocks * len(self.spine_stages)
        )
        # Each block has a rack. Each spine block, and each superblock that has a block, has a
        # control domain.
        around = 2 * blocks + 3 * self.spine_blocks
        around += self.superblocks * (2 if self.agg_blocks else 1)
        return 1 + around + switches * (1 + self.ports)

    def topology(self) -> Topology:
        """Return the parameters as a ``Topology``.

        Raises ConfigError if the network is too large or lacks a named port.
        """
        if self.size > MAX_NODES:
            raise ConfigError(
                "topology", f"has {self.size} nodes; a network may have at most {MAX_NODES}"
            )
        return Topology(**dict(self))


class _ByParameters(Record):
    parameters: Parameters


class _ByFile(Record):
    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    nodes: StrictInt = Field(ge=1, le=MAX_NODES)


def key_of(initial: Any) -> Key:
    """Return the reference to the base in a query's initial state.

    Raises ConfigError for an unknown form, because queries may come from a file.
    """
    key: Any = initial.get(TOPOLOGY) if isinstance(initial, Mapping) else None
    if key is not None:
        named = isinstance(key, Mapping) and "parameters" in key
        form: type[Record] = _ByParameters if named else _ByFile
        try:
            form.model_validate(key)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, ("initial", TOPOLOGY, *first["loc"])))
            raise ConfigError(
                "topology", f"invalid in a stored query: {where}: {first['msg']}"
            ) from None
    found: Key = key
    return found


def growth_of(key: Key) -> int:
    """Return the base's number of nodes divided by the released model's number of nodes, rounded
    up."""
    if key is None:
        return 1
    parameters = key.get("parameters")
    size = key["nodes"] if parameters is None else Parameters.model_validate(parameters).size
    return -(-int(size) // Parameters().size)


def base_of(initial: Any) -> Base:
    """Return the base of a query with this initial state.

    Raises ConfigError like ``key_of``, and if the base's model file is missing, broken or changed.
    """
    key = key_of(initial)
    if key is None:
        return released_base()
    if "parameters" in key:
        return base_of_parameters(Parameters.model_validate(key["parameters"]))
    base = base_of_file(key["path"], key["sha256"])
    if base.size != key["nodes"]:
        name = Path(key["path"]).name
        raise ConfigError(
            "topology", f"{name} has {base.size} nodes, but the query was drawn with {key['nodes']}"
        )
    return base


def base_of_parameters(parameters: Parameters) -> Base:
    """Return the network of ``parameters``. Raises ConfigError as ``Parameters.topology`` does."""
    topology = parameters.topology()
    key = {"parameters": parameters.model_dump(mode="json")}

    def make() -> Base:
        graph = build(topology, shared=True)
        for name in topology.exceptions_bps:
            if graph.nodes.get(name, {}).get("type") != [EK_PORT]:
                raise ConfigError(
                    "topology", f"exceptions_bps: the network has no port {name!r:.80}"
                )
        _check_sums(graph)
        return Base(graph, key, topology=topology)

    return _kept(repr(key), make)


def base_of_file(path: str, sha256: str | None = None) -> Base:
    """Return the network of a model file. If ``sha256`` is given, the file must have this hash.

    Raises ConfigError as ``model_file.read_model`` does, and if the hash differs.
    """
    digest = digest_of(path)
    if sha256 not in {None, digest}:
        raise ConfigError("topology", f"{Path(path).name} has changed since the queries were drawn")

    def make() -> Base:
        graph, found = read_model(Path(path))
        if found != digest:
            raise ConfigError("topology", f"{Path(path).name} was changed while it was read")
        _check_sums(graph)
        return Base(graph, {"path": path, "sha256": digest, "nodes": len(graph)}, fault="")

    return _kept(f"{path}\0{digest}", make)


def _check_sums(graph: Graph) -> None:
    """Raise ConfigError if a sum of port capacities could depend on the order of addition.

    Comparisons with thresholds, and ties in rankings, need exact sums.
    """
    nodes = graph._node.values()  # noqa: SLF001 -- as in Index
    bps = [attributes[CAPACITY] for attributes in nodes if CAPACITY in attributes]
    step = math.gcd(*map(int, set(bps)))
    # All capacities are multiples of the largest power of two that divides ``step``. After a
    # multiplication by 0.5, 1.5 or 2.5, they are multiples of half of that power. Sums of up to
    # 2^53 times the smaller power are exact.
    if bps and 2 * (sum(bps) + _MOST_ADDED * max(bps)) > 2**53 * (step & -step):
        raise ConfigError(
            "topology",
            f"port capacities: the sum of {len(bps)} capacities of up to {max(bps):g} bps that are "
            f"multiples of {step} bps is not exact in floating point; use multiples of a larger "
            "power of two",
        )


def digest_of(path: str) -> str:
    """Return the SHA-256 of a model file in hex. Raises ConfigError."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        raise ConfigError(
            "topology", f"{Path(path).name} does not exist or is not a regular file"
        ) from None
    return _digest(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=16)
def _digest(path: str, *version: int) -> str:
    del version  # part of the cache key, because it changes with the file
    return hashlib.sha256(read_bytes(Path(path))).hexdigest()


def _kept(key: str, make: Callable[[], Base]) -> Base:
    with _building:
        if key in _bases:
            _bases.move_to_end(key)
            return _bases[key]
        while len(_bases) >= _KEPT:  # Remove old bases before the build, to limit memory use.
            _bases.popitem(last=False)
        # Building a network creates hundreds of thousands of permanent objects. Garbage collection
        # would double the build time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            base = _bases[key] = make()
        finally:
            if collecting:
                gc.enable()
        return base
