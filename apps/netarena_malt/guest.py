"""The program inside the sandbox: runs an answer on its own copy of the network and reads it.

The text of this module (behind that of ``edit``) is what the sandbox's warm parent executes, so
it needs the standard library and networkx alone, and nothing in it is trusted: what ``call``
returns is a claim made in a process that the agent's code owns, and the grader believes none of
it. A claim of changes claims no more than the whole graph would, and is a hundredth of the size.

``load`` runs once, in the warm parent; ``call`` in a forked child whose memory is its own.

A graph is described by its *changes* from another:
``{"nodes": {name: attributes}, "removed_nodes": [name], "edges": [[source, target, attributes]],
"removed_edges": [[source, target]]}``: nodes and edges that were added or have other attributes,
with all their attributes, and those that are gone; edges of a removed node are not listed.
``"more": true`` says that the list ends at ``MAX_CHANGES``: no task changes that many, so it is
known to be wrong and unsafe, and a wrecked network costs no more to judge than a repaired one.
"""

from __future__ import annotations

import collections
import copy
import itertools
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import networkx as nx

from netarena_malt.edit import apply_edits

#: the forms of data that an answer may declare
ANSWER_TYPES = ("text", "list", "table", "graph")
#: levels of lists and dicts in data or in one attribute
MAX_DEPTH = 20
#: values in data, or in one node's attributes
MAX_ITEMS = 100_000
#: changed nodes and edges that are listed; the largest task changes some 300
MAX_CHANGES = 1000
#: characters of an error that is shown
MAX_ERROR_CHARS = 600

_FILE = "<answer>"
#: nodes by name, and attributes of edges by source and target
Parts = tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]


class UnusableError(Exception):
    """An answer that has not the promised form; the text says what is wrong."""


def dump(graph: Any) -> bytes:
    """A networkx DiGraph as the payload that ``load`` reads; order and value types are kept."""
    return json.dumps(
        {"nodes": list(graph.nodes(data=True)), "edges": list(graph.edges(data=True))},
        separators=(",", ":"),
    ).encode()


def load(payload: bytes) -> dict[str, Any]:
    """Build the released graph twice: what the answer gets, and what it is compared with."""
    data = json.loads(payload)
    graphs = []
    for _ in range(2):
        graph: Any = nx.DiGraph()
        for name, attributes in data["nodes"]:
            graph.add_node(name, **copy.deepcopy(attributes))
        graph.add_edges_from(data["edges"])
        graphs.append(graph)
    given, pristine = graphs
    return {"given": given, "pristine": pristine, "doubtful": doubtful(dict(pristine.nodes))}


