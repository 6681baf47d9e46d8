"""Checks whether an answer is correct: data by value, graphs by their changes.

Each check returns a sentence that names the wrong node, edge, row or value, or "" if everything is
right. The sentences never contain the right value. ``right_number`` and ``right_value`` return
sentences with the right value, for records that may contain it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from netarena.sdk import JsonValue
from netarena_malt.network import Attributes, Changes, Edge, Network, arrow, equal, short

#: Permitted relative difference of numbers. Sums of the same capacities may differ slightly if the
#: order of addition differs.
RELATIVE_TOLERANCE = 1e-12


def wrong_graph(changes: Changes, initial: Network, target: Changes, where: str) -> str:
    """Return a sentence about the first wrong element of a graph, or "" if the graph is right.

    The graph is ``initial`` with ``changes``, and is compared with the target. ``where`` names the
    graph in the sentence.
    """
    outside = first_outside(changes, target)
    if changes.more and outside is not None:
        return (
            f"In {where}, {outside[1]} and many other elements were changed, which the task does "
            "not ask for."
        )
    if changes.more:
        return f"In {where}, many more elements were changed than the task asks for."
    for name, attributes in target.nodes.items():
        if name not in changes.nodes:
            return f"In {where}, node {name!r} {_undone(attributes, initial.node(name))}."
        if not equal(changes.nodes[name], attributes):
            return f"In {where}, node {name!r} {_differs(changes.nodes[name], attributes)}."
    for edge, edge_attributes in target.edges.items():
        if not equal(changes.edges.get(edge), edge_attributes):
            return f"In {where}, edge {arrow(edge)} is not as the task requires."
    if outside is not None:
        return f"In {where}, {outside[1]} was changed, which the task does not ask for."
    return ""


def first_outside(changes: Changes, target: Changes) -> tuple[str, str] | None:
    """Return the first element that is in ``changes`` but not in ``target``, or None.

    The result has the element's name, and a description that also states its kind.
    """
    for name in changes.nodes:
        if name not in target.nodes:
            return name, f"node {name!r}"
    for edge in changes.edges:
        if edge not in target.edges:
            return arrow(edge), f"edge {arrow(edge)}"
    return None


def _undone(target: Attributes | None, initial: Attributes | None) -> str:
    if target is None:
        return "should have been removed"
    return "is missing" if initial is None else "was not changed"


def _differs(found: Attributes | None, target: Attributes | None) -> str:
    if found is None:
        return "was removed"
    if target is None:
        return "should have been removed"
    wrong = [key for key in {**target, **found} if not _has_equal(found, target, key)]
    return f"has wrong, missing or unknown attributes: {', '.join(wrong[:5])}"


def _has_equal(found: Attributes, target: Attributes, key: str) -> bool:
    return key in found and key in target and equal(found[key], target[key])


def differences(
    found: Network, truth: Network, nodes: Iterable[str], edges: Iterable[Edge]
) -> Iterator[dict[str, JsonValue]]:
    """Yield the differences of the network ``found`` from the network ``truth`` in the given
    elements, nodes first.

    A difference is ``{"node": name, "answer": values, "truth": values}`` or ``{"edge": [source,
    target], ...}``. The values are the attributes that differ, or null if the network lacks the
    element. Edges of a node that only one of the networks has are not listed.
    """
    for name in nodes:
        one, other = found.node(name), truth.node(name)
        if not equal(one, other):
            yield {"node": name, "answer": _shown(one, other), "truth": _shown(other, one)}
    for edge in edges:
        one, other = found.edge(edge), truth.edge(edge)
        whole = all((found.node(end) is None) is (truth.node(end) is None) for end in edge)
        if whole and not equal(one, other):
            yield {"edge": list(edge), "answer": _shown(one, other), "truth": _shown(other, one)}


def _shown(attributes: Attributes | None, beside: Attributes | None) -> JsonValue:
    """Return the attributes that differ from ``beside``, with shortened values. Return None if
    ``attributes`` is None."""
    if attributes is None:
        return None
    return {
        short(key).strip("'"): _plain(value)
        for key, value in attributes.items()
        if beside is None or not (key in beside and equal(value, beside[key]))
    }


def _plain(value: Any) -> JsonValue:
    plain = value is None or isinstance(value, bool | int | float)
    return value if plain else short(value).strip("'")


def wrong_form(kind: str, data: JsonValue) -> str:
    """Return why ``data`` cannot be read as an answer of type ``kind`` (text, list or table), or ""
    if ``data`` is readable."""
    problem, fits = _FORMS[kind]
    return "" if fits(data) else problem


def wrong_data(kind: str, truth: JsonValue, data: JsonValue) -> str:
    """Return a sentence about the first difference of ``data`` from ``truth``, or "" if the data is
    right. The form of ``data`` must fit type ``kind``."""
    return _CHECKS[kind](truth, data)


def right_number(kind: str, truth: Any, data: JsonValue) -> str:
    """Return a sentence with the right number if a number in ``data`` is wrong, otherwise ""."""
    if kind == "text":
        return f"The right number is {truth}."
    if kind == "list":
        return (
            f"The right list has {len(truth)} names, and the list in data has "
            f"{len(cast('list[JsonValue]', data))}."
        )
    for number, row in enumerate(_without_header(data, truth), start=1):
        if number <= len(truth) and not (
            _agrees(row[0], truth[number - 1][0]) and _agrees(row[1], truth[number - 1][1])
        ):
            name, bps = truth[number - 1]
            return f"Row {number} must be {short(name)} with {bps!r}."
    return f"The right table has {len(truth)} rows."


def right_value(differences: Sequence[Any]) -> str:
    """Return a sentence with the right value of the first wrong number in ``differences``.

    ``differences`` are from the detail of a judgement. The sentence is empty if no number is wrong.
    """
    for entry in differences:
        answer, truth = entry.get("answer"), entry.get("truth")
        for key, value in (truth or {}).items() if answer else ():
            if "node" in entry and key in answer and isinstance(value, int | float):
                return f"{key} of {short(entry['node'])} is {answer[key]!r}, but must be {value!r}."
    return ""


#: Pattern of numbers as in JSON and most languages. Python's own parser would also accept digits of
#: other scripts, and underscores.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?<=[0-9])")
_INEXACT = re.compile(r"[.eE]")


def _value(data: JsonValue) -> tuple[str, Any]:
    r"""Return text or a number in a form for comparison: 15, "15", 15.0 and "15\n" are equal."""
    if isinstance(data, bool) or data is None:
        return "other", data
    if isinstance(data, int | float):
        return "number", data
    if isinstance(data, str):
        text = data.strip()
        if len(text) <= 40 and _NUMBER.fullmatch(text):
            return "number", float(text) if _INEXACT.search(text) else int(text)
        return "text", text
    return "other", repr(data)


def _name(data: JsonValue) -> tuple[str, Any]:
    """Return a name as (kind, value) for comparison. Names are compared as text, so that '1.1'
    differs from '1.10'."""
    return ("text", data.strip()) if isinstance(data, str) else _value(data)


def _agrees(data: JsonValue, truth: JsonValue) -> bool:
    if isinstance(truth, str):
        return _name(data) == _name(truth)
    kind, value = _value(data)
    true_kind, true_value = _value(truth)
    if kind == true_kind == "number":
        return math.isclose(value, true_value, rel_tol=RELATIVE_TOLERANCE)
    return (kind, value) == (true_kind, true_value)


def _wrong_text(truth: Any, data: JsonValue) -> str:
    return "" if _agrees(data, truth) else f"The data, {short(data)}, is not the right number."


def _wrong_list(truth: Any, data: Any) -> str:
    expected, found = Counter(map(_name, truth)), Counter(map(_name, data))
    for surplus in found - expected:
        if surplus in expected:
            return f"The list contains {short(surplus[1])} too often."
        return f"The list contains {short(surplus[1])}, which the task does not ask for."
    for missing in expected - found:
        return f"The list does not contain {short(missing[1])}."
    return ""


def _wrong_table(truth: Any, data: JsonValue) -> str:
    rows = _without_header(data, truth)
    for number, (row, expected) in enumerate(zip(rows, truth, strict=False), start=1):
        if not _agrees(row[0], expected[0]):
            return f"Row {number} names {short(row[0])}, which is not the node of this rank."
        if not _agrees(row[1], expected[1]):
            return f"Row {number} has a wrong value for {short(row[0])}: {short(row[1])}."
    if len(rows) > len(truth):
        return f"The table has a surplus row {len(truth) + 1}: {short(rows[len(truth)][0])}."
    if len(rows) < len(truth):
        return f"The table has no row for {short(truth[len(rows)][0])}."
    return ""


def _without_header(data: JsonValue, truth: Any) -> list[list[JsonValue]]:
    rows = _rows(data) or []
    headed = len(rows) == len(truth) + 1 and _is_header(rows[0], truth)
    return rows[1:] if headed else rows


#: Tests whether a cell of a row is the name, applied in this order. Names may consist of digits,
#: and numbers may be text.
_NAMELIKE: Sequence[Callable[[JsonValue], bool]] = (
    lambda cell: _value(cell)[0] == "text",
    lambda cell: isinstance(cell, str),
)


def _rows(data: JsonValue) -> list[list[JsonValue]] | None:
    """Return rows of two values from a list of pairs, a list of one-row objects, or one object.

    The keys of a row's object may be in any order. If one value is a string and the other is a
    number, the string is the name.
    """
    if isinstance(data, dict):
        return [[name, value] for name, value in data.items()]
    if not isinstance(data, list):
        return None
    rows: list[list[JsonValue]] = []
    for row in data:
        cells = list(row.values()) if isinstance(row, dict) else row
        if not isinstance(cells, list) or len(cells) != 2:
            return None
        if isinstance(row, dict) and any(
            [is_name(cell) for cell in cells] == [False, True] for is_name in _NAMELIKE
        ):
            cells.reverse()
        rows.append(cells)
    return rows


def _is_header(row: list[JsonValue], truth: Any) -> bool:
    return all(_value(cell)[0] == "text" for cell in row) and row[0] not in {
        name for name, _ in truth
    }


#: Type of the right answer -> the message for data that cannot be read, and a test whether the data
#: can be read.
_FORMS: Mapping[str, tuple[str, Callable[[JsonValue], bool]]] = {
    "text": (
        "The data is not a number.",
        lambda data: not (isinstance(data, dict | list) or data is None),
    ),
    "list": ("The data is not a list.", lambda data: isinstance(data, list)),
    "table": (
        "The data is not a list of rows [name, value].",
        lambda data: _rows(data) is not None,
    ),
}
#: Type of the right answer -> function that returns why data is wrong.
_CHECKS: Mapping[str, Callable[[Any, JsonValue], str]] = {
    "text": _wrong_text,
    "list": _wrong_list,
    "table": _wrong_table,
}
