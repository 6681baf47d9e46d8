"""Evidence: all data of one query that an agent can read without sending a probe.

``netarena audit APP --traces`` tests whether a program can find a fault without diagnosis. For each
query, an application returns one ``Evidence``. It lists the candidates (the objects that may have
the fault) and, for each candidate, numeric features that an agent can read. Machine-learning models
(learners) are then trained to distinguish the targets (the objects with the fault) from the other
candidates.

=======  =============================================================================
kind     meaning
=======  =============================================================================
trace    data without influence on traffic or the answer: times, order, handles,
         counters, metadata, unused files, time until the next prompt
form     a property that the configuration determines, such as the number of rules of a
         policy; only the documentation shows whether it is correct
symptom  data that influences traffic: never evidence, because reading it is the task
=======  =============================================================================

Names of features are stable: one name means the same measurement in every candidate and query. A
feature that a candidate does not have is left out of its mapping; learners treat it as missing. A
feature whose name starts with ``rule.`` is also a hand-written rule. Its value is a score, and a
larger value is more suspicious. The audit also ranks candidates with each rule, without training.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median

from pydantic import Field

from netarena.model import Record

#: Prefix of the names of features that are hand-written rules.
RULE = "rule."


class Kind(StrEnum):
    """Kind of a feature: a trace or a form."""

    TRACE = "trace"
    FORM = "form"


class Candidate(Record):
    """An object that may have the fault, such as a machine or a policy.

    ``target`` is the ground truth: whether the agent must find this candidate. Only candidates of
    the same ``role`` are compared with each other, because differences between roles are not leaks.
    For example, border routers have more sessions than hosts, and more faults. A candidate without
    features of a kind is left out of the audit of that kind.
    """

    name: str
    target: bool
    role: str = ""
    trace: dict[str, float] = Field(default_factory=dict)
    form: dict[str, float] = Field(default_factory=dict)

    def features(self, kind: Kind) -> Mapping[str, float]:
        """Return the features of one kind."""
        return self.trace if kind is Kind.TRACE else self.form


class Evidence(Record):
    """Candidates and features of one query.

    ``wrong`` is the ground truth of whether the query has any fault: false in a false alarm, null
    in applications without false alarms. ``trace`` and ``form`` contain features of the query as a
    whole, such as times between prompts.
    """

    id: str
    label: str
    wrong: bool | None = None
    candidates: tuple[Candidate, ...]
    trace: dict[str, float] = Field(default_factory=dict)
    form: dict[str, float] = Field(default_factory=dict)

    def features(self, kind: Kind) -> Mapping[str, float]:
        """Return the query's own features of one kind."""
        return self.trace if kind is Kind.TRACE else self.form


def relative(features: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the features, each with its rank and its distance from the median as new features.

    ``features`` maps candidates of one role to their features. For each feature ``f``, ``f~rank``
    is the mid-rank among the candidates in [0, 1]. ``f~off`` is the signed distance d from the
    median as sign(d)·log(1 + |d|). Neither is added if ``f`` is equal in all candidates.

    >>> relative({"a": {"mtime": 1.0}, "b": {"mtime": 1.0}, "c": {"mtime": 5.0}})["c"]
    {'mtime': 5.0, 'mtime~rank': 1.0, 'mtime~off': 1.6094379124341003}
    """
    found = {name: dict(own) for name, own in features.items()}
    for feature in sorted({key for own in features.values() for key in own}):
        having = {name: own[feature] for name, own in features.items() if feature in own}
        values = sorted(having.values())
        if values[0] == values[-1]:
            continue
        middle = median(values)
        for name, value in having.items():
            distance = value - middle
            found[name][f"{feature}~rank"] = _rank(values, value)
            found[name][f"{feature}~off"] = math.copysign(math.log1p(abs(distance)), distance)
    return found


def _rank(values: Sequence[float], value: float) -> float:
    """Return the mid-rank of ``value`` among sorted ``values``, in [0, 1]."""
    below = bisect_left(values, value)
    equal = bisect_right(values, value) - below
    return (below + (equal - 1) / 2) / max(1, len(values) - 1)