def call(context: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Run ``request["code"]`` on the network that ``request["edits"]`` make of the released one.

    Returns ``{"error": text}``, or ``{"type", "data", "data_graph", "updated"}``: ``data`` as
    plain JSON; ``data_graph`` the changes that a graph in data stands for, ``"same"`` if it is
    the updated graph, or null; ``updated`` the changes of the updated graph, or null if the
    answer gave none. MemoryError passes through: the sandbox knows that limit by itself.
    """
    given, pristine = context["given"], context["pristine"]
    edits = request["edits"]
    apply_edits(given, edits)
    apply_edits(pristine, edits)
    suspects = context["doubtful"] | {entry[0] for entry in edits.get("add", ())}
    suspects |= {entry[0] for entry in edits.get("set", ())}
    try:
        result = _run(request["code"], given)
    except MemoryError:
        raise
    except UnusableError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 -- SystemExit included: all is the answer's doing
        return {"error": _explain(error, request["code"])}
    try:
        return _read(result, parts_of(pristine, "the network"), suspects)
    except MemoryError:
        raise
    except UnusableError as error:
        return {"error": str(error)}
    except BaseException as error:  # noqa: BLE001 -- classes of the answer may do anything
        return {"error": f"the result cannot be read: {_explain(error, request['code'])}"}


def _run(code: str, graph: Any) -> Any:
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
    )
    # where dataclasses and typing look up the names of a class's module
    sys.modules["answer"] = module
    exec(compile(code, _FILE, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 -- the point
    process: Callable[[Any], Any] | None = module.__dict__.get("process_graph")
    if not callable(process):
        raise UnusableError("the program ran but defined no function process_graph")
    return process(graph)


def _explain(error: BaseException, code: str) -> str:
    """Type and message of an exception, and the last line of the answer that it passed."""
    kind = type(error).__name__
    number = error.lineno if isinstance(error, SyntaxError) else None
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001 -- an exception class of the answer
        message = "(its message cannot be shown)"
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


# reading the result


def _read(result: Any, pristine: Parts, suspects: set[str]) -> dict[str, Any]:
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
        raise UnusableError("the result is of type graph and holds no graph")

    def changes(graph: Any, where: str) -> dict[str, Any]:
        return difference(pristine, parts_of(graph, where), suspects)

    answer: dict[str, Any] = {"type": kind, "data": None, "data_graph": None, "updated": None}
    if updated is not None:
        answer["updated"] = changes(updated, "updated_graph")
    if not _is_graph(data):
        if kind == "graph" and data is not None:
            raise UnusableError(f"data is of type graph but holds a {type(data).__name__}")
        answer["data"] = plain(data, "data")
    elif data is updated or (isinstance(data, dict) and data == updated):
        answer["data_graph"] = "same"
    else:
        answer["data_graph"] = changes(data, "data")
    return answer


def _is_graph(value: Any) -> bool:
    return isinstance(value, nx.Graph) or (
        isinstance(value, Mapping) and "nodes" in value and ("links" in value or "edges" in value)
    )


def parts_of(value: Any, where: str) -> Parts:
    """Nodes and edges of a networkx graph or of node-link data.

    Raises UnusableError, which names the graph as ``where``.
    """
    if not _is_graph(value):
        raise UnusableError(f"{where} is a {type(value).__name__}, not a graph or node-link data")
    if isinstance(value, nx.Graph):
        if not value.is_directed():
            raise UnusableError(f"{where} is an undirected graph; the network is directed")
        if not value.is_multigraph():
            return value._node, value._adj  # noqa: SLF001 -- the views take three times as long
        nodes: dict[Any, Any] = dict(value.nodes(data=True))
        edges: Iterable[tuple[Any, Any, Any]] = value.edges(data=True)
    else:
        if value.get("directed") is False:
            raise UnusableError(f"{where} is an undirected graph; the network is directed")
        nodes = {}
        for entry in value["nodes"]:
            attributes = dict(entry)
            name = attributes.pop("id") if "id" in attributes else attributes.get("name")
            if name in nodes:
                raise UnusableError(f"{where} lists node {_show(name)} twice")
            nodes[name] = attributes
        edges = _links(value)
    rows: dict[str, dict[str, Any]] = {name: {} for name in nodes}
    for source, target, attributes in edges:
        row = rows.setdefault(source, {})
        if target in row:
            raise UnusableError(f"{where} has two edges {_show(source)} -> {_show(target)}")
        row[target] = attributes
        # an edge makes its ends exist, as in networkx
        nodes.setdefault(source, {})
        nodes.setdefault(target, {})
    return nodes, rows


def _links(value: Mapping[str, Any]) -> Iterable[tuple[Any, Any, Any]]:
    multigraph = bool(value.get("multigraph"))
    for entry in value["edges"] if "edges" in value else value["links"]:
        attributes = dict(entry)
        if multigraph:
            attributes.pop("key", None)
        yield attributes.pop("source"), attributes.pop("target"), attributes


def _show(name: Any) -> str:
    return _cut(str(name), 80)


def difference(before: Parts, after: Parts, suspects: set[str]) -> dict[str, Any]:
    """The changes that lead from one graph to the other, in the order of the graphs.

    Numbers are compared by value; ``suspects`` are the nodes of ``before`` for which that is not
    enough (see ``doubtful``). Raises UnusableError.
    """
    changes: dict[str, Any] = {
        "nodes": {},
        "removed_nodes": [],
        "edges": [],
        "removed_edges": [],
        "more": False,
    }
    left = MAX_CHANGES
    for kind, change in _changes(before, after, suspects):
        if not left:
            changes["more"] = True
            break
        left -= 1
        if kind == "nodes":
            changes[kind][change[0]] = change[1]
        else:
            changes[kind].append(change)
    return changes


def _changes(before: Parts, after: Parts, suspects: set[str]) -> Iterator[tuple[str, Any]]:
    old_nodes, old_rows = before
    new_nodes, new_rows = after
    for name, attributes in new_nodes.items():
        old = old_nodes.get(name)
        if old is None or old != attributes or (name in suspects and not _same(old, attributes)):
            yield "nodes", (_name(name), plain(dict(attributes), f"node {_show(name)}"))
    for name in old_nodes:
        if name not in new_nodes:
            yield "removed_nodes", name
    for source, row in new_rows.items():
        old_row = old_rows.get(source, {})
        if old_row == row:
            continue
        for target, attributes in row.items():
            if old_row.get(target) != attributes:
                where = f"edge {_show(source)} -> {_show(target)}"
                yield "edges", [_name(source), _name(target), plain(dict(attributes), where)]
        for target in old_row:
            if target not in row and target in new_nodes:
                yield "removed_edges", [source, target]


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise UnusableError(f"node {_show(name)}: names are text, not {type(name).__name__}")
    return str(name)


def doubtful(nodes: Mapping[str, Any]) -> set[str]:
    """Names of nodes with a value that equals a truth value in Python (1 == True)."""
    return {name for name, attributes in nodes.items() if _holds_bit(attributes)}


def _holds_bit(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bit, value.values()))
    if isinstance(value, list):
        return any(map(_holds_bit, value))
    return isinstance(value, int | float) and value in {0, 1}


def _same(old: Any, new: Any) -> bool:
    """Whether values that are equal in Python differ in no truth value."""
    if isinstance(old, dict):
        return all(_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return all(map(_same, old, new))
    return isinstance(old, bool) == isinstance(new, bool)


def plain(value: Any, where: str) -> Any:
    """``value`` as plain JSON: tuples, sets, views and iterators as lists, no NaN, no recursion.

    Infinity and NaN become text, so that nothing downstream takes them for numbers; integers
    beyond 64 bits become floats. Raises UnusableError.
    """
    left = MAX_ITEMS

    def convert(item: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise UnusableError(f"{where} holds more than {MAX_ITEMS} values")
        if item is None or isinstance(item, bool):
            return item
        if isinstance(item, str):
            return item if type(item) is str else str(item)
        if isinstance(item, int | float):
            return _number(item)
        if depth == MAX_DEPTH:
            raise UnusableError(f"{where} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, list):  # before all that asks an abstract class, which takes longer
            return [convert(part, depth + 1) for part in item]
        # networkx's views of nodes are mappings and sets: names are what they are read for
        if isinstance(item, dict) or (
            isinstance(item, Mapping) and not isinstance(item, AbstractSet)
        ):
            return {_key(key, where): convert(item[key], depth + 1) for key in item}
        if isinstance(item, set | frozenset):
            # a set has no order of its own; this one is the same in every process
            return sorted((convert(part, depth + 1) for part in item), key=repr)
        if isinstance(item, Iterable) and not isinstance(item, bytes | bytearray):
            return [convert(part, depth + 1) for part in item]
        raise UnusableError(f"{where} holds a {type(item).__name__}, which is no JSON value")

    return convert(value, 0)


def _number(value: float) -> float | str:
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return number if math.isfinite(number) else str(number)


def _key(key: Any, where: str) -> str:
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, int | float | tuple):
        return _cut(str(key), 200)
    raise UnusableError(f"{where} has a {type(key).__name__} as a key")
