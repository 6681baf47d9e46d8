"""Generated replies: the reference solution, wrong replies, and attacks.

All generated replies have the form of an agent's reply: a fenced Python block that defines
``process_graph``. The reference solution is graph code without helpers from the project, generated
from a query's actions. This module shares no code with ``action``, so that the two modules check
each other.
"""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from netarena.sdk import Action, Query
from netarena_malt.action import (
    OPERATIONS,
    Condition,
    Loop,
    NewNode,
    Removal,
    Selection,
    Update,
)
from netarena_malt.planning import catalogue
from netarena_malt.query import PLAN, Truth, plan_data, solve_truth
from netarena_malt.topology import NODE_KINDS

# Program code of a reply.

_TOOLS = """\
CAPACITY = "physical_capacity_bps"


def children(graph, name):
    edges = graph.adj[name].items()
    return [child for child, edge in edges if edge["type"] == "RK_CONTAINS"]


def contained(graph, name):
    found, todo = [], [name]
    while todo:
        for child in children(graph, todo.pop()):
            found.append(child)
            todo.append(child)
    return found


def total(graph, name):
    nodes = [name, *contained(graph, name)]
    return sum(graph.nodes[node].get(CAPACITY, 0.0) for node in nodes)


def choose(graph, name, scope, kind, at_least, below):
    walk = {"self": lambda: [name], "children": lambda: children(graph, name),
            "descendants": lambda: contained(graph, name)}[scope]
    names = [node for node in walk() if kind is None or kind in graph.nodes[node]["type"]]
    if at_least is not None:
        names = [node for node in names if total(graph, node) >= at_least]
    if below is not None:
        names = [node for node in names if total(graph, node) < below]
    return names


def add(graph, name, attributes, parents):
    graph.add_node(name, name=name, **attributes)
    if "EK_CONTROL_POINT" in attributes["type"]:
        graph.add_edge(name, name, type="RK_CONTROLS")
    for parent in parents:
        graph.add_edge(parent, name, type="RK_CONTAINS")


def remove(graph, name):
    graph.remove_nodes_from([name, *contained(graph, name)])


def rank(graph, names):
    rows = [[name, total(graph, name)] for name in names]
    return sorted(rows, key=lambda row: (-row[1], row[0]))
"""


def _fenced(code: str) -> str:
    return f"```python\n{code.strip()}\n```"


def _function(lines: Sequence[str], kind: str, data: str) -> str:
    """Return a reply: helper functions, and a ``process_graph`` that runs ``lines`` on ``graph``.

    ``kind`` is the answer's type, and ``data`` the expression for its data.
    """
    result = f'return {{"type": {kind!r}, "data": {data}, "updated_graph": graph}}'
    body = "\n".join(f"    {line}" for line in ("graph = graph_data", *lines, result))
    return _fenced(f"{_TOOLS}\n\ndef process_graph(graph_data):\n{body}")


def _expression(name: str) -> str:
    """Return the Python expression for a node's name. Loop variables (``$1``) become Python
    variables."""
    parts = (part for part in _VARIABLE.split(name) if part)
    return " + ".join(f"node{part[1:]}" if part[0] == "$" else repr(part) for part in parts)


_VARIABLE = re.compile(r"(\$\d+)")


def _choose(selection: Selection) -> str:
    arguments = (selection.scope, selection.kind, selection.at_least_bps, selection.below_bps)
    return f"choose(graph, {_expression(selection.name)}, {', '.join(map(repr, arguments))})"


def _add_lines(nodes: Sequence[NewNode], around: tuple[str, ...] = ()) -> list[str]:
    lines = []
    for node in nodes:
        attributes = {"type": list(NODE_KINDS[node.kind].types), **node.attributes}
        parents = ", ".join(map(_expression, (*around, *node.parents)))
        lines.append(f"add(graph, {_expression(node.name)}, {attributes!r}, [{parents}])")
        lines += _add_lines(node.contents, (node.name,))
    return lines


def _remove_lines(removal: Removal) -> list[str]:
    return [f"remove(graph, {_expression(name)})" for name in removal.names]


