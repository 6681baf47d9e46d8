"""Judgement of an answer to a planning task: constraints, objective and quality.

A plan is safe if it satisfies every rule and every request, also in the states between waves. A
safe plan is correct if its objective is at most 1 % above the reference. The report that a task is
impossible is right only if it names the request that makes the task impossible. Any other report is
neither correct nor safe, because it would make a team withdraw a request without need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from netarena.sdk import Finding, JsonValue, Judgement
from netarena_malt.failure import (
    ANSWER_FORM,
    DECIDED_BY,
    FALSE_REPORT,
    OBJECTIVE,
    REQUEST,
    USABLE_ANSWER,
)
from netarena_malt.planning import catalogue
from netarena_malt.planning.plan import (
    TOLERANCE_PCT,
    PlanError,
    Verdict,
    is_proven,
    most_allowed,
    quality_of,
)

#: Keys of ``Judgement.detail``: the plan's objective, and its quality in [0, 1.5].
OBJECTIVE_KEY = "objective"
QUALITY = "quality"
#: Note on the judgement of a trial attempt, which does not count.
TRIAL = "trial"


def judge(
    data: Mapping[str, Any],
    hidden: Mapping[str, Any],
    answer: tuple[str, JsonValue],
    findings: Sequence[Finding],
    *,
    cut: bool,
) -> Judgement:
    """Return the judgement of an answer, which is given as its type and data.

    ``hidden`` are the parameters of the query's action. ``findings`` are the safety findings about
    the answer's network. ``cut`` is true if the data exceeds the limits.
    """
    kind, value = answer
    blocking = hidden["blocking"]
    if kind == "text":
        return _judge_report(value, blocking, findings)
    if cut or kind not in {"table", "list"}:
        reason = (
            "The data is longer than the limit."
            if cut
            else f"The task asks for a plan or the id of a request, not for type {kind}."
        )
        finding = Finding(rule=USABLE_ANSWER, element="data", detail=reason)
        return _wrong(reason, ANSWER_FORM, blocking, (*findings, finding))
    try:
        verdict = catalogue.kind_of(data["label"]).judge(data, value)
    except PlanError as error:
        finding = Finding(rule=USABLE_ANSWER, element="data", detail=str(error))
        return _wrong(str(error), ANSWER_FORM, blocking, (*findings, finding))
    return _judge_plan(verdict, hidden, findings)


def _judge_report(value: JsonValue, blocking: str | None, findings: Sequence[Finding]) -> Judgement:
    """Return the judgement of a report that the request with the id ``value`` makes the task
    impossible."""
    if blocking is None:
        reason = "The answer says that the task is impossible, but a plan exists."
        finding = Finding(rule=FALSE_REPORT, element="data", detail=reason)
        return _wrong(reason, FALSE_REPORT, blocking, (*findings, finding))
    if str(value).strip().strip("'\"`").upper() != blocking:
        reason = f"The task is impossible, but not because of {value!r:.40}."
        finding = Finding(rule=REQUEST, element="data", detail=reason)
        return _wrong(reason, REQUEST, blocking, (*findings, finding))
    return Judgement(correct=True, findings=tuple(findings))


def _judge_plan(
    verdict: Verdict, hidden: Mapping[str, Any], findings: Sequence[Finding]
) -> Judgement:
    found = verdict.violation
    detail: dict[str, JsonValue] = {OBJECTIVE_KEY: verdict.objective}
    possible = hidden["blocking"] is None
    safe = found is None and not findings
    reference, greedy = int(hidden["objective"]), int(hidden["greedy"])
    if possible:
        detail[QUALITY] = quality_of(verdict.objective, reference, greedy) if safe else 0.0
    if found is not None:
        finding = Finding(rule=found.rule, element=found.element, detail=found.detail)
        detail[DECIDED_BY] = found.rule
        return Judgement(
            correct=False,
            findings=(finding, *findings),
            reason=found.detail,
            detail=detail,
        )
    if verdict.objective > most_allowed(reference):
        detail[DECIDED_BY] = OBJECTIVE
        reason = (
            f"The plan satisfies all constraints, but its objective {verdict.objective} is more "
            f"than {TOLERANCE_PCT} % above that of the reference plan."
        )
        return Judgement(correct=False, findings=tuple(findings), reason=reason, detail=detail)
    return Judgement(correct=True, findings=tuple(findings), detail=detail)


def _wrong(reason: str, rule: str, blocking: str | None, findings: Sequence[Finding]) -> Judgement:
    """Return the judgement of an answer without a readable plan. The quality is 0 if a plan
    exists."""
    detail: dict[str, JsonValue] = {DECIDED_BY: rule}
    if blocking is None:
        detail[QUALITY] = 0.0
    return Judgement(correct=False, findings=tuple(findings), reason=reason, detail=detail)


def as_trial(judgement: Judgement, hidden: Mapping[str, Any]) -> Judgement:
    """Return the judgement of a trial attempt, derived from the judgement of its answer.

    The agent gets the reason of the returned judgement. This reason states the plan's objective and
    the violated constraint. It does not state whether the objective is good enough, or whether the
    report of an impossible task is right.
    """
    detail = judgement.detail if isinstance(judgement.detail, dict) else {}
    objective = detail.get(OBJECTIVE_KEY)
    if objective is None and (
        judgement.correct or detail.get(DECIDED_BY) in {FALSE_REPORT, REQUEST}
    ):
        told = "The answer was the id of a request. Whether it is right is not reported."
    elif objective is None:
        told = judgement.reason
    elif judgement.findings:
        told = f"The objective is {objective}. Violated: {judgement.findings[0].detail}"
    else:
        told = f"The objective is {objective}. The plan keeps all constraints."
    kept: dict[str, JsonValue] = {} if hidden["blocking"] is not None else {QUALITY: 0.0}
    return Judgement(correct=False, reason=told, detail=kept or None, noted=(TRIAL,))


def verify(data: Mapping[str, Any], hidden: Mapping[str, Any]) -> str:
    """Return in one sentence why a planning task is unsuitable, or "" if it is suitable.

    The reference plan must satisfy all constraints except a blocking request. Its objective must be
    as stated, and the bound must prove that the objective is nearly optimal.
    """
    blocking = hidden["blocking"]
    asked = data if blocking is None else catalogue.without(data, blocking)
    verdict = catalogue.kind_of(data["label"]).judge(asked, hidden["plan"])
    if verdict.violation is not None:
        return f"the reference plan violates a constraint: {verdict.violation.detail}"
    if verdict.objective != hidden["objective"]:
        return f"the reference plan's objective is {verdict.objective}, not {hidden['objective']}"
    if not is_proven(verdict.objective, hidden["bound"]):
        return f"the bound {hidden['bound']} does not prove the objective {verdict.objective}"
    if blocking is not None and not any(one["id"] == blocking for one in data["requests"]):
        return f"the blocking request {blocking} does not exist"
    return ""
