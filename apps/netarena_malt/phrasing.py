"""Actions in varied words: the task texts with ``phrasing`` varied and held_out.

A text is composed from the productions of ``grammar``. It has the same meaning as the canonical
text, with two differences. Most nodes are described (``reference``) instead of named. Terms are
defined once, in the rules of the prompt, instead of in each sentence. Operands are expanded in the
order of the text, so that 'that switch' can refer to an earlier mention.

A description identifies the same node in the network before the task and at the time of its step.
No description of a node contains a name that includes the node's own name, or refers back to the
node itself.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from netarena.sdk import Action
from netarena_malt.action import (
    OPERATIONS,
    Addition,
    Condition,
    Loop,
    NewNode,
    Question,
    Removal,
    Selection,
    Update,
    describe,
)
from netarena_malt.grammar import Grammar, Operand, private, shipped, start_sentences
from netarena_malt.network_builder import Draft
from netarena_malt.reference import FAMILIES, Reference, propose
from netarena_malt.replay import Passage, passages
from netarena_malt.topology import (
    CAPACITY,
    CONTAINMENT,
    EK_AGG_BLOCK,
    EK_CONTROL_DOMAIN,
    EK_JUPITER,
    EK_PACKET_SWITCH,
    EK_PORT,
    EK_RACK,
    EK_SPINEBLOCK,
    EK_SUPERBLOCK,
    SWITCH_LOC,
)

#: Probability that a node is named instead of described, by the number of enclosing descriptions.
_NAMED = (0.04, 0.75, 1.0)
#: Probability of a phrase such as 'that switch' if only one node of its kind was mentioned so far.
_AGAIN = 0.85
#: Desired maximum number of words of a sentence in a varied text, and maximum number of texts to
#: write. If every text has a longer sentence, the writer returns the text whose longest sentence is
#: shortest.
_MAX_SENTENCE_WORDS = 25
_MAX_TEXTS = 12
_CONTEXT = 0.45
#: Minimum number of held-out productions in a held-out text. A text with fewer held-out productions
#: is discarded.
_HELD_OUT = 3
#: Probabilities of five choices: ports of one switch get short names; a new switch's parents are
#: described as the parents of another switch; irrelevant context is about a switch instead of its
#: rack; several removed ports are named together with their switch; consecutive names are written
#: as a range.
_SHORT = 0.75
_PEER = 0.5
_TOGETHER = 0.5
_GROUPED = 0.75
_RANGE = 0.5
#: Maximum number (of nodes or of Gbps) that is written in words, and maximum capacity in Mbps that
#: is written in Mbps. Larger numbers would be hard to read.
_MAX_WORDS = 12
#: Forms in which a text writes capacities; repeated forms are drawn more often. The fallbacks are
#: used for capacities that the form of the text cannot express.
_UNIT_FORMS = (*(4 * ("giga",)), *("gigas", "gigas_words"))
#: Further forms for held-out texts only, because numbers in these forms take longer to read.
_HELD_OUT_UNIT_FORMS = ("mega", "megas", "grouped")
_UNIT_FALLBACKS = ("mega", "grouped", "power")
_MAX_MEGA = 100_000

#: Form of a reference -> its symbol in the grammar, and the name of the operand for the other node
#: (anchor).
_WAYS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "root": ("ref.root", ""),
        "holder": ("ref.holder", "inner"),
        "largest": ("ref.by_size", "outer"),
        "smallest": ("ref.by_size", "outer"),
        "named": ("ref.by_name", "outer"),
        "of_all": ("ref.of_all", ""),
        "next": ("ref.next", "anchor"),
        "previous": ("ref.previous", "anchor"),
        "sibling": ("ref.sibling", "anchor"),
        "only": ("ref.only", "outer"),
        "most_ports": ("ref.most_ports", "outer"),
    }
)
_SCOPES: Mapping[str, str] = MappingProxyType({"children": "directly", "descendants": "anywhere"})
_BLOCKS = frozenset({EK_AGG_BLOCK, EK_SPINEBLOCK})
#: (kind of container, kind of content) for which a text may say 'the contents of the container'.
_MEMBERS = frozenset(
    {
        (EK_SUPERBLOCK, EK_AGG_BLOCK),
        (EK_AGG_BLOCK, EK_PACKET_SWITCH),
        (EK_SPINEBLOCK, EK_PACKET_SWITCH),
        (EK_CONTROL_DOMAIN, EK_PACKET_SWITCH),
        (EK_PACKET_SWITCH, EK_PORT),
    }
)

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = MappingProxyType(
    {
        "one": "first",
        "two": "second",
        "three": "third",
        "five": "fifth",
        "eight": "eighth",
        "nine": "ninth",
        "twelve": "twelfth",
    }
)
_SENTENCE_END = re.compile(r"(?<=[.:?])\s+|\n+")
#: Temporary mark at the end of an indented block. In the complete text, a newline replaces the
#: mark.
_END = "\0"


def phrase(
    actions: Sequence[Action],
    draft: Draft,
    rng: random.Random,
    *,
    held_out: bool = False,
    used: Counter[str] | None = None,
) -> str:
    """Return a text that requests ``actions`` on the network of ``draft``.

    ``draft`` is the initial network, in which each description identifies exactly one node. With
    ``held_out``, the text also uses held-out productions and productions of the private pack.
    ``used`` counts productions by id.
    """
    grammar = private() if held_out else shipped()
    views = passages(actions, draft)
    written: list[tuple[int, str, Counter[str]]] = []
    while len(written) < _MAX_TEXTS:
        here: Counter[str] = Counter()
        text = Writer(grammar, draft, rng, held_out=held_out, used=here).write(actions, views)
        if held_out and _held_out_in(here) < _HELD_OUT:
            continue
        written.append((longest_sentence(text), text, here))
        if held_out or written[-1][0] <= _MAX_SENTENCE_WORDS:
            break
    _, text, here = min(written, key=lambda one: one[0])
    if used is not None:
        used.update(here)
    return text


def longest_sentence(text: str) -> int:
    """Return the number of words of the longest sentence. A colon also ends a sentence."""
    return max(len(part.split()) for part in _SENTENCE_END.split(text))


def _held_out_in(used: Counter[str]) -> int:
    """Return the number of uses of held-out or private productions in ``used``."""
    return sum(n for one, n in used.items() if not one.rpartition("/")[2].isdecimal())


@dataclass(frozen=True)
class _Plan:
    """How a node is mentioned: by its name, or through a reference and the plan for the reference's
    anchor."""

    name: str
    reference: Reference | None = None
    anchor: _Plan | None = None


class Writer:
    """Writer of one text, which records mentioned nodes for phrases such as 'that switch'."""

    def __init__(
        self,
        grammar: Grammar,
        draft: Draft,
        rng: random.Random,
        *,
        held_out: bool,
        used: Counter[str] | None = None,
    ) -> None:
        self._grammar = grammar
        self._draft = draft
        self._rng = rng
        self._held_out = held_out
        self._used = used
        #: Nodes that the draft does not have (new nodes, and variables of loops) -> their kinds.
        self._kinds: dict[str, str] = {}
        self._turns: set[str] = set()
        self._mentioned: dict[str, set[str]] = {}
        #: Form in which this text writes capacities; empty until the first capacity.
        self._unit = ""
        #: Names of nodes that were mentioned together with the noun of their kind, such as
        #: 'switch'.
        self._with_kind: set[str] = set()
        #: Networks, in addition to the initial one, in which descriptions of the current step must
        #: identify the same node.
        self._views: Sequence[Passage] = ()
        #: Group of symbols -> random seed. With the same seed, a text keeps its words, such as
        #: 'port' or 'interface'.
        self._seeds: dict[str, int] = {}

    def write(self, actions: Sequence[Action], views: Sequence[Sequence[Passage]]) -> str:
        """Return the complete text. ``views`` are the results of ``passages`` for the actions."""
        last = OPERATIONS[actions[-1].kind].answer_type
        changes = any(OPERATIONS[action.kind].answer_type == "graph" for action in actions)
        network = "network.changed" if changes else "network.same"
        form: dict[str, Operand] = {"network": self._later(network)}
        if last == "table":
            question = Question.model_validate(actions[-1].parameters)
            form["measure"] = self._measure(question.select.kind)
        answer = self._expand(f"answer.{last}", **form)
        context = (
            self._later("context", other=self._other) if self._rng.random() < _CONTEXT else None
        )
        steps = [self._later_step(*step) for step in zip(actions, views, strict=True)]
        whole: dict[str, Operand] = {"answer": answer, "context": context}
        if len(steps) == 1:
            text = self._expand("text.one", task=steps[0], **whole)
        elif len(steps) == 2:
            text = self._expand("text.two", first=steps[0], second=steps[1], **whole)
        else:
            text = self._expand("text.many", steps=lambda: self._steps(steps), **whole)
        return start_sentences(re.sub(rf"{_END}\s*", "\n", text).strip())

    def _steps(self, steps: Sequence[Callable[[], str]]) -> str:
        total = str(len(steps))
        lines = []
        for position, step in enumerate(steps, start=1):
            symbol = "step.next" if position > 1 else "step.first"
            symbol = "step.last" if position == len(steps) else symbol
            place = {} if position == 1 else {"position": str(position)}
            lines.append(self._expand_alike(symbol, step=step, total_steps=total, **place))
        return "\n".join(lines)

    def _expand(self, symbol: str, **operands: Operand) -> str:
        return self._grammar.expand(
            symbol, operands, self._rng, held_out=self._held_out, used=self._used
        )

    def _expand_alike(self, symbol: str, **operands: Operand) -> str:
        """Return a text for ``symbol`` that is the same throughout the text of one task.

        Symbols that differ only in their last part, such as singular and plural, use the same
        random numbers.
        """
        group = symbol.rpartition(".")[0] or symbol
        if group not in self._seeds:
            self._seeds[group] = self._rng.getrandbits(32)
        rng = random.Random(self._seeds[group])  # noqa: S311 -- reproducible words, not a secret
        return self._grammar.expand(symbol, operands, rng, held_out=self._held_out, used=self._used)

    def _alike_later(self, symbol: str, **operands: Operand) -> Callable[[], str]:
        return lambda: self._expand_alike(symbol, **operands)

    def _later(self, symbol: str, **operands: Operand) -> Callable[[], str]:
        return lambda: self._expand(symbol, **operands)

    def _later_step(self, action: Action, views: Sequence[Passage]) -> Callable[[], str]:
        def write() -> str:
            self._views = views
            return self.step(action)

        return write

    # Sentences about actions.

    def step(self, action: Action) -> str:
        """Return an action as sentences. The sentences of a loop end with the mark ``_END``."""
        parameters = OPERATIONS[action.kind].parameters.model_validate(action.parameters)
        if isinstance(parameters, Question):
            if parameters.select.scope == "self":
                return describe(action)  # never drawn, because questions about one node are trivial
            return self._expand(
                action.kind,
                measure=self._measure(parameters.select.kind),
                descending=self._later("descending"),
                same_what=self._noun(parameters.select.kind, many=True),
                **self._selection(parameters.select, owned=action.kind == "rank"),
            )
        return _SENTENCES[action.kind](self, parameters)

    def _update(self, update: Update) -> str:
        alone = update.select.scope == "self"
        target = self._node_later(update.select.name) if alone else self._set(update.select)
        operands: dict[str, Operand] = {
            # The phrase for a set of nodes may be long. In varied text it must end the sentence.
            "target": target if self._held_out or not alone else None,
            "single": target if alone else None,
            "measure.port": self._measure(EK_PORT),
        }
        if update.to_bps is not None:
            return self._expand("update.set", capacity=self._bps(update.to_bps), **operands)
        assert update.times is not None
        multiple, by = self._times(update.times), _factor(update.times)
        return self._expand("update.times", multiple=multiple, by=by, **operands)

    def _remove(self, removal: Removal) -> str:
        return self._expand("remove", victims=lambda: self._victims(removal.names))

    def _victims(self, names: Sequence[str]) -> str:
        parents = {self._parent(name) for name in names}
        share = _GROUPED if len(names) > 1 else _GROUPED / 3
        (switch,) = parents if len(parents) == 1 else (None,)
        if switch is None or self._rng.random() >= share:
            # All nodes except the last are named. After a description that ends in another node,
            # 'and' would be ambiguous.
            *others, last = names
            named = [self._bare_later(name) for name in others]
            return self._series([*named, self._node_later(last)])
        return self._expand(
            "victims.ports",
            naming=lambda: self._naming(names, switch, short=self._rng.random() < _SHORT),
            switch=self._node_later(switch),
            port_word=self._noun(EK_PORT, many=len(names) > 1),
        )

    def _parent(self, name: str) -> str | None:
        """Return the switch of a port in the initial network, or None for any other node."""
        if not self._is_there(name) or self._draft.kind(name) != EK_PORT:
            return None
        return self._draft.parents(name)[0]

    def _add(self, addition: Addition) -> str:
        groups: dict[tuple[str, ...], list[NewNode]] = {}
        for node in addition.nodes:
            groups.setdefault((node.kind, *node.parents), []).append(node)
        sentences = []
        for (kind, *parents), nodes in groups.items():
            if kind == EK_PORT:
                (switch,) = parents
                sentences.append(
                    self._expand(
                        "add.ports",
                        switch=self._node_later(switch),
                        **self._ports_of(nodes, switch),
                    )
                )
            elif kind == EK_PACKET_SWITCH:
                (block,) = (name for name in parents if self._kind(name) in _BLOCKS)
                sentences += [self._switch(node, self._node_later(block)) for node in nodes]
            else:
                sentences += [self._block(node) for node in nodes]
        return " ".join(sentences)

    def _ports_of(self, ports: Sequence[NewNode], switch: str) -> dict[str, Operand]:
        """Return operands for new ports, grouped by capacity, in two forms: as part of a sentence,
        and as lines."""
        groups: dict[float, list[str]] = {}
        for port in ports:
            bps = cast("float", port.attributes[CAPACITY])
            groups.setdefault(bps, []).append(port.name)
        short = self._rng.random() < _SHORT

        def items() -> list[str]:
            in_order = sorted(groups, key=lambda bps: min(map(_by_number, groups[bps])))
            return [self._new_ports(groups[bps], bps, switch, short=short) for bps in in_order]

        def sentence() -> str:
            texts = items()
            # An item may contain 'and', so the list may need a comma.
            alone = len(texts) == 2 and " and " not in texts[0]
            return _series(texts, last=" and " if alone else ", and ")

        several = len(groups) > 1
        return {
            "ports": sentence if self._held_out or not several else None,
            "port_list": (lambda: "\n  - ".join(items()) + _END) if several else None,
            **self._nouns(EK_PORT),
        }

    def _new_ports(self, names: Sequence[str], bps: float, switch: str, *, short: bool) -> str:
        symbol = "new.port" if len(names) == 1 else "new.ports"
        return self._expand_alike(
            symbol,
            number=self._number(len(names)),
            naming=lambda: self._naming(names, switch, short=short),
            capacity=self._bps(bps),
            **self._nouns(EK_PORT),
        )

    def _switch(self, node: NewNode, block: Operand) -> str:
        stage = cast("dict[str, float]", node.attributes[SWITCH_LOC])["stage"]
        by_kind = {self._kind(name): name for name in node.parents if name not in self._kinds}
        rack, domain = by_kind[EK_RACK], by_kind[EK_CONTROL_DOMAIN]
        self._kinds[node.name] = EK_PACKET_SWITCH
        return self._expand(
            "add.switch",
            name=lambda: self._quote_new(node.name),
            stage=self._number(stage),
            block=block,
            homes=lambda: self._homes(rack, domain),
            **self._ports_of(node.contents, node.name),
            **self._nouns(EK_PACKET_SWITCH),
        )

    def _homes(self, rack: str, domain: str) -> str:
        nouns = self._nouns(EK_RACK) | self._nouns(EK_CONTROL_DOMAIN)
        if self._rng.random() < _PEER:
            there = self._draft.contents(rack)
            peers = [name for name in there if domain in self._draft.parents(name)]
            if peers:
                peer = self._rng.choice(peers)
                return self._expand("homes.like", peer=self._node_later(peer), **nouns)
        return self._expand(
            "homes.both", rack=self._node_later(rack), domain=self._node_later(domain), **nouns
        )

    def _block(self, node: NewNode) -> str:
        (superblock,) = node.parents
        self._kinds[node.name] = node.kind

        def switches() -> str:
            new = self._later("new_block")
            return " ".join(self._switch(inner, new) for inner in node.contents)

        return self._expand(
            "add.block",
            name=lambda: self._quote_new(node.name),
            superblock=self._node_later(superblock),
            switches=switches,
            **self._nouns(EK_AGG_BLOCK),
        )

    def _each(self, loop: Loop) -> str:
        variable = loop.variable
        kind = loop.select.kind
        assert kind is not None
        head = {**self._selection(loop.select), "kind": self._noun(kind)}

        def block(actions: Iterable[Action], indent: str = "  ") -> Callable[[], str]:
            def lines() -> str:
                self._kinds[variable] = kind
                self._turns.add(variable)
                # The current node of the loop counts as mentioned, so that 'that switch' is not
                # ambiguous.
                self._mentioned.setdefault(kind, set()).add(variable)
                text = "\n".join(self.step(action).rstrip(_END) for action in actions)
                self._turns.remove(variable)
                return indent + text.replace("\n", f"\n{indent}")

            return lines

        if loop.when is None:
            text = self._expand("loop.plain", body=block(loop.then), **head)
        else:
            when = loop.when
            deep = 2 * "  "
            branches: dict[str, Operand] = {
                "then": block(loop.then),
                "deep_then": block(loop.then, deep),
            }
            if loop.otherwise:
                branches["otherwise"] = block(loop.otherwise)
                branches["deep_otherwise"] = block(loop.otherwise, deep)
            text = self._expand(
                "loop.else" if loop.otherwise else "loop.if",
                condition=lambda: self._condition(when, kind),
                **branches,
                **head,
            )
        return f"{text}{_END}"

    def _condition(self, when: Condition, kind: str) -> str:
        comparison = "at_least" if when.at_least is not None else "below"
        bound = when.at_least if when.at_least is not None else when.below
        subject = self._alike_later("ref.turn", kind=self._noun(kind))
        if when.measure == "name":
            return self._expand("condition.name", subject=subject, ending=repr(when.ends_with))
        if when.measure == "stage":
            assert when.equals is not None
            return self._expand("condition.stage", subject=subject, stage=self._number(when.equals))
        assert bound is not None
        symbol = f"condition.{when.measure}.{comparison}"
        if when.measure == "children":
            assert when.kind is not None
            return self._expand(
                symbol,
                subject=subject,
                what=self._noun(when.kind, many=bound != 1),
                number=self._number(bound),
            )
        return self._expand(
            symbol, subject=subject, measure=self._measure(kind), capacity=self._bps(bound)
        )

    # Phrases for sets of nodes.

    def _selection(self, select: Selection, *, owned: bool = True) -> dict[str, Operand]:
        """Return the operands of the symbols that describe a set of nodes.

        With ``owned``, the text may refer to the set as 'the contents of' its container.
        """
        where, scope = self._node_later(select.name), _SCOPES[select.scope]
        bound = self._bound("bound", select)
        outer, direct = self._kind(select.name), scope == "directly"
        place = scope
        if direct and (outer, select.kind) == (EK_PACKET_SWITCH, EK_PORT):
            place = "on.directly"
        elif not direct and select.kind in CONTAINMENT[outer]:
            place = "in.anywhere"
        # After 'the ports of the switch', a bound could be read as a bound on the switch.
        owned &= direct and bound is None
        children = owned and select.kind is None
        member = owned and (outer, select.kind) in _MEMBERS
        what = self._noun(select.kind, many=True)
        return {
            "what": self._alike_later("child.many") if children else what,
            "place": None if children else self._later(f"place.{place}", where=where),
            "front": None if children else self._later(f"front.{scope}", where=where),
            "of": self._later("of.directly", where=where) if children or member else None,
            "bound": bound,
            "having": self._bound("having", select),
        }

    def _set(self, select: Selection) -> Callable[[], str]:
        return self._later("selected", **self._selection(select))

    def _bound(self, symbol: str, select: Selection) -> Operand:
        low, high = select.at_least_bps, select.below_bps
        measure = self._measure(select.kind)
        if low is not None and high is not None:
            return self._later(
                f"{symbol}.between", measure=measure, low=self._bps(low), high=self._bps(high)
            )
        if low is not None:
            return self._later(f"{symbol}.at_least", measure=measure, capacity=self._bps(low))
        if high is not None:
            return self._later(f"{symbol}.below", measure=measure, capacity=self._bps(high))
        return None

    def _measure(self, kind: str | None) -> Callable[[], str]:
        return self._alike_later("measure.port" if kind == EK_PORT else "total")

    # Phrases for nodes.

    def _node_later(self, name: str) -> Callable[[], str]:
        return lambda: self.node(name)

    def _bare_later(self, name: str) -> Callable[[], str]:
        def bare() -> str:
            self._mentioned.setdefault(self._kind(name), set()).add(name)
            return repr(name)

        return bare

    def node(self, name: str, depth: int = 0) -> str:
        """Return a noun phrase that identifies ``name``. It is enclosed by ``depth`` other
        descriptions."""
        kind = self._kind(name)
        if name in self._turns:
            return self._expand_alike("ref.turn", kind=self._noun(kind))
        plan = self._plan(name, depth)
        assert plan is not None  # a node outside of descriptions can always be named
        return self._tell(plan)

    def _plan(
        self, name: str, depth: int, around: tuple[str, ...] = (), family: str = ""
    ) -> _Plan | None:
        """Return how to mention ``name`` within descriptions of the nodes ``around``, or None if it
        cannot be mentioned.

        The plan neither refers to a node in ``around`` nor uses a name that contains the name of
        such a node. ``family`` is the family of the innermost description. ``name`` is described
        with a form of another family, because 'the sibling of a sibling' is hard to read.
        """
        if name in around:
            return None
        nameable = not any(other in name for other in around)
        described = self._rng.random() >= _NAMED[depth] if nameable else True
        if described and self._is_there(name):
            for reference in propose(
                self._draft, name, self._rng, self._views, nested=bool(around)
            ):
                own = FAMILIES.get(reference.way, reference.way)
                if own == family:
                    continue
                if reference.anchor is None:
                    return _Plan(name, reference)
                if depth + 1 < len(_NAMED):
                    # A description by rank in a container may also describe the container. Other
                    # descriptions name their anchor.
                    deeper = depth + 1 if own == "order" else len(_NAMED) - 1
                    anchor = self._plan(reference.anchor, deeper, (*around, name), own)
                    if anchor is not None:
                        return _Plan(name, reference, anchor)
        return _Plan(name) if nameable else None

    def _tell(self, plan: _Plan) -> str:
        kind = self._kind(plan.name)
        alone = self._mentioned.get(kind) == {plan.name} and plan.name in self._with_kind
        if alone and kind != EK_JUPITER and self._rng.random() < _AGAIN:
            return self._expand("ref.again", kind=self._noun(kind))
        if plan.reference is None:
            text = self._expand("ref.name", kind=self._noun(kind), name=repr(plan.name))
        else:
            text = self._refer(plan.reference, plan.anchor)
        self._mentioned.setdefault(kind, set()).add(plan.name)
        if self._noun(kind)() in text:
            self._with_kind.add(plan.name)
        return text

    def _refer(self, reference: Reference, anchor: _Plan | None) -> str:
        symbol, role = _WAYS[reference.way]
        kind = reference.kind
        operands: dict[str, Operand] = {
            "kind": self._noun(kind),
            "what": self._noun(kind, many=True),
        }
        if anchor is not None:
            operands[role] = lambda: self._tell(anchor)
        if symbol == "ref.by_size":
            rank = self._ordinal(reference.rank) if reference.rank else None
            operands["size"] = self._later(f"size.{reference.way}", rank=rank)
            operands["measure"] = self._measure(kind)
        elif symbol in {"ref.by_name", "ref.of_all"}:
            operands["rank"] = self._ordinal(reference.rank)
        elif role == "anchor":
            assert reference.anchor is not None
            family = self._family(reference.anchor)
            within = "within.root" if family == EK_JUPITER else "within.same"
            operands["parent"] = self._noun(family)
            operands["within"] = self._later(within, parent=self._noun(family))
        elif reference.bps is not None:
            operands["capacity"] = self._bps(reference.bps)
        return self._expand(symbol, **operands)

    def _family(self, name: str) -> str:
        """Return the kind of the parent that ``name`` shares with its siblings. Racks and control
        domains do not count."""
        kinds = map(self._draft.kind, self._draft.parents(name))
        (kind,) = (kind for kind in kinds if kind not in {EK_RACK, EK_CONTROL_DOMAIN})
        return kind

    def _other(self) -> str:
        """Return a noun phrase with the name of a random node, for context that is irrelevant to
        the task."""
        kind = self._rng.choice((EK_RACK, EK_RACK, EK_SUPERBLOCK, EK_SPINEBLOCK))
        name = self._rng.choice(self._draft.names(kind) or self._draft.names(EK_RACK))
        switches = self._draft.switches(name) if kind == EK_RACK else ()
        if switches and self._rng.random() < _TOGETHER:
            name = self._rng.choice(switches)
        return self._expand("ref.name", kind=self._noun(self._kind(name)), name=repr(name))

    def _is_there(self, name: str) -> bool:
        """Return whether a node of this name is in the initial network."""
        return name not in self._kinds and self._draft.exists(name)

    def _kind(self, name: str) -> str:
        if self._is_there(name):
            return self._draft.kind(name)
        # All new nodes are registered, except ports that a loop adds.
        return self._kinds.get(name, EK_PORT)

    def _quote_new(self, name: str) -> str:
        self._mentioned.setdefault(self._kinds[name], set()).add(name)
        self._with_kind.add(name)
        return repr(name)

    # Nouns, names, capacities and numbers in words.

    def _noun(self, kind: str | None, *, many: bool = False) -> Callable[[], str]:
        return self._alike_later(f"{kind or 'node'}.{'many' if many else 'one'}")

    def _nouns(self, kind: str) -> dict[str, Operand]:
        """Return the nouns of ``kind`` as operands. The keys are the names that productions use."""
        return {f"{kind}.one": self._noun(kind), f"{kind}.many": self._noun(kind, many=True)}

    def _naming(self, names: Sequence[str], switch: str, *, short: bool) -> str:
        """Return the names of ports of ``switch`` as text that follows 'the'.

        With ``short``, the names are shortened if possible.
        """
        # Inside a loop ``switch`` is the variable, and the ports' names start with the variable.
        prefix = f"{switch}."
        # The empty name counts as another mentioned port. Otherwise the text could continue with
        # 'that port', which would be unclear after a list of names.
        self._mentioned.setdefault(EK_PORT, set()).update(names, ("",))
        form = "full"
        if short or switch in self._turns:
            if all(name.startswith(prefix) for name in names):
                form = "short"
            elif all(name.startswith(switch) for name in names):
                form = "suffix"
        cut = {"full": "", "short": prefix, "suffix": switch}[form]
        shown = sorted((name.removeprefix(cut) for name in names), key=_by_number)
        many = "namings" if len(names) > 1 else "naming"
        return self._expand_alike(f"{many}.{form}", name=lambda: self._names(shown))

    def _names(self, names: Sequence[str]) -> str:
        """Return names in quotes. Names with consecutive numbers may be shortened to 'first to
        last'."""
        first, last = names[0], names[-1]
        stem = first.rstrip("0123456789")
        start = int(first[len(stem) :] or 0)
        run = range(start, start + len(names))
        in_a_row = len(names) > 2 and [f"{stem}{n}" for n in run] == list(names)
        if in_a_row and self._rng.random() < _RANGE:
            return f"{first!r} to {last!r}"
        return _series([repr(name) for name in names])

    def _series(self, items: Sequence[Callable[[], str]]) -> str:
        return _series([item() for item in items])

    def _bps(self, bps: float) -> Callable[[], str]:
        return lambda: self.capacity(bps)

    def capacity(self, bps: float) -> str:
        """Return a capacity as text, with a unit in which the number is exact."""
        mantissa, _, exponent = f"{bps:.15e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        power = f"{mantissa}e{int(exponent)}"
        whole = int(bps) if bps == int(bps) else None
        giga, mega = (f"{bps / unit:.12g}" for unit in (1e9, 1e6))
        giga_right, mega_right = (
            "e" not in text and float(text) * unit == bps
            for text, unit in ((giga, 1e9), (mega, 1e6))
        )
        whole_giga = int(giga) if giga_right and giga.isdecimal() else None
        words = None if whole_giga is None or whole_giga > _MAX_WORDS else in_words(whole_giga)
        mega_right = mega_right and float(mega) < _MAX_MEGA
        forms = {
            "giga": {"giga": giga if giga_right else None},
            "gigas": {
                "gigas": giga if giga_right and giga != "1" else None,
                "one_giga": words if giga == "1" else None,
            },
            "gigas_words": {
                "gigas_words": words if giga != "1" else None,
                "one_giga": words if giga == "1" else None,
            },
            "mega": {"mega": mega if mega_right else None},
            "megas": {"megas": mega if mega_right and mega != "1" else None},
            "grouped": {"grouped": f"{whole:,}" if whole is not None else None},
            "power": {"power": power if float(power) == bps else None},
        }
        exact = {"exact": repr(bps)}
        if not self._unit:
            units = (*_UNIT_FORMS, *_HELD_OUT_UNIT_FORMS) if self._held_out else _UNIT_FORMS
            self._unit = self._rng.choice(units)
        giga_like = "gigas" if self._unit.startswith("gigas") else "giga"
        fitting = (forms[name] for name in (self._unit, giga_like, *_UNIT_FALLBACKS))
        form = next((one for one in fitting if any(one.values())), exact)
        return self._expand_alike("capacity", **form)

    def _number(self, number: float) -> Callable[[], str]:
        return lambda: self.number(number)

    def number(self, number: float) -> str:
        """Return ``number`` (a count of nodes, or the number of a stage) as digits or words."""
        whole = number == int(number)
        return self._expand_alike(
            "number",
            digits=f"{number:g}",
            in_words=in_words(int(number)) if whole and number <= _MAX_WORDS else None,
        )

    def _ordinal(self, rank: int) -> Callable[[], str]:
        return lambda: self.ordinal(rank)

    def ordinal(self, rank: int) -> str:
        """Return the ordinal number of a position as text. 0 is the first position, -1 the last."""
        if rank < 0:
            return self._expand("ordinal", in_words="last")
        words = ordinal_in_words(rank + 1) if rank < _MAX_WORDS else None
        return self._expand_alike("ordinal", digits=_ordinal_digits(rank + 1), in_words=words)

    def _times(self, factor: float) -> Callable[[], str]:
        return lambda: self.multiple(factor)

    def multiple(self, factor: float) -> str:
        """Return a factor as a phrase that precedes the multiplied quantity."""
        percent = f"{factor * 100:.12g}"
        return self._expand(
            "multiple",
            factor=_factor(factor),
            in_words=_multiple_in_words(factor),
            percent=percent if float(percent) / 100 == factor else None,
        )


