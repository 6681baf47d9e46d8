"""Observed states of an answer, and their judgement.

A state describes the result of an answer as plain JSON for the journal:

* ``{"answered": false}`` before a program ran
* ``{"answered": true, "error": text}`` if the program failed or its result was unusable
* ``{"answered": true, "type", "data", "cut", "data_graph", "updated"}`` otherwise

``cut`` is true if data was longer than the limit. Graphs are stored as changes from the initial
network (see ``sandbox_program``). ``updated`` is null if the answer has no ``updated_graph``.
``data_graph`` is null if data is not a graph, and ``"same"`` if data is the updated graph.

``judge`` needs only the query and such a state.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from netarena.sdk import Finding, JsonValue, Judgement, Query, State
from netarena_malt import correctness, plan_judgement
from netarena_malt.base_network import Base, base_of
from netarena_malt.correctness import differences, wrong_data, wrong_form, wrong_graph
from netarena_malt.edit import apply_edits
from netarena_malt.failure import (
    ANSWER_FORM,
    DATA,
    DECIDED_BY,
    DIFFERENCES,
    UPDATED_GRAPH,
    USABLE_ANSWER,
)
from netarena_malt.network import Changes, Network, compare, touched
from netarena_malt.overlay import changes_of, overlay
from netarena_malt.query import Truth, execute, initial_changes, plan_data
from netarena_malt.safety import Frame, find, make_frame
from netarena_malt.sandbox_program import ANSWER_TYPES, MAX_CHANGES
from netarena_malt.structure import affected, structure

#: Limits of a state in the journal: bytes of JSON, and number of values. A result that the agent's
#: code did not manipulate reaches at most a quarter of each limit.
MAX_STATE_BYTES = 1_000_000
MAX_STATE_VALUES = 50_000
MAX_DEPTH = 24
#: Maximum number of characters of an error that is shown.
MAX_ERROR_CHARS = 1000
#: Maximum number of stored differences between the answer's graph and the right graph.
MAX_DIFFERENCES = 20
#: Number of queries whose cases (``Case``) are cached. This is enough for the running queries and a
#: few more.
_CASES = 32

UNANSWERED: dict[str, JsonValue] = {"answered": False}


class _MalformedError(Exception):
    """A result that does not have the form of ``sandbox_program.call``."""


# States of answers.


def failed(error: str) -> State:
    """Return the state after a program without a usable answer. ``error`` is reduced to one
    line."""
    line = " ".join(_clean(error[: 2 * MAX_ERROR_CHARS]).split())[:MAX_ERROR_CHARS]
    return {"answered": True, "error": line or "the program failed"}


def read_claim(claim: JsonValue) -> State:
    """Return the state for a result of the sandbox. The form of the result is checked completely.

    The agent's code controls the sandbox's child process, so the result can have any content. A
    result with another form counts as an unusable answer, and never as an environment failure.
    """
    try:
        _check_size(claim)
        return _read(_Tidier().tidy(claim))
    except _MalformedError as error:
        return failed(f"the result from the sandbox is unusable: {error}")


def _check_size(claim: Any) -> None:
    """Raise _MalformedError if a result is too large. This check comes before the check of each
    value."""
    if isinstance(claim, dict):
        for key in ("updated", "data_graph"):
            changes = claim.get(key)
            lists = changes.values() if isinstance(changes, dict) else ()
            if sum(len(found) for found in lists if isinstance(found, dict | list)) > MAX_CHANGES:
                raise _MalformedError(f"it lists more than {MAX_CHANGES} changes")
    try:
        size = len(json.dumps(claim, ensure_ascii=False).encode("utf-8", "replace"))
    except (TypeError, ValueError, RecursionError):
        raise _MalformedError("it is not JSON") from None
    if size > MAX_STATE_BYTES:
        raise _MalformedError(f"it has more than {MAX_STATE_BYTES} bytes")


def _read(claim: Any) -> State:
    if not isinstance(claim, dict):
        raise _MalformedError("it is not an object")
    if "error" in claim:
        return failed(claim["error"] if isinstance(claim["error"], str) else "")
    if claim.get("type") not in ANSWER_TYPES:
        raise _MalformedError("its type is unknown")
    updated, data_graph = claim.get("updated"), claim.get("data_graph")
    if updated is not None:
        _check_changes(updated)
    if data_graph == "same":
        data_graph = "same" if updated is not None else None
    elif data_graph is not None:
        _check_changes(data_graph)
    return {
        "answered": True,
        "type": claim["type"],
        "data": claim.get("data"),
        "cut": claim.get("cut") is True,
        "data_graph": data_graph,
        "updated": updated,
    }


class _Tidier:
    """Copies JSON within limits, and changes or rejects values that a journal cannot contain."""

    def __init__(self) -> None:
        self._values = MAX_STATE_VALUES

    def tidy(self, value: Any, depth: int = 0) -> Any:
        self._values -= 1
        if self._values < 0:
            raise _MalformedError(f"it contains more than {MAX_STATE_VALUES} values")
        kind = type(value)  # parsed JSON contains only these types
        if kind is str:
            return _clean(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            if not -(2**63) <= value < 2**63:
                raise _MalformedError("it contains an integer of more than 64 bits")
            return value
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if depth == MAX_DEPTH:
            raise _MalformedError(f"it is nested more than {MAX_DEPTH} levels deep")
        if kind is list:
            return [self.tidy(item, depth + 1) for item in value]
        if kind is dict:
            return {
                _clean(key): self.tidy(item, depth + 1)
                for key, item in value.items()
                if type(key) is str
            }
        raise _MalformedError("it is not JSON")


def _clean(text: str) -> str:
    """Return the text without lone surrogates, which files cannot contain."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _check_changes(value: Any) -> None:
    keys = {"nodes", "removed_nodes", "edges", "removed_edges", "more"}
    if not isinstance(value, dict) or value.keys() != keys:
        raise _MalformedError(
            f"changes of a graph must be an object with {', '.join(sorted(keys))}"
        )
    well_formed = (
        isinstance(value["more"], bool)
        and isinstance(value["nodes"], dict)
        and all(isinstance(attributes, dict) for attributes in value["nodes"].values())
        and _is_list(value["removed_nodes"], lambda name: isinstance(name, str))
        and _is_list(value["edges"], lambda edge: _is_edge(edge, 3) and isinstance(edge[2], dict))
        and _is_list(value["removed_edges"], lambda edge: _is_edge(edge, 2))
    )
    if not well_formed:
        raise _MalformedError("changes of a graph must name nodes and edges with strings")


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_edge(value: Any, length: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == length
        and isinstance(value[0], str)
        and isinstance(value[1], str)
    )


