"""Parser of canonical task texts, one statement per line, with fixed patterns.

The ``parser`` agent replies with the program for the parsed actions. The agent's score shows how
many queries pattern matching can solve. The patterns share no code with ``action``, which writes
the texts, so that the two modules check each other.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from netarena.sdk import Action
from netarena_malt.action import (
    Addition,
    Condition,
    Loop,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    act,
)

_TASK = "\n## Task\n"
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
_ANSWERS = MappingProxyType(
    {
        "graph": "both data and updated_graph are the changed network",
        "text": "data is the number of these nodes",
        "list": "data is a list of the names, each once, in any order",
        "table": "data is a list of rows [name, total port capacity in bps] in that order",
    }
)
_OF_QUESTION: Mapping[str, str] = MappingProxyType(
    {"count": "text", "list": "list", "rank": "table"}
)
#: Nouns in sentences about new nodes -> kind of node.
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


def task_of(prompt: str) -> str:
    """Return the task's text, which is the last part of a prompt."""
    return prompt.rpartition(_TASK)[2].strip()


def read(text: str) -> tuple[Action, ...]:
    """Return the actions that a canonical text describes. Raises ValueError, which quotes the
    unreadable part."""
    *lines, answer = text.split("\n")
    if not lines:
        raise ValueError(text)
    if lines[0] == "Do this in order, each step on the network as the step before left it.":
        lines = lines[1:]
        for number, place in enumerate([i for i, line in enumerate(lines) if line[:1] != " "], 1):
            if not lines[place].startswith(f"{number}. "):
                raise ValueError(lines[place])
            lines[place] = lines[place].removeprefix(f"{number}. ")
    actions = tuple(_block(lines, 0))
    _check_answer(actions, answer)
    return actions


def _check_answer(actions: tuple[Action, ...], answer: str) -> None:
    if not actions:
        raise ValueError(answer)
    kind = _OF_QUESTION.get(actions[-1].kind, "graph")
    expected = f"Answer with type {kind!r}: {_ANSWERS[kind]}"
    if kind != "graph":
        changed = any(action.kind not in _OF_QUESTION for action in actions)
        which = "the changed network" if changed else "the network as you got it"
        expected += f", updated_graph is {which}"
    if answer != f"{expected}.":
        raise ValueError(answer)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: list[str], depth: int) -> Iterator[Action]:
    place = 0
    while place < len(lines):
        line = lines[place]
        end = place + 1
        while end < len(lines) and _indent(lines[end]) > depth:
            end += 1
        if _indent(line) != depth:
            raise ValueError(line)
        yield _statement(line.strip(" "), lines[place + 1 : end], depth)
        place = end


def _statement(line: str, body: list[str], depth: int) -> Action:
    if head := _EACH.fullmatch(line):
        return act("each", _loop(head, body, depth + 2))
    if body:
        raise ValueError(line)
    for pattern, make in _STATEMENTS:
        if match := pattern.fullmatch(line):
            return make(match)
    if line.startswith("Add "):
        return act("add", Addition(nodes=tuple(_news(line))))
    raise ValueError(line)


def _loop(head: re.Match[str], body: list[str], depth: int) -> Loop:
    select, variable = _selection(head.groups()[:-1]), head.groups()[-1]
    if not body:
        raise ValueError(head[0])
    if not body[0].strip(" ").startswith("If "):
        return Loop(select=select, variable=variable, then=tuple(_block(body, depth)))
    heads = [i for i, line in enumerate(body) if _indent(line) == depth] + [len(body)]
    if len(heads) > 3 or (len(heads) == 3 and body[heads[1]].strip(" ") != "Otherwise:"):
        raise ValueError(body[heads[1]])
    branches = [tuple(_block(body[a + 1 : b], depth + 2)) for a, b in itertools.pairwise(heads)]
    return Loop(
        select=select,
        variable=variable,
        when=_condition(body[0].strip(" "), variable),
        then=branches[0],
        otherwise=branches[1] if len(branches) == 2 else (),
    )