_SENTENCES: Mapping[str, Callable[[Writer, object], str]] = MappingProxyType(
    cast(
        "dict[str, Callable[[Writer, object], str]]",
        {
            "add": Writer._add,  # noqa: SLF001 -- a table of the class's own methods
            "remove": Writer._remove,  # noqa: SLF001 -- the same
            "update": Writer._update,  # noqa: SLF001 -- the same
            "each": Writer._each,  # noqa: SLF001 -- the same
        },
    )
)


def _by_number(name: str) -> tuple[int, str]:
    """Return a sort key for names that differ only in a number at their ends."""
    return len(name), name


def _series(items: Sequence[str], *, last: str = " and ") -> str:
    *head, end = items
    return f"{', '.join(head)}{last}{end}" if head else end


def in_words(number: int) -> str | None:
    """Return ``number`` in English words, or None beyond 999."""
    if not 0 <= number < 1000:
        return None
    hundreds, rest = divmod(number, 100)
    words = []
    if hundreds:
        words.append(f"{_UNITS[hundreds]} hundred")
        if rest:
            words.append("and")
    if rest >= 20:
        tens, units = divmod(rest, 10)
        words.append(_TENS[tens] + (f"-{_UNITS[units]}" if units else ""))
    elif rest or not hundreds:
        words.append(_UNITS[rest])
    return " ".join(words)


def ordinal_in_words(number: int) -> str | None:
    """Return the ordinal of ``number`` in English words, or None beyond 999."""
    words = in_words(number)
    if words is None:
        return None
    head, last = re.fullmatch(r"(.*?)([a-z]+)", words).groups()  # type: ignore[union-attr] # always matches
    if last in _ORDINALS:
        return f"{head}{_ORDINALS[last]}"
    return f"{head}{last[:-1]}ieth" if last.endswith("y") else f"{head}{last}th"


def _ordinal_digits(number: int) -> str:
    teen = number % 100 in {11, 12, 13}
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _factor(factor: float) -> str:
    return f"{factor:.12g}" if float(f"{factor:.12g}") == factor else repr(factor)


def _multiple_in_words(factor: float) -> str | None:
    whole, rest = int(factor), factor - int(factor)
    words = in_words(whole)
    if factor == 0.5:
        return "half"
    if words is None or rest not in {0.0, 0.5} or not whole:
        return None
    if rest:
        return f"{words} and a half times"
    return {1: "once", 2: "twice"}.get(whole, f"{words} times")
