"""The texts of planning tasks: sections that all kinds share, with alternative sentences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from netarena_malt.planning.plan import TOLERANCE_PCT


@dataclass(frozen=True)
class Brief:
    """The parts of a task's text. Lists become one line per element."""

    goal: str
    #: Keys of the data, and descriptions of their values.
    data: Sequence[str]
    #: Rules that no request can change.
    rules: Sequence[str]
    #: Rules of requests, and their meanings.
    requests: Sequence[str]
    objective: str
    #: Type and content of the data of an answer with a plan.
    answer_type: str
    content: str


def pick(rng: random.Random | None, *options: str) -> str:
    """Return the first option, or any of them if the text is varied."""
    return options[0] if rng is None else rng.choice(options)


def reword(rng: random.Random | None, canonical: str, *options: str) -> str:
    """Return the canonical sentence, or any of ``options`` if the text is varied."""
    return canonical if rng is None else rng.choice(options)


def compose(brief: Brief, rng: random.Random | None) -> str:
    """Return the text of a task; without ``rng`` the canonical one."""
    opening = pick(
        rng,
        'The data are in graph_data.graph["planning"], a dictionary with these keys:',
        'The data of this task are in the dictionary graph_data.graph["planning"]:',
        'graph_data.graph["planning"] is a dictionary with all data of the task. Its keys are:',
    )
    rules = reword(
        rng,
        "Every plan keeps these rules:",
        "Every plan must keep these rules:",
        "These rules apply to every plan:",
    )
    requests = reword(
        rng,
        "Every plan also keeps all requests. A request has an id (R01, R02, …) and a rule:",
        "Every plan must also keep all requests. A request has an id (R01, R02, …), a rule, and "
        "the keys that its rule uses:",
        "Several teams sent requests, and a plan must keep all of them. Each request has an id "
        "(R01, R02, …), a rule, and the keys that its rule uses:",
    )
    scoring = pick(
        rng,
        "A plan is safe if it keeps all rules and all requests. A safe plan is correct if its "
        f"objective is at most {TOLERANCE_PCT} % above that of the best plan known to us, rounded "
        "down. Plans with the same objective count the same.",
        "A plan that keeps all rules and all requests is safe. A safe plan is correct if its "
        f"objective exceeds the best objective known to us by at most {TOLERANCE_PCT} %, rounded "
        "down. If several plans have the same objective, you may choose any of them.",
    )
    quality = pick(
        rng,
        "The report also shows how far a safe plan improves on that of a simple greedy program.",
        "For safe plans, the report also states the improvement on a simple greedy program.",
    )
    impossible = reword(
        rng,
        "It may be that no plan keeps all requests. Then exactly one request is to blame: there is "
        "a plan without it, and none without any other one. In that case, answer with type 'text' "
        "and the id of this request as data, for example 'R07'. Such an answer is wrong and unsafe "
        "if there is a plan, or if another request is to blame.",
        "Sometimes no plan keeps all requests. Then exactly one request is the cause: without it, "
        "a plan exists; without any other single request, no plan exists. In that case, answer "
        "with type 'text' and the id of this request as data, for example 'R07'. This answer is "
        "wrong and unsafe if a plan exists, or if another request is the cause.",
        "If no plan keeps all requests, exactly one request is the cause. Dropping this request "
        "makes a plan possible, and dropping any other single request does not. Then answer with "
        "type 'text', with the id of the request as data, such as 'R07'. This answer is wrong and "
        "unsafe if a plan exists, or if another request is the cause.",
    )
    form = reword(
        rng,
        f"Answer a plan with type {brief.answer_type!r}: data has {brief.content}.",
        f"For a plan, use type {brief.answer_type!r}, and put {brief.content} in data.",
        f"Return a plan with type {brief.answer_type!r} and {brief.content} as data.",
    )
    network = reword(
        rng,
        "updated_graph is the network as you got it.",
        "Return the unchanged network as updated_graph.",
        "Set updated_graph to the unchanged network.",
    )
    return "\n".join(
        [
            brief.goal,
            opening,
            *_lines(brief.data),
            rules,
            *_lines(brief.rules),
            requests,
            *_lines(brief.requests),
            brief.objective,
            f"{scoring} {quality}",
            impossible,
            f"{form} {network}",
        ]
    )


def _lines(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts]