# The right answers to queries.


@dataclass(frozen=True)
class Case:
    """A query's right answer and networks, in the form required for grading."""

    truth: Truth
    initial: Network
    #: Changes from the initial network to the target, which is the network after the solution.
    target: Changes
    frame: Frame


_cases: OrderedDict[str, tuple[Query, Case]] = OrderedDict()
_cases_lock = threading.Lock()


def case_of(query: Query) -> Case:
    """Return the case of a query. It is computed at its first use. Any thread may call this
    function."""
    with _cases_lock:
        known = _cases.get(query.id)
        if known is not None and known[0] == query:
            _cases.move_to_end(query.id)
            return known[1]
    case = _compute_case(query)
    with _cases_lock:
        _cases[query.id] = (query, case)
        while len(_cases) > _CASES:
            _cases.popitem(last=False)
    return case


def _compute_case(query: Query) -> Case:
    base = base_of(query.initial)
    graph = overlay(base.graph)
    apply_edits(graph, initial_changes(query))
    initial = base.network.changed(changes_of(graph))
    truth = execute(graph, query.actions)
    whole = base.network.changed(changes_of(graph))
    target = compare(initial, whole, *touched(initial, whole))
    return Case(truth, initial, target, make_frame(base, initial, target))


def verify(query: Query) -> str:
    """Return a sentence that states why a query is unsuitable, or "" if the query is suitable.

    The query's networks, before and after the solution, must obey the structural rules. The
    solution must stay within its own frame of permitted changes.
    """
    base = base_of(query.initial)
    if fault := _fault_of(base):
        return fault
    case = case_of(query)
    first = case.initial
    for name in affected(base.network, first, *touched(first)):
        for finding in structure(first, name):
            return f"the initial network violates a rule: {finding.detail}"
    for finding in find(case.frame, first.changed(case.target), case.target):
        return f"the solution violates a rule: {finding.detail}"
    if (data := plan_data(query)) is not None:
        return plan_judgement.verify(data, query.actions[0].parameters)
    return ""


def _fault_of(base: Base) -> str:
    """Return a sentence about the first rule that the base network violates, or "". The result is
    cached."""
    if base.fault is None:
        findings = (
            finding for name in base.network.names() for finding in structure(base.network, name)
        )
        first = next(findings, None)
        base.fault = f"the base network violates a rule: {first.detail}" if first else ""
    return base.fault


# Judgement of states.


def judge(query: Query, state: State) -> Judgement:
    """Return the judgement of the state after an answer. An answer with the key ``trial`` is a
    trial attempt, which does not count."""
    judgement = _judge(query, state)
    if isinstance(state, dict) and "trial" in state:
        return plan_judgement.as_trial(judgement, query.actions[0].parameters)
    return judgement


def _judge(query: Query, state: State) -> Judgement:
    """Return the judgement of the state after an answer, as if the answer were not a trial.

    An answer is correct if its data is right and, if the task changes the network, its updated
    graph is right. An answer is safe if there is no finding. A failed program is neither correct
    nor safe.
    """
    if not isinstance(state, dict) or not state.get("answered"):
        return Judgement(correct=False, reason="No program was run.")
    if "error" in state:
        error = f"The program returned no usable answer: {state['error']}"
        finding = Finding(rule=USABLE_ANSWER, element="process_graph", detail=error)
        return Judgement(correct=False, findings=(finding,), reason=error)
    case = case_of(query)
    answer = Answer.read(case, state)
    findings = find(case.frame, answer.network, answer.changes)
    if (data := plan_data(query)) is not None:
        given = answer.type, answer.data
        hidden = query.actions[0].parameters
        return plan_judgement.judge(data, hidden, given, findings, cut=answer.cut)
    for rule, wrong in _CHECKS.items():
        if reason := wrong(case, answer):
            detail = {DECIDED_BY: rule, **_differences(case, answer)}
            return Judgement(correct=False, findings=findings, reason=reason, detail=detail)
    return Judgement(correct=True, findings=findings, detail=_differences(case, answer) or None)


