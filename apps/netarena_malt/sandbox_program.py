"""Program inside the sandbox: runs an answer on its own copy of the network and reads the result.

The warm parent process of the sandbox executes the source of this module, after the sources of
``topology`` and ``edit``. Therefore this module needs only the standard library and networkx.
``load`` runs once, in the parent. ``call`` runs in a forked child process, which the agent's code
controls, so the result of ``call`` is not trusted. The result contains only the changes of a graph.
The changes are a hundredth of the graph's size, and not less trustworthy than a complete graph.

A graph is described by its *changes* from another: ``{"nodes": {name: attributes}, "removed_nodes":
[name], "edges": [[source, target, attributes]], "removed_edges": [[source, target]]}``. Nodes and
edges that were added or altered are listed with all their attributes. Edges of a removed node are
not listed. ``"more": true`` states that the list is cut at ``MAX_CHANGES``. No task changes so many
elements, so the answer is known to be wrong and unsafe. The limit ensures that judging a badly
broken network takes no longer than judging a correct network.

For the same reason, data and attributes that are longer than any correct value are cut. ``CUT``
replaces omitted parts; no correct value contains ``CUT``.
"""

from __future__ import annotations

import collections
import copy
import decimal
import gc
import io
import itertools
import json
import math
import numbers
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, replace
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import Any

import networkx as nx

from netarena_malt.edit import apply_edits, names_of
from netarena_malt.topology import Topology, build

#: Types of data that an answer may declare.
ANSWER_TYPES = ("text", "list", "table", "graph")
#: Maximum number of nested lists and dicts in data or in one attribute.
MAX_DEPTH = 20
#: Limits of data as JSON; the longest right answer takes about 6,000 bytes and 330 values.
MAX_DATA_BYTES = 1 << 15
MAX_DATA_VALUES = 1_000
#: The same limits for a plan; the longest reference takes about 20,000 bytes and 2,400 values.
MAX_PLAN_BYTES = 1 << 17
MAX_PLAN_VALUES = 5_000
_PLAN_LIMITS = (MAX_PLAN_BYTES, MAX_PLAN_VALUES)
#: Maximum number of listed changes of nodes and edges; the largest task has about 300.
MAX_CHANGES = 500
#: Limits of all listed changes as JSON, and limits of the attributes of one element.
MAX_CHANGES_BYTES = 3 << 15
MAX_ELEMENT_BYTES = 2_000
MAX_ELEMENT_VALUES = 10
#: Text that replaces omitted parts.
CUT = "…"
#: Maximum number of characters of a node's name.
_MAX_NAME_CHARS = 200
#: Maximum number of characters of an error that is shown.
MAX_ERROR_CHARS = 600

_FILE = "<answer>"
#: Attributes of nodes by name, and attributes of edges by source and then target.
Parts = tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]


# These unions are constants, because a union in a call of isinstance would be created again in each
# call.
_NUMBERS = (int, float)
_NUMBERS_TOO = (numbers.Real, decimal.Decimal)
_LISTS = (list, tuple)
_SETS = (set, frozenset)
_BYTES = (bytes, bytearray)


class UnusableError(Exception):
    """An answer that does not have the required form. The message names the error."""


def describe(topology: Topology) -> bytes:
    """Return the network of ``topology`` as a payload for ``load``."""
    parameters = asdict(replace(topology, exceptions_bps={}))
    parameters["exceptions_bps"] = dict(topology.exceptions_bps)
    return json.dumps({"topology": parameters}).encode()


def dump(graph: Any) -> bytes:
    """Return a networkx DiGraph as a payload for ``load``. The payload preserves the order of
    elements and the types of values.

    Each node has one line, and the edges from each node have one line. Reading the payload
    therefore takes little memory in addition to the graph.
    """
    relations: dict[str, int] = {}
    rows = []
    for source, row in graph._adj.items():  # noqa: SLF001 -- the view would take twice as long
        ends = [
            [target, relations.setdefault(json.dumps(attributes), len(relations))]
            for target, attributes in row.items()
        ]
        if ends:
            rows.append(json.dumps([source, ends]))
    head = json.dumps({"relations": [json.loads(relation) for relation in relations]})
    # The internal dict is used, because networkx offers only copies or views.
    nodes = (json.dumps(entry) for entry in graph._node.items())  # noqa: SLF001
    return "\n".join((head, *nodes, "", *rows)).encode()


