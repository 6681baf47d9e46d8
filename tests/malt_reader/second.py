"""A second reader of worded texts, which attaches phrases and pronouns in every possible way.

The first reader follows the grammar of descriptions. This one does not use the grammar's
productions for descriptions. To this reader, a noun phrase is a head and any number of tails ('in
...', 'that holds ...', 'by name'). Each tail may belong to any earlier noun phrase. The phrase
means the nodes that fit all of its tails. 'it' is any node of its noun phrase; 'that switch' is any
switch that the text has mentioned, including those in lists and loops. Each step is read on the
initial network and on the network at the time of the step.

``SecondReader.read_on`` returns every program that results; a good text has exactly one.
``objections`` also returns problems that programs do not show: unsuitable words, and descriptions
that refer back to their own node or contain its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import networkx as nx

from netarena.model import Query
from netarena_malt.query import execute, initial_graph
from tests.malt_reader.meaning import Do, meaning
from tests.malt_reader.parser import Node, Reading, Readings
from tests.malt_reader.varied import GRAMMAR, Reader, Unreadable, _bps, _Meaning, _whole

_GRAMMAR = json.loads(GRAMMAR.read_text(encoding="utf-8"))
#: noun -> kind
_NOUNS = {
    noun.lower(): symbol.rpartition(".")[0]
    for symbol, entry in _GRAMMAR.items()
    if symbol.startswith("EK_")
    for noun in entry["productions"]
}
_NOUN = "|".join(sorted(map(re.escape, _NOUNS), key=len, reverse=True))
_UNIT = (
    "eleventh|twelfth|thirteenth|fourteenth|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|"
    "tenth|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth"
)
_TEN = "twent|thirt|fort|fift|sixt|sevent|eight|ninet"
_HUNDRED = "(?:one|two|three|four|five|six|seven|eight|nine) hundred"
_ORD = (
    rf"\d+(?:st|nd|rd|th)|last|{_HUNDRED}th"
    rf"|(?:{_HUNDRED} and )?(?:(?:{_TEN})y-(?:{_UNIT})|(?:{_TEN})ieth|{_UNIT})"
)
_SIZE = "largest|biggest|fastest|highest-capacity|smallest|slowest|lowest-capacity"
_MEASURE = "|".join(
    sorted(
        (
            words
            for symbol in ("measure.port", "total")
            for words in _GRAMMAR[symbol]["productions"]
        ),
        key=len,
        reverse=True,
    )
)
_SLOTS = {
    "measure": rf"(?:{_MEASURE})\b",
    "parent": rf"(?:{_NOUN})\b",
    "within": rf"(?:in|within) the (?:same )?(?:{_NOUN})\b",
    "noun": rf"(?P<noun>{_NOUN})\b",
    "ord": rf"(?P<ord>{_ORD})\b",
    "size": rf"(?:(?P<place>{_ORD}) )?(?P<size>{_SIZE})\b",
    "name": r"'(?P<name>[^']*)'",
}


def _compiled(words: str) -> re.Pattern[str]:
    text = re.sub(r"\{(\w+)\}", lambda match: _SLOTS[match[1]], words.replace(" ", r"[ ]"))
    return re.compile(text)


#: ways to begin a noun phrase, by the meaning of its head
_HEADS = {
    "named": [
        "{name}",
        "{noun} {name}",
        "the {noun} (?:named |with the name |that goes by the name )?{name}",
    ],
    "again": [
        "(?:that|the same|the said|the aforesaid) {noun}",
        "the {noun} mentioned (?:before|above|earlier)",
    ],
    "turn": [
        "(?:this|the current) {noun}",
        "the {noun} (?:at hand|that has its turn|under consideration|whose turn it is)",
        "the {noun} (?:being processed|in question)",
    ],
    "only": [
        "the (?:whole|entire) {noun}",
        "the {noun} at the top of the model",
        "the one and only {noun}",
        "the one {noun} there is",
        "the single {noun} of the model",
        "the only {noun} in existence",
        "(?:the (?:only|one|single)|whichever) {noun}",
    ],
    "bare": ["the (?:enclosing )?{noun}"],
    "place": ["the {ord} {noun}"],
    "by_name": ["the {ord} by name of (?:the|all) {noun}"],
    "size": ["the {size} {noun}(?: by {measure}| \\(by {measure}\\))?", "the {size} of the {noun}"],
    "sibling": ["the (?:only |one )?sibling(?: {noun})?", "the (?:only|one) other {noun}"],
    "next": ["the next sibling(?: {noun})? (?:by name|in name order)", "the next {noun}"],
    "root": ["the root of the network"],
}
#: possible tails: words, with '...' for a noun phrase, by their effect
_TAILS = {
    "holder": [
        "that (?:holds|contains|includes) ...",
        "(?:around|houses|containing|holding) ...",
        "in which ... is found",
        "to which ... belongs",
        "of which ... is a part",
        "that ... is part of",
        "has ... in it",
    ],
    "of": ["of ..."],
    "inside": [
        "(?:in|within|inside|found in|among those in) ...",
        "(?:in all of|of all in) ...",
        "among the {noun} in ...",
    ],
    "all": [
        "(?:in|of) the (?:entire |whole )?(?:model|network)",
        "among all {noun}",
        "(?:of all )?there are",
    ],
    "by_name": [
        "that (?:stands|comes) {ord} (?:in name order|by name)",
        "at the {ord} place in name order",
        "by name comes {ord}",
        "that is {ord} in name order",
    ],
    "in_order": ["in name order", "by name", r"\(in name order\)", r"\(by name\)"],
    "size": [
        "(?:that )?is the {size}",
        "that comes out as the {size}",
        "with the {size} {measure}",
    ],
    "that_has": ["that ... has"],
    "sorted": ["is {ord} when the {noun} in ... are sorted by name"],
    "capacity": [
        "(?:of|with a capacity of|that has|that has a capacity of|that carries) <capacity>"
    ],
    "most_ports": [
        "that has the most ports(?: of all)?",
        "with the most ports",
        "that has more ports than any other",
        "with the largest number of ports",
        "has more ports than all others",
    ],
    "next": [
        "after ...",
        "that in name order follows its sibling ...",
        "by name succeeds its sibling ...",
        "whose name comes right after that of ...",
        "that follows its sibling ...",
        "that directly follows ... in name order {within}",
        "(?:immediately |right )?after ... in name order {within}",
        "that directly follows ...",
        "(?:immediately|right) after ...",
    ],
    "previous": [
        "that (?:in name order|by name) (?:precedes its sibling|comes just before) ...",
        "by name immediately precedes its sibling ...",
        "whose name comes right before that of ...",
        "that precedes its sibling ...",
        "that directly precedes ... in name order {within}",
        "(?:immediately|right) before ... in name order {within}",
        "that directly precedes ...",
        "(?:immediately|right) before ...",
    ],
    "comes_next": ["that comes next by name"],
    "before_it": ["that comes just before it by name"],
    "sibling": [
        "that is the (?:one|only) sibling of ...",
        "beside its sibling ...",
        "in the same {parent} as ...",
    ],
}
_MOST_TAILS = 3
_MOST_DEEP = 5


@cache
def _heads() -> list[tuple[str, re.Pattern[str]]]:
    return [(what, _compiled(words)) for what, forms in _HEADS.items() for words in forms]


@cache
def _tails() -> list[tuple[str, re.Pattern[str], bool, re.Pattern[str], bool]]:
    found = []
    for what, forms in _TAILS.items():
        for words in forms:
            capacity = words.endswith("<capacity>")
            before, dots, after = words.removesuffix("<capacity>").partition("...")
            # the pattern includes the space before the words
            pattern = _compiled(f" {before}")
            found.append((what, pattern, bool(dots), _compiled(after), capacity))
    return found


def _words(match: re.Match[str], name: str | None) -> tuple[tuple[str, Any], ...]:
    values = {key: value for key, value in match.groupdict().items() if value is not None}
    if name is not None:
        values["name"] = name
    return tuple(sorted(values.items()))


def noun_phrases(reading: Reading, start: int, deep: int = 0) -> Readings:
    """Return all noun phrases from a start, with each way to attach their tails."""
    if deep == 0:
        return _phrases(reading, start, 0)
    key = f"noun phrase {deep}", start
    if key not in reading._operands:  # this cache is separate from that of the first reader
        reading._operands[key] = _phrases(reading, start, deep)
    return reading._operands[key]


def _phrases(reading: Reading, start: int, deep: int) -> Readings:
    found: Readings = []
    for what, pattern in _heads():
        if match := pattern.match(reading.lower, start):
            name = None
            if "name" in pattern.groupindex:
                name = reading.text[match.start("name") : match.end("name")]
            head = (what, _words(match, name))
            if what in {"named", "again", "turn", "root"}:
                ends: list[tuple[int, tuple[Any, ...]]] = [(match.end(), ())]
            else:
                ends = list(_with_tails(reading, match.end(), deep, _MOST_TAILS))
            for end, tails in ends:
                parts = [part for tail in tails for part in tail[2:] if isinstance(part, Node)]
                operands = (("head", head), ("tails", tails), ("parts", tuple(parts)))
                found.append((end, Node("ref.loose", operands, start)))
    return found


def _with_tails(
    reading: Reading, start: int, deep: int, left: int
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    yield start, ()
    if not left:
        return
    for what, pattern, has_phrase, after, has_capacity in _tails():
        match = pattern.match(reading.lower, start)
        if match is None:
            continue
        said = (what, _words(match, None))
        ends: list[tuple[int, tuple[Any, ...]]] = []
        if has_phrase and deep < _MOST_DEEP:
            for end, phrase in noun_phrases(reading, match.end(), deep + 1):
                if rest := after.match(reading.lower, end):
                    ends.append((rest.end(), (*said, phrase)))
        elif has_capacity:
            ends = [(end, (*said, node)) for end, node in reading.symbol("capacity", match.end())]
        elif what == "before_it":
            ends = [(match.end(), (*said, number)) for number in range(_MOST_DEEP)]
        elif not has_phrase:
            ends = [(match.end(), said)]
        for end, tail in ends:
            for last, tails in _with_tails(reading, end, deep, left - 1):
                yield last, (tail, *tails)


@dataclass
class _Fit:
    """The conditions of a noun phrase on its node; all of them must hold."""

    what: str
    told: dict[str, Any]
    kind: str | None
    select: list[Callable[[list[str]], list[str]]] = field(default_factory=list)
    inside: list[list[str]] = field(default_factory=list)
    #: position relative to another node: after (1), before (-1), or any sibling (None)
    beside: list[tuple[int | None, str | None]] = field(default_factory=list)
    #: the node whose sibling is described
    anchor: str | None = None
    in_order: bool = False


@dataclass
class _Loose(_Meaning):
    """The meaning of one parse in which descriptions are noun phrases."""

    #: for each step, the network on which its descriptions are resolved
    graphs: Sequence[nx.DiGraph[str]] = ()
    #: nodes that a phrase mentions: its own node, then those of its parts
    spoken: dict[Node, list[str]] = field(default_factory=dict)
    blemishes: set[str] = field(default_factory=set)
    totals: dict[tuple[int, str], float] = field(default_factory=dict)

    def look_up(self, value: Any) -> None:
        if isinstance(value, Node) and value.symbol.startswith("text."):
            self.look_up_text(value)
            return
        super().look_up(value)
        if isinstance(value, Node) and re.match(r"namings?\.", value.symbol):
            # 'that port' might mean each of these ports
            names = {f"{value.start} {name}" for name in value["name"]["names"]}
            self.mentioned.setdefault("EK_PORT", set()).update(names)

    def look_up_text(self, text: Node) -> None:
        steps = [text[key] for key in ("task", "first", "second") if text[key] is not None]
        if text["steps"] is not None:
            steps = [step["step"] for step in text["steps"]["items"]]
        parts = [(step, graph) for step, graph in zip(steps, self.graphs, strict=True)]
        if text["context"] is not None:
            parts.append((text["context"], self.graphs[0]))
        for part, graph in sorted(parts, key=lambda item: item[0].start):
            self.graph = graph
            self.look_up(part)
        self.graph = self.graphs[0]

    def look_up_loop(self, loop: Node) -> None:
        super().look_up_loop(loop)
        # a loop has several nodes, so a later 'that switch' may mean any of them
        kind = _kind_of(loop["what"] or loop["kind"])
        self.mentioned.setdefault(kind, set()).update({f"{loop.start} a", f"{loop.start} b"})

    # Noun phrases.

    def resolve(self, node: Node) -> str:
        names = self.means(node)
        if len(names) != 1:
            raise Unreadable(f"{len(names)} nodes")
        (name,) = names
        if " " in name:
            raise Unreadable("told in a list")
        inner = [other for part in node["parts"] for other in self.spoken.get(part, ())]
        if name in inner:
            self.blemishes.add(f"a description that leads back to {name}")
        elif any(name in quoted for quoted in _quoted_in(node["parts"])):
            self.blemishes.add(f"a description that says {name}")
        self.spoken[node] = [name, *inner]
        return name

    def means(self, node: Node) -> list[str]:
        what, words = node["head"]
        told = dict(words)
        kind = _NOUNS.get(told.get("noun", ""))
        if what == "named":
            name = told["name"]
            if name not in self.graph and name not in self.new:
                self.believe(name, kind)
            return [name] if kind in {None, self.kind(name)} else []
        if what == "again":
            return sorted(self.mentioned.get(str(kind), ()))
        if what == "turn":
            return [variable for of, variable in self.turns if of == kind][-1:]
        if what == "root":
            # all nodes without parents, which include racks and control domains
            return [name for name in self.graph if not self.parents(name)]
        if what == "bare" and not node["tails"]:
            return self.of_kind(kind)
        return self.described(what, told, kind, node)

    def of_kind(self, kind: str | None) -> list[str]:
        return [name for name in self.graph if self.kind(name) == kind]

    def described(self, what: str, told: dict[str, Any], kind: str | None, node: Node) -> list[str]:
        """Return the nodes that fit all tails of a phrase."""
        fit = _Fit(what, told, kind)
        if what in {"by_name", "size"}:
            fit.select.append(_nth(told["ord"]) if what == "by_name" else self.by_total(told))
        for verb, words, *parts in node["tails"]:
            said = dict(words)
            phrase = parts and isinstance(parts[0], Node) and parts[0].symbol == "ref.loose"
            other = self.names[parts[0]] if phrase else None
            if verb == "before_it":
                fit.beside.append((-1, self.it(node, parts[0])))
            elif verb == "capacity":
                bps = _bps(parts[0])
                fit.inside.append([n for n in self.of_kind(kind) if self.port_bps(n) == bps])
            elif other is not None:
                self.lean(fit, verb, said, other)
            elif verb == "comes_next":
                fit.beside.append((1, None))
            elif verb == "in_order":
                fit.in_order = True
            elif verb in {"by_name", "size"}:
                fit.select.append(_nth(said["ord"]) if verb == "by_name" else self.by_total(said))
            elif verb == "most_ports":
                fit.select.append(self.with_most_ports)
        return self.fitting(fit)

    def lean(self, fit: _Fit, verb: str, said: dict[str, Any], other: str) -> None:
        """Add the condition of a tail whose noun phrase means the node ``other``."""
        if verb == "of" and fit.what in {"sibling", "next"}:
            fit.anchor = other
        elif verb in {"next", "previous", "sibling"}:
            fit.beside.append(({"next": 1, "previous": -1}.get(verb), other))
        elif verb in {"holder", "that_has"} or (verb == "of" and self.holds(fit.kind, other)):
            fit.inside.append(self.above(other))
        else:
            fit.inside.append(self.below(other))
        if verb == "sorted":
            fit.select.append(_nth(said["ord"]))

    def fitting(self, fit: _Fit) -> list[str]:
        if fit.what == "place":
            if not fit.in_order:
                raise Unreadable("a place in no order")
            fit.select.append(_nth(fit.told["ord"]))
        names = self.of_kind(fit.kind)
        if fit.what in {"sibling", "next"} or fit.beside:
            ways = fit.beside or [(1 if fit.what == "next" else None, fit.anchor)]
            names = list(self.graph)
            for way, one in ways:
                row = self.beside_one(fit.anchor or one, one or fit.anchor, fit.kind, way)
                fit.inside.append(row)
        for few in fit.inside:
            there = set(few)
            names = [name for name in names if name in there]
        if len(fit.select) > 1:
            raise Unreadable("two orders")
        return fit.select[0](names) if fit.select else names

    def beside_one(
        self, of: str | None, beside: str | None, kind: str | None, way: int | None
    ) -> list[str]:
        """Return siblings of ``of``: the one before or after ``beside``, or all others."""
        row = [] if of is None else self.siblings(of)
        if of is None or beside not in row or kind not in {None, self.kind(of)}:
            raise Unreadable("no sibling")
        if way is None:
            return [name for name in row if name != of]
        place = row.index(beside) + way
        return row[place : place + 1] if place >= 0 else []

    def it(self, node: Node, number: int) -> str:
        """Return the ``number``-th node that the phrase has mentioned so far."""
        spoken = [name for part in node["parts"] for name in self.spoken.get(part, ())]
        if number >= len(dict.fromkeys(spoken)):
            raise Unreadable("no such node")
        return list(dict.fromkeys(spoken))[number]

    def holds(self, kind: str | None, other: str | None) -> bool:
        """Return whether a node of ``kind`` is above ``other``."""
        return other is not None and any(self.kind(name) == kind for name in self.above(other))

    def above(self, name: str) -> list[str]:
        found: list[str] = []
        level = [name]
        while level:
            level = [outer for inner in level for outer in self.parents(inner)]
            found += level
        return found

    def total(self, name: str) -> float:
        key = id(self.graph), name
        if key not in self.totals:
            self.totals[key] = super().total(name)
        return self.totals[key]

    def port_bps(self, name: str) -> Any:
        return self.graph.nodes[name].get("physical_capacity_bps")

    def by_total(self, said: dict[str, Any]) -> Callable[[list[str]], list[str]]:
        sign = 1 if said["size"] in {"smallest", "slowest", "lowest-capacity"} else -1
        place = _place(said.get("place", "first"))
        return lambda names: _at(
            [name for _, name in sorted((sign * self.total(name), name) for name in names)], place
        )

    def with_most_ports(self, names: list[str]) -> list[str]:
        numbers = {name: len(self.within(name, "EK_PORT")) for name in names}
        most = max(numbers.values(), default=0)
        return [name for name in names if numbers[name] == most]


def _place(said: str) -> int:
    if said == "last":
        return -1
    return (int(said[:-2]) if said[0].isdigit() else _whole(said)) - 1


def _nth(said: str) -> Callable[[list[str]], list[str]]:
    place = _place(said)
    return lambda names: _at(sorted(names), place)


def _at(names: list[str], place: int) -> list[str]:
    return [names[place]] if -len(names) <= place < len(names) else []


def _kind_of(noun: Node) -> str:
    return noun.symbol.rpartition(".")[0]


def _quoted_in(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Node) and part.symbol == "ref.loose":
            yield from (value for key, value in part["head"][1] if key == "name")
            yield from _quoted_in(part["parts"])


class SecondReader(Reader):
    """Reads texts of the published grammar, but with free attachment in descriptions."""

    _REFERENCES = (
        "where inner outer anchor switch rack domain peer superblock subject other single reference"
    )

    def __init__(self) -> None:
        super().__init__()
        rules = self.language.rules
        new_block, selected = (
            lambda reading, start: reading.symbol("new_block", start),
            lambda reading, start: reading.symbol("selected", start),
        )
        rules |= dict.fromkeys(self._REFERENCES.split(), noun_phrases)
        rules["block"] = lambda r, start: [*noun_phrases(r, start), *new_block(r, start)]
        rules["target"] = lambda r, start: [*noun_phrases(r, start), *selected(r, start)]

    def read_on(
        self, text: str, graphs: Sequence[nx.DiGraph[str]]
    ) -> dict[tuple[Do, ...], set[str]]:
        """Return every possible program of ``text``, with the problems of its descriptions.

        ``graphs`` has the network before each step.
        """
        found: dict[tuple[Do, ...], set[str]] = {}
        totals: dict[tuple[int, str], float] = {}
        for tree in self.language.read(text, ("text.one", "text.two", "text.many")):
            for read_on in ([graphs[0]] * len(graphs), graphs):
                meant = _Loose(graphs[0], graphs=read_on, totals=totals)
                try:
                    program = meant.program(tree)
                except (Unreadable, KeyError):  # KeyError: the node does not exist yet
                    continue
                found.setdefault(program, set()).update(meant.blemishes)
        return found


# Words.

_UNIT_END = r"(?:bps|bit/s|gb/s|per second|capacity|capacity_bps|upwards|reach|total|together)"
_PLACE = (
    r"(?:directly|one level|on the level|among the|immediately|anywhere|at any|at every|"
    r"on whatever|with .{1,80} as a parent|however deep|no deeper|right underneath)"
)
#: pattern of unsuitable words -> description of the problem
_JARS = {
    r"\b([a-z]+) \1\b": "a word twice",
    r"(?<!-)(?<!and )\b(?:one|1) (?:giga|mega)bits\b": "one of several",
    rf"\b(?:{_NOUN})\b(?<!s) that (?:go|carry|are|have)\b": "one node in the plural",
    r"in name order in name order|by name(?: \S+){0,1} by name": "an order twice",
    rf"{_UNIT_END} {_PLACE}": "a place that may belong to an amount",
    r"(?<!as )(?<!that )(?<!rumour has )(?<!got )\bit\b": "it",
    r"\bits (?!sibling|turn|data|updated_graph|switch followed|total port|final|original)": "its",
    r"\bif so\b|\bif not\b|\bif it is so\b|\bfailing that\b": "so or not so",
    r"\bwhat is (?:named|missing)\b": "what is named",
    r"\bthe (?:ports?|interfaces?) of [^.,:;]* with the (?:full |short )?names? '": (
        "a name that may be another's"
    ),
}


def jarring(text: str) -> list[str]:
    """Return the unsuitable or ambiguous words of a text, whatever its program."""
    lower = text.lower()
    return [told for pattern, told in _JARS.items() if re.search(pattern, lower)]


def networks(query: Query) -> list[nx.DiGraph[str]]:
    """Return the network before each step of a query, with the effects of the correct program."""
    found = [initial_graph(query)]
    for number in range(1, len(query.actions)):
        graph = initial_graph(query)
        execute(graph, query.actions[:number])
        found.append(graph)
    return found


def objections(reader: SecondReader, query: Query) -> list[str]:
    """Return the problems of a query's text; empty if the text has only one reading."""
    found = reader.read_on(query.text, networks(query))
    own = meaning(query.actions)
    wrong = ["not read as its program"] if own not in found else []
    wrong += ["read as another program"] if set(found) - {own} else []
    return [*wrong, *sorted(found.get(own, ())), *jarring(query.text)]
