"""An agent without language understanding, which learns sentence templates from texts and programs.

``Matcher.fit`` splits a text into sentences and replaces names, numbers and kinds with slots. For
each template it learns which value of the program comes from which slot. The indentation gives the
depth within loops. ``Matcher.solve`` fills the templates of a new text. It treats an unknown
sentence as the most similar known one. Published agents solve the reference's MALT in this way.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from netarena.model import Action, Query
from netarena_malt.query import execute, initial_graph
from tests.malt_reader.meaning import Do, Each, New, Select, When, meaning

#: operands of a sentence; the first alternative that matches counts
_OPERANDS = re.compile(
    r"(?P<literal>\[[^\]]*\]|\{[^}]*\})"
    r"|(?P<names>'[^']*'(?:(?:, | and )'[^']*')*)"
    r"|(?P<kind>\bEK_\w+)"
    r"|(?P<variable>\$\d)"
    r"|(?P<number>\b\d[\d.]*(?:e[+\d]+)?)"
)
#: minimum share of common words for two sentences to count as similar
_ALIKE = 0.3


class Slot(NamedTuple):
    """An operand of a sentence: its class, and its possible values as (use, value) pairs."""

    kind: str
    values: frozenset[tuple[str, Any]]

    def get(self, use: str) -> Any:
        """Return the operand's value for a use. Raises KeyError if it has none."""
        return dict(self.values)[use]


class Sentence(NamedTuple):
    template: str
    slots: tuple[Slot, ...]
    #: indentation of its line
    depth: int

    @property
    def words(self) -> frozenset[str]:
        return frozenset(re.findall(r"\w+|<\w+>", self.template.lower()))


class Group(NamedTuple):
    """New nodes that differ only in their names."""

    names: frozenset[str]
    kind: str
    attributes: tuple[Any, ...]
    parents: frozenset[str]


class Head(NamedTuple):
    """The head of a loop."""

    select: Select
    variable: str


