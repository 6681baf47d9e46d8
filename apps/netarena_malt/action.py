"""The action space: operations on the network and loops over them, with descriptions and effects.

==========  ===============================================================  ===================
kind        parameters                                                       effect
==========  ===============================================================  ===================
``add``     ``Addition``: new nodes with their contents                      changes the graph
``remove``  ``Removal``: names                                               changes the graph
``update``  ``Update``: selected ports, and their new capacity               changes the graph
``count``   ``Question``: selected nodes                                     an integer
``list``    ``Question``: selected nodes                                     a list of names
``rank``    ``Question``: selected nodes                                     [name, bps] rows
``each``    ``Loop``: selected nodes, a condition, actions for each node     changes the graph
==========  ===============================================================  ===================

Selected nodes and ports are given as a ``Selection``. A program is a sequence of actions. A loop
contains actions, which may be loops. In a loop's actions a variable (``$1``, or ``$2`` in a nested
loop) stands for the name of the current node. Descriptions and effects use the same parameters, so
the effect cannot depend on anything that the description leaves out.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, cast

from pydantic import Field, model_validator

from netarena.sdk import Action, JsonValue, Record
from netarena_malt.edit import apply_edits, descendants
from netarena_malt.topology import (
    CAPACITY,
    EK_PORT,
    NODE_KINDS,
    RK_CONTAINS,
    RK_CONTROLS,
    SWITCH_LOC,
    Graph,
)

AnswerType: TypeAlias = Literal["graph", "text", "list", "table"]
Scope: TypeAlias = Literal["self", "children", "descendants"]


class Selection(Record):
    """A set of nodes: a node itself, its direct contents, or all nodes that it contains.

    ``kind`` selects nodes whose ``type`` list contains this kind. The bounds select nodes by total
    port capacity in bps, or by a port's own capacity.
    """

    name: str
    scope: Scope = "self"
    kind: str | None = None
    at_least_bps: float | None = None
    below_bps: float | None = None


class NewNode(Record):
    """A node to add, with its contents and its parents.

    If this node is in the ``contents`` of another new node, ``parents`` omits that node.
    """

    name: str
    #: First entry of the node's ``type`` list.
    kind: str
    attributes: dict[str, JsonValue] = Field(default_factory=dict)
    parents: tuple[str, ...] = ()
    contents: tuple[NewNode, ...] = ()


class Addition(Record):
    """Parameters of ``add``."""

    nodes: tuple[NewNode, ...]


class Removal(Record):
    """Parameters of ``remove``, which removes each node with its contents."""

    names: tuple[str, ...]


class Update(Record):
    """Parameters of ``update``, which sets or multiplies the capacity of ports."""

    select: Selection
    to_bps: float | None = None
    times: float | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.to_bps is None) == (self.times is None):
            raise ValueError("exactly one of to_bps and times must be set")
        return self


class Question(Record):
    """Parameters of ``count``, ``list`` and ``rank``."""

    select: Selection


class Condition(Record):
    """A condition on a measure of a node.

    ============  ==================================================  ======================
    measure       value                                               comparison
    ============  ==================================================  ======================
    ``capacity``  its total port capacity, bps                        ``at_least``, ``below``
    ``children``  number of nodes of ``kind`` it contains directly    ``at_least``, ``below``
    ``stage``     ``switch_loc['stage']`` of a packet switch          ``equals``
    ``name``      its name                                            ``ends_with``
    ============  ==================================================  ======================

    Exactly one comparison is given.
    """

    measure: Literal["capacity", "children", "stage", "name"]
    kind: str | None = None
    at_least: float | None = None
    below: float | None = None
    equals: float | None = None
    ends_with: str | None = None

    @model_validator(mode="after")
    def _one_comparison(self) -> Self:
        given = {
            key
            for key in ("at_least", "below", "equals", "ends_with")
            if getattr(self, key) is not None
        }
        if len(given) != 1 or not given <= _COMPARISONS[self.measure]:
            allowed = " or ".join(sorted(_COMPARISONS[self.measure]))
            raise ValueError(f"{self.measure} must be compared with exactly one of {allowed}")
        if (self.kind is not None) != (self.measure == "children"):
            raise ValueError(
                "kind must be set if measure is children, and must not be set otherwise"
            )
        return self


_COMPARISONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "capacity": frozenset({"at_least", "below"}),
        "children": frozenset({"at_least", "below"}),
        "stage": frozenset({"equals"}),
        "name": frozenset({"ends_with"}),
    }
)


class Loop(Record):
    """Parameters of ``each``, which runs ``then`` or ``otherwise`` for each selected node.

    The nodes are selected on the network at the start of the loop and visited in ascending order of
    their names. ``when`` is tested at the start of each visit. If ``when`` is None, ``then`` always
    runs. In the texts of the actions, ``variable`` (``$1``, or ``$2`` in a nested loop) stands for
    the node's name. Actions are ``add``, ``remove``, ``update`` and ``each``. No action removes a
    node that is visited later.
    """

    select: Selection
    variable: str = "$1"
    when: Condition | None = None
    then: tuple[Action, ...]
    otherwise: tuple[Action, ...] = ()


P = TypeVar("P", bound=Record)


@dataclass(frozen=True)
class Operation(Generic[P]):
    """A kind of action: its parameters, description, effect, and form of answer."""

    parameters: type[P]
    #: Returns imperative sentences that state everything on which the effect depends.
    describe: Callable[[P], str]
    #: Changes the graph in place, or returns the answer to a question.
    effect: Callable[[Graph, P], JsonValue | None]
    answer_type: AnswerType
    #: Description of the answer's ``data``, as the end of a sentence.
    answer_form: str


def effect(graph: Graph, action: Action) -> JsonValue | None:
    """Execute ``action``: change ``graph`` in place and return None, or return the answer.

    ``count`` returns an int, ``list`` a list of names, ``rank`` a list of [name, total port
    capacity in bps] rows. Raises KeyError if a node that the action names is not in ``graph``.
    """
    operation = OPERATIONS[action.kind]
    return operation.effect(graph, operation.parameters.model_validate(action.parameters))


def describe(action: Action) -> str:
    """Return a description of ``action``: one or more imperative sentences."""
    operation = OPERATIONS[action.kind]
    return operation.describe(operation.parameters.model_validate(action.parameters))


def act(kind: str, parameters: Record) -> Action:
    """Return an action of ``kind``; parameters that have their default values are left out."""
    return Action(kind=kind, parameters=parameters.model_dump(mode="json", exclude_defaults=True))


# Helper functions of the effects.


def total_port_capacity(graph: Graph, name: str) -> float:
    """Return the total capacity of all ports that ``name`` contains, at any depth, in bps.

    For a port, return the port's own capacity.
    """
    nodes = graph._node  # noqa: SLF001 -- the view graph.nodes would double the time
    if EK_PORT in nodes[name]["type"]:
        return float(nodes[name][CAPACITY])
    within = descendants(graph, name)
    return float(sum(nodes[node][CAPACITY] for node in within if EK_PORT in nodes[node]["type"]))


def select(graph: Graph, selection: Selection) -> list[str]:
    """Return the names of the selected nodes.

    Raises KeyError if ``selection.name`` is not in ``graph``.
    """
    names: Iterable[str]
    if selection.scope == "descendants":
        names = descendants(graph, selection.name)
    elif selection.scope == "children":
        edges = graph.adj[selection.name].items()
        names = [child for child, edge in edges if edge["type"] == RK_CONTAINS]
    else:
        graph.nodes[selection.name]
        names = (selection.name,)
    if selection.kind is not None:
        names = [name for name in names if selection.kind in graph.nodes[name]["type"]]
    low = 0.0 if selection.at_least_bps is None else selection.at_least_bps
    high = math.inf if selection.below_bps is None else selection.below_bps
    if (low, high) == (0.0, math.inf):
        return list(names)
    return [name for name in names if low <= total_port_capacity(graph, name) < high]


def _add(graph: Graph, addition: Addition) -> None:
    def flat(node: NewNode, around: tuple[str, ...]) -> Iterable[list[Any]]:
        attributes = {"type": list(NODE_KINDS[node.kind].types), **node.attributes}
        yield [node.name, attributes, [*around, *node.parents]]
        for inner in node.contents:
            yield from flat(inner, (node.name,))

    apply_edits(graph, {"add": [entry for node in addition.nodes for entry in flat(node, ())]})


def _remove(graph: Graph, removal: Removal) -> None:
    apply_edits(graph, {"remove": removal.names})


def _update(graph: Graph, update: Update) -> None:
    for name in select(graph, update.select):
        attributes = graph.nodes[name]
        attributes[CAPACITY] = (
            attributes[CAPACITY] * update.times if update.to_bps is None else update.to_bps
        )


def holds(graph: Graph, condition: Condition, name: str) -> bool:
    """Return whether ``condition`` is true for the node. Raises KeyError if it does not exist."""
    if condition.ends_with is not None:
        graph.nodes[name]
        return name.endswith(condition.ends_with)
    if condition.measure == "children":
        children = Selection(name=name, scope="children", kind=condition.kind)
        value = float(len(select(graph, children)))
    elif condition.measure == "stage":
        value = float(graph.nodes[name][SWITCH_LOC]["stage"])
    else:
        value = total_port_capacity(graph, name)
    if condition.equals is not None:
        return value == condition.equals
    low = -math.inf if condition.at_least is None else condition.at_least
    high = math.inf if condition.below is None else condition.below
    return low <= value < high


def substitute(action: Action, variable: str, name: str) -> Action:
    """Return ``action`` with ``name`` in place of ``variable`` in all texts of its parameters."""

    def put(value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return value.replace(variable, name)
        if isinstance(value, list):
            return [put(item) for item in value]
        if isinstance(value, dict):
            return {key: put(item) for key, item in value.items()}
        return value

    return Action(kind=action.kind, parameters=cast("dict[str, JsonValue]", put(action.parameters)))


def _each(graph: Graph, loop: Loop) -> None:
    for name in sorted(select(graph, loop.select)):
        branch = loop.then if loop.when is None or holds(graph, loop.when, name) else loop.otherwise
        for action in branch:
            effect(graph, substitute(action, loop.variable, name))


def _count(graph: Graph, question: Question) -> JsonValue:
    return len(select(graph, question.select))


def _list(graph: Graph, question: Question) -> JsonValue:
    return list[JsonValue](sorted(select(graph, question.select)))


def _rank(graph: Graph, question: Question) -> JsonValue:
    rows = [(name, total_port_capacity(graph, name)) for name in select(graph, question.select)]
    return [[name, bps] for name, bps in sorted(rows, key=lambda row: (-row[1], row[0]))]


# Descriptions of actions in words.

_CAPACITY_RULE = (
    "total port capacity (the sum of physical_capacity_bps over all ports that a node contains, "
    "directly or through other nodes; of a port, its own physical_capacity_bps)"
)


def _series(items: Iterable[str]) -> str:
    *head, last = items
    return f"{', '.join(head)} and {last}" if head else last


def _quoted(names: Iterable[str]) -> str:
    return _series([repr(name) for name in names])


def _noun(kind: str, number: int = 1) -> str:
    noun = NODE_KINDS[kind].noun
    return (
        noun
        if number == 1
        else "switches".join(noun.rsplit("switch", 1))
        if (noun.endswith("switch"))
        else f"{noun}s"
    )


def _selected(selection: Selection) -> str:
    """Return a noun phrase for ``selection``."""
    if selection.scope == "self":
        return f"the node {selection.name!r}"
    what = "nodes" if selection.kind is None else f"nodes of kind {selection.kind}"
    how = "directly" if selection.scope == "children" else "directly or through other nodes"
    text = f"all {what} that {selection.name!r} contains {how}"
    measure = CAPACITY if selection.kind == EK_PORT else _CAPACITY_RULE
    bounds = []
    if selection.at_least_bps is not None:
        bounds.append(f"at least {selection.at_least_bps!r}")
    if selection.below_bps is not None:
        bounds.append(f"below {selection.below_bps!r}")
    return f"{text} and whose {measure} is {_series(bounds)} bps" if bounds else text


def _describe_add(addition: Addition) -> str:
    return " ".join(_describe_new(node) for node in _alike(addition.nodes))


def _alike(nodes: tuple[NewNode, ...]) -> list[list[NewNode]]:
    """Return groups of new nodes that differ only in their names. A node with contents forms a
    separate group."""
    groups: dict[str, list[NewNode]] = {}
    for node in nodes:
        key = node.name if node.contents else node.model_copy(update={"name": ""}).model_dump_json()
        groups.setdefault(key, []).append(node)
    return list(groups.values())


def _describe_new(nodes: list[NewNode], around: str | None = None) -> str:
    """Return sentences that describe new nodes, which differ only in their names, inside the node
    ``around``."""
    first, number = nodes[0], len(nodes)
    kind = NODE_KINDS[first.kind]
    names = _quoted(node.name for node in nodes)
    values = {"type": list(kind.types), **first.attributes}
    told = ["name (its key)", *(f"{key} {value!r}" for key, value in values.items())]
    parents = [*([around] if around else []), *first.parents]
    text = (
        f"Add the {_noun(first.kind, number)} {names}, {'each ' if number > 1 else ''}"
        f"with {_series(told)}"
    )
    if parents:
        source = repr(parents[0]) if len(parents) == 1 else "each of them"
        edges = f"one {RK_CONTAINS} edge from {source}{' to each' if number > 1 else ''}"
        text += f", contained in {_quoted(parents)} ({edges})"
    if kind.controls_itself:
        text += f", with one {RK_CONTROLS} edge from {'each' if number > 1 else 'it'} to itself"
    sentences = [f"{text}."]
    for node in nodes:
        sentences += [_describe_new(group, node.name) for group in _alike(node.contents)]
    return " ".join(sentences)


def _describe_remove(removal: Removal) -> str:
    return (
        f"Remove {_quoted(removal.names)}, everything that {_removed(removal)} contains directly "
        "or through other nodes, and every edge from or to a removed node. Nothing else goes: a "
        "block, rack or control domain that loses its last switch stays."
    )


def _removed(removal: Removal) -> str:
    return "it" if len(removal.names) == 1 else "each of them"


def _describe_update(update: Update) -> str:
    which = _selected(update.select)
    if update.to_bps is not None:
        return f"Set {CAPACITY} to {update.to_bps!r} on {which}."
    return f"Multiply {CAPACITY} by {update.times!r} on {which}."


def _describe_count(question: Question) -> str:
    return f"Count {_selected(question.select)}."


def _describe_list(question: Question) -> str:
    return f"List the names of {_selected(question.select)}."


def _describe_rank(question: Question) -> str:
    return (
        f"Rank {_selected(question.select)} by {_CAPACITY_RULE}, largest first; nodes of equal "
        "total by name, ascending, as Python compares strings."
    )


def _describe_each(loop: Loop) -> str:
    head = (
        f"Go through {_selected(loop.select)}, as they are when this step begins, in ascending "
        f"order of their names; {loop.variable} stands for the name of the node whose turn it is:"
    )
    if loop.when is None:
        return "\n".join([head, *_body(loop.then)])
    lines = [head, f"  If {_describe_condition(loop.when, loop.variable)}:", *_body(loop.then, 2)]
    if loop.otherwise:
        lines += ["  Otherwise:", *_body(loop.otherwise, 2)]
    return "\n".join(lines)


def _body(actions: Iterable[Action], depth: int = 1) -> Iterable[str]:
    for action in actions:
        yield textwrap.indent(describe(action), "  " * depth)


def _describe_condition(condition: Condition, variable: str) -> str:
    if condition.ends_with is not None:
        return f"the name {variable!r} ends with {condition.ends_with!r}"
    if condition.equals is not None:
        return f"the stage in {SWITCH_LOC} of {variable!r} is {condition.equals!r}"
    low = condition.at_least is not None
    bound = condition.at_least if low else condition.below
    comparison = "at least" if low else "below"
    if condition.measure == "children":
        what = f"the number of nodes of kind {condition.kind} that {variable!r} contains directly"
        return f"{what} is {comparison} {bound:g}"
    return f"the {_CAPACITY_RULE} of {variable!r} is {comparison} {bound!r} bps"


def _operation(
    parameters: type[P],
    words: Callable[[P], str],
    does: Callable[[Graph, P], JsonValue | None],
    answer: tuple[AnswerType, str] = ("graph", "the changed network"),
) -> Operation[Any]:
    return Operation(parameters, words, does, *answer)


#: Kind of action -> its operation.
OPERATIONS: Mapping[str, Operation[Any]] = MappingProxyType(
    {
        "add": _operation(Addition, _describe_add, _add),
        "remove": _operation(Removal, _describe_remove, _remove),
        "update": _operation(Update, _describe_update, _update),
        "count": _operation(
            Question, _describe_count, _count, ("text", "the number of these nodes")
        ),
        "list": _operation(
            Question,
            _describe_list,
            _list,
            ("list", "a list of the names, each once, in any order"),
        ),
        "rank": _operation(
            Question,
            _describe_rank,
            _rank,
            ("table", "a list of rows [name, total port capacity in bps] in that order"),
        ),
        "each": _operation(Loop, _describe_each, _each),
    }
)