def _condition(line: str, variable: str) -> Condition:
    name = re.escape(repr(variable))
    for pattern, make in _CONDITIONS:
        if match := re.fullmatch(f"If {pattern.replace('NAME', name)}:", line):
            return make(match)
    raise ValueError(line)


def _bound(comparison: str, number: str) -> dict[str, float]:
    return {comparison.replace(" ", "_"): float(number)}


_CONDITIONS: tuple[tuple[str, Callable[[re.Match[str]], Condition]], ...] = (
    (
        r"the name NAME ends with '([^']*)'",
        lambda m: Condition(measure="name", ends_with=m[1]),
    ),
    (
        rf"the stage in switch_loc of NAME is {_NUMBER}",
        lambda m: Condition(measure="stage", equals=float(m[1])),
    ),
    (
        (
            rf"the number of nodes of kind (\w+) that NAME contains directly is (at least|below) "
            rf"{_NUMBER}"
        ),
        lambda m: Condition(measure="children", kind=m[1], **_bound(m[2], m[3])),
    ),
    (
        rf"the {_MEASURE} of NAME is (at least|below) {_NUMBER} bps",
        lambda m: Condition(measure="capacity", **_bound(m[1], m[2])),
    ),
)


def _selection(groups: tuple[str | None, ...]) -> Selection:
    itself, kind, name, scope, low, high = groups
    if itself is not None:
        return Selection(name=itself)
    return Selection(
        name=name or "",
        scope="children" if scope == "directly" else "descendants",
        kind=kind,
        at_least_bps=None if low is None else float(low),
        below_bps=None if high is None else float(high),
    )


def _question(kind: str, match: re.Match[str]) -> Action:
    return act(kind, Question(select=_selection(match.groups())))


def _quoted(text: str) -> tuple[str, ...]:
    return tuple(re.findall(_NAME, text))


def _news(text: str) -> Iterator[NewNode]:
    place = 0
    while place < len(text):
        match = _ADD.match(text, place)
        if match is None:
            raise ValueError(text[place:])
        noun, _, names, told, parents = match.groups()
        kind = _NOUNS[noun]
        values: dict[str, Any] = {key: ast.literal_eval(v) for key, v in _VALUE.findall(told)}
        if values.pop("type", None) != _TYPES.get(kind, [kind]):
            raise ValueError(told)
        for name in _quoted(names):
            yield NewNode(name=name, kind=kind, attributes=values, parents=_quoted(parents or ""))
        place = match.end()


_STATEMENTS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Action]], ...] = (
    (
        re.compile(
            rf"Remove {_NAMES}, everything that (?:it|each of them) contains directly or through "
            r"other nodes, and every edge from or to a removed node\. Nothing else goes: a block, "
            r"rack or control domain that loses its last switch stays\."
        ),
        lambda m: act("remove", Removal(names=_quoted(m[1]))),
    ),
    (
        re.compile(rf"Set physical_capacity_bps to {_NUMBER} on {_SELECTION}\."),
        lambda m: act("update", Update(select=_selection(m.groups()[1:]), to_bps=float(m[1]))),
    ),
    (
        re.compile(rf"Multiply physical_capacity_bps by {_NUMBER} on {_SELECTION}\."),
        lambda m: act("update", Update(select=_selection(m.groups()[1:]), times=float(m[1]))),
    ),
    (re.compile(rf"Count {_SELECTION}\."), lambda m: _question("count", m)),
    (re.compile(rf"List the names of {_SELECTION}\."), lambda m: _question("list", m)),
    (
        re.compile(
            rf"Rank {_SELECTION} by {_MEASURE}, largest first; nodes of equal total by name, "
            r"ascending, as Python compares strings\."
        ),
        lambda m: _question("rank", m),
    ),
)
