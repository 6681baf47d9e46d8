"""Features of a network's edits, which a program can compute without the text of the query.

A program that knows the released model can compare the query's network with this model. Texts with
``phrasing`` varied or held_out describe containers without their names. If a feature showed which
container is meant, it could replace reading the text.

The candidates are the containers that the query may be about: all containers of the right kind, or
a sample. Only containers of one kind are compared, because kinds differ in their frequency by
design. All features are traces: the number and kinds of edits in a container, the edits' positions
in the order of nodes and edges, and the names of added nodes. No feature states whether a network
has edits, because all networks have some.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from netarena.sdk import RULE, Action, Candidate, Evidence, Query, relative
from netarena_malt.action import OPERATIONS, Addition, Loop, Question, Removal, Update
from netarena_malt.base_network import Base, base_of
from netarena_malt.overlay import changes_of
from netarena_malt.planning.evidence import candidates
from netarena_malt.query import initial_graph, plan_data
from netarena_malt.topology import CAPACITY, EK_PORT, RK_CONTAINS

#: Maximum number of candidates of one query. Comparing all of the hundreds of switches would take
#: longer without benefit.
_MOST_CANDIDATES = 24

#: Kinds of edits.
_EDITS = tuple(
    f"{verb} {noun}" for verb in ("added", "removed", "set") for noun in ("ports", "switches")
)


def evidence(query: Query) -> Evidence | None:
    """Return the features of the containers that ``query`` may be about.

    For a planning task, returns the features of choices that a plan may contain. Returns None if
    every container of each suitable kind is a target. Raises ConfigError as ``base_of`` does.
    """
    if (data := plan_data(query)) is not None:
        rng = random.Random(f"evidence of {query.id}")  # noqa: S311 -- not used for a secret
        found = tuple(candidates(data, query.actions[0].parameters, rng))
        return Evidence(id=query.id, label=query.label, candidates=found)
    edits = _Edits(base_of(query.initial), query)
    asked = _asked(query.actions, edits)
    if asked is None:
        return None
    targets, present = asked
    others = [name for name in present if name not in targets]
    rng = random.Random(f"evidence of {query.id}")  # noqa: S311 -- not used for a secret
    few = rng.sample(others, min(len(others), max(1, _MOST_CANDIDATES - len(targets))))
    chosen = {*few, *targets}
    order = {name: place / len(present) for place, name in enumerate(present)}
    features = relative(
        {name: edits.of_place(name) | {"order": order[name]} for name in present if name in chosen}
    )
    compared = tuple(
        Candidate(
            name=name,
            target=name in targets,
            role=edits.kind(name),
            trace=trace | edits.rules(name),
        )
        for name, trace in features.items()
    )
    return Evidence(
        id=query.id,
        label=query.label,
        candidates=compared,
        trace=edits.of_network(),
    )


def _asked(actions: Sequence[Action], edits: _Edits) -> tuple[set[str], list[str]] | None:
    """Return the targets of the actions, which are containers of one kind, and all containers of
    this kind.

    The kind is that of the last action. If all containers of this kind are targets, the kind of an
    earlier action is used. Returns None if no action has a suitable kind.
    """
    places = [name for action in reversed(actions) for name in _places(action, edits)]
    for kind in dict.fromkeys(map(edits.kind, places)):
        targets = {name for name in places if edits.kind(name) == kind}
        present = edits.present(kind)
        if len(targets) < len(present):
            return targets, present
    return None


def _places(action: Action, edits: _Edits) -> list[str]:
    """Return the containers that an action is about. For a port, this is its switch."""
    parameters = OPERATIONS[action.kind].parameters.model_validate(action.parameters)
    names: Iterable[str]
    if isinstance(parameters, Question | Update | Loop):
        names = [parameters.select.name]
    elif isinstance(parameters, Removal):
        names = parameters.names
    else:
        assert isinstance(parameters, Addition)
        names = [node.parents[0] for node in parameters.nodes]
    return [
        edits.containers(name)[0] if edits.kind(name) == EK_PORT else name
        for name in names
        if name in edits.nodes
    ]


class _Edits:
    """The edits of a query's network, counted for each container."""

    def __init__(self, base: Base, query: Query) -> None:
        self.base = base
        graph = initial_graph(query)
        changes = changes_of(graph).nodes  # computed first: lookups add rows to the overlay
        # Views of networkx would take more time than all other work here.
        self.nodes: Any = graph._node  # noqa: SLF001
        self._below: Any = graph._succ  # noqa: SLF001
        self._above: Any = graph._pred  # noqa: SLF001
        self._old: Any = base.graph._pred  # noqa: SLF001
        self._known: dict[str, list[str]] = {}
        added = [name for name in changes if name not in base.graph]
        #: Position of each added node in the order of added nodes, in [0, 1).
        age = {name: place / len(added) for place, name in enumerate(added)}
        self._ages: defaultdict[str, list[float]] = defaultdict(list)
        self._numbers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._all: Counter[str] = Counter()
        for name, attributes in changes.items():
            verb = "removed" if attributes is None else "added" if name in age else "set"
            noun = "ports" if self.kind(name) == EK_PORT else "switches"
            what = f"{verb} {noun}"
            self._all[what] += 1
            for place in (name, *self.containers(name)):
                self._numbers[place][what] += 1
                if name in age:
                    self._ages[place].append(age[name])
        self._gone = {name for name, attributes in changes.items() if attributes is None}
        self._added = added

    def kind(self, name: str) -> str:
        return (
            self.base.index.kind(name) if name in self.base.index else self.nodes[name]["type"][0]
        )

    def present(self, kind: str) -> list[str]:
        """Return the names of the nodes of a kind, in the order of the graph."""
        old = [name for name in self.base.index.names[kind] if name not in self._gone]
        return old + [name for name in self._added if self.kind(name) == kind]

    def containers(self, name: str) -> list[str]:
        """Return the names of all containers of a node, nearest first.

        For a node of the base, the result is its containers in the base, even if it was removed.
        """
        if name not in self._known:
            rows = self._old if name in self.base.graph else self._above
            above = [p for p, edge in rows[name].items() if edge["type"] == RK_CONTAINS]
            found = dict.fromkeys(above)
            for parent in above:
                found.update(dict.fromkeys(self.containers(parent)))
            self._known[name] = list(found)
        return self._known[name]

    def _contents(self, name: str) -> list[str]:
        found, todo = dict[str, None](), [name]
        while todo:
            for child, edge in self._below[todo.pop()].items():
                if edge["type"] == RK_CONTAINS and child not in found:
                    found[child] = None
                    todo.append(child)
        return list(found)

    def of_network(self) -> dict[str, float]:
        """Return features of the whole network: its number of edits of each kind."""
        return {what: float(self._all[what]) for what in _EDITS}

    def of_place(self, name: str) -> dict[str, float]:
        """Return the features of one container, as described at the top of this module."""
        numbers, inside = self._numbers[name], self._contents(name)
        found = {what: float(numbers[what]) for what in _EDITS}
        found["edits"] = float(numbers.total())
        found["edits per node"] = numbers.total() / (1 + len(inside))
        found["new"] = float(name not in self.base.graph)
        found["nodes"] = float(len(inside))
        found |= self._values(inside) | self._names(name) | self._layout(inside)
        if ages := self._ages[name]:
            found["first added"], found["last added"] = min(ages), max(ages)
        for place in self.containers(name):
            # Share of the edits in an outer container that are in this container.
            around = self._numbers[place].total()
            share = numbers.total() / around if around else 0.0
            found[f"share of edits in {self.kind(place)}"] = share
        return found

    def rules(self, name: str) -> dict[str, float]:
        """Return the scores that hand-written rules assign to a container.

        In an early version of the generator, the first rule found 53 % of the targets.
        """
        total, ages = self._numbers[name].total(), self._ages[name]
        rules = {
            "holds all edits": float(total == self._all.total()),
            "most edits": float(total),
            "fewest edits": -float(total),
            "most added": float(len(ages)),
            "added first": 1 - min(ages, default=1.0),
            "added last": max(ages, default=0.0),
            "highest number": self._names(name)["highest number"],
        }
        return {f"{RULE}{rule}": score for rule, score in rules.items()}

    def _values(self, inside: Sequence[str]) -> dict[str, float]:
        """Return features of the capacities of ports. ``inside`` are nodes, some of which are
        ports."""
        rows = (self.nodes[name] for name in inside)
        values = [attributes[CAPACITY] for attributes in rows if CAPACITY in attributes]
        return {
            "capacity": float(sum(values)),
            "largest capacity": float(max(values, default=0.0)),
            "capacities": float(len(set(values))),
            "integers": float(sum(isinstance(value, int) for value in values)),
        }

    def _names(self, place: str) -> dict[str, float]:
        """Return features of the numbers at the ends of the names of a container's direct
        contents."""
        children = [child for child in self._below[place] if child != place]
        digits = (child[len(child.rstrip("0123456789")) :] for child in children)
        numbers = [int(text[:9]) for text in digits if text]
        return {
            "highest number": float(max(numbers, default=0)),
            "gaps in numbers": float(max(numbers, default=0) - len(numbers)),
            "sorted names": float(children == sorted(children)),
        }

    def _layout(self, inside: Sequence[str]) -> dict[str, float]:
        """Return how many nodes have attributes in an unusual order, and how many have parents in
        an unusual order."""
        attributes = parents = 0
        usual: dict[str, tuple[str, ...]] = {}
        for name in inside:
            row = self.nodes[name]
            keys = tuple(row)
            attributes += keys != usual.setdefault(row["type"][0], keys)
            above = [len(parent) for parent in self._above[name] if parent != name]
            parents += above != sorted(above)
        return {"odd attributes": float(attributes), "odd parents": float(parents)}
