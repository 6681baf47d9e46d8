"""Pictures of an answer: its differences from the initial network, and from the right answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from netarena.sdk import Change, Chart, Difference, JsonValue, Picture, Query, State
from netarena_malt.correctness import differences, wrong_data, wrong_form
from netarena_malt.network import Changes, Network, equal
from netarena_malt.planning.catalogue import kind_of
from netarena_malt.planning.plan import PlanError
from netarena_malt.query import plan_data
from netarena_malt.state import Answer, Case, case_of, judge

#: Maximum number of nodes and edges that a picture shows.
MAX_NAMED = 200
#: Maximum number of characters of one value in a picture.
MAX_CHARS = 2000


def draw(query: Query, state: State) -> tuple[Picture, ...]:
    """Return up to three pictures of the state after an answer. The result is empty if the answer
    is unusable.

    One picture shows the answer's data next to the right data. The others show the answer's changes
    of the network, and the differences of the resulting network from the right network. For a
    planning task, the pictures show the plan's objective next to the reference's objective, and
    both plans as charts.
    """
    if not isinstance(state, dict) or not state.get("answered") or "error" in state:
        return ()
    case = case_of(query)
    answer = Answer.read(case, state)
    if plan_data(query) is not None:
        return (_draw_plan(query, answer, state), *_charts(query, answer))
    pictures: list[Picture] = []
    if case.truth.type != "graph":
        kind, truth_data = case.truth.type, case.truth.data
        right = not wrong_form(kind, answer.data) and not wrong_data(kind, truth_data, answer.data)
        data = Change(
            element="data", before=_text(answer.data), after=_text(truth_data), right=right
        )
        pictures.append(
            Difference(title="The answer", titles=("answer", "right answer"), changes=(data,))
        )
    truth = case.initial.changed(case.target)
    if answer.changes:
        made = tuple(_made(case, answer.network, truth, answer.changes))
        title = "Changes of the network"
        pictures.append(Difference(title=title, changes=made, prominent=True))
    nodes = sorted({*answer.changes.nodes, *case.target.nodes})
    edges = sorted({*answer.changes.edges, *case.target.edges})
    wrong = tuple(
        Change(
            element=_element(one),
            before=_text(one["answer"]),
            after=_text(one["truth"]),
            right=False,
        )
        for _, one in zip(
            range(MAX_NAMED), differences(answer.network, truth, nodes, edges), strict=False
        )
    )
    if wrong:
        title = "Differences from the required network"
        pictures.append(Difference(title=title, titles=("answer", "right answer"), changes=wrong))
    return tuple(pictures)


def _draw_plan(query: Query, answer: Answer, state: Mapping[str, Any]) -> Picture:
    """Return the objectives of the answer's plan and of the reference, and the first violated
    constraint."""
    judgement = judge(query, {key: value for key, value in state.items() if key != "trial"})
    hidden = query.actions[0].parameters
    detail = judgement.detail if isinstance(judgement.detail, dict) else {}
    safe = judgement.safe
    if hidden["blocking"] is not None:
        told = answer.data if answer.type == "text" else "a plan"
        first = Change(
            element="the request that makes the task impossible",
            before=_text(told),
            after=_text(hidden["blocking"]),
            right=judgement.correct,
        )
    else:
        first = Change(
            element="objective",
            before=_text(detail.get("objective")),
            after=_text(hidden["objective"]),
            right=judgement.correct,
        )
    changes = [first]
    if not safe:
        finding = judgement.findings[0]
        changes.append(
            Change(element=finding.element, before=finding.detail, after=None, right=False)
        )
    return Difference(title="The plan", titles=("answered", "reference"), changes=tuple(changes))


def _charts(query: Query, answer: Answer) -> Iterator[Chart]:
    """Yield the chart of the answered plan, and the chart of the reference plan if it exists."""
    hidden, data = query.actions[0].parameters, plan_data(query)
    if data is None:
        return
    plans = [("Answer", answer.data)]
    if hidden["blocking"] is None:
        plans.append(("Reference", hidden["plan"]))
    for word, plan in plans:
        try:
            chart = kind_of(data["label"]).chart(data, plan)
        except PlanError:
            continue  # the first picture states why the answer cannot be read
        yield chart.model_copy(update={"title": f"{word}: {chart.title.lower()}"})


def _made(case: Case, network: Network, truth: Network, changes: Changes) -> Iterator[Change]:
    for name in sorted(changes.nodes)[:MAX_NAMED]:
        yield Change(
            element=name,
            before=_text(case.initial.node(name)),
            after=_text(network.node(name)),
            right=equal(network.node(name), truth.node(name)),
        )
    for edge in sorted(changes.edges)[: MAX_NAMED - len(changes.nodes)]:
        yield Change(
            element=" → ".join(edge),
            before=_text(case.initial.edge(edge)),
            after=_text(network.edge(edge)),
            right=equal(network.edge(edge), truth.edge(edge)),
        )


def _element(difference: Mapping[str, Any]) -> str:
    return str(difference["node"]) if "node" in difference else " → ".join(difference["edge"])


def _text(value: JsonValue | Mapping[str, Any]) -> str | None:
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