class Otherwise(NamedTuple):
    """The start of the actions that a loop performs if its condition does not hold."""

    mark: str = "otherwise"


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a text."""
    for line in text.split("\n"):
        words = line.lstrip(" ")
        for part in re.split(r"(?<=\.) (?=[A-Z])", words):
            yield _sentence(part, len(line) - len(words))


def _sentence(text: str, depth: int) -> Sentence:
    slots: list[Slot] = []

    def take(match: re.Match[str]) -> str:
        kind, said = str(match.lastgroup), match[0]
        values: set[tuple[str, Any]] = set()
        if kind == "names":
            names = re.findall(r"'([^']*)'", said)
            values = {("names", frozenset(names)), *([("text", names[0])] * (len(names) == 1))}
        elif kind in {"kind", "variable"}:
            values = {("text", said)}
        elif kind == "number":
            with_value = re.fullmatch(r"\d+(?:\.\d+)?(?:e\+?\d+)?", said)
            values = {("float", float(said))} if with_value else set()
        elif said.startswith("{"):
            values = {("float", float(value)) for value in ast.literal_eval(said).values()}
        slots.append(Slot(kind, frozenset(values)))
        return f"<{kind}>"

    template = _OPERANDS.sub(take, re.sub(r"^\d+\. ", "", text))
    return Sentence(template, tuple(slots), depth)


# Meanings of sentences: parts of a program, split into a shape (structure) and leaves (values).


def _parts(program: Iterable[Do]) -> Iterator[Any]:
    for do in program:
        if do.kind == "each":
            loop: Each = do.what
            yield Head(loop.select, loop.variable)
            if loop.when is not None:
                yield loop.when
            yield from _parts(loop.then)
            if loop.otherwise:
                yield Otherwise()
                yield from _parts(loop.otherwise)
        elif do.kind == "add":
            groups: dict[tuple[Any, ...], set[str]] = defaultdict(set)
            for new in do.what:
                groups[new[1:]].add(new.name)
            yield from (Group(frozenset(names), *rest) for rest, names in groups.items())
        else:
            yield do


def _program(parts: list[tuple[int, Any]]) -> tuple[Do, ...]:
    """Return the program made of (depth, part) pairs; deeper parts after a loop belong to it."""
    program: list[Do] = []
    place = 0
    while place < len(parts):
        depth, part = parts[place]
        place += 1
        if isinstance(part, Head):
            end = place
            while end < len(parts) and parts[end][0] > depth:
                end += 1
            program.append(Do("each", _loop(part, parts[place:end])))
            place = end
        elif isinstance(part, Group):
            news = frozenset(New(name, *part[1:]) for name in part.names)
            if program and program[-1].kind == "add":
                news |= program.pop().what
            program.append(Do("add", news))
        elif isinstance(part, Do):
            program.append(part)
    return tuple(program)


def _loop(head: Head, parts: list[tuple[int, Any]]) -> Each:
    if not parts or not isinstance(parts[0][1], When):
        return Each(*head, None, _program(parts), ())
    (depth, when), *rest = parts
    marks = [
        place
        for place, (deep, part) in enumerate(rest)
        if deep == depth and isinstance(part, Otherwise)
    ]
    end = marks[0] if marks else len(rest)
    return Each(*head, when, _program(rest[:end]), _program(rest[end:]))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values within a part, in order, without the tuples and ``Do`` that contain them."""
    if isinstance(value, Do):
        yield value.kind
        yield from _leaves(value.what)
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """Return ``value`` with its leaves replaced by ``leaves``, in the order of ``_leaves``."""
    if isinstance(value, Do):
        return Do(next(leaves), _rebuilt(value.what, leaves))
    if isinstance(value, tuple):
        items = [_rebuilt(item, leaves) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return next(leaves)


def _shape(value: Any) -> str:
    return repr(_rebuilt(value, iter(lambda: "_", None)))


#: source of a leaf: (index of a slot, use of its value), or ("always", constant)
Source = tuple[Any, ...]


def _sources(leaf: Any, slots: tuple[Slot, ...]) -> frozenset[Source]:
    found: set[Source] = {("always", leaf)}
    if isinstance(leaf, frozenset):
        leaf_values = [("names", leaf)]
    else:
        leaf_values = [("text" if isinstance(leaf, str) else "float", leaf)]
    for place, slot in enumerate(slots):
        found |= {(place, use) for use, value in leaf_values if (use, value) in slot.values}
    return frozenset(found)


class Lesson:
    """The meanings of one template in the texts read so far."""

    def __init__(self) -> None:
        #: three mappings from the shapes of a sentence's parts: to the number of occurrences, to an
        #: example, and to the possible sources of its leaves
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.examples: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self.sources: dict[tuple[str, ...], list[frozenset[Source]]] = {}

    def add(self, parts: tuple[Any, ...], slots: tuple[Slot, ...]) -> None:
        shape = tuple(map(_shape, parts))
        found = [_sources(leaf, slots) for part in parts for leaf in _leaves(part)]
        known = self.sources.get(shape)
        if known is not None:
            found = [old & new or new for old, new in zip(known, found, strict=True)]
        self.seen[shape] += 1
        self.examples[shape] = parts
        self.sources[shape] = found

    def fill(self, slots: tuple[Slot, ...]) -> list[Any]:
        """Return the program's parts for these slots. Raises KeyError if a slot lacks a value."""
        ((shape, _),) = self.seen.most_common(1)
        leaves = []
        for sources in self.sources[shape]:
            # prefer slots over constants, and the first of several slots
            place, what = min(sources, key=lambda source: (source[0] == "always", str(source)))
            leaves.append(what if place == "always" else slots[place].get(what))
        rest = iter(leaves)
        return [_rebuilt(part, rest) for part in self.examples[shape]]


class Matcher:
    """Learns templates and fills them, as the module's docstring describes."""

    def __init__(self) -> None:
        self.lessons: dict[str, Lesson] = {}
        self._examples: dict[str, Sentence] = {}

    def fit(self, queries: Iterable[Query]) -> None:
        """Learn from queries with their programs."""
        for query in queries:
            told = list(sentences(query.text))
            stands_for = _aligned(told, _in_order(query.text, _parts(meaning(query.actions))))
            for sentence, parts in zip(told, stands_for, strict=True):
                self.lessons.setdefault(sentence.template, Lesson()).add(
                    tuple(parts), sentence.slots
                )
                self._examples.setdefault(sentence.template, sentence)

    def solve(self, text: str) -> tuple[Do, ...]:
        """Return the program that the text seems to ask for."""
        parts: list[tuple[int, Any]] = []
        for sentence in sentences(text):
            lesson, slots = self._find(sentence)
            try:
                found = lesson.fill(slots) if lesson is not None else []
                parts += [(sentence.depth, part) for part in found]
            except KeyError:
                continue
        return _program(parts)

    def _find(self, sentence: Sentence) -> tuple[Lesson | None, tuple[Slot, ...]]:
        if lesson := self.lessons.get(sentence.template):
            return lesson, sentence.slots
        words = sentence.words

        def alike(other: Sentence) -> float:
            both = other.words
            return len(words & both) / len(words | both)

        nearest = max(self._examples.values(), key=lambda other: (alike(other), other.template))
        slots = _arranged(sentence.slots, nearest.slots)
        if alike(nearest) < _ALIKE or slots is None:
            return None, ()
        return self.lessons[nearest.template], slots


def _arranged(slots: tuple[Slot, ...], like: tuple[Slot, ...]) -> tuple[Slot, ...] | None:
    """Return slots whose classes are in the order of ``like``; None if a class has too few."""
    piles: dict[str, list[Slot]] = defaultdict(list)
    for slot in slots:
        piles[slot.kind].append(slot)
    arranged = []
    for slot in like:
        if not piles[slot.kind]:
            return None
        arranged.append(piles[slot.kind].pop(0))
    return tuple(arranged)


def _in_order(text: str, parts: Iterable[Any]) -> list[Any]:
    """Return the parts with each run of new nodes sorted by their first mention in the text."""
    ordered: list[Any] = []
    for is_new, run in groupby(parts, key=lambda part: isinstance(part, Group)):
        found = list(run)
        if is_new:
            found.sort(key=lambda new: min(text.find(repr(name)) for name in new.names))
        ordered += found
    return ordered


def _aligned(told: list[Sentence], parts: list[Any]) -> list[list[Any]]:
    """Match sentences and parts in order, with the highest total likeness.

    Returns a list for each sentence, which contains its part or is empty.
    """
    # best[i][j]: score of the first i sentences with the first j parts, and whether sentence i has
    # part j
    best: list[list[tuple[float, bool]]] = [[(0.0, False)] + [(-1e9, False)] * len(parts)]
    for sentence in told:
        above = best[-1]
        row = [above[0]]
        for number, part in enumerate(parts):
            alone = above[number + 1][0]
            both = above[number][0] + _likeness(sentence, part)
            row.append((both, True) if both > alone else (alone, False))
        best.append(row)
    found: list[list[Any]] = [[] for _ in told]
    number = len(parts)
    for place in range(len(told), 0, -1):
        if best[place][number][1]:
            number -= 1
            found[place - 1].append(parts[number])
    return found


def _likeness(sentence: Sentence, part: Any) -> float:
    """Return the share of a part's values for which the sentence has slots."""
    leaves = [leaf for leaf in _leaves(part) if leaf is not None]
    return sum(len(_sources(leaf, sentence.slots)) > 1 for leaf in leaves) / len(leaves)


# Grading.


def _as_actions(program: Iterable[Do]) -> list[Action]:
    return [Action.model_validate(_as_json(do)) for do in program]


def _as_json(do: Do) -> dict[str, Any]:
    what = do.what
    if do.kind == "add":
        parameters: dict[str, Any] = {"nodes": [_new_json(new) for new in _parents_first(what)]}
    elif do.kind == "remove":
        parameters = {"names": sorted(what)}
    elif do.kind == "update":
        parameters = {"select": _select_json(what[0]), what[1]: what[2]}
    elif do.kind == "each":
        parameters = _loop_json(what)
    else:
        parameters = {"select": _select_json(what)}
    return {"kind": do.kind, "parameters": parameters}


def _loop_json(loop: Each) -> dict[str, Any]:
    return {
        "select": _select_json(loop.select),
        "variable": loop.variable,
        "when": None if loop.when is None else _when_json(loop.when),
        "then": [_as_json(do) for do in loop.then],
        "otherwise": [_as_json(do) for do in loop.otherwise],
    }


def _when_json(when: When) -> dict[str, Any]:
    return {"measure": when.measure, "kind": when.kind, when.comparison: when.value}


def _select_json(select: Select) -> dict[str, Any]:
    return {
        "name": select.name,
        "scope": select.scope,
        "kind": select.kind,
        "at_least_bps": select.at_least,
        "below_bps": select.below,
    }


def _parents_first(news: frozenset[New]) -> list[New]:
    return sorted(news, key=lambda new: (len(new.parents & {n.name for n in news}), new.name))


def _new_json(new: New) -> dict[str, Any]:
    values: Mapping[str, Any] = {
        key: dict(value) if isinstance(value, tuple) else value for key, value in new.attributes
    }
    return {
        "name": new.name,
        "kind": new.kind,
        "attributes": values,
        "parents": sorted(new.parents),
    }


def is_right(query: Query, program: tuple[Do, ...]) -> bool:
    """Return whether the program gives the same data and network as the query's own program."""
    if program == meaning(query.actions):
        return True
    try:
        actions = _as_actions(program)
        graph = initial_graph(query)
        found = execute(graph, actions)
    except Exception:  # noqa: BLE001 -- misread programs may raise anything
        return False
    wanted_graph = initial_graph(query)
    wanted = execute(wanted_graph, query.actions)
    return (
        found.type == wanted.type
        and found.data == wanted.data
        and dict(graph.nodes(data=True)) == dict(wanted_graph.nodes(data=True))
        and _edges(graph) == _edges(wanted_graph)
    )


def _edges(graph: Any) -> dict[Any, Any]:
    return {(source, target): edge for source, target, edge in graph.edges(data=True)}
