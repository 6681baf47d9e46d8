"""Reads canonical texts: fixed sentences, one a line, loops indented."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.malt_reader.meaning import Do, Each, New, Select, When, attributes

_NAME = r"'([^']*)'"
_NAMES = r"('[^']*'(?:(?:, | and )'[^']*')*)"
_NUMBER = r"([0-9.e+]+)"
_MEASURE = (
    r"(?:physical_capacity_bps|total port capacity \(the sum of physical_capacity_bps over all "
    r"ports that a node contains, directly or through other nodes; of a port, its own "
    r"physical_capacity_bps\))"
)
_SELECTION = (
    rf"(?:the node {_NAME}|all nodes(?: of kind (\w+))? that {_NAME} contains (directly"
    rf"(?: or through other nodes)?)(?: and whose {_MEASURE} is (?:at least {_NUMBER})?(?: and )?"
    rf"(?:below {_NUMBER})? bps)?)"
)
_ANSWERS = {
    "graph": "both data and updated_graph are the changed network",
    "text": "data is the number of these nodes",
    "list": "data is a list of the names, each once, in any order",
    "table": "data is a list of rows [name, total port capacity in bps] in that order",
}
_OF_QUESTION = {"count": "text", "list": "list", "rank": "table"}
#: nouns of the sentences about new nodes -> kind
_NOUNS = {"port": "EK_PORT", "packet switch": "EK_PACKET_SWITCH"} | {
    noun: f"EK_{noun.upper().replace(' ', '_').replace('AGGREGATION', 'AGG')}"
    for noun in ("aggregation block", "superblock", "rack", "control domain")
}
_TYPES = {"EK_PACKET_SWITCH": ["EK_PACKET_SWITCH", "EK_CHASSIS", "EK_CONTROL_POINT"]}
_ADD = re.compile(
    rf"Add the ({'|'.join(_NOUNS)})(e?s)? {_NAMES}, (?:each )?with name \(its key\)(.*?)"
    rf"(?:, contained in {_NAMES} \(one RK_CONTAINS edge from [^)]*\))?"
    r"(?:, with one RK_CONTROLS edge from (?:it|each) to itself)?\.(?: |$)"
)
_VALUE = re.compile(r"(?:,| and) (\w+) (\[[^\]]*\]|\{[^}]*\}|[0-9.e+]+)")
_EACH = re.compile(
    rf"Go through {_SELECTION}, as they are when this step begins, in ascending order of their "
    r"names; (\$\d) stands for the name of the node whose turn it is:"
)


class Unreadable(Exception):
    """The text is not of the language."""


def read(text: str) -> tuple[Do, ...]:
    """The program of a canonical text. Raises Unreadable."""
    *lines, answer = text.split("\n")
    if lines[0] == "Do this in order, each step on the network as the step before left it.":
        lines = lines[1:]
        for number, place in enumerate([i for i, line in enumerate(lines) if line[0] != " "], 1):
            if not lines[place].startswith(f"{number}. "):
                raise Unreadable(lines[place])
            lines[place] = lines[place].removeprefix(f"{number}. ")
    program = tuple(_block(lines, 0))
    _check_answer(program, answer)
    return program


def _check_answer(program: tuple[Do, ...], answer: str) -> None:
    last = program[-1].kind
    kind = _OF_QUESTION.get(last, "graph")
    expected = f"Answer with type {kind!r}: {_ANSWERS[kind]}"
    if kind != "graph":
        changed = any(do.kind not in _OF_QUESTION for do in program)
        which = "the changed network" if changed else "the network as you got it"
        expected += f", updated_graph is {which}"
    if answer != f"{expected}.":
        raise Unreadable(answer)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: list[str], depth: int) -> Iterator[Do]:
    place = 0
    while place < len(lines):
        line = lines[place]
        end = place + 1
        while end < len(lines) and _indent(lines[end]) > depth:
            end += 1
        if _indent(line) != depth:
            raise Unreadable(line)
        yield _statement(line.strip(" "), lines[place + 1 : end], depth)
        place = end


def _statement(line: str, body: list[str], depth: int) -> Do:
    if head := _EACH.fullmatch(line):
        return Do("each", _loop(head, body, depth + 2))
    if body:
        raise Unreadable(line)
    for pattern, make in _STATEMENTS:
        if match := pattern.fullmatch(line):
            return make(match)
    if line.startswith("Add "):
        return Do("add", frozenset(_news(line)))
    raise Unreadable(line)


def _loop(head: re.Match[str], body: list[str], depth: int) -> Each:
    select, variable = _selection(head.groups()[:-1]), head.groups()[-1]
    if not body[0].strip(" ").startswith("If "):
        return Each(select, variable, None, tuple(_block(body, depth)), ())
    heads = [i for i, line in enumerate(body) if _indent(line) == depth] + [len(body)]
    if len(heads) == 3 and body[heads[1]].strip(" ") != "Otherwise:":
        raise Unreadable(body[heads[1]])
    branches = [tuple(_block(body[a + 1 : b], depth + 2)) for a, b in itertools.pairwise(heads)]
    when = _condition(body[0].strip(" "), variable)
    return Each(select, variable, when, branches[0], branches[1] if len(heads) == 3 else ())


def _condition(line: str, variable: str) -> When:
    name = re.escape(repr(variable))
    for pattern, make in _CONDITIONS:
        if match := re.fullmatch(f"If {pattern.replace('NAME', name)}:", line):
            return make(match)
    raise Unreadable(line)


_COMPARE = {"at least": "at_least", "below": "below"}
_CONDITIONS: tuple[tuple[str, Callable[[re.Match[str]], When]], ...] = (
    (r"the name NAME ends with '([^']*)'", lambda m: When("name", "ends_with", m[1])),
    (
        rf"the stage in switch_loc of NAME is {_NUMBER}",
        lambda m: When("stage", "equals", float(m[1])),
    ),
    (
        (
            rf"the number of nodes of kind (\w+) that NAME contains directly is (at least|below) "
            rf"{_NUMBER}"
        ),
        lambda m: When("children", _COMPARE[m[2]], float(m[3]), m[1]),
    ),
    (
        rf"the {_MEASURE} of NAME is (at least|below) {_NUMBER} bps",
        lambda m: When("capacity", _COMPARE[m[1]], float(m[2])),
    ),
)


def _selection(groups: tuple[str | None, ...]) -> Select:
    itself, kind, name, scope, low, high = groups
    if itself is not None:
        return Select(itself)
    assert name is not None
    return Select(
        name,
        "children" if scope == "directly" else "descendants",
        kind,
        None if low is None else float(low),
        None if high is None else float(high),
    )


def _quoted(text: str) -> list[str]:
    return re.findall(_NAME, text)


def _news(text: str) -> Iterator[New]:
    place = 0
    while place < len(text):
        match = _ADD.match(text, place)
        if match is None:
            raise Unreadable(text[place:])
        noun, _, names, told, parents = match.groups()
        kind = _NOUNS[noun]
        values: dict[str, Any] = {key: ast.literal_eval(v) for key, v in _VALUE.findall(told)}
        if values.pop("type") != _TYPES.get(kind, [kind]):
            raise Unreadable(told)
        for name in _quoted(names):
            yield New(name, kind, attributes(values), frozenset(_quoted(parents or "")))
        place = match.end()


_STATEMENTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Do]], ...] = (
    (
        re.compile(
            rf"Remove {_NAMES}, everything that (?:it|each of them) contains directly or through "
            r"other nodes, and every edge from or to a removed node\. Nothing else goes: a block, "
            r"rack or control domain that loses its last switch stays\."
        ),
        lambda m: Do("remove", frozenset(_quoted(m[1]))),
    ),
    (
        re.compile(rf"Set physical_capacity_bps to {_NUMBER} on {_SELECTION}\."),
        lambda m: Do("update", (_selection(m.groups()[1:]), "to_bps", float(m[1]))),
    ),
    (
        re.compile(rf"Multiply physical_capacity_bps by {_NUMBER} on {_SELECTION}\."),
        lambda m: Do("update", (_selection(m.groups()[1:]), "times", float(m[1]))),
    ),
    (
        re.compile(rf"Count {_SELECTION}\."),
        lambda m: Do("count", _selection(m.groups())),
    ),
    (
        re.compile(rf"List the names of {_SELECTION}\."),
        lambda m: Do("list", _selection(m.groups())),
    ),
    (
        re.compile(
            rf"Rank {_SELECTION} by {_MEASURE}, largest first; nodes of equal total by name, "
            r"ascending, as Python compares strings\."
        ),
        lambda m: Do("rank", _selection(m.groups())),
    ),
)