def load(payload: bytes) -> dict[str, Any]:
    """Return the context for ``call``: two copies of the network. One is for the answer, and one is
    for comparison with the result."""
    lines = io.BytesIO(payload)
    head = json.loads(next(lines))
    if "topology" in head:
        parameters = head["topology"]
        for stages in ("agg_stages", "spine_stages"):
            parameters[stages] = tuple(parameters[stages])
        given = build(Topology(**parameters))
    else:
        given = _read_graph(head["relations"], lines)
    pristine = Pristine(given)
    return {"given": given, "pristine": pristine, "doubtful": pristine.doubtful()}


def _read_graph(relations: list[dict[str, Any]], lines: Iterator[bytes]) -> Any:
    graph: Any = nx.DiGraph()
    nodes, below, above = graph._node, graph._succ, graph._pred  # noqa: SLF001 -- as topology.build
    names: dict[str, str] = {}
    for line in iter(lambda: next(lines).strip(), b""):
        name, attributes = json.loads(line)
        names[name] = name
        nodes[name] = {
            sys.intern(key): name if value == name else value for key, value in attributes.items()
        }
        below[name], above[name] = {}, {}
    for line in lines:
        source, ends = json.loads(line)
        source = names[source]
        for end, relation in ends:
            target = names[end]
            below[source][target] = above[target][source] = dict(relations[relation])
    return graph


class Pristine:
    """The initial network, with which the result is compared: attributes by name, edges by source
    and target.

    ``apply_edits`` can change this object like a graph. Equal values share one object. A comparison
    touches all values, and a forked child process copies each memory page that it touches.
    """

    def __init__(self, graph: Any) -> None:
        """Copy the current state of ``graph``. Later edits must be applied to this object first,
        and then to ``graph``."""
        self._known: dict[Any, Any] = {}
        self.nodes = {
            name: {key: self._shared(value, name) for key, value in attributes.items()}
            for name, attributes in graph._node.items()  # noqa: SLF001 -- networkx's internal dicts
        }
        #: Outgoing edges by source. Nodes without outgoing edges are left out.
        self._adj = _Rows(
            (source, {end: self._shared(attributes, None) for end, attributes in row.items()})
            for source, row in graph._adj.items()  # noqa: SLF001 -- networkx's internal dicts
            if row
        )
        self._graph = graph

    def _shared(self, value: Any, name: str | None) -> Any:
        """Return a shared copy of a value, which must not be changed. Equal values get the same
        copy."""
        if value is name:
            return value
        kind = type(value)
        key = (kind, value) if kind is str or kind is float else repr(value)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = copy.deepcopy(value)
        return found

    def doubtful(self) -> set[str]:
        """Return the names of nodes with a number 0 or 1 in an attribute. Such a number equals a
        boolean in Python."""
        bits = {id(value) for value in self._known.values() if _holds_bit(value)}
        return {
            name
            for name, attributes in self.nodes.items()
            if not bits.isdisjoint(map(id, attributes.values()))
        }

    @property
    def parts(self) -> Parts:
        return self.nodes, self._adj

    # Methods that ``apply_edits`` uses.

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def add_node(self, node: str, /, **attributes: Any) -> None:
        self.nodes[node] = attributes

    def add_edge(self, source: str, target: str, **attributes: Any) -> None:
        self._adj.setdefault(source, {})[target] = attributes

    def remove_nodes_from(self, names: Iterable[str]) -> None:
        for name in names:
            del self.nodes[name]
            self._adj.pop(name, None)
            # Removals come before additions, so the original graph has all edges to the node.
            for source in self._graph._pred[name]:  # noqa: SLF001 -- networkx's internal dicts
                if source in self._adj:
                    self._adj[source].pop(name, None)


class _Rows(dict[str, dict[str, Any]]):
    """Edges by source and then target. Sources without edges may be missing."""

    def __missing__(self, name: str) -> Mapping[str, Any]:
        return _NOTHING