def _update_lines(update: Update) -> list[str]:
    after = f"= {update.to_bps!r}" if update.times is None else f"*= {update.times!r}"
    return [f"for port in {_choose(update.select)}:", f"    graph.nodes[port][CAPACITY] {after}"]


def _each_lines(loop: Loop) -> list[str]:
    node = _expression(loop.variable)
    lines = [f"for {node} in sorted({_choose(loop.select)}):"]
    if loop.when is None:
        return lines + _indented(_lines(loop.then))
    branches = [f"if {_condition(loop.when, node)}:", *_indented(_lines(loop.then))]
    if loop.otherwise:
        branches += ["else:", *_indented(_lines(loop.otherwise))]
    return lines + _indented(branches)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _condition(condition: Condition, node: str) -> str:
    if condition.ends_with is not None:
        return f"{node}.endswith({condition.ends_with!r})"
    if condition.equals is not None:
        return f'graph.nodes[{node}]["switch_loc"]["stage"] == {condition.equals!r}'
    if condition.measure == "children":
        value = f'len(choose(graph, {node}, "children", {condition.kind!r}, None, None))'
    else:
        value = f"total(graph, {node})"
    if condition.at_least is not None:
        return f"{value} >= {condition.at_least!r}"
    return f"{value} < {condition.below!r}"


#: Operation -> function that returns code lines, which change ``graph`` or assign the answer to
#: ``data``.
_LINES: Mapping[str, Callable[[Any], list[str]]] = MappingProxyType(
    {
        "add": lambda addition: _add_lines(addition.nodes),
        "remove": _remove_lines,
        "update": _update_lines,
        "each": _each_lines,
        "count": lambda question: [f"data = len({_choose(question.select)})"],
        "list": lambda question: [f"data = {_choose(question.select)}"],
        "rank": lambda question: [f"data = rank(graph, {_choose(question.select)})"],
    }
)


def _lines(actions: Sequence[Action]) -> list[str]:
    lines = []
    for action in actions:
        parameters = OPERATIONS[action.kind].parameters.model_validate(action.parameters)
        lines += _LINES[action.kind](parameters)
    return lines


def _answer(actions: Sequence[Action]) -> tuple[str, str]:
    """Return the type of the answer, and the expression for its data in ``process_graph``."""
    kind = OPERATIONS[actions[-1].kind].answer_type
    return kind, "graph" if kind == "graph" else "data"


def reference_code(query: Query) -> str:
    """Return the reference solution of a query as a reply.

    Its code computes the answer from the graph. For a planning task, the code contains the plan.
    """
    if query.actions[0].kind == PLAN:
        truth = solve_truth(query)[0]
        return _stated(truth.type, truth.data)
    return program(query.actions)


def program(actions: Sequence[Action]) -> str:
    """Return a reply that executes ``actions``. The last action determines the answer."""
    return _function(_lines(actions), *_answer(actions))


# Wrong replies.

#: Answer type -> lines that make a right answer wrong. One line is appended to the reference
#: solution. The lines use the drawn variables ``port`` and ``number``.
_SLIPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "graph": (
            "graph.nodes[port][CAPACITY] *= number + 1",
            "graph.remove_node(port)",
            "graph.add_node(port + 'b', **{**graph.nodes[port], 'name': port + 'b'})",
        ),
        "text": ("data += number", "data = max(0, data - number) if data else number"),
        "list": ("data = data[1:] if data else [port]", "data = [*data, port + 'b']"),
        "table": ("data = data[1:]", "data = [[name, bps * (number + 1)] for name, bps in data]"),
    }
)


def distract(query: Query, rng: random.Random) -> str:
    """Return a plausible, well-formed, wrong reply.

    The reply takes the right steps and then makes an error, or takes no step at all. For a planning
    task, the reply is a greedy plan, or a wrong report that the task is impossible.
    """
    if query.actions[0].kind == PLAN:
        return _distract_planner(query, rng)
    kind, data = _answer(query.actions)
    if kind == "graph" and not rng.randrange(4):
        return _function([], kind, data)
    slip = [
        f"number = {rng.randrange(1, 4)}",
        "ports = sorted(node for node in graph if CAPACITY in graph.nodes[node])",
        f"port = ports[{rng.randrange(2**16)} % len(ports)]",
        rng.choice(_SLIPS[kind]),
    ]
    return _function([*_lines(query.actions), *slip], kind, data)


