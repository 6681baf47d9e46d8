"""Texts of planning tasks, with alternative sentences: the sections that all kinds of tasks
share."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from netarena_malt.planning.plan import TOLERANCE_PCT


@dataclass(frozen=True)
class Brief:
    """The parts of a task's text. Each element of a list becomes one line."""

    goal: str
    #: Keys of the data, each with a colon and the description of the key's value.
    data: Sequence[str]
    #: Rules that apply to every plan, independently of the requests.
    rules: Sequence[str]
    #: Rules of requests, each with a colon and its meaning. Keys of the request are in backquotes.
    requests: Sequence[str]
    objective: str
    #: Type and content of the data of an answer with a plan.
    answer_type: str
    content: str


def pick(rng: random.Random | None, *options: str) -> str:
    """Return the first option (without ``rng``), or a random one for a text with varied words."""
    return options[0] if rng is None else rng.choice(options)


def reword(rng: random.Random | None, canonical: str, *options: str) -> str:
    """Return the canonical sentence (without ``rng``), or a random one of ``options`` for a text
    with varied words."""
    return canonical if rng is None else rng.choice(options)


def compose(brief: Brief, rng: random.Random | None) -> str:
    """Return the text of a task. Without ``rng``, it is the canonical text."""
    opening = pick(
        rng,
        'The data are in graph_data.graph["planning"], a dictionary with these keys:',
        'The data of this task are in the dictionary graph_data.graph["planning"]:',
        'graph_data.graph["planning"] is a dictionary with all data of the task. Its keys are:',
    )
    rules = reword(
        rng,
        "Every plan follows these rules:",
        "Every plan must follow these rules:",
        "These rules apply to every plan:",
    )
    requests = reword(
        rng,
        "Every plan also meets all requests. A request is an object with `id` (R01, R02, …), "
        "`rule`, and the keys that its rule uses:",
        "Every plan must also meet all requests. A request is an object with `id` (R01, R02, …), "
        "`rule`, and the keys that its rule uses:",
        "Several teams sent requests, and a plan must meet all of them. Each request is an object "
        "with `id` (R01, R02, …), `rule`, and the keys that its rule uses:",
    )
    most = f"floor({1 + TOLERANCE_PCT / 100:g} × B)"
    scoring = pick(
        rng,
        "A plan is safe if it follows all rules and meets all requests. Let B be the objective of "
        "the best plan known to us. A safe plan is correct if its objective is at most "
        f"{most}. If several plans have the same objective, you may choose any of them.",
        "A plan that follows all rules and meets all requests is safe. A safe plan is correct if "
        f"its objective is at most {most}, where B is the objective of the best plan known to us. "
        "Among plans with the same objective, you may choose any.",
    )
    quality = pick(
        rng,
        "For safe plans, the report also states the improvement over a simple greedy program.",
        "The report also compares a safe plan with the plan of a simple greedy program.",
    )
    impossible = reword(
        rng,
        "If no plan meets all requests, exactly one request is the cause: without it, a plan "
        "exists; without any other single request, no plan exists. In that case, answer with type "
        "'text' and the id of this request as data, for example 'R07'. Such an answer is wrong and "
        "unsafe if a plan exists, or if another request is the cause.",
        "Sometimes no plan meets all requests. Then exactly one request is the cause: without it, "
        "a plan exists; without any other single request, no plan exists. In that case, answer "
        "with type 'text' and the id of this request as data, for example 'R07'. This answer is "
        "wrong and unsafe if a plan exists, or if another request is the cause.",
        "If no plan meets all requests, exactly one request is the cause. Dropping this request "
        "makes a plan possible, and dropping any other single request does not. If no plan exists, "
        "answer with type 'text' and the id of this request as data, such as 'R07'. This answer is "
        "wrong and unsafe if a plan exists, or if another request is the cause.",
    )
    form = reword(
        rng,
        f"If a plan exists, answer with type {brief.answer_type!r}, and set data to "
        f"{brief.content}.",
        f"For a plan, answer with type {brief.answer_type!r}. Set data to {brief.content}.",
        f"For a plan, use type {brief.answer_type!r}, and set data to {brief.content}.",
    )
    network = reword(
        rng,
        "Set updated_graph to the network as you got it.",
        "Return the unchanged network as updated_graph.",
        "Set updated_graph to the unchanged network.",
    )
    return "\n".join(
        [
            brief.goal,
            opening,
            *_lines(map(_with_quoted_key, brief.data)),
            rules,
            *_lines(brief.rules),
            requests,
            *_lines(map(_with_quoted_key, brief.requests)),
            brief.objective,
            f"{scoring} {quality}",
            impossible,
            f"{form} {network}",
        ]
    )


def _lines(texts: Iterable[str]) -> list[str]:
    return [f"- {text}" for text in texts]


def _with_quoted_key(text: str) -> str:
    """Return ``text`` with the key at its start (before the colon) in backquotes."""
    key, colon, rest = text.partition(":")
    return f"`{key}`{colon}{rest}"