def call(context: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Run ``request["code"]`` on the base network with ``request["edits"]``.

    Return ``{"error": text}``, or an object with these keys:

    - ``type``: the declared type
    - ``data``: data as plain JSON
    - ``cut``: whether a part of data was left out
    - ``data_graph``: the changes of a graph in data, ``"same"`` for the updated graph, or null
    - ``updated``: the changes of the updated graph, or null without one

    MemoryError is not caught, because the sandbox itself reports it.
    """
    given, pristine = context["given"], context["pristine"]
    edits = request["edits"]
    apply_edits(pristine, edits)
    apply_edits(given, edits)
    suspects = context["doubtful"] | {entry[0] for entry in edits.get("add", ())}
    suspects |= {name for entry in edits.get("set", ()) for name in names_of(entry[0])}
    try:
        result = _run(request["code"], given, _plan(request, given))
    except MemoryError:
        raise
    except UnusableError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 -- even SystemExit is an error of the answer
        return {"error": _explain(error, request["code"])}
    # Garbage collection is unnecessary, because the process ends soon. The memory limit remains in
    # force.
    gc.disable()
    try:
        return _read(result, pristine.parts, suspects, planning="planning" in request)
    except MemoryError:
        raise
    except UnusableError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 -- the answer's classes may raise any exception
        return {"error": f"the result cannot be read: {_explain(error, request['code'])}"}


def _plan(request: dict[str, Any], graph: Any) -> dict[str, Any]:
    """Add the data of a planning task to the graph. Return the global names that a planning program
    gets in addition."""
    if "planning" not in request:
        return {}
    graph.graph["planning"] = request["planning"]
    return {"cpu_limit_s": request["cpu_limit_s"]}


def _run(code: str, graph: Any, names: Mapping[str, Any] = MappingProxyType({})) -> Any:
    module = types.ModuleType("answer")
    module.__dict__.update(
        nx=nx,
        networkx=nx,
        json=json,
        copy=copy,
        re=re,
        math=math,
        collections=collections,
        itertools=itertools,
        **names,
    )
    # The modules dataclasses and typing look up names of a class's module in sys.modules.
    sys.modules["answer"] = module
    exec(compile(code, _FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- its purpose
    process: Callable[[Any], Any] | None = module.__dict__.get("process_graph")
    if not callable(process):
        raise UnusableError("the program ran but did not define a function process_graph")
    return process(graph)


def _explain(error: BaseException, code: str) -> str:
    """Return the type and message of an exception, and the innermost line of its traceback that is
    in the agent's program."""
    kind = type(error).__name__
    number = error.lineno if isinstance(error, SyntaxError) else None
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001 -- the answer may define the exception's class
        message = "(the message of the exception cannot be shown)"
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            number = trace.tb_lineno
        trace = trace.tb_next
    text = f"{kind}: {message}" if message else kind
    if number is not None:
        lines = code.split("\n")
        line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        text = f"{_cut(text)} (line {number}: {_cut(line, 120)})"
    return text


def _cut(text: str, limit: int = MAX_ERROR_CHARS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# Reading of the result.


def _read(
    result: Any, pristine: Parts, suspects: set[str], *, planning: bool = False
) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise UnusableError(
            f"process_graph returned a {type(result).__name__}, not a dict with type, data and "
            "updated_graph"
        )
    kind = result.get("type")
    if not isinstance(kind, str) or kind.strip().lower() not in ANSWER_TYPES:
        raise UnusableError(f"the result's type must be one of {', '.join(ANSWER_TYPES)}")
    kind = kind.strip().lower()
    data, updated = result.get("data"), result.get("updated_graph")
    if kind != "graph" and "data" not in result:
        raise UnusableError("the result has no data")
    if kind == "graph" and data is None and updated is None:
        raise UnusableError("the result is of type graph, but contains no graph")

    def changes(graph: Any, where: str) -> dict[str, Any]:
        return difference(pristine, parts_of(graph, where, pristine, suspects), suspects)

    answer: dict[str, Any] = {
        "type": kind,
        "data": None,
        "cut": False,
        "data_graph": None,
        "updated": None,
    }
    if updated is not None:
        answer["updated"] = changes(updated, "updated_graph")
    if not _is_graph(data):
        if kind == "graph" and data is not None:
            raise UnusableError(
                f"the result is of type graph, but data is of type {type(data).__name__}"
            )
        limits = _PLAN_LIMITS if planning else (MAX_DATA_BYTES, MAX_DATA_VALUES)
        reader = Plain("data", *limits)
        answer["data"] = reader.convert(data)
        answer["cut"] = reader.cut
    elif data is updated or _same_data(data, updated):
        answer["data_graph"] = "same"
    else:
        answer["data_graph"] = changes(data, "data")
    return answer


def _same_data(one: Any, other: Any) -> bool:
    """Return whether both values are node-link data with equal nodes and edges.

    This check takes a third of the time of reading one of the values.
    """
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    flags = ("directed", "multigraph")
    return (
        all(one.get(flag) == other.get(flag) for flag in flags)
        and bool(one.get("nodes") == other.get("nodes"))
        and bool(_edges_of(one) == _edges_of(other))
    )


def _edges_of(value: Mapping[str, Any]) -> Any:
    return value["edges"] if "edges" in value else value.get("links")


def _is_graph(value: Any) -> bool:
    return isinstance(value, nx.Graph) or (
        isinstance(value, Mapping) and "nodes" in value and ("links" in value or "edges" in value)
    )


def parts_of(
    value: Any, where: str, before: Parts = ({}, {}), suspects: AbstractSet[str] = frozenset()
) -> Parts:
    """Return the nodes and edges of a networkx graph or of node-link data.

    Elements that equal elements of ``before`` get the attribute objects of ``before``, except nodes
    in ``suspects``. Without this, reading and comparing would take twice as long. Nodes without
    outgoing edges may be missing from the edges.

    Raises UnusableError, whose message names the graph as ``where``.
    """
    if not _is_graph(value):
        raise UnusableError(f"{where} is a {type(value).__name__}, not a graph or node-link data")
    if isinstance(value, nx.Graph):
        if not value.is_directed():
            raise UnusableError(f"{where} is an undirected graph; the network is directed")
        if not value.is_multigraph():
            return value._node, value._adj  # noqa: SLF001 -- views take three times as long
        nodes: dict[Any, Any] = dict(value.nodes(data=True))
        edges: Iterable[tuple[Any, Any, Any]] = value.edges(data=True)
    else:
        if value.get("directed") is False:
            raise UnusableError(f"{where} is an undirected graph; the network is directed")
        nodes = {}
        for name, attributes in _entries(value, before[0], suspects):
            if name in nodes:
                raise UnusableError(f"{where} lists node {_show(name)} twice")
            nodes[name] = attributes
        edges = _links(value, before[1])
    rows: dict[str, dict[str, Any]] = {}
    for source, target, attributes in edges:
        row = rows.get(source)
        if row is None:
            row = rows[source] = {}
            nodes.setdefault(source, {})  # an edge creates missing nodes, as in networkx
        if target in row:
            raise UnusableError(f"{where} has two edges {_show(source)} -> {_show(target)}")
        row[target] = attributes
        if target not in nodes:
            nodes[target] = {}
    return nodes, rows


def _entries(
    value: Mapping[str, Any], before: Mapping[str, Any], suspects: AbstractSet[str]
) -> Iterator[tuple[Any, Any]]:
    """Yield the names and attributes of the nodes of node-link data."""
    for entry in value["nodes"]:
        keyed = "id" in entry
        name = entry["id"] if keyed else entry.get("name")
        old = before.get(name)
        if old is None or name in suspects or not _extends(entry, old, keyed):
            old = {key: item for key, item in entry.items() if key != "id"}
        yield name, old


def _links(
    value: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the source, target and attributes of each edge of node-link data."""
    multigraph = bool(value.get("multigraph"))
    ends = ("source", "target", "key") if multigraph else ("source", "target")
    for entry in _edges_of(value):
        source, target = entry["source"], entry["target"]
        old = before.get(source, _NOTHING).get(target)
        surplus = 3 if multigraph and "key" in entry else 2
        if old is None or not _extends(entry, old, surplus):
            old = {key: item for key, item in entry.items() if key not in ends}
        yield source, target, old


_NOTHING: Mapping[str, Any] = {}


def _extends(entry: Any, attributes: Any, surplus: int) -> bool:
    """Return whether ``entry`` has all of ``attributes`` and exactly ``surplus`` further
    members."""
    return len(entry) == len(attributes) + surplus and attributes.items() <= entry.items()


def _show(name: Any) -> str:
    return _cut(str(name), 80)


def difference(before: Parts, after: Parts, suspects: set[str]) -> dict[str, Any]:
    """Return the changes from the graph ``before`` to the graph ``after``, in the order of the
    graphs.

    Numbers are compared by value. For the nodes in ``suspects``, which ``before`` contains,
    booleans are distinguished from numbers (see ``doubtful``). Raises UnusableError.
    """
    changes: dict[str, Any] = {
        "nodes": {},
        "removed_nodes": [],
        "edges": [],
        "removed_edges": [],
        "more": False,
    }
    left, left_bytes = MAX_CHANGES, MAX_CHANGES_BYTES
    for kind, change, size in _changes(before, after, suspects):
        left -= 1
        left_bytes -= size
        if left < 0 or left_bytes < 0:
            changes["more"] = True
            break
        if kind == "nodes":
            changes[kind][change[0]] = change[1]
        else:
            changes[kind].append(change)
    return changes


def _changes(before: Parts, after: Parts, suspects: set[str]) -> Iterator[tuple[str, Any, int]]:
    """Yield the kind, the description and the approximate size in bytes of each change."""
    old_nodes, old_rows = before
    new_nodes, new_rows = after
    for name, attributes in new_nodes.items():
        old = old_nodes.get(name)
        doubt = name in suspects
        if old is None or doubt or old != attributes:
            found, size = _altered(old, attributes, f"node {_show(name)}", doubt=doubt)
            if found is not None:
                yield "nodes", (_name(name), found), size
    for name in old_nodes:
        if name not in new_nodes:
            yield "removed_nodes", name, len(name)
    for source in new_nodes:
        row, old_row = new_rows.get(source, _NOTHING), old_rows.get(source, _NOTHING)
        if old_row == row:
            continue
        for target, attributes in row.items():
            old = old_row.get(target)
            if old is None or old != attributes:
                where = f"edge {_show(source)} -> {_show(target)}"
                found, size = _altered(old, attributes, where, doubt=False)
                if found is not None:
                    yield "edges", [_name(source), _name(target), found], size
        for target in old_row:
            if target not in row and target in new_nodes:
                yield "removed_edges", [source, target], len(source) + len(target)


def _altered(
    old: Mapping[str, Any] | None, attributes: Mapping[Any, Any], where: str, *, doubt: bool
) -> tuple[dict[str, Any] | None, int]:
    """Return ``attributes`` as plain JSON, or None if they equal ``old``, and their approximate
    size in bytes.

    Only values that differ in Python are converted, so that a network in which all lists became
    tuples takes little time. With ``doubt``, booleans are distinguished from numbers. ``where``
    names the element in errors.
    """
    reader: Plain | None = None
    found: dict[str, Any] = {}
    was = _NOTHING if old is None else old
    same = old is not None and len(attributes) == len(old)
    for key, given in attributes.items():
        known = key in was
        value = list(given) if type(given) is tuple else given
        if known and not doubt and was[key] == value:
            found[key] = was[key]
            continue
        reader = reader or Plain(where, MAX_ELEMENT_BYTES, MAX_ELEMENT_VALUES)
        if reader.exhausted:
            found[CUT] = CUT
            return found, MAX_ELEMENT_BYTES
        converted = found[reader.key(key)] = reader.convert(value, 1)
        same = same and known and was[key] == converted and _same(was[key], converted)
    # Unchanged values are short, so their size is not counted.
    return None if same else found, 0 if reader is None else MAX_ELEMENT_BYTES - reader.left


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise UnusableError(f"node {_show(name)}: names must be strings, not {type(name).__name__}")
    return _clean(_cut(str(name), _MAX_NAME_CHARS))


def doubtful(nodes: Mapping[str, Any]) -> set[str]:
    """Return the names of nodes with a number 0 or 1 in an attribute. Such a number equals a
    boolean in Python."""
    return {name for name, attributes in nodes.items() if _holds_bit(attributes)}


def _holds_bit(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bit, value.values()))
    if isinstance(value, list):
        return any(map(_holds_bit, value))
    return isinstance(value, int | float) and value in {0, 1}


def _same(old: Any, new: Any) -> bool:
    """Return whether two values, which are equal in Python, have booleans in the same positions."""
    if isinstance(old, dict):
        return all(_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return all(map(_same, old, new))
    return isinstance(old, bool) == isinstance(new, bool)


def plain(value: Any, where: str) -> Any:
    """Return ``value`` as plain JSON, within the limits of data (see ``Plain``). ``where`` names
    the value in errors."""
    return Plain(where, MAX_DATA_BYTES, MAX_DATA_VALUES).convert(value)


class Plain:
    """Converter of values to plain JSON, within limits.

    Tuples, sets, views and iterators become lists. Infinity and NaN become text, so that no reader
    treats them as numbers. Integers beyond 64 bits, fractions and decimals become floats. ``CUT``
    replaces parts beyond ``size`` bytes of JSON, ``values`` values or ``MAX_DEPTH`` levels, and
    ``cut`` is then true. ``convert`` raises UnusableError with the name ``where`` of the value.
    """

    __slots__ = ("cut", "left", "values", "where")

    def __init__(self, where: str, size: int, values: int) -> None:
        self.where = where
        #: Remaining size in bytes, and remaining number of values.
        self.left = size
        self.values = values
        self.cut = False

    @property
    def exhausted(self) -> bool:
        return self.left <= 0 or self.values <= 0

    def convert(self, item: Any, depth: int = 0) -> Any:
        """Return ``item`` as plain JSON. ``depth`` is the number of enclosing lists and dicts."""
        self.values -= 1
        kind = type(item)
        if kind is int and -(2**63) <= item < 2**63:
            self.left -= 22  # the longest integer of 64 bits, with separators
            return item
        if kind is str or isinstance(item, str):
            return self._text(item)
        if item is None or isinstance(item, bool):
            self.left -= 7
            return item
        if isinstance(item, _NUMBERS):
            return self._number(item)
        if depth == MAX_DEPTH:
            return self._mark()
        self.left -= 4
        if isinstance(item, _LISTS):  # abstract classes come later, because their checks are slow
            return self._series(item, depth)
        # Networkx's views of nodes are both mappings and sets. They become lists of names.
        if isinstance(item, dict) or (
            isinstance(item, Mapping) and not isinstance(item, AbstractSet)
        ):
            found = {}
            for key in item:
                if self.exhausted:
                    found[CUT] = self._mark()
                    break
                found[self.key(key)] = self.convert(item[key], depth + 1)
            return found
        if isinstance(item, _SETS):
            # Sets are sorted, so that the result is the same in every process. If a set exceeds the
            # limits, all its members are omitted, because the retained part would depend on the
            # set's order.
            cut, self.cut = self.cut, False
            members = sorted(self._series(item, depth), key=repr)
            members, self.cut = ([CUT], True) if self.cut else (members, cut)
            return members
        if isinstance(item, Iterable) and not isinstance(item, _BYTES):
            return self._series(item, depth)
        if isinstance(item, _NUMBERS_TOO):
            return self._number(item)
        raise UnusableError(
            f"{self.where} contains a {type(item).__name__}, which is not a JSON value"
        )

    def key(self, key: Any) -> str:
        """Return ``key`` as the key of a JSON object. Raises UnusableError."""
        if isinstance(key, str):
            return self._text(key)
        if key is None or isinstance(key, int | float | tuple):
            return self._text(_cut(str(key), 200))
        raise UnusableError(
            f"{self.where} contains a key of type {type(key).__name__}; keys must be strings"
        )

    def _series(self, items: Iterable[Any], depth: int) -> list[Any]:
        found = []
        for part in items:
            if self.exhausted:
                found.append(self._mark())
                break
            found.append(self.convert(part, depth + 1))
        return found

    def _number(self, item: Any) -> float | str:
        number = _number(item)
        self.left -= len(repr(number)) + 2
        return number

    def _text(self, item: str) -> str:
        text = _clean(item if type(item) is str else str(item))
        room = max(0, self.left)
        # JSON needs at most twelve characters for one character.
        if len(text) > room or len(encode_basestring_ascii(text)) > room:
            text = text[: room // 12] + self._mark()
        self.left -= len(encode_basestring_ascii(text)) + 2
        return text

    def _mark(self) -> str:
        self.cut = True
        self.left -= 10
        return CUT


def _clean(text: str) -> str:
    """Return the text without lone surrogates. The sandbox's JSON cannot contain them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _number(value: Any) -> float | str:
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else str(number)