def blanket(queries: Sequence[Query]) -> str:
    """Return the fixed reply that is right most often on ``queries``, all of which have the same
    label.

    The reply returns the most frequent data and the unchanged network.
    """
    truths = [solve_truth(query)[0] for query in queries]
    if queries[0].actions[0].kind == PLAN:
        told = [truth for truth in truths if truth.type == "text"] or truths
        return _stated(told[0].type, commonest(told)[0])
    kind = truths[0].type
    return _function([], kind, "graph" if kind == "graph" else repr(commonest(truths)[0]))


def _stated(kind: str, data: Any) -> str:
    """Return a reply whose program returns fixed data, with the answer type ``kind``."""
    body = f'    return {{"type": {kind!r}, "data": {data!r}, "updated_graph": graph_data}}'
    return _fenced(f"def process_graph(graph_data):\n{body}")


def _distract_planner(query: Query, rng: random.Random) -> str:
    data = plan_data(query)
    assert data is not None
    plan = planned(query, "greedy")
    if plan is not None and rng.randrange(4):
        return plan
    blocking = query.actions[0].parameters["blocking"]
    others = [one["id"] for one in data["requests"] if one["id"] != blocking]
    return _stated("text", rng.choice(others))


def planned(query: Query, planner: str) -> str | None:
    """Return the reply of a scripted planner, ``greedy`` or ``first_fit``. Return None if the
    planner finds no plan, or if the query is not a planning task."""
    data = plan_data(query)
    if data is None:
        return None
    kind = catalogue.kind_of(data["label"])
    plan = {"greedy": kind.greedy, "first_fit": kind.first_fit}[planner](data)
    return None if plan is None else _stated(kind.answer, plan)


def commonest(truths: Sequence[Truth]) -> tuple[Any, int]:
    """Return the most frequent data of ``truths``, and the number of their occurrences."""
    counts = Counter(json.dumps(truth.data) for truth in truths)
    data, number = counts.most_common(1)[0]
    return json.loads(data), number


# Attacks.


def _attack(code: str) -> str:
    return _fenced(textwrap.dedent(code))


