"""Guessing must rarely succeed: for each label, the most frequent correct answer must be rare."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from netarena_malt.base_network import released_base
from netarena_malt.edit import apply_edits
from netarena_malt.overlay import overlay
from netarena_malt.query import LABELS, PROGRAMS, _draw, execute

#: whether edits are spread over the network -> number of queries
QUERIES = {False: 120, True: 40}
#: maximum share of a label's queries with the same correct answer
MOST = 0.1
#: last operations of a program whose answer is a value
ANSWERED = frozenset({"count", "list", "rank"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "spread_out"),
    [
        (label, spread_out)
        for label in LABELS
        for spread_out in QUERIES
        # edits that are spread over the network never repeat
        if not spread_out or PROGRAMS[label][1][-1] in ANSWERED
    ],
)
def test_constant_answer_is_rarely_correct(label: str, spread_out: bool) -> None:
    answers: Counter[str] = Counter()
    _, operations = PROGRAMS[label]
    for number in range(QUERIES[spread_out]):
        rng = random.Random(f"guess-{number}")
        drawn = _draw(operations, rng, released_base(), spread_out=spread_out)
        assert drawn is not None
        edits, actions = drawn[0].edits(), drawn[1]
        if operations[-1] not in ANSWERED:
            # two queries have the same correct graph only if they apply the same changes to the
            # same network; the unchanged input is never correct (tests/unit/malt/test_query.py)
            answers[json.dumps([edits, [action.model_dump() for action in actions]])] += 1
            continue
        graph = overlay(released_base().graph)
        apply_edits(graph, edits)
        answers[json.dumps(execute(graph, actions).data)] += 1
    assert sum(answers.values()) == QUERIES[spread_out]
    answer, times = answers.most_common(1)[0]
    assert times <= MOST * QUERIES[spread_out], answer
