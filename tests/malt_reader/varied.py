"""A parser of varied and held-out texts: the meaning of each symbol of the published grammar.

``Reader.read`` returns every program that a text may ask for on a network; a good text has exactly
one. The words come from the grammar's data. The meanings, numbers in words and resolution of
references are implemented independently in this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from tests.malt_reader.meaning import Do, Each, New, Select, When, attributes
from tests.malt_reader.parser import Language, Node, Reading, Readings

GRAMMAR = Path(__file__).parents[2] / "apps" / "netarena_malt" / "grammar.json"
CAPACITY = "physical_capacity_bps"
_BLOCKS = {"EK_AGG_BLOCK", "EK_SPINEBLOCK"}

# Words for numbers.

_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
_TIMES_TEN = "twenty thirty forty fifty sixty seventy eighty ninety"
_UNITS = {word: number for number, word in enumerate(_TO_NINETEEN.split())}
_TENS = {word: 10 * number for number, word in enumerate(_TIMES_TEN.split(), start=2)}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9} | {
    "twelfth": 12,
    **{f"{word}th": number for word, number in _UNITS.items()},
    **{f"{word[:-1]}ieth": number for word, number in _TENS.items()},
}
_NUMBERS = {**_UNITS, **_TENS, **_ORDINALS}
_WORDS = {*_NUMBERS, "hundred", "and", "a", "half", "times", "once", "twice", "last", "hundredth"}
_WORD = re.compile(r"[a-z]+")
#: first and last name of a numbered range
_RUN = re.compile(r"'(?P<stem>[^']*\D)(?P<first>\d+)' to '(?P=stem)(?P<last>\d+)'")


class Unreadable(Exception):
    """The text has no meaning, at least in this parse."""


def _whole(words: str) -> int:
    """Return a number below 1,000 from cardinal or ordinal words."""
    total = 0
    for word in re.split(r"[ -]", words):
        if word in {"hundred", "hundredth"}:
            total *= 100
        elif word in _NUMBERS:
            total += _NUMBERS[word]
        elif word != "and":
            raise Unreadable(words)
    return total


def _factor(words: str) -> float:
    if words in {"half", "once", "twice"}:
        return {"half": 0.5, "once": 1.0, "twice": 2.0}[words]
    number, _, unit = words.rpartition(" ")
    whole, half, rest = number.partition(" and a half")
    if unit != "times" or rest:
        raise Unreadable(words)
    return _whole(whole) + (0.5 if half else 0.0)


def _place(node: Node) -> int:
    """Return the zero-based index that an ordinal means; -1 for 'last'."""
    if node["digits"] is not None:
        digits, suffix = node["digits"][:-2], node["digits"][-2:]
        tens = "th" if digits[-2:] in {"11", "12", "13"} else ""
        if suffix != (tens or {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th")):
            raise Unreadable(node["digits"])
        return int(digits) - 1
    return -1 if node["in_words"] == "last" else _whole(node["in_words"]) - 1


def _number(node: Node) -> float:
    return float(_whole(node["in_words"]) if node["digits"] is None else node["digits"])


#: form of an amount -> function that returns bits per second
_BPS: Mapping[str, Callable[[str], float]] = {
    "exact": float,
    "grouped": lambda text: float(text.replace(",", "")),
    "power": float,
    **dict.fromkeys(("giga", "gigas"), lambda text: float(text) * 1e9),
    **dict.fromkeys(("giga_words", "gigas_words", "one_giga"), lambda text: _whole(text) * 1e9),
    **dict.fromkeys(("mega", "megas"), lambda text: float(text) * 1e6),
}


def _bps(node: Node) -> float:
    ((form, text),) = node.operands
    return _BPS[form](text)


def _multiple(node: Node) -> float:
    if node["percent"] is not None:
        return float(node["percent"]) / 100
    return float(node["factor"]) if node["factor"] is not None else _factor(node["in_words"])


# Rules for operands that are not symbols.


def _match(pattern: str) -> Callable[[Reading, int], Readings]:
    compiled = re.compile(pattern)

    def rule(reading: Reading, start: int) -> Readings:
        match = compiled.match(reading.text, start)
        return [(match.end(), match[0])] if match else []

    return rule


def _words(reading: Reading, start: int) -> Readings:
    """Read words for a number; return every prefix of consecutive number words."""
    found: Readings = []
    place = start
    while (match := _WORD.match(reading.lower, place)) and match[0] in _WORDS:
        found.append((match.end(), reading.lower[start : match.end()]))
        place = match.end() + 1
        if reading.lower[match.end() : place] not in {" ", "-"}:
            break
    return found


def _quoted(reading: Reading, start: int) -> Readings:
    """Read quoted names: one, several, or the first and last of a numbered range."""
    found: Readings = []
    for pattern in (r"'[^']*'", r"'[^']*'(?:, '[^']*')* and '[^']*'"):
        if match := re.compile(pattern).match(reading.text, start):
            names = tuple(str(name) for name in re.findall(r"'([^']*)'", match[0]))
            found.append((match.end(), Node("quoted", (("names", names),), start)))
    if match := _RUN.match(reading.text, start):
        stem, first, last = match.group("stem", "first", "last")
        names = tuple(f"{stem}{number}" for number in range(int(first), int(last) + 1))
        found.append((match.end(), Node("quoted", (("names", names),), start)))
    return found


def _one_after_another(
    name: str, separators: Sequence[str], *lasts: str
) -> Callable[[Reading, int], Readings]:
    """Return a rule that reads a series of operands ``name`` as one node.

    One of ``separators`` stands between items, and one of ``lasts`` between the last two.
    """

    def rule(reading: Reading, start: int) -> Readings:
        found: Readings = []
        todo: list[tuple[int, tuple[Any, ...]]] = [
            (end, (item,)) for end, item in reading.operand(name, start)
        ]
        while todo:
            end, items = todo.pop()
            if not lasts or len(items) == 1:
                found.append((end, Node("series", (("items", items),), start)))
            for separator in separators:
                if reading.text.startswith(separator, end):
                    after = reading.operand(name, end + len(separator))
                    todo += [(further, (*items, item)) for further, item in after]
            for last in lasts:
                if reading.text.startswith(last, end):
                    for further, item in reading.operand(name, end + len(last)):
                        node = Node("series", (("items", (*items, item)),), start)
                        found.append((further, node))
        return found

    return rule


def _block(indent: int) -> Callable[[Reading, int], Readings]:
    """Return a rule that reads lines with ``indent`` spaces as statements of a separate text."""
    lines = re.compile(rf" {{{indent}}}[^\n]*(?:\n {{{indent}}}[^\n]*)*")

    def rule(reading: Reading, start: int) -> Readings:
        match = lines.match(reading.text, start)
        if not match:
            return []
        text = re.sub(rf"^ {{{indent}}}", "", match[0], flags=re.MULTILINE)
        inner = Reading(reading.language, text)
        return [
            (match.end(), _shifted(node, start))
            for end, node in inner.operand("statements", 0)
            if end == len(inner.text)
        ]

    return rule


def _shifted(value: Any, by: int) -> Any:
    """Return a tree whose starts are moved by ``by``, to be positions in the whole text."""
    if isinstance(value, Node):
        return Node(value.symbol, _shifted(value.operands, by), value.start + by)
    return tuple(_shifted(item, by) for item in value) if isinstance(value, tuple) else value


class Reader:
    """Reads texts of the published grammar, and of the productions of a pack if one is given."""

    def __init__(self, pack: Path | None = None) -> None:
        grammar = json.loads(GRAMMAR.read_text(encoding="utf-8"))
        further = {} if pack is None else json.loads(pack.read_text())["productions"]

        def starting(*prefixes: str) -> list[str]:
            return [name for name in grammar if name.startswith(prefixes)]

        one, many = ([name for name in grammar if name.endswith(e)] for e in (".one", ".many"))
        nouns_one = [name for name in one if name != "text.one"]
        nouns_many = [name for name in many if name != "text.many"]
        statement = ["count", "list", "rank", *starting("update.", "remove", "add.", "loop.")]
        reference = starting("ref.")
        operands: dict[str, Any] = {
            **_each_key("task first second step statement", statement),
            **_each_key(
                "where inner outer anchor switch rack domain peer superblock subject other single "
                "reference",
                reference,
            ),
            "block": [*reference, "new_block"],
            "target": [*reference, "selected"],
            "victim_series": _one_after_another("reference", [", "], " and "),
            "victims": lambda reading, start: [
                *reading.operand("victim_series", start),
                *reading.symbol("victims.ports", start),
            ],
            "numbered": starting("step."),
            "steps": _one_after_another("numbered", ["\n"]),
            "statements": _one_after_another("statement", ["\n"]),
            **_each_key("body then otherwise", _block(2)),
            **_each_key("deep_then deep_otherwise", _block(4)),
            "answer": starting("answer."),
            "context": ["context"],
            "network": starting("network."),
            "condition": starting("condition."),
            **_each_key("what same_what", [*nouns_many, *nouns_one]),
            "kind": nouns_one,
            "port_word": ["EK_PORT.one", "EK_PORT.many"],
            "place": starting("place."),
            "front": starting("front."),
            "of": starting("of."),
            "parent": nouns_one,
            "within": starting("within."),
            "bound": starting("bound."),
            "having": starting("having."),
            "measure": ["measure.port", "total"],
            **_each_key("capacity low high", ["capacity"]),
            "size": starting("size."),
            "rank": ["ordinal"],
            **_each_key("number stage", ["number"]),
            "multiple": ["multiple"],
            "total": ["total"],
            "descending": ["descending"],
            "naming": starting("naming.", "namings."),
            "name": _quoted,
            "ending": _quoted,
            "new": starting("new.port"),
            "ports": _one_after_another("new", [", "], " and ", ", and "),
            "port_list": _one_after_another("new", ["\n  - "]),
            "one_switch": ["add.switch"],
            "switches": _one_after_another("one_switch", [" "]),
            "homes": starting("homes."),
            **_each_key("in_words giga_words gigas_words one_giga", _words),
            "digits": _match(r"\d+(?:\.\d+)?(?:st|nd|rd|th)?"),
            **_each_key("position total_steps", _match(r"\d+")),
            "grouped": _match(r"\d{1,3}(?:,\d{3})+|\d{1,3}(?![\d,.e])"),
            "power": _match(r"\d+(?:\.\d+)?e\d+"),
            **_each_key(
                "exact giga gigas mega megas factor percent by", _match(r"\d+(?:\.\d+)?(?!\d|e\d)")
            ),
        }
        self.language = Language(grammar, operands, further)

    def read(self, text: str, graph: nx.DiGraph[str]) -> set[tuple[Do, ...]]:
        """Return every program that ``text`` may ask for on ``graph``."""
        found = set()
        for tree in self.language.read(text, ("text.one", "text.two", "text.many")):
            try:
                found.add(_Meaning(graph).program(tree))
            except Unreadable:
                continue
        return found


def _each_key(names: str, rule: Any) -> dict[str, Any]:
    return dict.fromkeys(names.split(), rule)


# Meaning.


@dataclass
class _Meaning:
    """The meaning of one parse of a text on a network."""

    graph: nx.DiGraph[str]
    #: nodes mentioned so far, by kind
    mentioned: dict[str, set[str]] = field(default_factory=dict)
    #: kind and variable of the enclosing loops, innermost last
    turns: list[tuple[str | None, str]] = field(default_factory=list)
    #: node that each reference means
    names: dict[Node, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)

    def program(self, tree: Node) -> tuple[Do, ...]:
        self.look_up(tree)
        if tree.symbol == "text.many":
            items = tree["steps"]["items"]
            steps = [step["step"] for step in items]
            symbols = [step.symbol for step in items]
            if symbols != ["step.first", *["step.next"] * (len(steps) - 2), "step.last"]:
                raise Unreadable("steps out of order")
            if any(
                step["position"] not in {None, str(number)}
                or step["total_steps"] not in {None, str(len(items))}
                for number, step in enumerate(items, start=1)
            ):
                raise Unreadable("steps with other numbers")
        else:
            steps = [tree[key] for key in ("task", "first", "second") if tree[key] is not None]
        program = tuple(self.statement(step) for step in steps)
        self.check_answer(program, tree["answer"])
        return program

    @staticmethod
    def check_answer(program: tuple[Do, ...], answer: Node) -> None:
        if answer["measure"] is not None:
            _check_measure(answer["measure"], program[-1].what.kind)
        questions = {"count": "text", "list": "list", "rank": "table"}
        changed = any(do.kind not in questions for do in program)
        network = "network.changed" if changed else "network.same"
        expected = f"answer.{questions.get(program[-1].kind, 'graph')}", network
        if (answer.symbol, answer["network"].symbol) != expected:
            raise Unreadable(f"{answer.symbol}, not {expected}")

    # References: each is resolved at its position in the text.

    def look_up(self, value: Any) -> None:
        """Resolve all references in ``value``, in the order of the text."""
        if not isinstance(value, Node):
            return
        if value.symbol.startswith("loop."):
            self.look_up_loop(value)
            return
        if value.symbol in {"add.switch", "add.block"}:
            kind = "EK_PACKET_SWITCH" if value.symbol == "add.switch" else "EK_AGG_BLOCK"
            self.new[_only_name(value["name"])] = kind
        for part in _parts_in_order(value):
            self.look_up(part)
        if value.symbol.startswith("ref."):
            name = self.resolve(value)
            self.names[value] = name
            if not name.startswith("$"):
                self.mentioned.setdefault(self.kind(name), set()).add(name)
        elif value.symbol == "quoted":
            for name in value["names"]:
                if name in self.new:
                    self.mentioned.setdefault(self.new[name], set()).add(name)

    def look_up_loop(self, loop: Node) -> None:
        bodies = {"body", "then", "otherwise", "deep_then", "deep_otherwise"}
        kind = _kind(loop["what"] or loop["kind"])
        heads = [p for key, p in loop.operands if key not in bodies | {"condition"}]
        inner = [p for key, p in loop.operands if key in bodies | {"condition"}]
        for part in sorted(heads, key=lambda node: node.start):
            self.look_up(part)
        self.turns.append((kind, f"${len(self.turns) + 1}"))
        for part in sorted(inner, key=lambda node: node.start):
            self.look_up(part)
        self.turns.pop()

    def kind(self, name: str) -> str:
        if name in self.new:
            return self.new[name]
        return str(self.graph.nodes[name]["type"][0])

    def resolve(self, node: Node) -> str:
        """Return the node that a reference means. Raises Unreadable if there is not exactly one."""
        what = node.symbol.removeprefix("ref.")
        kind = _kind(node["kind"]) if node["kind"] else _kind(node["what"])
        if what == "name":
            name = _only_name(node["name"])
            if name not in self.graph and name not in self.new:
                self.believe(name, kind)
            found = [name]
        elif what == "again":
            found = sorted(self.mentioned.get(str(kind), ()))
        elif what == "turn":
            found = [variable for of, variable in self.turns if of == kind][-1:]
        else:
            found = list(_LOOK_UP[what](self, node, kind))
        if len(found) != 1:
            raise Unreadable(f"{what} means {found[:3]}")
        (name,) = found
        if kind is not None and not name.startswith("$") and self.kind(name) != kind:
            raise Unreadable(f"{name} is no {kind}")
        return name

    def believe(self, name: str, kind: str | None) -> None:
        """Accept a port that does not exist, because a loop may have added it to its switch."""
        switch = self.graph.nodes.get(name.rpartition(".")[0], {"type": []})
        if kind not in {None, "EK_PORT"} or "EK_PACKET_SWITCH" not in switch["type"]:
            raise Unreadable(f"there is no {name}")
        self.new[name] = "EK_PORT"

    def within(self, outer: str, kind: str | None) -> list[str]:
        return [name for name in self.below(outer) if self.kind(name) == kind]

    def below(self, outer: str) -> list[str]:
        found: list[str] = []
        level = [outer]
        while level:
            level = [inner for name in level for inner in self.contents(name)]
            found += level
        return found

    def contents(self, name: str) -> list[str]:
        edges = self.graph.adj[name].items()
        return [inner for inner, edge in edges if edge["type"] == "RK_CONTAINS"]

    def parents(self, name: str) -> list[str]:
        edges = self.graph.pred[name].items()
        return [outer for outer, edge in edges if edge["type"] == "RK_CONTAINS"]

    def total(self, name: str) -> float:
        nodes = (self.graph.nodes[node] for node in (name, *self.below(name)))
        return float(sum(node.get(CAPACITY, 0.0) for node in nodes))

    def siblings(self, name: str) -> list[str]:
        """Return the nodes of the same kind in the same parent (for switches: block), sorted."""
        kind = self.kind(name)
        parents = [p for p in self.parents(name) if kind != "EK_PACKET_SWITCH" or self.is_block(p)]
        return sorted(o for p in parents for o in self.contents(p) if self.kind(o) == kind)

    def family(self, node: Node) -> list[str]:
        """Return the anchor and its siblings. Raises Unreadable if the stated parent is wrong."""
        anchor = self.names[node["anchor"]]
        parent = node["within"]["parent"] if node["within"] else node["parent"]
        if parent is not None:
            kinds = [self.kind(name) for name in self.parents(anchor)]
            if _kind(parent) not in set(kinds) - {"EK_RACK", "EK_CONTROL_DOMAIN"}:
                raise Unreadable("another parent")
        return self.siblings(anchor)

    def is_block(self, name: str) -> bool:
        return self.kind(name) in _BLOCKS

    def holders(self, node: Node, kind: str | None) -> Iterable[str]:
        found: list[str] = []
        level = [self.names[node["inner"]]]
        while level:
            level = [outer for name in level for outer in self.parents(name)]
            found += [name for name in level if self.kind(name) == kind]
        return dict.fromkeys(found)

    def by_size(self, node: Node, kind: str | None) -> list[str]:
        if node["measure"] is not None:
            _check_measure(node["measure"], kind)
        names = self.within(self.names[node["outer"]], kind)
        sign = -1 if node["size"].symbol == "size.largest" else 1
        rank = node["size"]["rank"]
        names.sort(key=lambda name: (sign * self.total(name), name))
        return _at(names, _place(rank) if rank else 0)

    def beside(self, node: Node, step: int) -> list[str]:
        names, anchor = self.family(node), self.names[node["anchor"]]
        place = names.index(anchor) + step
        return names[place : place + 1] if place >= 0 else []

    def only(self, node: Node, kind: str | None) -> list[str]:
        bps = _bps(node["capacity"])
        names = self.within(self.names[node["outer"]], kind)
        return [name for name in names if self.graph.nodes[name].get(CAPACITY) == bps]

    def most_ports(self, node: Node, kind: str | None) -> list[str]:
        names = self.within(self.names[node["outer"]], kind)
        numbers = {name: len(self.within(name, "EK_PORT")) for name in names}
        return [name for name in names if numbers[name] == max(numbers.values())]

    # Statements.

    def statement(self, node: Node) -> Do:
        kind, _, _ = node.symbol.partition(".")
        if kind in {"count", "list", "rank"}:
            if node["measure"] is not None:
                _check_measure(node["measure"], _kind(node["what"]))
            if node["same_what"] is not None and _kind(node["same_what"]) != _kind(node["what"]):
                raise Unreadable("another kind")
            return Do(kind, self.select(node))
        return _STATEMENTS[kind](self, node)

    def select(self, node: Node) -> Select:
        where = node["place"] or node["front"] or node["of"]
        kind = _kind(node["what"] or node["kind"])
        scope = "children" if where.symbol.endswith(".directly") else "descendants"
        low, high = self.bounds(node["bound"] or node["having"], kind)
        return Select(self.names[where["where"]], scope, kind, low, high)

    @staticmethod
    def bounds(bound: Node | None, kind: str | None) -> tuple[float | None, float | None]:
        if bound is None:
            return None, None
        _check_measure(bound["measure"], kind)
        form = bound.symbol.partition(".")[2]
        if form == "between":
            return _bps(bound["low"]), _bps(bound["high"])
        bps = _bps(bound["capacity"])
        return (bps, None) if form == "at_least" else (None, bps)

    def update(self, node: Node) -> Do:
        target = node["target"] or node["single"]
        chosen = self.select(target) if target.symbol == "selected" else None
        select = chosen or Select(self.names[target])
        if node.symbol == "update.set":
            return Do("update", (select, "to_bps", _bps(node["capacity"])))
        factor = float(node["by"]) if node["by"] is not None else _multiple(node["multiple"])
        return Do("update", (select, "times", factor))

    def remove(self, node: Node) -> Do:
        victims = node["victims"]
        if victims.symbol == "victims.ports":
            return Do("remove", frozenset(self.called(victims, self.names[victims["switch"]])))
        return Do("remove", frozenset(self.names[item] for item in victims["items"]))

    def called(self, node: Node, switch: str) -> list[str]:
        """Return full names of the ports of ``switch`` from the full or short names in a text."""
        naming = node["naming"]
        names = naming["name"]["names"]
        several = naming.symbol.startswith("namings.")
        if several != (len(names) > 1):
            raise Unreadable("one name or several")
        form = naming.symbol.partition(".")[2]
        cut = {"full": "", "short": f"{switch}.", "suffix": switch}[form]
        return [cut + name for name in names]

    def add(self, node: Node) -> Do:
        return Do("add", frozenset(self.additions(node, "")))

    def additions(self, node: Node, block: str) -> Iterator[New]:
        if node.symbol == "add.ports":
            new = node["ports"] or node["port_list"]
            yield from self.ports(new, self.names[node["switch"]])
            return
        name = _only_name(node["name"])
        if node.symbol == "add.block":
            yield New(name, "EK_AGG_BLOCK", (), frozenset([self.names[node["superblock"]]]))
            for switch in node["switches"]["items"]:
                yield from self.additions(switch, name)
            return
        parents = [block if node["block"].symbol == "new_block" else self.names[node["block"]]]
        homes = node["homes"]
        if homes.symbol == "homes.like":
            above = self.parents(self.names[homes["peer"]])
            parents += [name for name in above if not self.is_block(name)]
        else:
            parents += [self.names[homes["rack"]], self.names[homes["domain"]]]
        stage = attributes({"switch_loc": {"stage": _number(node["stage"])}})
        yield New(name, "EK_PACKET_SWITCH", stage, frozenset(parents))
        yield from self.ports(node["ports"] or node["port_list"], name)

    def ports(self, series: Node, switch: str) -> Iterator[New]:
        for node in series["items"]:
            names = self.called(node, switch)
            if node.symbol == "new.ports" and _number(node["number"]) != len(names):
                raise Unreadable("not so many names")
            told = attributes({CAPACITY: _bps(node["capacity"])})
            for name in names:
                yield New(name, "EK_PORT", told, frozenset([switch]))

    def loop(self, node: Node) -> Do:
        select = self.select(node)
        self.turns.append((select.kind, f"${len(self.turns) + 1}"))
        when = self.condition(node["condition"], select.kind) if node["condition"] else None
        then, otherwise = (
            tuple(self.statement(item) for item in branch["items"]) if branch else ()
            for branch in (
                node["body"] or node["then"] or node["deep_then"],
                node["otherwise"] or node["deep_otherwise"],
            )
        )
        _, variable = self.turns.pop()
        return Do("each", Each(select, variable, when, then, otherwise))

    def condition(self, node: Node, kind: str | None) -> When:
        if self.names[node["subject"]] != self.turns[-1][1]:
            raise Unreadable("a condition of another node")
        _, measure, comparison = (*node.symbol.split("."), "")[:3]
        if measure == "name":
            return When("name", "ends_with", _only_name(node["ending"]))
        if measure == "stage":
            return When("stage", "equals", _number(node["stage"]))
        if measure == "children":
            number = _number(node["number"])
            return When("children", comparison, number, _kind(node["what"]))
        _check_measure(node["measure"], kind)
        return When("capacity", comparison, _bps(node["capacity"]))


def _parts_in_order(node: Node) -> list[Node]:
    parts: list[Node] = []
    for _, value in node.operands:
        parts += [
            part
            for part in ((value,) if isinstance(value, Node) else value)
            if isinstance(part, Node)
        ]
    return sorted(parts, key=lambda part: part.start)


def _only_name(quoted: Node) -> str:
    names = quoted["names"]
    if len(names) != 1:
        raise Unreadable("several names for one node")
    return str(names[0])


def _kind(noun: Node | None) -> str | None:
    if noun is None:
        return None
    kind = noun.symbol.rpartition(".")[0]
    return None if kind in {"node", "child"} else kind


def _check_measure(measure: Node, kind: str | None) -> None:
    """Check that ports are measured by capacity, and other nodes by the total capacity of ports."""
    if (measure.symbol == "measure.port") != (kind == "EK_PORT"):
        raise Unreadable("another measure")


def _at(names: Sequence[str], place: int) -> list[str]:
    return [names[place]] if -len(names) <= place < len(names) else []


_LOOK_UP: Mapping[str, Callable[[_Meaning, Node, str | None], Iterable[str]]] = {
    "root": lambda m, node, kind: [n for n in m.graph if m.kind(n) == (kind or "EK_JUPITER")],
    "holder": _Meaning.holders,
    "by_size": _Meaning.by_size,
    "by_name": lambda m, node, kind: _at(
        sorted(m.within(m.names[node["outer"]], kind)), _place(node["rank"])
    ),
    "of_all": lambda m, node, kind: _at(
        sorted(name for name in m.graph if m.kind(name) == kind), _place(node["rank"])
    ),
    "next": lambda m, node, kind: m.beside(node, 1),
    "previous": lambda m, node, kind: m.beside(node, -1),
    "sibling": lambda m, node, kind: [
        name for name in m.family(node) if name != m.names[node["anchor"]]
    ],
    "only": _Meaning.only,
    "most_ports": _Meaning.most_ports,
}
_STATEMENTS: Mapping[str, Callable[[_Meaning, Node], Do]] = {
    "update": _Meaning.update,
    "remove": _Meaning.remove,
    "add": _Meaning.add,
    "loop": _Meaning.loop,
}