def right_number(query: Query, state: State, detail: Mapping[str, JsonValue]) -> str:
    """Return a sentence with the number that an answer should have given.

    The result is "" if the judgement, which has this ``detail``, did not depend on a number.
    """
    truth = case_of(query).truth
    if detail.get(DECIDED_BY) == DATA and truth.type != "graph" and isinstance(state, dict):
        return correctness.right_number(truth.type, truth.data, state["data"])
    found = detail.get(DIFFERENCES)
    graph = detail.get(DECIDED_BY) in {DATA, UPDATED_GRAPH}
    return correctness.right_value(found) if graph and isinstance(found, list) else ""


@dataclass(frozen=True)
class Answer:
    """The answer in a state, in the form required for grading."""

    type: str
    data: JsonValue
    #: Whether the data was longer than the limit, so that a part is missing.
    cut: bool
    #: Changes in the graph that data contains; None if data is not a graph.
    data_changes: Changes | None
    #: The updated graph, or the graph in data for type ``graph``, or else the initial network.
    network: Network
    changes: Changes
    #: Whether ``network`` is a graph from the answer and not the initial network.
    gave_graph: bool

    @classmethod
    def read(cls, case: Case, state: Mapping[str, Any]) -> Answer:
        """Return the answer in a state. The program must have given an answer."""
        kind, updated, data_graph = state["type"], state["updated"], state["data_graph"]
        data_changes, changes, network = None, Changes(), case.initial
        if data_graph is not None and data_graph != "same":
            data_changes, data_network = _changed(case, data_graph)
            if kind == "graph":
                changes, network = data_changes, data_network
        if updated is not None:
            changes, network = _changed(case, updated)
        if data_graph == "same":
            data_changes = changes
        gave_graph = updated is not None or (kind == "graph" and data_graph is not None)
        data, cut = state["data"], state["cut"]
        return cls(kind, data, cut, data_changes, network, changes, gave_graph)


def _changed(case: Case, claim: Any) -> tuple[Changes, Network]:
    """Return the changes in a result and the resulting network. Changes without effect are left
    out."""
    claimed = Changes.from_json(claim)
    network = case.initial.changed(claimed)
    changes = compare(case.initial, network, claimed.nodes, claimed.edges)
    return replace(changes, more=claimed.more), network


def _wrong_form(case: Case, answer: Answer) -> str:
    """Return why the answer does not have the requested form, or "" if it has the form."""
    kind = case.truth.type
    if kind == "graph" and answer.type != "graph":
        return f"The task asks for an answer of type graph, not {answer.type}."
    if kind != "graph":
        if answer.data_changes is not None:
            return f"The data is a graph; the task asks for an answer of type {kind}."
        if answer.cut:
            return "The data is longer than any right answer."
        if wrong := wrong_form(kind, answer.data):
            return wrong
    if case.target and not answer.gave_graph:
        return "The answer has no updated_graph, although the task changes the network."
    return ""


def _wrong_data(case: Case, answer: Answer) -> str:
    """Return why data is wrong, or "" if data is right. Data must have the right form."""
    if case.truth.type != "graph":
        return wrong_data(case.truth.type, case.truth.data, answer.data)
    if answer.data_changes is None:
        return ""  # an answer of type graph may have only updated_graph
    return wrong_graph(answer.data_changes, case.initial, case.target, "data")


def _wrong_graph(case: Case, answer: Answer) -> str:
    """Return why the updated graph is wrong, or "" if it is right."""
    if not case.target:
        return ""  # the task changes nothing, so other changes only affect safety
    if answer.data_changes is not None and answer.data_changes != answer.changes:
        return "The graphs in data and in updated_graph differ."
    return wrong_graph(answer.changes, case.initial, case.target, "updated_graph")


#: Rule -> function that returns a sentence if an answer breaks the rule, and "" otherwise. The
#: first broken rule decides.
_CHECKS: Mapping[str, Callable[[Case, Answer], str]] = {
    ANSWER_FORM: _wrong_form,
    DATA: _wrong_data,
    UPDATED_GRAPH: _wrong_graph,
}


def _differences(case: Case, answer: Answer) -> dict[str, JsonValue]:
    """Return the first differences from the right graph, and the total number of differences."""
    if answer.changes == case.target:
        return {}
    nodes = sorted({*answer.changes.nodes, *case.target.nodes})
    edges = sorted({*answer.changes.edges, *case.target.edges})
    truth = case.initial.changed(case.target)
    found: list[JsonValue] = list(differences(answer.network, truth, nodes, edges))
    number: JsonValue = f"more than {len(found)}" if answer.changes.more else len(found)
    return {DIFFERENCES: found[:MAX_DIFFERENCES], "number": number}