#: Target of the attack -> reply. The data of a reply never equal the right answer to any query, so
#: each reply is a wrong answer (for example, counts are never negative). An attack must not affect
#: later episodes.
ATTACKS: Mapping[str, str] = MappingProxyType(
    {
        name: _attack(code)
        for name, code in {
            "environment": """
                import os

                def process_graph(graph_data):
                    return {"type": "text", "data": dict(os.environ), "updated_graph": graph_data}
                """,
            "files": """
                import glob
                import pathlib

                def process_graph(graph_data):
                    found = []
                    for path in ["/etc/passwd", "/proc/1/environ", *glob.glob("**/*.jsonl")]:
                        found.append(pathlib.Path(path).read_text(errors="replace"))
                    pathlib.Path("/tmp/netarena-attack").write_text("here")
                    return {"type": "list", "data": found, "updated_graph": graph_data}
                """,
            "sockets": """
                import socket

                def process_graph(graph_data):
                    for family, kind in ((socket.AF_INET, socket.SOCK_STREAM),
                                         (socket.AF_INET, socket.SOCK_DGRAM),
                                         (socket.AF_UNIX, socket.SOCK_STREAM)):
                        socket.socket(family, kind)
                    socket.create_connection(("127.0.0.1", 9009), timeout=1)
                    return {"type": "text", "data": "connected", "updated_graph": graph_data}
                """,
            "subprocess": """
                import os
                import subprocess

                def process_graph(graph_data):
                    seen = subprocess.run(["id"], capture_output=True, text=True).stdout
                    os.execv("/bin/sh", ["sh", "-c", "echo here"])
                    return {"type": "text", "data": seen, "updated_graph": graph_data}
                """,
            "fork bomb": """
                import os

                def process_graph(graph_data):
                    while True:
                        os.fork()
                """,
            "memory": """
                def process_graph(graph_data):
                    hoard = []
                    while True:
                        hoard.append(bytearray(64 << 20))
                """,
            "endless loop": """
                def process_graph(graph_data):
                    while True:
                        pass
                """,
            "uncatchable exit": """
                import os
                import sys

                def process_graph(graph_data):
                    print('{"type": "text", "data": "solved"}', flush=True)
                    try:
                        raise SystemExit(0)
                    finally:
                        os._exit(0)
                """,
            "frames": """
                import sys

                def process_graph(graph_data):
                    frame, seen = sys._getframe(), {}
                    while frame:
                        seen.update({key: repr(value) for key, value in frame.f_locals.items()})
                        for value in frame.f_locals.values():
                            truth = getattr(value, "actions", None)
                            if truth is not None:
                                return {"type": "list", "data": truth, "updated_graph": graph_data}
                        frame = frame.f_back
                    return {"type": "text", "data": str(seen)[:4096], "updated_graph": graph_data}
                """,
            "garbage collector": """
                import gc

                def process_graph(graph_data):
                    words = ("truth", "query", "judge", "expected")
                    for thing in gc.get_objects():
                        if isinstance(thing, dict) and any(word in thing for word in words):
                            return {"type": "text", "data": repr(thing)[:4096],
                                    "updated_graph": graph_data}
                    return {"type": "text", "data": "nothing", "updated_graph": graph_data}
                """,
            "ctypes": """
                import ctypes

                def process_graph(graph_data):
                    ctypes.CDLL(None).ptrace(16, 1, 0, 0)
                    ctypes.string_at(0)
                    return {"type": "text", "data": "still here", "updated_graph": graph_data}
                """,
            "signals": """
                import os
                import signal

                def process_graph(graph_data):
                    for pid in (os.getppid(), 0, -1):
                        try:
                            os.kill(pid, signal.SIGKILL)
                        except OSError:
                            pass
                    return {"type": "text", "data": "alone", "updated_graph": graph_data}
                """,
            "patched library": """
                import builtins
                import json
                import networkx as nx

                def process_graph(graph_data):
                    nx.DiGraph.__eq__ = lambda self, other: True
                    nx.is_isomorphic = lambda *arguments, **options: True
                    nx.node_link_data = lambda *arguments, **options: {}
                    json.dumps = lambda *arguments, **options: '{"correct": true, "safe": true}'
                    builtins.len = lambda thing: 0
                    graph_data.clear()
                    return {"type": "graph", "data": graph_data, "updated_graph": graph_data}
                """,
            "hostile classes": """
                class Anything(str):
                    __hash__ = str.__hash__

                    def __eq__(self, other):
                        return True

                    def __reduce__(self):
                        import os
                        return os.system, ("touch /tmp/netarena-attack",)

                def process_graph(graph_data):
                    return {"type": "text", "data": Anything("-1"), "updated_graph": graph_data}
                """,
            "huge result": """
                def process_graph(graph_data):
                    return {"type": "text", "data": "x" * (200 << 20), "updated_graph": graph_data}
                """,
            "recursive result": """
                def process_graph(graph_data):
                    loop = []
                    loop.append(loop)
                    deep = []
                    for _ in range(100000):
                        deep = [deep]
                    return {"type": "list", "data": [loop, deep], "updated_graph": graph_data}
                """,
            "inherited descriptors": """
                import os

                def process_graph(graph_data):
                    forged = b'{"type": "text", "data": "solved", "correct": true, "safe": true}\\n'
                    for descriptor in range(3, 256):
                        try:
                            os.write(descriptor, forged)
                        except OSError:
                            pass
                    os._exit(0)
                """,
        }.items()
    }
)


def attacks() -> list[str]:
    """Return replies that attack the sandbox or the grader, one for each kind of attack."""
    return list(ATTACKS.values())
