"""The meaning of a program, in a form in which equivalent programs are equal.

The form leaves out order and grouping without meaning: names to remove and nodes to add are sets,
and a new node lists all its parents, however they were written. Numbers are floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Select(NamedTuple):
    name: str
    scope: str = "self"
    kind: str | None = None
    at_least: float | None = None
    below: float | None = None


class New(NamedTuple):
    name: str
    kind: str
    #: sorted pairs of key and value; a nested dictionary is a tuple of pairs
    attributes: tuple[Any, ...]
    parents: frozenset[str]


class When(NamedTuple):
    measure: str
    #: at_least, below, equals or ends_with
    comparison: str
    value: Any
    kind: str | None = None


class Do(NamedTuple):
    """An operation; ``what`` has all its parameters, in a form that depends on the kind."""

    kind: str
    what: Any


class Each(NamedTuple):
    select: Select
    variable: str
    when: When | None
    then: tuple[Do, ...]
    otherwise: tuple[Do, ...]


def attributes(values: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(
        sorted(
            (key, attributes(value) if isinstance(value, Mapping) else float(value))
            for key, value in values.items()
        )
    )


def meaning(actions: Iterable[Any]) -> tuple[Do, ...]:
    """Return the meaning of a query's actions, given as records or as their JSON."""
    return tuple(_one(_plain(action)) for action in actions)


def _plain(action: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = action if isinstance(action, Mapping) else action.model_dump()
    return found


def _one(action: Mapping[str, Any]) -> Do:
    kind, given = action["kind"], action["parameters"]
    if kind == "add":
        return Do(kind, frozenset(_flat(given["nodes"], ())))
    if kind == "remove":
        return Do(kind, frozenset(given["names"]))
    if kind == "update":
        change = "to_bps" if given.get("to_bps") is not None else "times"
        return Do(kind, (_select(given["select"]), change, float(given[change])))
    if kind == "each":
        when = given.get("when")
        return Do(
            kind,
            Each(
                _select(given["select"]),
                given.get("variable", "$1"),
                _when(when) if when else None,
                meaning(given["then"]),
                meaning(given.get("otherwise", ())),
            ),
        )
    return Do(kind, _select(given["select"]))


def _select(given: Mapping[str, Any]) -> Select:
    return Select(
        given["name"],
        given.get("scope", "self"),
        given.get("kind"),
        given.get("at_least_bps"),
        given.get("below_bps"),
    )


def _when(given: Mapping[str, Any]) -> When:
    (comparison,) = (
        key for key in ("at_least", "below", "equals", "ends_with") if given.get(key) is not None
    )
    return When(given["measure"], comparison, given[comparison], given.get("kind"))


def _flat(nodes: Sequence[Mapping[str, Any]], around: tuple[str, ...]) -> Iterator[New]:
    for node in nodes:
        parents = frozenset([*around, *node.get("parents", ())])
        yield New(node["name"], node["kind"], attributes(node.get("attributes", {})), parents)
        yield from _flat(node.get("contents", ()), (node["name"],))
