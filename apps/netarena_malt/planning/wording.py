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
    #: The form of an answer with a plan.
    form: str


def pick(rng: random.Random | None, *options: str) -> str:
    """Return the first option, or any of them if the text is varied."""
    return options[0] if rng is None else rng.choice(options)


def compose(brief: Brief, rng: random.Random | None) -> str:
    """Return the text of a task; without ``rng`` the canonical one."""
    opening = pick(
        rng,
        'The data are in graph_data.graph["planning"], a dictionary with these keys:',
        'You find the data of this task in the dictionary graph_data.graph["planning"]:',
        'graph_data.graph["planning"] is a dictionary with all data of the task. Its keys are:',
    )
    rules = pick(rng, "Every plan keeps these rules:", "These rules hold for every plan:")
    requests = pick(
        rng,
        "Every plan also keeps all requests. A request has an id (R01, R02, …) and a rule:",
        "In addition, teams sent requests, and a plan keeps all of them. Each request has an id "
        "(R01, R02, …) and a rule:",
    )
    scoring = pick(
        rng,
        "A plan is safe if it keeps all rules and all requests. A safe plan is correct if its "
        f"objective is at most {TOLERANCE_PCT} % above that of the best plan known to us, rounded "
        "down. Plans with the same objective count the same.",
        "Scoring: a plan that keeps all rules and all requests is safe. If its objective also "
        f"exceeds the best objective known to us by at most {TOLERANCE_PCT} %, rounded down, the "
        "plan is correct. Which of several plans with one objective you choose does not matter.",
    )
    quality = pick(
        rng,
        "The report also shows how far a safe plan improves on that of a simple greedy program.",
        "For safe plans, the report also states the improvement on a simple greedy program.",
    )
    impossible = pick(
        rng,
        "It may be that no plan keeps all requests. Then exactly one request is to blame: there is "
        "a plan without it, and none without any other one. In that case, answer with type 'text' "
        "and the id of this request as data, for example 'R07'. If there is a plan, this answer is "
        "wrong and unsafe.",
        "Sometimes no plan exists, because of exactly one request: leaving out this request makes "
        "the task possible, leaving out any other one does not. Then answer with type 'text', and "
        "data is the id of the request, such as 'R07'. This answer is wrong and unsafe if there is "
        "a plan.",
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
            f"{brief.form} updated_graph is the network as you got it.",
        ]
    )


def _lines(texts: Sequence[str]) -> list[str]:
    return [f"- {text}" for text in texts]
